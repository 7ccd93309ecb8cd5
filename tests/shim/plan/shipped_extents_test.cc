// What shadow checks know of the ready folders: how large everything is that a launch writes, but for what no launch says.
#include <algorithm>
#include <filesystem>
#include <map>
#include <set>
#include <string>

#include <gtest/gtest.h>

#include "shim/plan/plan.h"

namespace fibshim {
namespace {

using Names = std::set<std::string>;

std::filesystem::path config_root() {
  return std::filesystem::read_symlink("/proc/self/exe").parent_path().parent_path() / "config";
}

// Labels of patterns of which it is not known how large something is that is written.
Names patterns_not_checked(const std::string& folder) {
  const LoaderApi& loader = *fibloader_api(kLoaderApiVersion);
  char message[2048];
  const Snapshot* const snapshot =
      loader.open((config_root() / folder).c_str(), {}, message, sizeof message);
  EXPECT_NE(snapshot, nullptr) << message;
  if (snapshot == nullptr) return {};
  Names labels;
  const Binding* const bindings = snapshot->begin(snapshot->bindings);
  for (uint32_t i = 0; i < snapshot->bindings.count; ++i) {
    const Pattern& pattern = snapshot->begin(snapshot->patterns)[bindings[i].pattern];
    const TensorUse* const tensors = snapshot->begin(bindings[i].tensors);
    const auto is_known = [](const TensorUse& tensor) {
      return tensor.is_written == 0 || tensor.has_extent != 0;
    };
    const bool is_checked = bindings[i].tensors.count != 0 &&
                            std::all_of(tensors, tensors + bindings[i].tensors.count, is_known);
    if (!is_checked) labels.insert(snapshot->text(pattern.label));
  }
  loader.close(snapshot);
  return labels;
}

// Patterns whose launches shadow checks cannot check.
const std::map<std::string, Names>& known_gaps() {
  static const std::map<std::string, Names> gaps = {
      {"cublas", {}},
      {"demo", {}},
      // Partial results: what is written of them, a plan on the device says.
      {"flash_attention",
       {"flash-attention-3-decode-d128", "flash-attention-3-decode-d64", "flashinfer-decode-d128",
        "flashinfer-decode-d64"}},
      // Tokens are drawn at random: shadow checks compare none.
      {"flashinfer",
       {"flashinfer-min-p-sampling", "flashinfer-min-p-sampling-0.6",
        "flashinfer-sampling-from-probs", "flashinfer-sampling-from-probs-0.6",
        "flashinfer-top-k-sampling", "flashinfer-top-k-sampling-0.6",
        "flashinfer-top-k-top-p-sampling", "flashinfer-top-k-top-p-sampling-0.6",
        "flashinfer-top-p-sampling", "flashinfer-top-p-sampling-0.6"}},
      {"pytorch", {}},
      // KV caches: no `where` states how far apart their slots are.
      {"sglang",
       {"sglang-qk-norm-rope-store-kv2", "sglang-qk-norm-rope-store-kv4",
        "sglang-qk-norm-rope-store-kv8", "sglang-rope-store-kv4", "sglang-rope-store-kv8"}},
      // KV caches: no launch says how many pages they have.
      {"vllm",
       {"vllm-inductor-rope-append-r10240", "vllm-inductor-rope-append-r10240-key-first",
        "vllm-inductor-rope-append-r5120", "vllm-inductor-rope-append-r5120-key-first",
        "vllm-inductor-rope-append-r6144", "vllm-inductor-rope-append-r6144-key-first",
        "vllm-inductor-rope-append-r7168", "vllm-inductor-rope-append-r7168-key-first",
        "vllm-inductor-rope-both-append-r5120", "vllm-inductor-rope-both-append-r6144",
        "vllm-inductor-rope-both-append-r7168", "vllm-qk-norm-rope-append",
        "vllm-reshape-and-cache-flash-bf16", "vllm-reshape-and-cache-flash-fp16",
        "vllm-reshape-and-cache-flash-unscaled-bf16",
        "vllm-reshape-and-cache-flash-unscaled-fp16"}},
  };
  return gaps;
}

TEST(ShippedExtents, AreKnownOfWhatIsWritten) {
  for (const auto& [folder, gaps] : known_gaps()) {
    EXPECT_EQ(patterns_not_checked(folder), gaps) << folder;
  }
}

TEST(ShippedExtents, OfEachReadyFolder) {
  Names folders;
  for (const auto& entry : std::filesystem::directory_iterator(config_root())) {
    if (entry.is_directory()) folders.insert(entry.path().filename());
  }
  for (const auto& [folder, gaps] : known_gaps()) folders.erase(folder);
  EXPECT_EQ(folders, Names{});
}

}  // namespace
}  // namespace fibshim
