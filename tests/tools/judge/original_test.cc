// `fibshim verify` of kernels without a known reference: they are not judged, or compared with
// recorded launches of the original kernel. On the simulated driver, with kernels of
// judged_kernels.cu as originals.
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <filesystem>

#include <gtest/gtest.h>

#include "tests/support/text.h"
#include "tests/tools/judge/judged_folder.h"
#include "tests/tools/recording_file_builder.h"

namespace fibshim::test {
namespace {

constexpr char kDefinition[] = R"json({
  "name": "mystery_h64", "op_type": "mystery",
  "axes": {"batch_size": {"type": "var"}, "hidden_size": {"type": "const", "value": 64}},
  "inputs": {
    "hidden_states": {"shape": ["batch_size", "hidden_size"], "dtype": "bfloat16"},
    "weight": {"shape": ["hidden_size"], "dtype": "bfloat16"}
  },
  "outputs": {"output": {"shape": ["batch_size", "hidden_size"], "dtype": "bfloat16"}}
})json";

constexpr char kRstd[] =
    R"("verify": {"arguments": {"rstd": {"shape": ["batch_size"], "dtype": "float32"},
                                "eps": {"value": 1e-6}}}, )";

// The bits of 1e-2 as a float: large enough that results of inputs around 1/1000 depend on it.
constexpr uint64_t kEps = 0x3c23d70a;

class Original : public ::testing::Test {
 protected:
  // The pattern recognises kernel `original`. The solution launches `kernel`.
  void write_folder(const std::string& original, const std::string& kernel,
                    const std::string& eps = R"("eps": {"arg": 4, "type": "float32"},)",
                    const std::string& verify = kRstd) {
    write_text(folder_ / "config/definitions/mystery_h64.json", kDefinition);
    write_text(folder_ / "config/patterns/engine-mystery.json",
               R"json({"label": "engine-mystery", "benefit": 1,
                 "match": {"symbol": ")json" +
                   original +
                   R"json(", "params": [8, 8, 8, 8, 4, 4]},
                 "axes": {"batch_size": {"arg": 5, "type": "int32"}},
                 "arguments": {)json" +
                   eps +
                   R"json("hidden_states": {"arg": 0, "dtype": "bfloat16"},
                   "weight": {"arg": 1, "dtype": "bfloat16"},
                   "output": {"arg": 2, "dtype": "bfloat16"},
                   "rstd": {"arg": 3, "dtype": "float32"}},
                 "writes": ["output", "rstd"], "where": ["weight != 0"],
                 "definition": "mystery_h64"})json");
    write_text(folder_ / "config/solutions/mystery.json",
               solution("mystery_h64", kernel, kNormArguments, "[]", verify));
    std::filesystem::copy_file(build_path(kImage),
                               folder_ / "config/solutions/judged_kernels.sm_90.cubin",
                               std::filesystem::copy_options::overwrite_existing);
  }

  using Values = std::vector<std::pair<uint64_t, uint64_t>>;

  // Ten launches of batch sizes 3 and 5, and the image (none if `image` is empty).
  void write_recording(const std::string& original, const std::string& image,
                       const Values& eps = {{kEps, 10}}) {
    const XXH128_hash_t hash = XXH3_128bits(image.data(), image.size());
    RecordingBuilder builder;
    builder
        .kernel(original,
                {{8, {{kAddress, 10}}},
                 {8, {{kAddress + 4096, 10}}},
                 {8, {{kAddress + 8192, 10}}},
                 {8, {{kAddress + 16384, 10}}},
                 {4, eps},
                 {4, {{3, 6}, {5, 4}}}},
                10)
        .image(hash.high64, hash.low64)
        .geometry(3, 64, 6, 0, {})
        .geometry(5, 64, 4, 0, {});
    write_text(folder_ / "recorded/1-0.recording", builder.bytes());
    char name[64];
    snprintf(name, sizeof name, "xxh128-%016llx%016llx.cubin",
             static_cast<unsigned long long>(hash.high64),
             static_cast<unsigned long long>(hash.low64));
    image_path_ = folder_ / ("recorded/images/" + std::string(name));
    if (!image.empty()) write_text(image_path_, image);
  }
  void record(const std::string& original) {
    write_recording(original, read_text(build_path(kImage)));
  }

  ProgramResult verify(std::vector<std::string> more = {}) {
    std::vector<std::string> arguments = {"verify", folder_ / "config"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    ProgramOptions options;
    options.environment = {{"LD_LIBRARY_PATH", build_path("sim")},
                           {"SIMCUDA_KERNELS", build_path("tests/data/libjudged_kernels.so")}};
    return run_fibshim(std::move(arguments), options);
  }
  ProgramResult against_original(std::vector<std::string> more = {}) {
    more.insert(more.begin(), {"--against-original", folder_ / "recorded"});
    return verify(std::move(more));
  }
  // Expects that nothing is judged, for this reason.
  void expect_not_judged(const std::string& why) {
    const ProgramResult result = exits(1, against_original());
    EXPECT_CONTAINS(result.out, "not judged: ");
    EXPECT_CONTAINS(result.out, why);
    EXPECT_CONTAINS(result.out, "0 passed, 0 failed");
    EXPECT_CONTAINS(result.err, "nothing was judged");
  }

  TemporaryFolder folder_;
  std::string image_path_;
};

TEST_F(Original, WithoutOneAKernelWithoutAReferenceIsNotJudged) {
  write_folder("norm_right", "norm_right");
  const ProgramResult alone = exits(1, verify({"--axis", "batch_size=1,3"}));
  EXPECT_CONTAINS(alone.out, "NOT JUDGED");
  EXPECT_CONTAINS(alone.out, "not judged: it runs, but nothing says what it must compute");
  EXPECT_CONTAINS(alone.out, "2 cases: 0 passed, 0 failed, 2 not judged");
  EXPECT_CONTAINS(alone.err, "nothing was judged");

  // Beside a solution that passes, one that is not judged is no failure.
  write_text(folder_ / "config/definitions/rmsnorm_h64.json", kNormDefinition);
  write_text(folder_ / "config/patterns/engine-norm.json", kNormPattern);
  write_text(folder_ / "config/solutions/norm.json",
             solution("rmsnorm_h64", "norm_right", kNormArguments, kAligned));
  const auto both = parse_json(
      exits(0, verify({"--axis", "batch_size=1,3", "--json", "-o", folder_ / "out.jsonl"})).out);
  EXPECT_EQ(both["not_judged"], 2);
  ASSERT_EQ(both["records"].size(), 4u);
  size_t not_judged = 0;
  for (const auto& record : both["records"]) {
    not_judged += record["evaluation"]["status"] == "NOT_JUDGED";
  }
  EXPECT_EQ(not_judged, 2u);
  EXPECT_LACKS(read_text(folder_ / "out.jsonl"), "NOT_JUDGED");
  // A solution that cannot even run is a failure.
  write_folder("norm_right", "norm_past_the_end");
  EXPECT_CONTAINS(exits(1, verify({"--axis", "batch_size=3", "mystery_h64"})).out,
                  "it writes past \"output\"");
}

TEST_F(Original, TheDeviceIsNamed) {
  write_folder("norm_right", "norm_right");
  record("norm_right");
  EXPECT_CONTAINS(exits(0, against_original()).out,
                  "device 0: Simulated GPU (sm_90), sm_90, driver for CUDA 13.0\n");
  const auto device = parse_json(exits(0, against_original({"--json"})).out)["device"];
  EXPECT_EQ(device["name"], "Simulated GPU (sm_90)");
  EXPECT_EQ(device["number"], 0);
  EXPECT_EQ(device["driver"], "13.0");
}

TEST_F(Original, HoldsASolutionToItsRecordedLaunches) {
  write_folder("norm_right", "norm_right");
  record("norm_right");
  const auto right = parse_json(exits(0, against_original({"--json"})).out);
  ASSERT_EQ(right["records"].size(), 2u);
  EXPECT_EQ(right["records"][0]["workload"]["axes"]["batch_size"], 3);
  EXPECT_EQ(right["records"][1]["workload"]["axes"]["batch_size"], 5);
  EXPECT_EQ(right["records"][1]["evaluation"]["log"],
            "held to the original, norm_right, launched with grid 5x1x1, block 64x1x1");
  for (const char* const wrong : {"norm_ignores_eps", "norm_leaves_one", "norm_wrong_rstd",
                                  "norm_writes_input", "norm_past_the_end"}) {
    write_folder("norm_right", wrong);
    EXPECT_CONTAINS(exits(1, against_original()).out, "INCORRECT_NUMERICAL") << wrong;
  }
}

// One output has a row for each row of the batch; the other has only one row.
TEST_F(Original, OutputsNeedNotShareTheirFirstAxis) {
  std::string definition = kDefinition;
  definition.replace(definition.find(R"("axes": {)"), 9,
                     R"("axes": {"one": {"type": "const", "value": 1}, )");
  const size_t end = definition.rfind("}\n}");
  definition.insert(end, R"(, "rstd": {"shape": ["one", "batch_size"], "dtype": "float32"})");
  for (const auto& [kernel, exit_code] : {std::pair("norm_right", 0), {"norm_wrong_rstd", 1}}) {
    write_folder("norm_right", kernel, R"("eps": {"arg": 4, "type": "float32"},)", "");
    write_text(folder_ / "config/definitions/mystery_h64.json", definition);
    record("norm_right");
    EXPECT_CONTAINS(exits(exit_code, against_original()).out,
                    exit_code == 0 ? "2 cases: 2 passed" : "INCORRECT_NUMERICAL");
  }
}

TEST_F(Original, EveryPatternIsHeldToItsOwnKernel) {
  write_folder("norm_right", "norm_right");
  record("norm_right");
  std::string other = read_text(folder_ / "config/patterns/engine-mystery.json");
  other.replace(other.find("engine-mystery"), 14, "engine-another");
  other.replace(other.find("norm_right"), 10, "norm_stale");
  write_text(folder_ / "config/patterns/engine-another.json", other);
  // norm_stale is not in the recording.
  EXPECT_CONTAINS(exits(0, against_original()).out, "2 cases: 2 passed, 0 failed");
}

TEST_F(Original, SaysWhatTheRecordingLacks) {
  write_folder("norm_right", "norm_right");
  write_recording("norm_wrong_rstd", read_text(build_path(kImage)));
  expect_not_judged("no pattern that leads to it fits a recorded kernel");
  write_recording("norm_right", "");
  expect_not_judged("record again with --keep-images 'norm_right'");
  write_recording("norm_right", read_text(build_path(kImage)));
  write_text(image_path_, "another");
  expect_not_judged("is damaged: its hash is not the one in its name");
  EXPECT_CONTAINS(exits(1, verify({"--against-original", folder_ / "nowhere"})).err, "nowhere: ");
  EXPECT_CONTAINS(exits(2, against_original({"--axis", "batch_size=1"})).err, "--axis");
}

TEST_F(Original, SaysThatTheImageIsForAnotherGpu) {
  write_folder("norm_right", "norm_right");
  std::string image = read_text(build_path(kImage));
  constexpr size_t kSmInFlags = 0x31;
  ASSERT_EQ(image[kSmInFlags], 90);
  image[kSmInFlags] = 100;
  write_recording("norm_right", image);
  expect_not_judged("its image is for another GPU than this one, of sm_90");
}

TEST_F(Original, SaysWhichParameterNoArgumentExplains) {
  const std::string image = read_text(build_path(kImage));
  write_folder("norm_right", "norm_right", R"("eps": {"value": 1e-6, "type": "float32"},)");
  write_recording("norm_right", image, {{kEps, 6}, {kEps + 1, 4}});
  expect_not_judged(
      "parameter 4 (with several values) is explained by no argument of pattern "
      "\"engine-mystery\"");
  // If only one value was recorded, the original is launched with it. The solution does not get it.
  write_recording("norm_right", image);
  EXPECT_CONTAINS(exits(1, against_original()).out, "INCORRECT_NUMERICAL");
  write_folder("norm_right", "norm_right", R"("eps": {"arg": 4, "type": "float32"},)",
               R"("verify": {"arguments": {"eps": {"value": 1e-6}}}, )");
  EXPECT_CONTAINS(exits(1, against_original()).out, "\"rstd\" is not in the definition");
}

TEST_F(Original, ALaunchThatLeavesOutputsUnwrittenWasNeverMade) {
  write_folder("norm_leaves_one", "norm_right");
  record("norm_leaves_one");
  const ProgramResult result = exits(1, against_original());
  EXPECT_CONTAINS(result.err, "part of \"output\" stays unwritten: no launch that was made");
  EXPECT_CONTAINS(result.out, "0 cases");
}

TEST_F(Original, AnOriginalThatWritesPastItsBuffersSaysNothing) {
  write_folder("norm_past_the_end", "norm_right");
  record("norm_past_the_end");
  expect_not_judged("it writes past \"output\"");
}

TEST_F(Original, OneThatCrashesOrHangsIsNotTheSolutionsFailure) {
  write_folder("norm_crashes", "norm_right");
  record("norm_crashes");
  expect_not_judged("it crashed with signal");
  write_folder("norm_hangs", "norm_right");
  record("norm_hangs");
  EXPECT_CONTAINS(exits(1, against_original({"--timeout", "1"})).out,
                  "not judged: no answer within 1 s: (the original kernel was running)");
  write_folder("norm_right", "norm_crashes");
  record("norm_right");
  EXPECT_CONTAINS(exits(1, against_original()).out, "RUNTIME_ERROR");
}

TEST_F(Original, BenchTimesItBesideTheSolutionAndKeepsBoth) {
  ProgramOptions options;
  options.environment = {{"LD_LIBRARY_PATH", build_path("sim")},
                         {"SIMCUDA_KERNELS", build_path("tests/data/libjudged_kernels.so")}};
  const auto bench = [&](const std::string& original, const std::string& ours) {
    write_folder(original, ours);
    record(original);
    std::filesystem::remove(folder_ / "config/measurements.json");
    const ProgramResult result =
        exits(0, run_fibshim({"bench", "--keep", folder_ / "config", "--against-original",
                              folder_ / "recorded", "--iterations", "5", "--trials", "1"},
                             options));
    EXPECT_CONTAINS(result.out, "2 cases: 2 passed");
    const auto kept = parse_json(read_text(folder_ / "config/measurements.json"));
    EXPECT_EQ(kept["measurements"].size(), 1u);
    EXPECT_EQ(kept["measurements"][0]["original"], "engine-mystery");
    EXPECT_EQ(kept["measurements"][0]["mode"], "bench");
    return kept["measurements"][0]["times"];
  };
  for (const auto& time : bench("norm_slow", "norm_right")) {
    EXPECT_GT(time["original_us"].get<double>(), 0) << time;
    EXPECT_GT(time["us"].get<double>(), 0) << time;
  }
  EXPECT_EQ(run_fibshim({"bench", folder_ / "config", "--against-original", folder_ / "recorded",
                         "--axis", "batch_size=1"})
                .exit_code,
            2);
}

TEST_F(Original, BenchTimesWhatIsNotJudged) {
  write_folder("norm_right", "norm_right");
  ProgramOptions options;
  options.environment = {{"LD_LIBRARY_PATH", build_path("sim")},
                         {"SIMCUDA_KERNELS", build_path("tests/data/libjudged_kernels.so")}};
  const auto json = parse_json(exits(1, run_fibshim({"bench", folder_ / "config", "--axis",
                                                     "batch_size=4", "--iterations", "3", "--json"},
                                                    options))
                                   .out);
  EXPECT_EQ(json["records"][0]["evaluation"]["status"], "NOT_JUDGED");
  EXPECT_GT(json["records"][0]["evaluation"]["performance"]["latency_ms"], 0.0);
}

}  // namespace
}  // namespace fibshim::test
