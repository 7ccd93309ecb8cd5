// Recording on the simulated driver: every launch is in the file with its parameters and geometry,
// in whatever way it was made, and the host notices nothing.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "tests/shim/recorded_program.h"

namespace fibshim {
namespace {

namespace fs = std::filesystem;

struct WayIn {
  const char* name;
  std::vector<std::string> arguments;
  uint64_t launches;
  uint64_t nodes;
};

class RecordEveryWayIn : public Record, public testing::WithParamInterface<WayIn> {};

TEST_P(RecordEveryWayIn, HasEveryLaunchWithItsArgumentsAndGeometry) {
  std::vector<std::string> arguments = {"--launches=100", "--hidden=256", "--rows=3"};
  const WayIn& way = GetParam();
  arguments.insert(arguments.end(), way.arguments.begin(), way.arguments.end());
  const Recorded run = record_engine(arguments);
  ASSERT_EQ(run.process.exit_code, 0) << run.process.out << run.process.err;
  ASSERT_EQ(run.kernel_count(), 1u);
  EXPECT_EQ(run.head()["launches"], way.launches);
  const nlohmann::json& kernel = run.kernel();
  EXPECT_EQ(kernel["launches"], way.launches);
  EXPECT_EQ(kernel["in_graph"], way.nodes);
  EXPECT_EQ(kernel["failed"], 0);
  EXPECT_EQ(kernel["outcomes"], (nlohmann::json{{"untracked", way.launches + way.nodes}}));
  EXPECT_EQ(kernel["sm"], 90);
  EXPECT_EQ(kernel["image"]["kind"], "fatbin");
  EXPECT_CONTAINS(kernel["demangled"].get<std::string>(),
                  "vectorized_layer_norm_kernel<c10::BFloat16");
  const nlohmann::json& params = kernel["params"];
  ASSERT_EQ(params.size(), 8u);
  EXPECT_EQ(params[0]["type"], "int32");
  EXPECT_EQ(params[0]["values"],
            (nlohmann::json::array({{{"value", 256}, {"count", way.launches + way.nodes}}})));
  EXPECT_EQ(params[1]["type"], "float32");
  EXPECT_EQ(params[1]["offset"], 4);
  EXPECT_EQ(params[2]["to"], "bfloat16");
  EXPECT_EQ(params[2]["const"], true);
  EXPECT_EQ(params[4]["null"], way.launches + way.nodes);
  ASSERT_EQ(kernel["geometries"].size(), 1u);
  EXPECT_EQ(kernel["geometries"][0]["grid"], (nlohmann::json{3, 1, 1}));
  EXPECT_EQ(kernel["geometries"][0]["launches"], way.launches);
}

INSTANTIATE_TEST_SUITE_P(
    Ways, RecordEveryWayIn,
    testing::Values(WayIn{"Library", {}, 100, 0}, WayIn{"Module", {"--module=module"}, 100, 0},
                    WayIn{"File", {"--load=file"}, 100, 0},
                    WayIn{"Enumerated", {"--lookup=enumerate"}, 100, 0},
                    WayIn{"ConfigCall", {"--api=ex"}, 100, 0},
                    WayIn{"PackedArguments", {"--pass=extra"}, 100, 0},
                    WayIn{"PackedInConfigCall", {"--api=ex", "--pass=extra"}, 100, 0},
                    WayIn{"PerThreadStream", {"--ptsz", "--stream=default"}, 100, 0},
                    WayIn{"LegacyStream", {"--stream=default"}, 100, 0},
                    WayIn{"Threads", {"--threads=8"}, 800, 0},
                    WayIn{"Rounds", {"--rounds=20"}, 2000, 0},
                    WayIn{"Capture", {"--capture"}, 0, 1},
                    WayIn{"CaptureOfConfigCall", {"--capture", "--api=ex"}, 0, 1}),
    kByName);

TEST_F(Record, TimesSomeLaunches) {
  const Recorded run = record_engine({"--launches=500", "--hidden=128"});
  const nlohmann::json& time = run.kernel()["gpu_time"];
  // The second to fourth launch, and each 67th after the first.
  EXPECT_EQ(time["timed"], 3 + 499 / 67) << run.kernel();
  EXPECT_GT(time["sum_us"], 0);
  EXPECT_LE(time["shortest_us"], time["longest_us"]);
  EXPECT_EQ(time["share"], 1);
}

TEST_F(Record, TimesNothingInACapture) {
  const std::vector<std::string> host = {build_dir() + "/bench/launch_variety", "1", "134", "1"};
  const Recorded without = record(host);
  std::vector<std::string> with_capture = host;
  with_capture.emplace_back("300");
  const Recorded run = record(with_capture);
  EXPECT_EQ(run.process.out, "300 nodes, 0 events\n");
  EXPECT_EQ(run.kernel()["launches"], 134);  // where the next would be timed
  EXPECT_EQ(run.kernel()["in_graph"], 300);
  EXPECT_EQ(run.kernel()["gpu_time"]["timed"], without.kernel()["gpu_time"]["timed"]);
}

TEST_F(Record, CountsEveryKernelGeometryAndValueOfManyThreads) {
  const Recorded run = record({build_dir() + "/bench/launch_variety", "200", "12", "8"});
  ASSERT_EQ(run.process.exit_code, 0) << run.process.err;
  ASSERT_EQ(run.kernel_count(), 200u);
  EXPECT_EQ(run.head()["launches"], 200 * 12 * 8);
  for (size_t i = 0; i < run.kernel_count(); ++i) {
    const nlohmann::json& kernel = run.kernel(i);
    EXPECT_EQ(kernel["launches"], 12 * 8);
    ASSERT_EQ(kernel["geometries"].size(), 12u);
    for (const auto& geometry : kernel["geometries"]) EXPECT_EQ(geometry["launches"], 8);
    ASSERT_EQ(kernel["params"][0]["values"].size(), 12u);
    for (const auto& value : kernel["params"][0]["values"]) EXPECT_EQ(value["count"], 8);
  }
}

TEST_F(Record, BoundsGeometriesAndValuesOfAKernelAndCountsTheRest) {
  const Recorded run = record({build_dir() + "/bench/launch_variety", "1", "600", "2"});
  const nlohmann::json& kernel = run.kernel();
  EXPECT_EQ(kernel["launches"], 1200);
  EXPECT_EQ(kernel["geometries"].size(), 64u);
  EXPECT_EQ(kernel["other_geometries"]["launches"], (600 - 64) * 2);
  ASSERT_EQ(kernel["params"][0]["values"].size(), 16u);
  EXPECT_EQ(kernel["params"][0]["other_values"], (600 - 16) * 2);
}

// A struct's words, and which the driver knows as memory: two integers can look like an address.
TEST_F(Record, HasTheWordsOfAStruct) {
  const Recorded run = record({build_dir() + "/bench/launch_variety", "struct", "3"});
  ASSERT_EQ(run.kernel_count(), 1u) << run.process.err;
  const nlohmann::json& params = run.kernel()["params"];
  ASSERT_EQ(params.size(), 2u);
  EXPECT_EQ(params[0]["size"], 32);
  EXPECT_EQ(params[0]["type"], "bytes");
  const nlohmann::json& words = params[0]["words"];
  ASSERT_EQ(words.size(), 4u);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(words[i]["offset"], 8 * i);
    EXPECT_EQ(words[i]["type"], "pointer");
    EXPECT_GE(words[i]["alignment"], 256);
  }
  EXPECT_EQ(words[2]["type"], "int64");
  ASSERT_EQ(words[2]["values"].size(), 3u);
  EXPECT_EQ(words[2]["values"][0]["value"], (33l << 32) + 128);
  EXPECT_EQ(words[3]["values"][0]["count"], 3);
  EXPECT_EQ(params[1]["values"][0]["value"], 0);
}

TEST_F(Record, StaysWithinItsLimitAndCountsWhatFoundNoRoom) {
  const std::string recordings = folder_ + "/recordings";
  Environment environment = recording_environment(recordings);
  environment["FIBSHIM_RECORD_LIMIT"] = "64k";
  const ProcessResult result =
      exits(0, run_process({build_dir() + "/bench/launch_variety", "500", "3", "2"}, environment));
  EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
  EXPECT_CONTAINS(result.err, "the recording is full (FIBSHIM_RECORD_LIMIT)");
  for (const auto& entry : fs::directory_iterator(recordings)) {
    EXPECT_LE(fs::file_size(entry), 64u * 1024);
  }
  const Lines lines = gather(recordings);
  const nlohmann::json& process = lines.at(0)["processes"][0];
  EXPECT_GT(lines.size(), 10u);
  EXPECT_LT(lines.size(), 500u);
  EXPECT_EQ(lines[0]["launches"].get<long>() + process["dropped_launches"].get<long>(),
            500 * 3 * 2);
}

TEST_F(Record, LeavesOutWhatExceedsTheFilesLimit) {
  const Recorded run =
      record({build_dir() + "/bench/launch_variety", "300", "3", "1"}, {"--limit", "64kb"});
  EXPECT_EQ(run.process.exit_code, 0);
  EXPECT_LE(fs::file_size(output()), 64u * 1024);
  EXPECT_CONTAINS(run.process.err, "--limit gives more");
  EXPECT_GT(run.kernel_count(), 10u);
}

TEST_F(Record, IsReadableWhileTheProcessRunsAndAfterSigkill) {
  const std::string recordings = folder_ + "/recordings";
  PausedEngine paused(recording_environment(recordings), {});
  EXPECT_EQ(gather(recordings).at(0)["launches"], 120);
  paused.kill();
  EXPECT_EQ(gather(recordings).at(0)["launches"], 120);
}

TEST_F(Record, EveryProcessHasItsOwnAndAllAreAddedUp) {
  const std::string engine = engine_program() + " --hidden=128 --launches=";
  const Recorded run = record({"sh", "-c", engine + "10 & " + engine + "20; wait"});
  EXPECT_EQ(run.head()["processes"].size(), 2u);
  ASSERT_EQ(run.kernel_count(), 1u);
  EXPECT_EQ(run.kernel()["launches"], 30);
  EXPECT_FALSE(fs::exists(output() + ".parts"));
}

TEST_F(Record, KeepsTheImagesOfChosenKernelsEachOnce) {
  const std::string images = output() + ".images";
  const std::vector<std::string> engine = {"--hidden=128", "--launches=3", "--rounds=3"};
  (void)exits(0, record_engine(engine, {"--keep-images", "no_such_kernel*"}).process);
  EXPECT_FALSE(fs::exists(images));
  const Recorded kept = record_engine(engine, {"--keep-images", "*vectorized_layer_norm*"});
  EXPECT_CONTAINS(kept.process.err, "1 image (");
  ASSERT_EQ(std::distance(fs::directory_iterator(images), {}), 1);
  const fs::path image = fs::directory_iterator(images)->path();
  EXPECT_EQ("xxh128:" + image.stem().string().substr(7), kept.kernel()["image"]["hash"]);
  EXPECT_EQ(image.extension(), ".fatbin");
  EXPECT_EQ(fs::file_size(image), fs::file_size(build_dir() + "/tests/data/engine_kernels.fatbin"));
  EXPECT_FALSE(fs::exists(output() + ".parts"));
}

TEST_F(Record, KeepsNoMoreOfImagesThanItsLimit) {
  const Recorded run = record_engine({"--hidden=128"}, {"--keep-images", "*", "--limit", "64kb"});
  EXPECT_CONTAINS(run.process.err, "an image is not kept: no room (FIBSHIM_RECORD_LIMIT)");
  EXPECT_FALSE(fs::exists(output() + ".images") && !fs::is_empty(output() + ".images"));
  EXPECT_EQ(run.kernel_count(), 1u);
}

TEST_F(Record, WhatItKeepsIsAReferenceForVerify) {
  (void)exits(0, record_engine({"--hidden=4096", "--rows=33", "--launches=3"},
                               {"-c", pytorch_config(), "--keep-images", "*"})
                     .process);
  const ProcessResult result =
      exits(0, run_process({fibshim_program(), "verify", pytorch_config(), "rmsnorm_h4096",
                            "--against-original", output()},
                           environment()));
  EXPECT_CONTAINS(result.out, "batch_size=33  PASSED");
  EXPECT_CONTAINS(result.out, "1 case: 1 passed, 0 failed");
}

// A kernel with one candidate, whose key the fast side can read.
TEST_F(Record, HasTheLaunchesThatTheFastSideWouldDecide) {
  const Recorded run = record({build_dir() + "/bench/launch_loop", "50", "bench_hit"},
                              {"-c", build_dir() + "/bench/config", "--mode", "apply"});
  EXPECT_EQ(run.kernel()["outcomes"], (nlohmann::json{{"hit", 8 + 3 * 50}}));
}

TEST_F(Record, RedirectsNothingUnlessTold) {
  const std::vector<std::string> engine = {"--launches=70", "--hidden=128"};
  const Recorded observed = record_engine(engine, {"-c", pytorch_config()});
  EXPECT_EQ(observed.kernel()["outcomes"], (nlohmann::json{{"observed", 70}}));
  EXPECT_CONTAINS(observed.process.out, "\"ran_curated\":0");
  const Recorded applied = record_engine(engine, {"-c", pytorch_config(), "--mode", "apply"});
  EXPECT_EQ(applied.kernel()["outcomes"], (nlohmann::json{{"hit", 70}}));
  EXPECT_CONTAINS(applied.process.out, "\"ran_curated\":70");
  // The recording has the kernel that the host launched, not the one that ran.
  EXPECT_CONTAINS(applied.kernel()["symbol"].get<std::string>(), "vectorized_layer_norm");
}

TEST_F(Record, SaysWhichPatternFitsAndWhyOthersDoNot) {
  const std::string config = copy_of_pytorch_config();
  edit_file(find_file(config, "torch-rms-norm-fp16.json"), "10", "20");
  edit_file(find_file(config, "torch-rms-norm-fp16.json"), "N3c104HalfEfLb1",
            "N3c108BFloat16EfLb1");
  edit_file(find_file(config, "torch-rms-norm-fp16.json"), "[4, 4, 8, 8, 8, 8, 8, 8]",
            "[4, 4, 8, 8, 8, 8, 8, 8, 4]");
  (void)record_engine({"--launches=5", "--hidden=192"}, {"-c", config});
  const ProcessResult result = exits(
      0,
      run_process({fibshim_program(), "record", "--summary", output(), "--json"}, environment()));
  const auto summary = nlohmann::json::parse(result.out, nullptr, false);
  const nlohmann::json& fits = summary["kernels"][0]["patterns"];
  ASSERT_EQ(fits.size(), 2u) << result.out;
  EXPECT_EQ(fits[0]["label"], "torch-rms-norm-fp16");
  EXPECT_EQ(fits[0]["fits"], false);
  EXPECT_EQ(fits[0]["why"],
            "params differ: the kernel's are [4, 4, 8, 8, 8, 8, 8, 8], the pattern's "
            "[4, 4, 8, 8, 8, 8, 8, 8, 4]");
  EXPECT_EQ(fits[1]["fits"], true);
  EXPECT_EQ(fits[1]["why"],
            "5 fallback_no_solution: a pattern named a definition that the folder has no solution "
            "for");
}

TEST_F(Record, SuggestedFolderRedirectsWithEditsToTheSolutionOnly) {
  if (run_shell("command -v nvcc || [ -x /usr/local/cuda/bin/nvcc ]").exit_code != 0) {
    GTEST_SKIP() << "nvcc is not on PATH";
  }
  (void)record_engine({"--launches=3", "--hidden=4096"});
  const std::string suggested = folder_ + "/suggested";
  const ProcessResult suggestion = run_process(
      {fibshim_program(), "suggest", output(), "layer_norm", "-o", suggested}, environment());
  ASSERT_EQ(suggestion.exit_code, 0) << suggestion.err;
  const fs::path kernel = find_file(suggested, "kernel.cu");
  const std::string script = find_file(suggested, "build.sh");
  const std::string path = "PATH=$PATH:/usr/local/cuda/bin ";
  EXPECT_NE(run_shell(path + "sh " + script).exit_code, 0) << "the kernel is not written yet";
  edit_file(kernel, "#error \"write the kernel here\"", "");
  const ProcessResult built = run_shell(path + "sh " + script);
  ASSERT_EQ(built.exit_code, 0) << built.err;
  EXPECT_CONTAINS(exits(0, run_process({fibshim_program(), "check", suggested}, environment())).out,
                  "no mistakes");
  const EngineRun run =
      PreloadedEngine().run({"--launches=4", "--hidden=4096", "--no-verify"}, suggested);
  EXPECT_EQ(run.outcome("hit"), 4) << run.process.err;
  EXPECT_EQ(run.ran_original(), 0);
}

TEST_F(Record, ReturnsTheProgramsExitCodeAndForwardsSignals) {
  EXPECT_EQ(record({"sh", "-c", "exit 42"}).process.exit_code, 42);
  EXPECT_EQ(record({"sh", "-c", "kill -9 $$"}).process.exit_code, 128 + 9);
  EXPECT_EQ(record({"sh", "-c", "trap 'exit 7' TERM; kill -TERM $PPID; while :; do :; done"})
                .process.exit_code,
            7);
  EXPECT_EQ(record({"no-such-program-here"}).process.exit_code, 127);
}

TEST_F(Record, SaysWhenNothingWasRecorded) {
  const Recorded run = record({"true"});
  EXPECT_EQ(run.process.exit_code, 0);
  EXPECT_EQ(run.head()["launches"], 0);
  EXPECT_CONTAINS(run.process.err, "no launch was recorded");
  // What was recorded before stays.
  const auto lines = record_engine({"--launches=5"}).lines;
  EXPECT_EQ(record({"no-such-program-here"}).lines, lines);
}

TEST_F(Record, ProgressIsForTerminalsUnlessAskedFor) {
  const Recorded run = record_engine({"--launches=5"});
  EXPECT_EQ(std::count(run.process.err.begin(), run.process.err.end(), '\n'), 1) << run.process.err;
  EXPECT_EQ(run.process.err.find('\r'), std::string::npos);
}

TEST_F(Record, DoesNotMixWithARecordingThatWasNotFinished) {
  ASSERT_EQ(mkdir((output() + ".parts").c_str(), 0700), 0);
  const Recorded run = record_engine({});
  EXPECT_EQ(run.process.exit_code, 1);
  EXPECT_EQ(run.process.out, "");
  EXPECT_CONTAINS(run.process.err, "record --from");
}

TEST_F(Record, AFolderThatCannotBeWrittenLeavesTheProgramAlone) {
  const std::string file = folder_ + "/file";
  std::ofstream(file) << "x";
  const ProcessResult result =
      exits(0, run_process({engine_program(), "--launches=5"}, recording_environment(file)));
  EXPECT_CONTAINS(result.err, "cannot record there");
  EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
}

class RecordWithoutItsLibrary : public Record, public testing::WithParamInterface<std::string> {};

// A shim without its recorder, or with another file in its place.
TEST_P(RecordWithoutItsLibrary, WarnsOnceAndRedirectsAsBefore) {
  for (const auto& entry : fs::directory_iterator(build_dir() + "/lib")) {
    if (entry.path().filename() != "libfibrecord.so") fs::copy(entry.path(), folder_);
  }
  if (!GetParam().empty())
    fs::copy(build_dir() + "/lib/" + GetParam(), folder_ + "/libfibrecord.so");
  Environment environment = recording_environment(folder_ + "/recordings");
  environment["LD_PRELOAD"] = folder_ + "/libfibshim.so";
  const std::vector<std::string> engine = {engine_program(), "--launches=5", "--hidden=4096",
                                           "--threads=3"};
  for (const std::string& config : {std::string(), pytorch_config()}) {
    environment["FIBSHIM_CONFIG"] = config;
    const ProcessResult result = exits(0, run_process(engine, environment));
    EXPECT_CONTAINS(result.err, "nothing is recorded");
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
    EXPECT_FALSE(fs::exists(folder_ + "/recordings"));
    const std::string ran = "\"ran_curated\":" + std::string(config.empty() ? "0" : "15");
    EXPECT_CONTAINS(result.out, ran);
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, RecordWithoutItsLibrary, testing::Values("", "libfibloader.so"),
                         [](const auto& kind) {
                           return kind.param.empty() ? "Missing" : "Another";
                         });

TEST_F(Record, NamesOfFoldersAreExpanded) {
  Environment environment = recording_environment(folder_ + "/%q{WHERE}-100%%");
  environment["WHERE"] = "here";
  EXPECT_EQ(run_process({engine_program()}, environment).exit_code, 0);
  EXPECT_EQ(gather(folder_ + "/here-100%").at(0)["launches"], 1);
}

TEST_F(Record, OffRecordsNothing) {
  Environment environment = recording_environment(folder_ + "/recordings");
  environment["FIBSHIM_MODE"] = "off";
  EXPECT_EQ(run_process({engine_program()}, environment).exit_code, 0);
  EXPECT_FALSE(fs::exists(folder_ + "/recordings"));
}

TEST_F(Record, AMistakenFolderDoesNotKeepItFromRecording) {
  Environment environment = recording_environment(folder_ + "/recordings");
  environment["FIBSHIM_CONFIG"] = folder_ + "/nowhere";
  EXPECT_CONTAINS(exits(0, run_process({engine_program(), "--launches=9"}, environment)).err,
                  "nowhere");
  EXPECT_EQ(gather(folder_ + "/recordings").at(0)["launches"], 9);
}

TEST_F(Record, LaunchCostRunsEverywhere) {
  const ProcessResult result =
      exits(0, run_process({build_dir() + "/tests/hosts/launch_cost", "3", "100"},
                           recording_environment(folder_ + "/recordings")));
  EXPECT_GT(std::stod(result.out), 0);
  EXPECT_EQ(gather(folder_ + "/recordings").at(0)["launches"], 500);
}

}  // namespace
}  // namespace fibshim
