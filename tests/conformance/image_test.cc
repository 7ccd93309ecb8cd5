// Patterns that name the image their kernel comes from (fibshim-config(5), match.image; numbers
// 17 and 24 of tools/doc/driver_facts.md, section 7): known however the image came in and the handle
// came out, and no other image's kernel of that name is taken for it.

#include <filesystem>
#include <fstream>

#include <nlohmann/json.hpp>

#include "tests/conformance/conform_run.h"
#include "tests/support/text.h"

namespace fibshim::conformance {
namespace {

namespace fs = std::filesystem;

// A copy of the configuration whose pattern wants this image.
std::string config_for_image(const std::string& image) {
  const ProcessResult result =
      run_process({build_dir() + "/bin/fibshim", "inspect", "--json", conform_path(image)});
  const nlohmann::json json = nlohmann::json::parse(result.out, nullptr, false);
  EXPECT_FALSE(json.is_discarded()) << result.out << result.err;
  const std::string folder = make_temporary_dir() + "/config";
  fs::copy(conform_path("config"), folder, fs::copy_options::recursive);
  const std::string path = folder + "/patterns/conform-step.json";
  nlohmann::json pattern = nlohmann::json::parse(std::ifstream(path));
  pattern["match"]["image"] = nlohmann::json::array({json["files"][0]["image"]});
  std::ofstream(path, std::ios::trunc) << pattern.dump(2);
  return folder;
}

struct Way {
  const char* name;
  std::vector<std::string> words;
  const char* image = "conform.fatbin";
  const char* only_simulated = nullptr;
};

const Way kImageWays[] = {
    {"ModuleLoad", {"hook", "cuModuleLoad"}},
    {"ModuleLoadData", {"hook", "cuModuleLoadData"}},
    {"ModuleLoadDataEx", {"hook", "cuModuleLoadDataEx"}},
    {"ModuleLoadFatBinary", {"hook", "cuModuleLoadFatBinary"}},
    {"LibraryLoadData", {"hook", "cuLibraryLoadData"}},
    {"LibraryLoadFromFile", {"hook", "cuLibraryLoadFromFile"}},
    {"Wrapped", {"wrapped_image"}},
    {"Linked", {"linked_image"}, "conform.sm_90.cubin", "a real linker writes an image of its own"},
    {"ModuleEnumerateFunctions", {"hook", "cuModuleEnumerateFunctions"}},
    {"LibraryEnumerateKernels", {"hook", "cuLibraryEnumerateKernels"}},
    {"KernelGetFunction", {"hook", "cuKernelGetFunction"}},
    {"LibraryGetModule", {"hook", "cuLibraryGetModule"}},
    {"LaunchKernel", {"hook", "cuLaunchKernel"}},
    {"Graphs", {"graph_patch_one_argument"}},
    {"Strangers", {"strangers"}},
    {"SameNameOtherImage", {"same_name_other_image"}},
    {"Reuse", {"reuse"}},
    {"ReuseBetweenKinds", {"reuse_between_kinds"}},
};

void PrintTo(const Way& way, std::ostream* out) { *out << way.name; }

class Images : public testing::TestWithParam<Way> {};

TEST_P(Images, AreKnown) {
  const Way& way = GetParam();
  if (is_real_driver() && way.only_simulated != nullptr) {
    GTEST_SKIP() << "not for a real driver: " << way.only_simulated;
  }
  std::vector<std::string> command = {"conform"};
  command.insert(command.end(), way.words.begin(), way.words.end());
  HostRun(command, {{"FIBSHIM_CONFIG", config_for_image(way.image)}}).expect_holds();
}

INSTANTIATE_TEST_SUITE_P(Conformance, Images, testing::ValuesIn(kImageWays), kByName);

TEST(OtherImages, AreLeftAlone) {
  const Environment other = {{"FIBSHIM_CONFIG", config_for_image("conform_other.fatbin")}};
  HostRun({"conform", "step_is_untracked"}, other).expect_holds();
}

}  // namespace
}  // namespace fibshim::conformance
