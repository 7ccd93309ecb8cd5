#include "tools/judge/original_run.h"

#include <stdio.h>

#include <algorithm>

#include <fmt/format.h>

#include "tools/record/kept_image.h"

namespace fibshim::judge {
namespace {

// True if an element is still as DeviceBuffers::prepare() filled it. Always false for types in
// which a result can look like that.
bool has_poison(const Tensor& tensor) {
  const size_t bytes = tensor.type->bytes;
  if (!tensor.type->is_floating || bytes < 2) return false;
  for (size_t at = 0; at < tensor.bytes.size(); at += bytes) {
    const auto begin = tensor.bytes.begin() + static_cast<ptrdiff_t>(at);
    if (std::all_of(begin, begin + static_cast<ptrdiff_t>(bytes),
                    [](uint8_t byte) { return byte == DeviceBuffers::kPoison; })) {
      return true;
    }
  }
  return false;
}

}  // namespace

Result<CUfunction> Originals::load(Gpu* gpu, const tools::KernelRecord& kernel) {
  CUfunction& function = loaded_[kernel.image + "\n" + kernel.symbol];
  if (function != nullptr) return function;
  const std::string image = FIBSHIM_TRY(tools::read_kept_image(recording_, kernel));
  auto loaded = gpu->load_kernel(image, kernel.symbol, true);
  if (loaded) return function = *loaded;
  if (loaded.error().code != ErrorCode::no_binary_for_gpu) return loaded;
  return fail(
      ErrorCode::no_binary_for_gpu,
      fmt::format("its image is for another GPU than this one, of sm_{}: record on such a one",
                  gpu->info().sm));
}

Result<OriginalAnswer> Originals::ask(Gpu* gpu, const OriginalCase& original, const Launch& launch,
                                      const CaseData& data, const std::vector<BufferSpec>& specs,
                                      DeviceBuffers* buffers) {
  OriginalAnswer answer;
  const auto says_nothing = [&](const std::string& why) {
    answer.why =
        fmt::format("the original, {}, launched with {}: {}", original.launch.kernel->symbol,
                    geometry_words(original.launch.geometry), why);
    return std::move(answer);
  };
  const auto function = load(gpu, *original.launch.kernel);
  if (!function) return says_nothing(function.error().message);
  answer.kernel = *function;
  FIBSHIM_TRY(buffers->prepare(data));
  fputs(kOriginalRuns, stderr);
  auto ran = gpu->launch(*function, launch);
  if (ran) ran = gpu->synchronize();
  fputs("(it has run)\n", stderr);
  if (!ran) {
    answer.is_gpu_lost = true;
    return says_nothing(ran.error().message);
  }
  const std::string overrun = FIBSHIM_TRY(buffers->find_overrun());
  if (!overrun.empty()) return says_nothing(overrun);
  const std::string changed = FIBSHIM_TRY(buffers->find_changed_input(data));
  if (!changed.empty()) return says_nothing(changed);
  for (const BufferSpec& spec : specs) {
    if (!spec.is_output) continue;
    Tensor told = FIBSHIM_TRY(buffers->read(spec.name));
    if (!spec.shares.empty() && !original.is_certain) {
      return says_nothing(
          "it works in place, and the recording does not tell which values went with which "
          "geometry");
    }
    if (spec.shares.empty() && has_poison(told)) {
      answer.is_no_launch = true;
      return says_nothing("part of \"" + spec.name + "\" stays unwritten: no launch that was made");
    }
    answer.outputs[spec.name] = std::move(told);
  }
  return answer;
}

}  // namespace fibshim::judge
