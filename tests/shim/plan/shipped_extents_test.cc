// What shadow checks know of the folders for vLLM: how large everything is that a launch writes, but for KV caches and
// the parts that attention leaves to be merged.
#include <filesystem>
#include <set>
#include <string>

#include <gtest/gtest.h>

#include "shim/plan/plan.h"

namespace fibshim {
namespace {

using Names = std::set<std::string>;

// "pattern: what it writes", where it is not known how large that is.
Names unknown_extents(const std::string& folder) {
  const auto build = std::filesystem::read_symlink("/proc/self/exe").parent_path().parent_path();
  const LoaderApi& loader = *fibloader_api(kLoaderApiVersion);
  char message[2048];
  const Snapshot* const snapshot =
      loader.open((build / "config" / folder).c_str(), {}, message, sizeof message);
  EXPECT_NE(snapshot, nullptr) << message;
  if (snapshot == nullptr) return {};
  Names names;
  const Binding* const bindings = snapshot->begin(snapshot->bindings);
  for (uint32_t i = 0; i < snapshot->bindings.count; ++i) {
    const Pattern& pattern = snapshot->begin(snapshot->patterns)[bindings[i].pattern];
    const TensorUse* const tensors = snapshot->begin(bindings[i].tensors);
    for (uint32_t k = 0; k < bindings[i].tensors.count; ++k) {
      if (tensors[k].is_written == 0 || tensors[k].has_extent != 0) continue;
      names.insert(std::string(snapshot->text(pattern.label)) + ": " +
                   snapshot->text(tensors[k].name));
    }
  }
  loader.close(snapshot);
  return names;
}

TEST(ShippedExtents, AreKnownOfWhatIsWritten) {
  EXPECT_EQ(unknown_extents("cublas"), Names{});
  EXPECT_EQ(unknown_extents("flash_attention"),
            (Names{"flash-attention-3-decode-d128: partial_lse",
                   "flash-attention-3-decode-d128: partial_output",
                   "flash-attention-3-decode-d64: partial_lse",
                   "flash-attention-3-decode-d64: partial_output", "flashinfer-decode-d128: lse",
                   "flashinfer-decode-d128: output", "flashinfer-decode-d64: lse",
                   "flashinfer-decode-d64: output"}));
  for (const std::string& name : unknown_extents("vllm")) {
    const bool has_caches = name.find("reshape-and-cache") != std::string::npos ||
                            name.find("rope-append") != std::string::npos;
    EXPECT_TRUE(has_caches) << name;
  }
}

}  // namespace
}  // namespace fibshim
