// The preloaded shim when something is wrong: broken solutions, bad folders, bad settings, a stats
// folder that cannot be written. The host gets a CUDA error that says why, or its own kernels.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <functional>
#include <string>

#include "tests/shim/preloaded_engine.h"
#include "tests/support/text.h"

namespace fibshim {
namespace {

namespace fs = std::filesystem;

constexpr char kError[] = "torch-rms-norm-bf16 rmsnorm_h128 error";
constexpr char kErrorFallback[] = "torch-rms-norm-bf16 rmsnorm_h128 error_fallback";

// One way to break the solution of rmsnorm_h128 in a copy of build/config/pytorch.
struct Breakage {
  const char* name;
  std::function<void(const std::string& config)> apply;
  int code;          // the error that a strict launch returns
  const char* rule;  // the rule that `fibshim check` names
};

fs::path solution_of(const std::string& config) {
  return find_file(config, "fibshim_rmsnorm_h128.json");
}

// Copies the images that the solution shares with its family, so that only it breaks.
void own_images(const std::string& config) {
  const fs::path folder = solution_of(config).parent_path();
  nlohmann::json json = nlohmann::json::parse(std::ifstream(solution_of(config)));
  for (auto& image : json["launch"]["images"]) {
    const auto shared = image["path"].get<std::string>();
    const std::string own = "own_" + shared;
    fs::copy_file(folder / shared, folder / own);
    image["path"] = own;
  }
  std::ofstream(solution_of(config), std::ios::trunc) << json.dump(2);
}

fs::path cubin_of(const std::string& config, const std::string& sm) {
  return solution_of(config).parent_path() / ("own_rmsnorm." + sm + ".cubin");
}

// Writes the file's true sum into the solution, so that only the file's contents are wrong.
void mend_sum(const std::string& config, const std::string& sm) {
  const ProcessResult sum = run_process({"sha256sum", cubin_of(config, sm).string()});
  nlohmann::json json = nlohmann::json::parse(std::ifstream(solution_of(config)));
  for (auto& image : json["launch"]["images"]) {
    if (image["path"] == cubin_of(config, sm).filename().string()) {
      image["sha256"] = sum.out.substr(0, 64);
    }
  }
  std::ofstream(solution_of(config), std::ios::trunc) << json.dump(2);
}

void truncate_cubin(const std::string& config) {
  own_images(config);
  fs::resize_file(cubin_of(config, "sm_90"), fs::file_size(cubin_of(config, "sm_90")) / 2);
  mend_sum(config, "sm_90");
}

void change_sum(const std::string& config) {
  own_images(config);
  std::ofstream(cubin_of(config, "sm_90"), std::ios::app) << "x";
}

void swap_in_another_sm(const std::string& config) {
  own_images(config);
  fs::copy_file(cubin_of(config, "sm_100"), cubin_of(config, "sm_90"),
                fs::copy_options::overwrite_existing);
  mend_sum(config, "sm_90");
}

void name_a_missing_kernel(const std::string& config) {
  edit_file(solution_of(config), "\"kernel\": \"rmsnorm_h128_bf16\"",
            "\"kernel\": \"rmsnorm_h129_bf16\"");
}

void drop_an_argument(const std::string& config) {
  edit_file(solution_of(config), "\"eps\", \"batch_size\"", "\"eps\"");
}

void remove_image(const std::string& config) {
  own_images(config);
  fs::remove(cubin_of(config, "sm_90"));
}

class BrokenSolution : public testing::TestWithParam<Breakage> {};

TEST_P(BrokenSolution, IsFoundByCheckWithItsPlace) {
  const std::string config = copy_of_pytorch_config();
  GetParam().apply(config);
  const ProcessResult check =
      exits(1, run_process({build_dir() + "/bin/fibshim", "check", config}));
  const std::string all = check.out + check.err;
  EXPECT_CONTAINS(all, "fibshim_rmsnorm_h128.json:");
  EXPECT_CONTAINS(all, std::string("[") + GetParam().rule + "]");
}

TEST_P(BrokenSolution, MakesAStrictLaunchFailAndSaysWhyOnce) {
  const std::string config = copy_of_pytorch_config();
  GetParam().apply(config);
  const EngineRun run = exits(1, PreloadedEngine().run({"--hidden=128", "--launches=5"}, config));
  EXPECT_EQ(run.launches_with(GetParam().code), 5) << run.process.out << run.process.err;
  EXPECT_EQ(run.ran_original() + run.ran_curated(), 0);
  EXPECT_EQ(run.outcome(kError), 5);
  int reasons = 0;
  for (const std::string& line : run.messages()) {
    reasons += line.find("error: solution fibshim_rmsnorm_h128") != std::string::npos;
  }
  EXPECT_EQ(reasons, 1) << run.process.err;
}

TEST_P(BrokenSolution, FallsBackWhenAskedTo) {
  const std::string config = copy_of_pytorch_config();
  GetParam().apply(config);
  const EngineRun run = exits(0, PreloadedEngine().run({"--hidden=128", "--launches=5"}, config,
                                                       {{"FIBSHIM_ON_ERROR", "fallback"}}));
  EXPECT_EQ(run.ran_original(), 5);
  EXPECT_EQ(run.outcome(kErrorFallback), 5);
}

TEST_P(BrokenSolution, LeavesTheOthersWorking) {
  const std::string config = copy_of_pytorch_config();
  GetParam().apply(config);
  const EngineRun run = exits(0, PreloadedEngine().run({"--hidden=2048", "--launches=5"}, config));
  EXPECT_EQ(run.ran_curated(), 5);
}

INSTANTIATE_TEST_SUITE_P(
    Failure, BrokenSolution,
    testing::Values(Breakage{"TruncatedCubin", truncate_cubin, 200, "image-invalid"},
                    Breakage{"WrongSha256", change_sum, 200, "image-sha256"},
                    Breakage{"WrongSm", swap_in_another_sm, 209, "image-sm"},
                    Breakage{"MissingKernel", name_a_missing_kernel, 500, "kernel-missing"},
                    Breakage{"ParameterSizes", drop_an_argument, 1, "kernel-params"},
                    Breakage{"MissingFile", remove_image, 301, "image-missing"}),
    kByName);

TEST(Failure, ABrokenSolutionRunsTheOriginalInObserveMode) {
  const std::string config = copy_of_pytorch_config();
  remove_image(config);
  const EngineRun run = exits(0, PreloadedEngine().run({"--hidden=128", "--launches=5"}, config,
                                                       {{"FIBSHIM_MODE", "observe"}}));
  EXPECT_EQ(run.ran_original(), 5);
  EXPECT_CONTAINS(run.process.err, "; matching launches run the original\n");
}

struct BadFolder {
  const char* name;
  std::function<std::string()> make;
};

class BadFolders : public testing::TestWithParam<BadFolder> {};

TEST_P(BadFolders, LeaveTheProgramOnItsOwnKernelsWithOneWarning) {
  const EngineRun run = exits(
      0, PreloadedEngine().run({"--hidden=128", "--threads=4", "--launches=5"}, GetParam().make()));
  EXPECT_EQ(run.ran_original(), 20);
  EXPECT_EQ(run.messages().size(), 1u) << run.process.err;
  EXPECT_CONTAINS(run.process.err, "warn");
}

INSTANTIATE_TEST_SUITE_P(
    Failure, BadFolders,
    testing::Values(BadFolder{"Missing", [] { return std::string("/nonexistent/config"); }},
                    BadFolder{"AFile",
                              [] {
                                const std::string path = make_temporary_dir() + "/file";
                                std::ofstream(path) << "{}";
                                return path;
                              }},
                    BadFolder{"BrokenJson",
                              [] {
                                const std::string config = copy_of_pytorch_config();
                                edit_file(find_file(config, "torch-rms-norm-bf16.json"), "{", "{{");
                                return config;
                              }},
                    BadFolder{"UnknownKey",
                              [] {
                                const std::string config = copy_of_pytorch_config();
                                edit_file(find_file(config, "torch-rms-norm-bf16.json"),
                                          "\"benefit\"", "\"benefits\"");
                                return config;
                              }}),
    kByName);

TEST(Failure, AWarningNamesFileLineAndReason) {
  const std::string config = copy_of_pytorch_config();
  edit_file(find_file(config, "torch-rms-norm-bf16.json"), "\"benefit\"", "\"benefits\"");
  const EngineRun run = PreloadedEngine().run({"--hidden=128"}, config);
  ASSERT_EQ(run.messages().size(), 1u) << run.process.err;
  EXPECT_CONTAINS(run.messages()[0], "torch-rms-norm-bf16.json:3:") << run.process.err;
  EXPECT_CONTAINS(run.messages()[0], "benefits");
}

TEST(Failure, AFailingDriverCallIsTheLaunchsError) {
  const PreloadedEngine engine;
  EngineRun run = engine.run({"--hidden=128", "--launches=2"}, pytorch_config(),
                             {{"SIMCUDA_FAIL", "cuLaunchKernel:rmsnorm_*=701"}});
  EXPECT_EQ(run.launches_with(701), 2) << run.process.out << run.process.err;
  EXPECT_EQ(run.outcome(kError), 2);
  EXPECT_EQ(run.messages().size(), 1u) << run.process.err;
  run = engine.run(
      {"--hidden=128", "--launches=2"}, pytorch_config(),
      {{"SIMCUDA_FAIL", "cuLaunchKernel:rmsnorm_*=701"}, {"FIBSHIM_ON_ERROR", "fallback"}});
  EXPECT_EQ(run.process.exit_code, 0) << run.process.out;
  EXPECT_EQ(run.ran_original(), 2);
  EXPECT_EQ(run.outcome(kError), 2);
  EXPECT_EQ(run.outcome(kErrorFallback), 2);
}

// A folder whose rmsnorm_h128 cannot be loaded and whose rmsnorm_h2048 cannot be launched, with
// these settings in fibshim.json. The engine launches each twice.
struct OnErrorCase {
  const char* name;
  const char* settings;
  const char* environment;  // FIBSHIM_ON_ERROR, or null
  bool h128_falls_back;
  bool h2048_falls_back;
};

class OnErrorOfADefinition : public testing::TestWithParam<OnErrorCase> {};

TEST_P(OnErrorOfADefinition, DecidesForItAlone) {
  const std::string config = copy_of_pytorch_config();
  name_a_missing_kernel(config);
  std::ofstream(config + "/fibshim.json") << GetParam().settings;
  Environment environment = {{"SIMCUDA_FAIL", "cuLaunchKernel:rmsnorm_*=701"}};
  if (GetParam().environment != nullptr) environment["FIBSHIM_ON_ERROR"] = GetParam().environment;
  const struct {
    const char* hidden;
    int code;
    bool falls_back;
  } solutions[] = {{"--hidden=128", 500, GetParam().h128_falls_back},
                   {"--hidden=2048", 701, GetParam().h2048_falls_back}};
  for (const auto& one : solutions) {
    const EngineRun run = PreloadedEngine().run({one.hidden, "--launches=2"}, config, environment);
    EXPECT_EQ(run.ran_original(), one.falls_back ? 2 : 0) << one.hidden << run.process.err;
    EXPECT_EQ(run.launches_with(one.code), one.falls_back ? 0 : 2) << one.hidden;
    ASSERT_EQ(run.messages().size(), 1u) << run.process.err;
    const std::string says =
        one.falls_back ? "the original" : "(FIBSHIM_ON_ERROR=fallback runs the";
    EXPECT_CONTAINS(run.messages()[0], says) << run.process.err;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Failure, OnErrorOfADefinition,
    testing::Values(
        OnErrorCase{"OneFallsBack",
                    R"({"definitions": {"rmsnorm_h2048": {"on_error": "fallback"}}})", nullptr,
                    false, true},
        OnErrorCase{
            "OneFails",
            R"({"on_error": "fallback", "definitions": {"rmsnorm_h2048": {"on_error": "fail"}}})",
            nullptr, true, false},
        OnErrorCase{"AGlobFallsBack",
                    R"({"definitions": {"rmsnorm_h1*": {"on_error": "fallback"}}})", nullptr, true,
                    false},
        OnErrorCase{"TheEnvironmentWins",
                    R"({"definitions": {"rmsnorm_*": {"on_error": "fallback"}}})", "fail", false,
                    false},
        OnErrorCase{"TheEnvironmentWinsToFallBack",
                    R"({"definitions": {"rmsnorm_*": {"on_error": "fail"}}})", "fallback", true,
                    true}),
    kByName);

constexpr char kHit[] = "torch-rms-norm-bf16 rmsnorm_h128 hit";
constexpr char kQuarantined[] = "torch-rms-norm-bf16 rmsnorm_h128 fallback_quarantined";

int messages_with(const EngineRun& run, const std::string& part) {
  int found = 0;
  for (const std::string& line : run.messages()) found += line.find(part) != std::string::npos;
  return found;
}

// With an expression in the key, launches are made by plans that the thread remembers.
std::string pytorch_config_with_expressions() {
  std::string config = copy_of_pytorch_config();
  const fs::path file = find_file(config, "torch-rms-norm-bf16.json");
  nlohmann::json json = nlohmann::json::parse(std::ifstream(file));
  json["axes"]["size"] = json["axes"]["hidden_size"];
  json["axes"]["hidden_size"] = {{"expr", "2 * size / 2"}};
  std::ofstream(file, std::ios::trunc) << json.dump(2);
  return config;
}

TEST(Quarantine, LeavesASolutionAloneThatCannotBeLaunched) {
  for (const std::string& config : {pytorch_config(), pytorch_config_with_expressions()}) {
    for (const bool falls_back : {false, true}) {
      // The fourth launch of the solution would succeed, but is not tried.
      const EngineRun run =
          PreloadedEngine().run({"--hidden=128", "--launches=8"}, config,
                                {{"FIBSHIM_QUARANTINE", "3"},
                                 {"FIBSHIM_ON_ERROR", falls_back ? "fallback" : "fail"},
                                 {"SIMCUDA_FAIL", "cuLaunchKernel:rmsnorm_*=701*3"}});
      EXPECT_EQ(run.launches_with(701), falls_back ? 0 : 3) << run.process.out << run.process.err;
      EXPECT_EQ(run.ran_original(), falls_back ? 8 : 5);
      EXPECT_EQ(run.ran_curated(), 0);
      EXPECT_EQ(run.outcome(falls_back ? kErrorFallback : kError), 3);
      EXPECT_EQ(run.outcome(kQuarantined), 5);
      EXPECT_EQ(
          messages_with(run, "rmsnorm_h128: solution fibshim_rmsnorm_h128 is left alone after 3"),
          1)
          << run.process.err;
    }
  }
}

TEST(Quarantine, LeavesASolutionAloneThatCannotBeLoaded) {
  const std::string config = copy_of_pytorch_config();
  name_a_missing_kernel(config);
  const EngineRun run =
      PreloadedEngine().run({"--hidden=128", "--launches=8", "--threads=4"}, config,
                            {{"FIBSHIM_QUARANTINE", "2"}, {"FIBSHIM_ON_ERROR", "fallback"}});
  EXPECT_EQ(run.ran_original(), 32) << run.process.err;
  // Threads that had passed the check already fail, too.
  EXPECT_GE(run.outcome(kErrorFallback), 2);
  EXPECT_LE(run.outcome(kErrorFallback), 2 + 3);
  EXPECT_EQ(run.outcome(kErrorFallback) + run.outcome(kQuarantined), 32);
  EXPECT_EQ(messages_with(run, "left alone"), 1) << run.process.err;
}

TEST(Quarantine, IsOffUnlessAskedFor) {
  const EngineRun run = PreloadedEngine().run(
      {"--hidden=128", "--launches=50"}, pytorch_config(),
      {{"FIBSHIM_ON_ERROR", "fallback"}, {"SIMCUDA_FAIL", "cuLaunchKernel:rmsnorm_*=701*20"}});
  EXPECT_EQ(run.outcome(kErrorFallback), 20);
  EXPECT_EQ(run.outcome(kHit), 30);
  EXPECT_EQ(run.outcome(kQuarantined), 0);
}

TEST(Quarantine, DoesNotCountWhatTheCallerOrTheContextIsTheCauseOf) {
  for (const char* code : {"400", "201", "901", "719"}) {
    const EngineRun run = PreloadedEngine().run(
        {"--hidden=128", "--launches=9"}, pytorch_config(),
        {{"FIBSHIM_QUARANTINE", "1"},
         {"FIBSHIM_ON_ERROR", "fallback"},
         {"SIMCUDA_FAIL", std::string("cuLaunchKernel:rmsnorm_*=") + code + "*4"}});
    EXPECT_EQ(run.outcome(kErrorFallback), 4) << code;
    EXPECT_EQ(run.outcome(kHit), 5) << code;
  }
}

TEST(Quarantine, MayStandInTheFolderAsANumber) {
  const std::string config = copy_of_pytorch_config();
  std::ofstream(config + "/fibshim.json") << R"({"quarantine": 1, "on_error": "fallback"})";
  const EngineRun run = PreloadedEngine().run({"--hidden=128", "--launches=4"}, config,
                                              {{"SIMCUDA_FAIL", "cuLaunchKernel:rmsnorm_*=701"}});
  EXPECT_EQ(run.outcome(kErrorFallback), 1) << run.process.err;
  EXPECT_EQ(run.outcome(kQuarantined), 3);
}

TEST(Quarantine, ANumberThatIsNoneWarnsAndNothingIsLeftAlone) {
  for (const char* value : {"many", "-1", "3x", "99999999999"}) {
    const EngineRun run = PreloadedEngine().run({"--hidden=128", "--launches=4"}, pytorch_config(),
                                                {{"FIBSHIM_QUARANTINE", value},
                                                 {"FIBSHIM_ON_ERROR", "fallback"},
                                                 {"SIMCUDA_FAIL", "cuLaunchKernel:rmsnorm_*=701"}});
    EXPECT_EQ(run.outcome(kErrorFallback), 4) << value;
    EXPECT_EQ(messages_with(run, "number of failures, 0 for never; 0 holds"), 1) << run.process.err;
  }
}

TEST(Failure, ATransientFailureIsNotRemembered) {
  // The engine's own load is the first call. The loads of the replacement follow, and the first of
  // these fails.
  const EngineRun run = exits(
      0, PreloadedEngine().run({"--module=module", "--hidden=128", "--launches=3"},
                               pytorch_config(), {{"SIMCUDA_FAIL", "cuLibraryLoadData=2*1"}}));
  EXPECT_EQ(run.ran_curated(), 3);
}

TEST(Settings, ObserveCountsAndNeverRedirects) {
  const EngineRun run = PreloadedEngine().run({"--hidden=128", "--launches=5"}, pytorch_config(),
                                              {{"FIBSHIM_MODE", "observe"}});
  EXPECT_EQ(run.ran_original(), 5);
  EXPECT_EQ(run.outcome("torch-rms-norm-bf16 rmsnorm_h128 observed"), 5);
}

TEST(Settings, OffDoesNothing) {
  const PreloadedEngine engine;
  const EngineRun run = engine.run({"--hidden=128"}, pytorch_config(), {{"FIBSHIM_MODE", "off"}});
  EXPECT_EQ(run.ran_original(), 1);
  EXPECT_TRUE(run.counts.empty());
  EXPECT_TRUE(fs::is_empty(engine.stats_dir()));
}

TEST(Settings, WithoutAConfigTheShimDoesNothing) {
  for (const char* host : {"engine", "engine_linked"}) {
    const PreloadedEngine engine;
    const EngineRun run = exits(0, engine.run({"--hidden=128"}, "", {}, host));
    EXPECT_EQ(run.ran_original(), 1);
    EXPECT_TRUE(run.messages().empty());
    EXPECT_TRUE(fs::is_empty(engine.stats_dir()));
  }
}

TEST(Settings, AValueThatIsNotUnderstoodWarnsAndTheDefaultHolds) {
  const EngineRun run =
      PreloadedEngine().run({"--hidden=128"}, pytorch_config(), {{"FIBSHIM_ON_ERROR", "explode"}});
  EXPECT_EQ(run.ran_curated(), 1);
  ASSERT_EQ(run.messages().size(), 1u) << run.process.err;
  EXPECT_CONTAINS(run.messages()[0], "explode");
  EXPECT_CONTAINS(run.messages()[0], "fail or fallback");
}

TEST(Settings, TheFolderSetsWhatTheEnvironmentDoesNot) {
  const std::string config = copy_of_pytorch_config();
  std::ofstream(config + "/fibshim.json") << "{\"MODE\": \"observe\"}";
  EXPECT_EQ(PreloadedEngine().run({"--hidden=128"}, config).ran_original(), 1);
  EXPECT_EQ(
      PreloadedEngine().run({"--hidden=128"}, config, {{"FIBSHIM_MODE", "apply"}}).ran_curated(),
      1);
}

TEST(Settings, MessagesGoToTheLogFile) {
  const std::string folder = make_temporary_dir();
  const EngineRun run = PreloadedEngine().run(
      {"--hidden=128"}, "/nonexistent/config",
      {{"FIBSHIM_LOG_FILE", folder + "/log-%p-%q{WORD}.txt"}, {"WORD", "here"}});
  EXPECT_TRUE(run.messages().empty()) << run.process.err;
  int found = 0;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename();
    EXPECT_TRUE(name.starts_with("log-") && name.ends_with("-here.txt")) << name;
    EXPECT_GT(fs::file_size(entry.path()), 20u);
    ++found;
  }
  EXPECT_EQ(found, 1);
}

TEST(Settings, AFifoWithoutAReaderDoesNotStopTheHost) {
  const std::string fifo = make_temporary_dir() + "/fifo";
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  const EngineRun run =
      PreloadedEngine().run({"--hidden=128"}, "/nonexistent/config", {{"FIBSHIM_LOG_FILE", fifo}});
  EXPECT_EQ(run.ran_original(), 1);
  // One message says what could not be opened; the other is the message itself.
  EXPECT_EQ(run.messages().size(), 2u) << run.process.err;
}

TEST(Settings, ARelativeConfigIsMeantFromWhereTheProcessStarted) {
  const PreloadedEngine engine;
  Environment environment = engine.environment("config/pytorch");
  environment["LD_PRELOAD"] = "lib/libfibshim.so";
  const ProcessResult result = run_process({build_dir() + "/tests/hosts/engine", "--hidden=128"},
                                           environment, 60, build_dir());
  EXPECT_CONTAINS(result.out, "\"ran_curated\":1");
}

TEST(Counters, AFolderThatCannotBeWrittenCostsOnlyTheCounters) {
  const std::string file = make_temporary_dir() + "/file";
  std::ofstream(file) << "x";
  const EngineRun run =
      exits(0, PreloadedEngine().run({"--hidden=128", "--threads=8", "--launches=100"},
                                     pytorch_config(), {{"FIBSHIM_STATS_DIR", file + "/below"}}));
  EXPECT_EQ(run.ran_curated(), 800);
  EXPECT_EQ(run.messages().size(), 1u) << run.process.err;
}

TEST(Counters, AFolderThatOthersMayWriteInIsRefused) {
  const std::string folder = make_temporary_dir();
  ASSERT_EQ(chmod(folder.c_str(), 0777), 0);
  const EngineRun run =
      PreloadedEngine().run({"--hidden=128"}, pytorch_config(), {{"FIBSHIM_STATS_DIR", folder}});
  EXPECT_EQ(run.ran_curated(), 1);
  EXPECT_TRUE(fs::is_empty(folder));
  ASSERT_EQ(run.messages().size(), 1u) << run.process.err;
  EXPECT_CONTAINS(run.messages()[0], "other users may write");
}

TEST(Counters, ATinyFileLimitDoesNotKill) {
  const PreloadedEngine engine;
  Environment environment = engine.environment(pytorch_config());
  EXPECT_CONTAINS(
      exits(0, run_shell("ulimit -f 2048; " + build_dir() +
                             "/tests/hosts/engine --hidden=128 --threads=4 --launches=10",
                         environment))
          .out,
      "\"ran_curated\":40");
}

TEST(Counters, AreReadableWhileTheProcessRunsAndAfterSigkill) {
  const PreloadedEngine engine;
  PausedEngine paused(engine.environment(pytorch_config()), {"--hidden=128"});
  const nlohmann::json live = engine.stats();
  EXPECT_EQ(live["totals"]["hit"], 120) << live.dump(1);
  EXPECT_EQ(live["processes"][0]["alive"], true);
  EXPECT_EQ(live["processes"][0]["pid"], paused.pid());
  paused.kill();
  const nlohmann::json dead = engine.stats();
  EXPECT_EQ(dead["totals"]["hit"], 120) << dead.dump(1);
  EXPECT_EQ(dead["processes"][0]["alive"], false);
}

TEST(Process, WithoutCudaLeavesNoTrace) {
  const PreloadedEngine engine;
  const EngineRun run = exits(0, engine.run({}, pytorch_config(), {}, "no_cuda"));
  EXPECT_TRUE(run.process.err.empty()) << run.process.err;
  EXPECT_TRUE(fs::is_empty(engine.stats_dir()));
}

TEST(Process, HandlesThatAreLoadedAndUnloadedAgainAndAgainStayRight) {
  const EngineRun run =
      exits(0, PreloadedEngine().run({"--rounds=200", "--hidden=128", "--rows=1", "--launches=2"},
                                     pytorch_config()));
  EXPECT_EQ(run.ran_curated(), 400);
  EXPECT_EQ(run.outcome("torch-rms-norm-bf16 rmsnorm_h128 hit"), 400);
}

}  // namespace
}  // namespace fibshim
