// The rewrite of vLLM's RoPE and KV write (config/vllm). The host cannot have the images that torch.compile made, by whose
// code the patterns know its kernels: they get the host's images in their place.

#include <filesystem>
#include <fstream>

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

// The ends of the patterns' labels.
struct Rotated {
  const char* query;
  const char* key;
  const char* both;
};
constexpr Rotated kOf128 = {"r6144-o0-n32", "r6144-o4096-n8", "both-append-r6144"};
constexpr Rotated kOf64 = {"r3072-o0-n32-d64", "r3072-o2048-n8-d64", "both-append-r3072-d64"};

// config/vllm, whose patterns know conform.fatbin's kernels as the rotation of the query heads and that of both, and
// conform_other.fatbin's as that of the key heads.
std::string config_for_host(const Rotated& rotated) {
  const std::string folder = make_temporary_dir() + "/vllm";
  fs::copy(build_dir() + "/config/vllm", folder, fs::copy_options::recursive);
  const auto pattern_of = [&](const std::string& label) {
    return read_json(folder + "/patterns/vllm-inductor-rope-" + label + ".json")["match"];
  };
  const json of_query = pattern_of(rotated.query)["image"];
  const json of_key = pattern_of(rotated.key)["image"];
  const json of_both = pattern_of(rotated.both)[0]["image"];
  const json query_image = image_list("conform.fatbin");
  const json key_image = image_list("conform_other.fatbin");
  const auto exchange = [&](json* match) {
    if (!match->contains("image")) return;
    json& images = (*match)["image"];
    const bool is_first = images == of_query || images == of_both;
    images = is_first ? query_image : images == of_key ? key_image : images;
  };
  for (const auto& file : fs::directory_iterator(folder + "/patterns")) {
    json pattern = read_json(file.path());
    json& match = pattern["match"];
    if (match.is_array()) {
      for (json& one : match) exchange(&one);
    } else {
      exchange(&match);
    }
    std::ofstream(file.path(), std::ios::trunc) << pattern.dump(2);
  }
  return folder;
}

void expect_holds(const char* name, const Rotated& rotated = kOf128) {
  if (is_real_driver())
    GTEST_SKIP() << "it asks the simulated driver how a launch or a call looked";
  const HostRun run({"conform", name},
                    {{"FIBSHIM_CONFIG", config_for_host(rotated)}, {"SIMCUDA_LOG", ""}});
  run.expect_holds(0);
  run.expect_all_executed();
}

TEST(RewriteOfVllmRope, RunsAsOne) { expect_holds("rewrite_of_vllm_rope"); }

TEST(RewriteOfVllmRope, OfBothRunsAsOne) { expect_holds("rewrite_of_vllm_rope_both"); }

TEST(RewriteOfVllmRope, OfHeadsOf64RunsAsOne) { expect_holds("rewrite_of_vllm_rope_of_64", kOf64); }

TEST(RewriteOfVllmRope, NeedsItsTies) { expect_holds("rewrite_of_vllm_rope_needs_its_ties"); }

}  // namespace
}  // namespace fibshim::conformance
