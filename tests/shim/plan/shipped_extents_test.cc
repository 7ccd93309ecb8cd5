// What the loader knows of the ready folders: how large everything is that a launch writes, for shadow checks, and what
// the plans of launches depend on, for the fast side.
#include <algorithm>
#include <filesystem>
#include <map>
#include <regex>
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

// The labels that `find(snapshot)` returns of a ready folder.
template <class Find>
Names labels_of(const std::string& folder, const Find& find) {
  const LoaderApi& loader = *fibloader_api(kLoaderApiVersion);
  char message[2048];
  const Snapshot* const snapshot =
      loader.open((config_root() / folder).c_str(), {}, message, sizeof message);
  EXPECT_NE(snapshot, nullptr) << message;
  if (snapshot == nullptr) return {};
  const Names labels = find(snapshot);
  loader.close(snapshot);
  return labels;
}

// Patterns of which it is not known how large something is that is written.
Names patterns_not_checked(const Snapshot* snapshot) {
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
  return labels;
}

// Patterns whose launches are planned anew each time.
Names patterns_not_remembered(const Snapshot* snapshot) {
  Names labels;
  for (uint32_t i = 0; i < snapshot->patterns.count; ++i) {
    const Pattern& pattern = snapshot->begin(snapshot->patterns)[i];
    const bool is_for_launches = pattern.kind == PatternKind::launch;
    if (is_for_launches && pattern.has_all_inputs == 0)
      labels.insert(snapshot->text(pattern.label));
  }
  return labels;
}

// Of patterns that differ in the rows that they are for, what they have in common.
Names without_rows(const Names& labels) {
  Names kinds;
  for (const std::string& label : labels) {
    kinds.insert(std::regex_replace(label, std::regex("-r[0-9]+.*"), ""));
  }
  return kinds;
}

// Patterns whose launches shadow checks cannot check.
const std::map<std::string, Names>& known_gaps() {
  static const std::map<std::string, Names> gaps = {
      {"cublas", {}},
      {"demo", {}},
      // Partial results: what is written of them, a plan on the device says.
      {"flash_attention",
       {"flash-attention-3-decode-d128", "flash-attention-3-decode-d128-fp16",
        "flash-attention-3-decode-d64", "flash-attention-3-decode-d64-fp16",
        "flash-attention-3-decode-sink-d64", "flash-attention-3-decode-sorted-0.4.2-d128",
        "flash-attention-3-decode-sorted-0.4.2-d128-fp16",
        "flash-attention-3-decode-sorted-0.4.2-d64",
        "flash-attention-3-decode-sorted-0.4.2-d64-fp16", "flash-attention-3-decode-sorted-d128",
        "flash-attention-3-decode-sorted-d128-fp16", "flash-attention-3-decode-sorted-d64",
        "flash-attention-3-decode-sorted-d64-fp16", "flash-attention-3-decode-window-d128",
        "flash-attention-3-decode-window-sink-d64", "flashinfer-decode-d128",
        "flashinfer-decode-d128-fp16", "flashinfer-decode-d64", "flashinfer-decode-d64-fp16"}},
      // Tokens are drawn at random: shadow checks compare none.
      {"flashinfer",
       {"flashinfer-min-p-sampling", "flashinfer-min-p-sampling-0.6",
        "flashinfer-min-p-sampling-one-limit", "flashinfer-min-p-sampling-one-limit-0.6",
        "flashinfer-sampling-from-probs", "flashinfer-sampling-from-probs-0.6",
        "flashinfer-top-k-sampling", "flashinfer-top-k-sampling-0.6",
        "flashinfer-top-k-sampling-one-limit", "flashinfer-top-k-sampling-one-limit-0.6",
        "flashinfer-top-k-top-p-sampling", "flashinfer-top-k-top-p-sampling-0.6",
        "flashinfer-top-k-top-p-sampling-one-limit",
        "flashinfer-top-k-top-p-sampling-one-limit-0.6", "flashinfer-top-p-sampling",
        "flashinfer-top-p-sampling-0.6", "flashinfer-top-p-sampling-one-limit",
        "flashinfer-top-p-sampling-one-limit-0.6"}},
      {"machete", {}},
      {"pytorch", {}},
      // KV caches: no `where` states how far apart their slots are, or how many there are. And sampling.
      {"sglang",
       {"sglang-fused-rope-store-d128", "sglang-fused-rope-store-d64", "sglang-min-p-sampling",
        "sglang-qk-norm-fused-rope-store", "sglang-qk-norm-rope-store-kv1",
        "sglang-qk-norm-rope-store-kv2", "sglang-qk-norm-rope-store-kv4",
        "sglang-qk-norm-rope-store-kv8", "sglang-rope-store-d64-kv2", "sglang-rope-store-d64-kv4",
        "sglang-rope-store-d64-kv8", "sglang-rope-store-kv1", "sglang-rope-store-kv2",
        "sglang-rope-store-kv4", "sglang-rope-store-kv8", "sglang-sampling-from-probs",
        "sglang-top-k-sampling", "sglang-top-k-top-p-sampling", "sglang-top-p-sampling"}},
      // KV caches: no launch says how many pages they have.
      {"vllm",
       {"vllm-inductor-qk-norm-rope-append", "vllm-inductor-qk-norm-rope-apart-append",
        "vllm-inductor-qk-norm-rope-both-append", "vllm-inductor-qk-norm-rope-whole-append",
        "vllm-inductor-rope-append", "vllm-inductor-rope-both-append",
        "vllm-inductor-bias-rope-append", "vllm-qk-norm-rope-append",
        "vllm-reshape-and-cache-flash-bf16", "vllm-reshape-and-cache-flash-fp16",
        "vllm-reshape-and-cache-flash-unscaled-bf16",
        "vllm-reshape-and-cache-flash-unscaled-fp16"}},
  };
  return gaps;
}

TEST(ShippedExtents, AreKnownOfWhatIsWritten) {
  for (const auto& [folder, gaps] : known_gaps()) {
    EXPECT_EQ(without_rows(labels_of(folder, patterns_not_checked)), gaps) << folder;
  }
}

TEST(ShippedInputs, AreKnownOfAllButSoftmax) {
  const Names softmax = {"torch-softmax-bf16", "torch-softmax-fp16", "torch-softmax-fp32"};
  for (const auto& [folder, gaps] : known_gaps()) {
    EXPECT_EQ(labels_of(folder, patterns_not_remembered), folder == "pytorch" ? softmax : Names{})
        << folder;
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
