// The preloaded shim on the simulated driver: every way to launch ends in the curated kernel,
// the numbers are right, and the counters equal the launches.
#include <gtest/gtest.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <tuple>

#include "tests/shim/preloaded_engine.h"
#include "tests/support/text.h"

namespace fibshim {
namespace {

constexpr char kBf16Hit[] = "torch-rms-norm-bf16 rmsnorm_h128 hit";

using Way = std::tuple<const char*, const char*, const char*, const char*, const char*>;

class EveryWayIn : public testing::TestWithParam<Way> {};

TEST_P(EveryWayIn, RunsTheCuratedKernel) {
  const auto& [resolve, module, api, pass, ptsz] = GetParam();
  std::vector<std::string> arguments = {std::string("--resolve=") + resolve,
                                        std::string("--module=") + module,
                                        std::string("--api=") + api,
                                        std::string("--pass=") + pass,
                                        "--hidden=128",
                                        "--rows=33",
                                        "--launches=5"};
  if (*ptsz != 0) arguments.emplace_back(ptsz);
  const EngineRun run = exits(0, PreloadedEngine().run(arguments, pytorch_config()));
  EXPECT_EQ(run.ran_curated(), 5) << run.process.out;
  EXPECT_EQ(run.ran_original(), 0);
  EXPECT_EQ(run.outcome(kBf16Hit), 5);
  EXPECT_TRUE(run.messages().empty()) << run.process.err;
  EXPECT_EQ(run.driver_errors(), PreloadedEngine::bare_driver_errors(arguments));
}

INSTANTIATE_TEST_SUITE_P(Redirect, EveryWayIn,
                         testing::Combine(testing::Values("dlsym", "getproc4", "getproc5"),
                                          testing::Values("module", "library"),
                                          testing::Values("launch", "ex"),
                                          testing::Values("params", "extra"),
                                          testing::Values("", "--ptsz")));

struct OtherWay {
  const char* name;
  std::vector<std::string> arguments;
  const char* host;
  Environment environment = {};
};

class OtherWaysIn : public testing::TestWithParam<OtherWay> {};

TEST_P(OtherWaysIn, RunTheCuratedKernel) {
  std::vector<std::string> arguments = {"--hidden=128", "--launches=3"};
  arguments.insert(arguments.end(), GetParam().arguments.begin(), GetParam().arguments.end());
  const EngineRun run = exits(0, PreloadedEngine().run(arguments, pytorch_config(),
                                                       GetParam().environment, GetParam().host));
  EXPECT_EQ(run.ran_curated(), 3) << run.process.out;
  EXPECT_EQ(run.outcome(kBf16Hit), 3);
  EXPECT_EQ(run.driver_errors(), PreloadedEngine::bare_driver_errors(
                                     arguments, GetParam().environment, GetParam().host));
}

// compute-sanitizer would report no error of the shim, even in a capture or a recording.
TEST(Redirect, CausesNoErrorInTheDriver) {
  for (const char* more : {"--capture", "--threads=4", "--rounds=3"}) {
    const EngineRun run =
        exits(0, PreloadedEngine().run({"--hidden=128", more}, pytorch_config(),
                                       {{"FIBSHIM_RECORD", make_temporary_dir() + "/recorded"},
                                        {"FIBSHIM_RECORD_TIMES", "events"}}));
    EXPECT_GT(run.outcome(kBf16Hit), 0);
    EXPECT_EQ(run.driver_errors(), 0) << more;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Redirect, OtherWaysIn,
    // dlvsym needs a driver that defines symbol versions, which the real one does not.
    testing::Values(OtherWay{"dlvsym",
                             {"--resolve=dlvsym"},
                             "engine",
                             {{"LD_LIBRARY_PATH", build_dir() + "/sim/versioned"}}},
                    OtherWay{"linked", {}, "engine_linked"},
                    OtherWay{"linked_ptsz", {"--ptsz"}, "engine_linked"},
                    OtherWay{
                        "enumerated_module", {"--module=module", "--lookup=enumerate"}, "engine"},
                    OtherWay{"enumerated_library", {"--lookup=enumerate"}, "engine"},
                    OtherWay{"module_file", {"--module=module", "--load=file"}, "engine"},
                    OtherWay{"library_file", {"--load=file"}, "engine"},
                    OtherWay{"cubin",
                             {"--image=" + build_dir() + "/tests/data/engine_kernels.sm_90.cubin"},
                             "engine"},
                    OtherWay{"default_stream", {"--stream=default"}, "engine"}),
    kByName);

struct Shape {
  const char* dtype;
  int hidden;
};

class EveryShape : public testing::TestWithParam<Shape> {};

TEST_P(EveryShape, IsRoutedByNameAndRight) {
  const auto [dtype, hidden] = GetParam();
  const EngineRun run = PreloadedEngine().run(
      {std::string("--dtype=") + dtype, "--hidden=" + std::to_string(hidden), "--rows=3"},
      pytorch_config());
  const std::string name = std::string("torch-rms-norm-") + dtype + " rmsnorm_h" +
                           std::to_string(hidden) + (dtype == std::string("fp16") ? "_fp16" : "");
  EXPECT_EQ(run.process.exit_code, 0) << run.process.out << run.process.err;
  EXPECT_EQ(run.ran_curated(), 1);
  EXPECT_EQ(run.outcome(name + " hit"), 1) << nlohmann::json(run.counts).dump();
}

INSTANTIATE_TEST_SUITE_P(
    Redirect, EveryShape,
    testing::Values(Shape{"bf16", 128}, Shape{"bf16", 2048}, Shape{"bf16", 4096},
                    Shape{"bf16", 5120}, Shape{"bf16", 7168}, Shape{"bf16", 8192},
                    Shape{"fp16", 128}, Shape{"fp16", 2048}, Shape{"fp16", 4096},
                    Shape{"fp16", 5120}, Shape{"fp16", 7168}, Shape{"fp16", 8192}),
    [](const auto& one) {
      return std::string(one.param.dtype) + "_h" + std::to_string(one.param.hidden);
    });

TEST(Redirect, DecidesEachShapeOfAKernel) {
  const EngineRun run =
      exits(0, PreloadedEngine().run({"--rows=3", "--launches=20", "--halves"}, pytorch_config()));
  EXPECT_EQ(run.outcome("torch-rms-norm-bf16 rmsnorm_h2048 hit"), 10);
  EXPECT_EQ(run.outcome("torch-rms-norm-bf16 rmsnorm_h4096 hit"), 10);
  EXPECT_EQ(run.ran_curated(), 20);
}

TEST(Redirect, CountsEveryLaunchOfEightThreadsExactly) {
  const EngineRun run = exits(
      0, PreloadedEngine().run({"--hidden=128", "--rows=1", "--threads=8", "--launches=20000"},
                               pytorch_config()));
  EXPECT_EQ(run.outcome(kBf16Hit), 160000);
  EXPECT_EQ(run.ran_curated(), 160000);
}

TEST(Redirect, CountsEveryFallbackOfEightThreadsExactly) {
  const EngineRun run = PreloadedEngine().run(
      {"--hidden=4100", "--rows=1", "--threads=8", "--launches=20000"}, pytorch_config());
  EXPECT_EQ(run.outcome("torch-rms-norm-bf16 rmsnorm_h4100 fallback_no_solution"), 160000);
  EXPECT_EQ(run.ran_original(), 160000);
}

TEST(Redirect, CapturesTheReplacementWithoutWarmUp) {
  const PreloadedEngine engine;
  for (const char* ptsz : {"", "--ptsz"}) {
    std::vector<std::string> arguments = {"--capture", "--hidden=128", "--launches=7"};
    if (*ptsz != 0) arguments.emplace_back(ptsz);
    const EngineRun run = exits(0, engine.run(arguments, pytorch_config()));
    EXPECT_EQ(run.ran_curated(), 7) << run.process.out;
    EXPECT_EQ(run.ran_original(), 0);
  }
  // A node is counted when it is made; replays are not launches of the host.
  EXPECT_EQ(engine.run({"--launches=0"}, pytorch_config()).outcome(kBf16Hit), 2);
}

TEST(Redirect, LeavesKernelsAloneThatNoPatternKnows) {
  const std::string config = copy_of_pytorch_config();
  edit_file(find_file(config, "torch-rms-norm-bf16.json"), "\"re:_ZN2at6native",
            "\"re:_ZN2at7native");
  const EngineRun run =
      exits(0, PreloadedEngine().run({"--hidden=128", "--threads=4", "--launches=100"}, config));
  EXPECT_EQ(run.ran_original(), 400);
  EXPECT_EQ(run.outcome("untracked"), 400);
}

TEST(Redirect, DoesNotMatchAKernelOfAnotherLayout) {
  const std::string config = copy_of_pytorch_config();
  edit_file(find_file(config, "torch-rms-norm-bf16.json"), "[4, 4, 8, 8, 8, 8, 8, 8]",
            "[4, 4, 8, 8, 8, 8, 8, 8, 4]");
  const EngineRun run = PreloadedEngine().run({"--hidden=128", "--launches=3"}, config);
  EXPECT_EQ(run.ran_original(), 3);
  EXPECT_EQ(run.outcome("untracked"), 3);
}

TEST(Redirect, FallsBackWhenAWhereDoesNotHold) {
  const PreloadedEngine engine;
  const std::string config = copy_of_pytorch_config();
  edit_file(find_file(config, "torch-rms-norm-bf16.json"), "\"weight != 0\"",
            "\"weight != 0\", \"batch_size <= 4\"");
  EngineRun run = engine.run({"--hidden=128", "--rows=4", "--launches=2"}, config);
  EXPECT_EQ(run.ran_curated(), 2);
  run = engine.run({"--hidden=128", "--rows=5", "--launches=3"}, config);
  EXPECT_EQ(run.ran_original(), 3);
  EXPECT_EQ(run.outcome("torch-rms-norm-bf16 rmsnorm_h128 fallback_where"), 3);
  EXPECT_EQ(run.outcome(kBf16Hit), 2);
}

TEST(Redirect, FallsBackWhenAnExpressionCannotBeComputed) {
  const std::string config = copy_of_pytorch_config();
  edit_file(find_file(config, "torch-rms-norm-bf16.json"), "\"weight != 0\"",
            "\"weight != 0\", \"hidden_size / (batch_size - 5) > 0\"");
  const EngineRun run = PreloadedEngine().run({"--hidden=128", "--rows=5", "--launches=3"}, config);
  EXPECT_EQ(run.ran_original(), 3);
  EXPECT_EQ(run.outcome("torch-rms-norm-bf16 rmsnorm_h128 fallback_where"), 3);
}

TEST(Redirect, RefusesASolutionThatDoesNotWriteAllOutputs) {
  const std::string config = copy_of_pytorch_config();
  edit_file(find_file(config, "torch-rms-norm-bf16.json"), "[\"output\", \"rstd\"]",
            "[\"output\", \"rstd\", \"mean\"]");
  edit_file(find_file(config, "torch-rms-norm-bf16.json"), "\"rstd\": {\"arg\": 6",
            "\"mean\": {\"arg\": 5, \"dtype\": \"float32\"},\n    \"rstd\": {\"arg\": 6");
  const EngineRun run = PreloadedEngine().run({"--hidden=128", "--launches=3"}, config);
  EXPECT_EQ(run.ran_original(), 3);
  EXPECT_EQ(run.outcome("torch-rms-norm-bf16 rmsnorm_h128 fallback_refused"), 3);
}

TEST(Redirect, RefusesADefinitionOfAnotherDtype) {
  const std::string config = copy_of_pytorch_config();
  // Routes the pattern of the fp16 kernel to the bfloat16 definition.
  edit_file(find_file(config, "torch-rms-norm-fp16.json"), "rmsnorm_h{hidden_size}_fp16",
            "rmsnorm_h{hidden_size}");
  const EngineRun run =
      exits(0, PreloadedEngine().run({"--dtype=fp16", "--hidden=128", "--launches=3"}, config));
  EXPECT_EQ(run.ran_original(), 3);
  EXPECT_EQ(run.outcome("torch-rms-norm-fp16 rmsnorm_h128 fallback_refused"), 3);
}

TEST(Redirect, TriesPatternsByBenefitThenLabel) {
  const PreloadedEngine engine;
  const std::string config = copy_of_pytorch_config();
  const auto original = find_file(config, "torch-rms-norm-bf16.json");
  for (const auto& [label, benefit] : {std::pair("b-high", 20), std::pair("a-low", 5)}) {
    const auto copy = original.parent_path() / (std::string(label) + ".json");
    std::filesystem::copy_file(original, copy);
    edit_file(copy, "\"torch-rms-norm-bf16\"", "\"" + std::string(label) + "\"");
    edit_file(copy, "\"benefit\": 10", "\"benefit\": " + std::to_string(benefit));
  }
  EngineRun run = engine.run({"--hidden=128", "--rows=1"}, config);
  EXPECT_EQ(run.outcome("b-high rmsnorm_h128 hit"), 1) << nlohmann::json(run.counts).dump();
  // If the first pattern's where does not hold, the next pattern decides.
  edit_file(original.parent_path() / "b-high.json", "\"weight != 0\"", "\"batch_size > 1\"");
  run = engine.run({"--hidden=128", "--rows=1"}, config);
  EXPECT_EQ(run.outcome(kBf16Hit), 1) << nlohmann::json(run.counts).dump();
  EXPECT_EQ(run.outcome("b-high rmsnorm_h128 fallback_where"), 0);
}

TEST(Redirect, TriesEveryPatternThatFitsTheSymbol) {
  const std::string config = copy_of_pytorch_config();
  const auto original = find_file(config, "torch-rms-norm-bf16.json");
  for (int i = 0; i < 40; ++i) {
    // Patterns of higher benefit, all for other images.
    char label[16];
    char hash[48];
    snprintf(label, sizeof label, "other-%02d", i);
    snprintf(hash, sizeof hash, "xxh128:%032d", i);
    const auto copy = original.parent_path() / (std::string(label) + ".json");
    std::filesystem::copy_file(original, copy);
    edit_file(copy, "\"torch-rms-norm-bf16\"", "\"" + std::string(label) + "\"");
    edit_file(copy, "\"benefit\": 10", "\"benefit\": 20");
    edit_file(copy, "\"params\":", "\"image\": [\"" + std::string(hash) + "\"],\n    \"params\":");
  }
  const EngineRun run = PreloadedEngine().run({"--hidden=128", "--launches=3"}, config);
  EXPECT_EQ(run.ran_curated(), 3) << run.process.err;
  EXPECT_EQ(run.outcome(kBf16Hit), 3);
}

TEST(Redirect, TellsTheParamsOfAKernelThatOnlyTheSymbolFits) {
  const std::string config = copy_of_pytorch_config();
  edit_file(find_file(config, "torch-rms-norm-bf16.json"), "[4, 4, 8, 8, 8, 8, 8, 8]",
            "[4, 4, 8, 8, 8, 8, 8, 8, 8]");
  for (const char* level : {"info", "warn"}) {
    const EngineRun run = PreloadedEngine().run({"--hidden=128"}, config, {{"FIBSHIM_LOG", level}});
    EXPECT_EQ(run.ran_original(), 1) << run.process.out;
    const bool is_told = run.process.err.find(
                             ": fits the symbol of pattern torch-rms-norm-bf16, but its params are "
                             "[4, 4, 8, 8, 8, 8, 8, 8]\n") != std::string::npos;
    EXPECT_EQ(is_told, level == std::string("info")) << run.process.err;
  }
}

TEST(Redirect, TakesTheImageForTheGpu) {
  // sm_86 runs the sm_80 cubin: same major, lower minor.
  EngineRun run = PreloadedEngine().run({"--hidden=128", "--launches=2"}, pytorch_config(),
                                        {{"SIMCUDA_DEVICES", "86"}});
  EXPECT_EQ(run.ran_curated(), 2) << run.process.out << run.process.err;
}

TEST(Redirect, CountsLaunchesThatNoImageFits) {
  const std::string config = copy_of_pytorch_config();
  const auto solution = find_file(config, "fibshim_rmsnorm_h128.json");
  nlohmann::json json = nlohmann::json::parse(std::ifstream(solution));
  auto& images = json["launch"]["images"];
  for (auto it = images.begin(); it != images.end();) {
    const bool is_sm_100 = (*it)["path"].get<std::string>().find("sm_100") != std::string::npos;
    it = is_sm_100 ? it + 1 : images.erase(it);
  }
  ASSERT_EQ(images.size(), 1u);
  std::ofstream(solution, std::ios::trunc) << json.dump(2);
  const EngineRun run = exits(0, PreloadedEngine().run({"--hidden=128", "--launches=4"}, config));
  EXPECT_EQ(run.ran_original(), 4);
  EXPECT_EQ(run.outcome("torch-rms-norm-bf16 rmsnorm_h128 fallback_arch"), 4);
}

TEST(Redirect, GivesEachOfTwoUnlikeGpusItsImage) {
  const Environment devices = {{"SIMCUDA_DEVICES", "90,80"}};
  for (const char* device : {"--device=0", "--device=1"}) {
    const EngineRun run = exits(0, PreloadedEngine().run({device, "--hidden=128", "--launches=3"},
                                                         pytorch_config(), devices));
    EXPECT_EQ(run.ran_curated(), 3) << run.process.out;
  }
}

// The hash as xxhsum and patterns write it.
std::string xxh128_of(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  const XXH128_hash_t hash = XXH3_128bits(bytes.data(), bytes.size());
  char text[48];
  snprintf(text, sizeof text, "xxh128:%016llx%016llx", static_cast<unsigned long long>(hash.high64),
           static_cast<unsigned long long>(hash.low64));
  return text;
}

struct ImageWay {
  const char* name;
  std::vector<std::string> arguments;
  const char* file;
};

class ImageOfAKernel : public testing::TestWithParam<ImageWay> {};

TEST_P(ImageOfAKernel, DecidesWhereAPatternAsksForIt) {
  const std::string file = build_dir() + "/tests/data/" + GetParam().file;
  for (const bool is_right : {true, false}) {
    const std::string config = copy_of_pytorch_config();
    std::string hash = xxh128_of(file);
    if (!is_right) hash.back() = hash.back() == '0' ? '1' : '0';
    edit_file(find_file(config, "torch-rms-norm-bf16.json"),
              "\"params\":", "\"image\": [\"" + hash + "\"],\n    \"params\":");
    std::vector<std::string> arguments = {"--hidden=128", "--launches=3", "--image=" + file};
    arguments.insert(arguments.end(), GetParam().arguments.begin(), GetParam().arguments.end());
    const EngineRun run =
        exits(0, PreloadedEngine().run(arguments, config, {{"FIBSHIM_LOG", "info"}}));
    EXPECT_EQ(run.ran_curated(), is_right ? 3 : 0) << run.process.out << run.process.err;
    EXPECT_EQ(run.outcome("untracked"), is_right ? 0 : 3);
    // The message has the hash of the image, which can be copied into the pattern.
    const bool is_told =
        run.process.err.find("this one is " + xxh128_of(file)) != std::string::npos;
    EXPECT_EQ(is_told, !is_right) << run.process.err;
  }
}

// A compiler at run time puts its cubin into a library in this form.
TEST(Redirect, KnowsTheCodeOfTheOnlyCubinInAFatbin) {
  const std::string images = build_dir() + "/tests/data/engine_kernels.";
  const auto run_with = [&](const std::string& code, const std::string& image) {
    const std::string config = copy_of_pytorch_config();
    edit_file(find_file(config, "torch-rms-norm-bf16.json"),
              "\"params\":", "\"image\": [\"" + code + "\"],\n    \"params\":");
    return exits(0, PreloadedEngine().run({"--hidden=128", "--launches=3", "--image=" + image},
                                          config, {{"FIBSHIM_LOG", "info"}}));
  };
  const EngineRun other = run_with("code:" + std::string(31, '0') + "1", images + "sm_90.cubin");
  EXPECT_EQ(other.ran_curated(), 0);
  const size_t told = other.process.err.find("its code code:");
  ASSERT_NE(told, std::string::npos) << other.process.err;
  const std::string code = other.process.err.substr(told + strlen("its code "), 37);
  EXPECT_EQ(run_with(code, images + "only_sm_90.fatbin").ran_curated(), 3) << code;
  EXPECT_EQ(run_with(code, images + "fatbin").ran_curated(), 0);  // other GPUs' cubins, too
}

INSTANTIATE_TEST_SUITE_P(
    Redirect, ImageOfAKernel,
    testing::Values(
        ImageWay{"module_cubin", {"--module=module"}, "engine_kernels.sm_90.cubin"},
        ImageWay{"library_cubin", {}, "engine_kernels.sm_90.cubin"},
        ImageWay{"module_fatbin", {"--module=module"}, "engine_kernels.fatbin"},
        ImageWay{"library_fatbin", {}, "engine_kernels.fatbin"},
        ImageWay{"module_file", {"--module=module", "--load=file"}, "engine_kernels.sm_90.cubin"},
        ImageWay{"library_file", {"--load=file"}, "engine_kernels.fatbin"},
        ImageWay{"enumerated", {"--lookup=enumerate"}, "engine_kernels.sm_90.cubin"}),
    kByName);

}  // namespace
}  // namespace fibshim
