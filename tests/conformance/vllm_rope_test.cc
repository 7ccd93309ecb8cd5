// The rewrites of vLLM's RoPE and KV write in its default mode (config/vllm). The host cannot have the images that
// torch.compile made, by whose code the patterns know its kernels: they get the host's images in their place.

#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "tests/conformance/conform_run.h"
#include "tests/support/text.h"

namespace fibshim::conformance {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

json read_json(const std::string& path) { return json::parse(std::ifstream(path)); }

// What "image" holds for an image of the host's.
json image_list(const std::string& image) {
  const ProcessResult result =
      run_process({build_dir() + "/bin/fibshim", "inspect", "--json", conform_path(image)});
  return json::array({json::parse(result.out)["files"][0]["image"]});
}

constexpr char kFirst[] = "engines.fatbin";
constexpr char kSecond[] = "engines_other.fatbin";

// Where a pattern has a kernel of the host's: its label's end, its kernel's place, and the host's image.
struct Known {
  std::string label;
  size_t kernel;
  const char* image;
};
using Kernels = std::vector<Known>;

const Kernels kOf128 = {{"rope-r6144-o0-n32", 0, kFirst},
                        {"rope-r6144-o4096-n8", 0, kSecond},
                        {"rope-both-append-r6144", 0, kFirst}};
const Kernels kOf64 = {{"rope-r3072-o0-n32-d64", 0, kFirst},
                       {"rope-r3072-o2048-n8-d64", 0, kSecond},
                       {"rope-both-append-r3072-d64", 0, kFirst}};
const Kernels kNormed = {{"qk-norm-rope-append-r6144", 0, kFirst},
                         {"qk-norm-rope-append-r6144", 1, kFirst},
                         {"qk-norm-rope-both-append-r6144", 0, kFirst},
                         {"qk-norm-rope-whole-append-r6144", 0, kFirst},
                         {"qk-norm-rope-whole-append-r6144", 1, kSecond},
                         {"qk-norm-rope-apart-append-r10240", 0, kFirst},
                         {"qk-norm-rope-apart-append-r10240", 1, kFirst},
                         {"qk-norm-rope-apart-append-r10240", 2, kSecond}};

const Kernels kBiased = {{"bias-rope-append-r10240", 0, kFirst},
                         {"bias-rope-append-r10240", 1, kFirst},
                         {"bias-rope-append-r10240", 2, kFirst}};

const Kernels kOfGemma = {{"qk-norm-rope-whole-append-r8192-gemma-d256", 0, kFirst},
                          {"qk-norm-rope-whole-append-r8192-gemma-d256", 1, kSecond}};

// config/vllm, whose patterns know the host's kernels as torch.compile's.
std::string config_for_host(const Kernels& kernels) {
  const std::string folder = make_temporary_dir() + "/vllm";
  // With its hard links: an image that many solutions have is one file, which is read once.
  EXPECT_EQ(run_process({"cp", "-a", build_dir() + "/config/vllm", folder}, {}).exit_code, 0);
  std::map<std::string, std::string> images;
  for (const auto& [label, kernel, image] : kernels) {
    const json match = read_json(folder + "/patterns/vllm-inductor-" + label + ".json")["match"];
    images[(match.is_array() ? match[kernel] : match)["image"].dump()] = image_list(image).dump();
  }
  EXPECT_EQ(kernels.size(), images.size()) << "two kernels of the host's for the same codes";
  // As text, which the folder has as dump() writes it: to read all patterns would take longer than the launches.
  std::set<std::string> exchanged;
  for (const auto& file : fs::directory_iterator(folder + "/patterns")) {
    std::stringstream in;
    in << std::ifstream(file.path()).rdbuf();
    std::string text = in.str();
    for (const auto& [theirs, ours] : images) {
      for (size_t at = 0; (at = text.find(theirs, at)) != std::string::npos; at += ours.size()) {
        text.replace(at, theirs.size(), ours);
        exchanged.insert(theirs);
      }
    }
    if (text != in.str()) std::ofstream(file.path(), std::ios::trunc) << text;
  }
  EXPECT_EQ(exchanged.size(), images.size());
  return folder;
}

void expect_holds(const char* name, const Kernels& kernels = kOf128) {
  if (is_real_driver())
    GTEST_SKIP() << "it asks the simulated driver how a launch or a call looked";
  const HostRun run({"conform", name},
                    {{"FIBSHIM_CONFIG", config_for_host(kernels)}, {"SIMCUDA_LOG", ""}});
  run.expect_holds(0);
  run.expect_all_executed();
}

TEST(RewriteOfVllmRope, RunsAsOne) { expect_holds("rewrite_of_vllm_rope"); }

TEST(PagedCacheOfVllm, MayHaveKeyAndValueOfAHeadTogether) { expect_holds("paired_cache_of_vllm"); }

TEST(RewriteOfVllmRope, OfBothRunsAsOne) { expect_holds("rewrite_of_vllm_rope_both"); }

TEST(RewriteOfVllmRope, OfHeadsOf64RunsAsOne) { expect_holds("rewrite_of_vllm_rope_of_64", kOf64); }

TEST(RewriteOfVllmRope, NeedsItsTies) { expect_holds("rewrite_of_vllm_rope_needs_its_ties"); }

TEST(RewriteOfVllmBiasedRope, RunsAsOne) { expect_holds("rewrite_of_vllm_biased_rope", kBiased); }

TEST(RewriteOfVllmBiasedRope, NeedsItsTies) {
  expect_holds("rewrite_of_vllm_biased_rope_needs_its_ties", kBiased);
}

TEST(RewriteOfVllmNormedRope, RunsAsOne) { expect_holds("rewrite_of_vllm_normed_rope", kNormed); }

TEST(RewriteOfVllmNormedRope, OfGemmaRunsAsOne) {
  expect_holds("rewrite_of_vllm_normed_rope_of_gemma", kOfGemma);
}

TEST(RewriteOfVllmNormedRope, WithoutSumsRunsAsOne) {
  expect_holds("rewrite_of_vllm_normed_rope_whole", kNormed);
}

TEST(RewriteOfVllmNormedRope, OfOneKernelRunsAsOne) {
  expect_holds("rewrite_of_vllm_normed_rope_at_once", kNormed);
}

TEST(RewriteOfVllmNormedRope, OfManyHeadsRunsAsOne) {
  expect_holds("rewrite_of_vllm_normed_rope_apart", kNormed);
}

TEST(RewriteOfVllmNormedRope, NeedsItsTies) {
  expect_holds("rewrite_of_vllm_normed_rope_needs_its_ties", kNormed);
}

TEST(RewriteOfVllmNormedRope, WithoutSumsNeedsItsTies) {
  expect_holds("rewrite_of_vllm_normed_rope_whole_needs_its_ties", kNormed);
}

TEST(RewriteOfVllmNormedRope, OfOneKernelNeedsItsTies) {
  expect_holds("rewrite_of_vllm_normed_rope_at_once_needs_its_ties", kNormed);
}

TEST(RewriteOfVllmNormedRope, OfManyHeadsNeedsItsTies) {
  expect_holds("rewrite_of_vllm_normed_rope_apart_needs_its_ties", kNormed);
}

}  // namespace
}  // namespace fibshim::conformance
