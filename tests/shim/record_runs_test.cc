// Recording with CUPTI, which tests/driver/cupti simulates: all that ran, eagerly and in graphs, is
// in the file, and the host notices nothing, whatever CUPTI does.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <functional>

#include "tests/shim/recorded_program.h"

namespace fibshim {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kRunNs = 1300;  // of a grid of 3, in tests/driver/cupti

class RecordRuns : public Record {
 protected:
  Environment environment() const override {
    Environment all = Record::environment();
    all["LD_LIBRARY_PATH"] = build_dir() + "/sim:" + build_dir() + "/sim/cupti";
    all["FIBSHIM_RECORD_TIMES"] = "auto";
    for (const auto& [name, value] : more_) all[name] = value;
    return all;
  }

  nlohmann::json summary() const {
    const ProcessResult result = exits(
        0,
        run_process({fibshim_program(), "record", "--summary", output(), "--json"}, environment()));
    return nlohmann::json::parse(result.out, nullptr, false);
  }

  // Gathers until the recording is as wanted. Returns its lines.
  Lines gather_until(const std::string& recordings,
                     const std::function<bool(const Lines&)>& is_wanted) const {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (true) {
      Lines lines = gather(recordings);
      if (is_wanted(lines) || std::chrono::steady_clock::now() > deadline) return lines;
      usleep(50'000);
    }
  }

  Environment more_;
};

const nlohmann::json& process_of(const Recorded& run) { return run.head()["processes"][0]; }

// The number of a kernel's runs, in graphs or eager.
uint64_t runs_of(const nlohmann::json& kernel, bool in_graph) {
  uint64_t count = 0;
  for (const nlohmann::json& one : kernel["runs"]) {
    if (one["in_graph"] == in_graph) count += one["runs"].get<uint64_t>();
  }
  return count;
}

TEST_F(RecordRuns, HasEveryEagerLaunchWithTheFirstApart) {
  const Recorded run = record_engine({"--launches=500", "--hidden=128", "--rows=3"});
  ASSERT_EQ(run.process.exit_code, 0) << run.process.err;
  ASSERT_EQ(run.kernel_count(), 1u);
  EXPECT_EQ(process_of(run)["timing"], "cupti") << run.head();
  EXPECT_EQ(process_of(run)["timing_reason"], "");
  EXPECT_EQ(process_of(run)["cupti_version"], 130001);
  const nlohmann::json& kernel = run.kernel();
  ASSERT_EQ(kernel["runs"].size(), 1u) << kernel;
  const nlohmann::json& runs = kernel["runs"][0];
  EXPECT_EQ(runs["grid"], (nlohmann::json{3, 1, 1}));
  EXPECT_EQ(runs["block"], kernel["geometries"][0]["block"]);
  EXPECT_EQ(runs["in_graph"], false);
  EXPECT_EQ(runs["warm_up"]["timed"], 3);
  EXPECT_EQ(runs["times"]["timed"], 497);
  EXPECT_EQ(runs["times"]["sum_us"], 497 * kRunNs / 1e3);
  EXPECT_EQ(runs["times"]["shortest_us"], kRunNs / 1e3);
  EXPECT_EQ(kernel["gpu_time"]["estimated_us"], 500 * kRunNs / 1e3);
  // No event was measured: otherwise the geometry would have times.
  EXPECT_EQ(kernel["geometries"][0]["times"], nullptr);
}

// Each kernel takes 1,300 ns, and 1,000 ns pass between two.
TEST_F(RecordRuns, TellsTheBusyShareOfTheTimeFromTheFirstKernelToTheLast) {
  (void)record_engine({"--launches=100", "--hidden=128", "--rows=3"});
  const nlohmann::json time = summary()["gpu_time"];
  EXPECT_EQ(time["total_us"], 100 * kRunNs / 1e3);
  EXPECT_EQ(time["warm_up_us"], 3 * kRunNs / 1e3);
  EXPECT_EQ(time["source"], "CUPTI");
  EXPECT_EQ(time["span_us"], (100 * kRunNs + 99 * 1000) / 1e3);
  EXPECT_DOUBLE_EQ(time["busy_share"], 100.0 * kRunNs / (100 * kRunNs + 99 * 1000));
}

TEST_F(RecordRuns, HasKernelsInGraphsAsOftenAsTheyRan) {
  const Recorded run = record_engine({"--launches=100", "--hidden=256", "--rows=3", "--capture"});
  ASSERT_EQ(run.kernel_count(), 1u) << run.process.err;
  EXPECT_EQ(run.kernel()["launches"], 0);
  EXPECT_EQ(run.kernel()["in_graph"], 1);
  EXPECT_EQ(runs_of(run.kernel(), true), 100u);
  EXPECT_EQ(runs_of(run.kernel(), false), 0u);
  EXPECT_EQ(run.kernel()["gpu_time"]["estimated_us"], 100 * kRunNs / 1e3);
  const nlohmann::json kernel = summary()["kernels"][0];
  EXPECT_EQ(kernel["ran"]["in_graphs"], 100);
  EXPECT_EQ(kernel["ran"]["in_graph_mean_us"], kRunNs / 1e3);
  EXPECT_EQ(kernel["ran"]["eager_mean_us"], nullptr);
}

TEST_F(RecordRuns, HasEveryRunOfManyThreadsKernelsAndShapes) {
  const Recorded run = record({build_dir() + "/bench/launch_variety", "50", "12", "8"});
  ASSERT_EQ(run.kernel_count(), 50u) << run.process.err;
  for (size_t i = 0; i < run.kernel_count(); ++i) {
    const nlohmann::json& kernel = run.kernel(i);
    EXPECT_EQ(runs_of(kernel, false), 12u * 8) << kernel;
    EXPECT_EQ(kernel["runs"].size(), 12u);
    EXPECT_EQ(kernel["shares_runs"], false);
  }
}

// CUPTI stores another kernel's name at the same address.
TEST_F(RecordRuns, KnowsKernelsByTheirNamesNotByWhereTheseStand) {
  more_ = {{"SIMCUPTI_ONE_PLACE", "1"}};
  const Recorded run = record({build_dir() + "/bench/launch_variety", "5", "3", "1"});
  ASSERT_EQ(run.kernel_count(), 5u) << run.process.err;
  for (size_t i = 0; i < run.kernel_count(); ++i) {
    EXPECT_EQ(runs_of(run.kernel(i), false), 3u) << run.kernel(i);
  }
}

// More runs than fit into one buffer.
TEST_F(RecordRuns, LosesNothingOfManyRuns) {
  const Recorded run = record_engine({"--launches=10000", "--threads=3", "--hidden=128"});
  EXPECT_EQ(runs_of(run.kernel(), false), 30000u);
  EXPECT_EQ(process_of(run)["dropped_runs"], 0);
}

TEST_F(RecordRuns, TellsWhatIsKnownAndWhatRanInPlaceOfIt) {
  const std::vector<std::string> engine = {"--launches=70", "--hidden=128", "--rows=3"};
  (void)record_engine(engine, {"-c", pytorch_config()});
  const nlohmann::json observed = summary();
  EXPECT_EQ(observed["gpu_time"]["known_share"], 1.0);
  EXPECT_EQ(observed["gpu_time"]["replaced_share"], 0.0);
  (void)record_engine(engine, {"-c", pytorch_config(), "--mode", "apply"});
  const nlohmann::json applied = summary();
  EXPECT_EQ(applied["gpu_time"]["known_share"], 1.0) << applied;
  EXPECT_EQ(applied["gpu_time"]["replaced_share"], 1.0);
  ASSERT_EQ(applied["kernels"].size(), 2u);
  EXPECT_EQ(applied["kernels"][0]["replaces"], "rmsnorm_h128") << applied["kernels"][0];
  EXPECT_EQ(applied["kernels"][0]["launches"], 0);
  EXPECT_EQ(applied["kernels"][0]["ran"]["eagerly"], 70);
  EXPECT_EQ(applied["kernels"][1]["launches"], 70);
  EXPECT_EQ(applied["kernels"][1]["ran"]["eagerly"], 0);
}

struct WithoutCupti {
  const char* name;
  Environment environment;
  const char* reason;
};
class RecordWithoutCupti : public RecordRuns, public testing::WithParamInterface<WithoutCupti> {};

TEST_P(RecordWithoutCupti, MeasuresWithEventsAndSaysWhy) {
  more_ = GetParam().environment;
  for (const char* const times : {"auto", "cupti"}) {
    more_["FIBSHIM_RECORD_TIMES"] = times;
    const Recorded run = record_engine({"--launches=500", "--hidden=128"});
    ASSERT_EQ(run.process.exit_code, 0) << run.process.err;
    EXPECT_EQ(process_of(run)["timing"], "events");
    EXPECT_EQ(process_of(run)["timing_reason"], GetParam().reason);
    EXPECT_EQ(run.kernel()["gpu_time"]["timed"], 3 + 499 / 67);
    EXPECT_EQ(run.kernel()["runs"].size(), 0u);
    // The reason is printed at once if CUPTI was required, else in the summary.
    EXPECT_EQ(run.process.err.find("not CUPTI") != std::string::npos, times[0] == 'c')
        << run.process.err;
    EXPECT_EQ(summary()["gpu_time"]["events_because"][GetParam().reason], 1);
  }
}

INSTANTIATE_TEST_SUITE_P(Reasons, RecordWithoutCupti,
                         testing::Values(WithoutCupti{"UnknownVersion",
                                                      {{"SIMCUPTI_VERSION", "140000"}},
                                                      "CUPTI's version 140000 is not known"},
                                         WithoutCupti{"TooOldVersion",
                                                      {{"SIMCUPTI_VERSION", "17"}},
                                                      "CUPTI's version 17 is not known"},
                                         WithoutCupti{"UsedByTheProgram",
                                                      {{"SIMCUPTI_IS_TAKEN", "1"}},
                                                      "the program, or a tool, uses CUPTI itself"}),
                         kByName);

TEST_F(RecordRuns, EventsAreMeasuredWhereTheyAreWanted) {
  const Recorded run = record_engine({"--launches=500", "--hidden=128"}, {"--times", "events"});
  EXPECT_EQ(process_of(run)["timing"], "events");
  EXPECT_EQ(process_of(run)["timing_reason"], "");
  EXPECT_EQ(run.kernel()["gpu_time"]["timed"], 3 + 499 / 67);
}

// The other user of CUPTI frees our buffer, and none comes back.
TEST_F(RecordRuns, AProgramThatTakesCuptiOverIsLeftAloneAndTold) {
  more_["SIMCUPTI_TAKE_OVER"] = "101";
  const std::string recordings = folder_ + "/recordings";
  PausedEngine paused(recording_environment(recordings), {});
  const Lines lines = gather_until(recordings, [](const Lines& all) {
    return all.at(0)["processes"][0]["timing"] == "cupti, then events";
  });
  EXPECT_EQ(lines.at(0)["processes"][0]["timing_reason"],
            "the program, or a tool, used CUPTI itself");
  (void)paused.resume();
  const Lines all = gather(recordings);
  // The contents of the buffer are lost; from here on events are measured.
  EXPECT_LE(runs_of(all.at(1), false), 100u);
  EXPECT_GT(all.at(1)["geometries"][0]["times"]["timed"], 0);
  EXPECT_EQ(summary()["gpu_time"]["source"], "CUPTI and events");
}

TEST_F(RecordRuns, AProcessThatIsKilledHasLeftWhatItRan) {
  const std::string recordings = folder_ + "/recordings";
  PausedEngine paused(recording_environment(recordings), {});
  const Lines lines = gather_until(recordings, [](const Lines& all) {
    return all.size() > 1 && runs_of(all.at(1), false) == 120;
  });
  EXPECT_EQ(runs_of(lines.at(1), false), 120u);
  paused.kill();
  EXPECT_EQ(runs_of(gather(recordings).at(1), false), 120u);
}

// The child of a process that has not launched begins its own recording.
TEST_F(RecordRuns, AForkedChildHasItsOwnRuns) {
  const std::string recordings = folder_ + "/recordings";
  Environment all = recording_environment(recordings);
  all["FIBSHIM_CONFIG"] = build_dir() + "/tests/conformance/config";
  const ProcessResult result =
      exits(0, run_process({build_dir() + "/tests/conformance/conform", "fork_before_cuda"}, all));
  const Lines lines = gather(recordings);
  uint64_t launches = 0, runs = 0;
  for (size_t i = 1; i < lines.size(); ++i) {
    launches += lines[i]["launches"].get<uint64_t>();
    runs += runs_of(lines[i], false);
  }
  EXPECT_EQ(launches, 2u * (10 + 1 + 2 + 3 + 4)) << result.out << result.err;
  // The children end by _exit, which skips the last flush.
  EXPECT_GE(runs, 2u * 10);
  EXPECT_EQ(lines[0]["processes"].size(), 5u);
  for (const nlohmann::json& process : lines[0]["processes"]) {
    EXPECT_EQ(process["timing"], "cupti") << process;
  }
}

}  // namespace
}  // namespace fibshim
