// fibshim rollout on engines that replay a graph under the shim on the simulated driver.
#include <gtest/gtest.h>

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <filesystem>
#include <memory>

#include "tests/support/text.h"
#include "tests/tools/counters_file_builder.h"
#include "tests/tools/fibshim_program.h"
#include "tests/tools/live_program.h"

namespace fibshim::test {
namespace {

namespace fs = std::filesystem;

class Rollout : public testing::Test {
 protected:
  Rollout() { copy_demo_folders(folder_.path()); }

  // Replays a graph every 2 ms until the test ends; every 4 ms while `slow_file` exists.
  LiveProgram* start_engine(const std::map<std::string, std::string>& added = {},
                            const std::string& slow_file = "") {
    std::vector<std::string> command = {build_path("tests/hosts/engine"),
                                        "--capture",
                                        "--rows=1",
                                        "--launches=1000000",
                                        "--pause-after=1",
                                        "--step-us=2000"};
    if (!slow_file.empty()) command.push_back("--slow-file=" + slow_file);
    engines_.push_back(
        std::make_unique<LiveProgram>(command, under_shim(folder_ / "a", stats(), added)));
    LiveProgram* const engine = engines_.back().get();
    EXPECT_TRUE(engine->read_until("paused\n")) << engine->text();
    engine->write("\n");
    return engine;
  }

  std::vector<std::string> command(std::vector<std::string> arguments) const {
    arguments.insert(arguments.begin(), {build_path("bin/fibshim"), "rollout", "--dir=" + stats()});
    return arguments;
  }
  ProgramResult rollout(const std::vector<std::string>& arguments) const {
    return run_program(command(arguments), {});
  }
  // The last path components of the engines' folders, in the order of the engines.
  std::vector<std::string> folders() const {
    const nlohmann::json json =
        parse_json(run_fibshim({"stats", "--json", "--per-process", "--dir=" + stats()}, {}).out);
    std::vector<std::string> out;
    for (const auto& engine : engines_) {
      for (const auto& process : json["processes"]) {
        if (process["pid"] != engine->pid()) continue;
        out.push_back(fs::path(process["folder"]["path"].get<std::string>()).filename());
      }
    }
    return out;
  }
  std::string stats() const { return folder_ / "stats"; }

  TemporaryFolder folder_;
  std::vector<std::unique_ptr<LiveProgram>> engines_;
};

using Folders = std::vector<std::string>;

TEST_F(Rollout, MovesAShareAtATime) {
  for (int i = 0; i < 3; ++i) start_engine();
  const ProgramResult result = exits(
      0, rollout({folder_ / "b", "--to", "10%,60%,100", "--watch", "0.5", "--slower", "900"}));
  EXPECT_CONTAINS(result.out, "before: 0.5 s, 3 processes or jobs: ");
  EXPECT_CONTAINS(result.out, " of the busiest graph, median ");
  EXPECT_CONTAINS(result.out, "; 0 errors; 100.0 % of ");
  EXPECT_EQ(matches(result.out, "\n(.*) %: pid [0-9]*: moved").size(), 3U) << result.out;
  EXPECT_CONTAINS(result.out, "complete: 3 processes or jobs in " + (folder_ / "b"));
  EXPECT_CONTAINS(result.out, "; no shadow checks\nno launch was checked meanwhile: ");
  EXPECT_EQ(folders(), (Folders{"b", "b", "b"}));
  // No process is left to move.
  EXPECT_CONTAINS(exits(1, rollout({folder_ / "b"})).err, "runs on another folder");
}

TEST_F(Rollout, SaysWhoWouldMove) {
  const LiveProgram* const one = start_engine();
  start_engine({{"FIBSHIM_JOB", "train"}});
  start_engine({{"FIBSHIM_JOB", "train"}});
  const ProgramResult result = exits(0, rollout({folder_ / "b", "--to=50%,100%", "--dry-run"}));
  const std::string pid = "pid " + std::to_string(one->pid());
  EXPECT_CONTAINS(result.out, pid + "\n");
  EXPECT_CONTAINS(result.out, "job train\n");
  const nlohmann::json json =
      parse_json(exits(0, rollout({folder_ / "b", "--to=50%,100%", "--dry-run", "--json"})).out);
  EXPECT_EQ(json["state"], "foreseen");
  ASSERT_EQ(json["stages"].size(), 2U);
  EXPECT_EQ(json["stages"][0]["percent"], 50);
  EXPECT_EQ(json["stages"][0]["moves"].size(), 1U);
  EXPECT_EQ(json["stages"][1]["moves"].size(), 1U);
  EXPECT_EQ(folders(), (Folders{"a", "a", "a"}));
}

TEST_F(Rollout, TakesBackWhereStepsAreSlower) {
  start_engine({}, folder_ / "slow0");
  start_engine({}, folder_ / "slow1");
  LiveProgram work(
      command({folder_ / "b", "--to=50%,100%", "--watch=0.1m", "--slower=40", "--json"}), {});
  ASSERT_TRUE(work.read_until(": moved\n")) << work.text();
  // The process that has moved is slow from now on.
  const std::string first = "pid " + std::to_string(engines_[0]->pid()) + ": moved";
  const bool is_first = work.text().find(first) != std::string::npos;
  write_text(folder_ / (is_first ? "slow0" : "slow1"), "");
  EXPECT_EQ(work.wait(), 1) << work.text();
  EXPECT_CONTAINS(work.text(), "% longer than before, more than where nothing has moved");
  EXPECT_CONTAINS(work.text(), ": taken back\n");
  const nlohmann::json json = parse_json(work.text().substr(work.text().find("\n{") + 1));
  EXPECT_EQ(json["state"], "taken_back");
  EXPECT_EQ(json["stages"].size(), 1U);
  EXPECT_GE(json["stages"][0]["step_median_us"],
            1.4 * json["before"]["step_median_us"].get<double>());
  // It stops at once, not at the end of the time, after half as many steps as before.
  EXPECT_LT(json["stages"][0]["steps"].get<long>() * 3, json["before"]["steps"].get<long>());
  EXPECT_EQ(folders(), (Folders{"a", "a"}));
}

TEST_F(Rollout, TakesBackWhereAProcessEnds) {
  start_engine();
  start_engine();
  LiveProgram work(command({folder_ / "b", "--to=100%", "--watch=3", "--slower=900"}), {});
  ASSERT_TRUE(work.read_until(": moved\n")) << work.text();
  ASSERT_TRUE(work.read_until(": moved\n", work.text().find(": moved\n") + 1)) << work.text();
  const std::string pid = std::to_string(engines_[0]->pid());
  kill(engines_[0]->pid(), SIGKILL);
  EXPECT_EQ(work.wait(), 1);
  EXPECT_CONTAINS(work.text(), "stopped: process " + pid + " has ended\n");
  EXPECT_CONTAINS(work.text(), "pid " + std::to_string(engines_[1]->pid()) + ": taken back\n");
  EXPECT_EQ(folders().back(), "a");
}

// As where several containers share the stats folder: their engines have one pid.
TEST_F(Rollout, TellsProcessesOfOnePidApart) {
  start_engine();
  start_engine();
  const uint64_t pid = kNoSuchPid;
  std::string second;
  for (const auto& entry : fs::directory_iterator(stats())) {
    const std::string file = entry.path().filename();
    if (file.starts_with(std::to_string(engines_[1]->pid()) + "-")) second = file;
    const int fd = open(entry.path().c_str(), O_WRONLY | O_CLOEXEC);
    EXPECT_EQ(pwrite(fd, &pid, sizeof pid, offsetof(FileHeader, pid)), ssize_t{sizeof pid});
    close(fd);
  }
  const std::string name = std::to_string(pid) + " (" + second + ")";
  EXPECT_CONTAINS(exits(0, rollout({folder_ / "b", "--to=50%,100%", "--whole", "--dry-run"})).out,
                  "%: pid " + name + "\n");
  LiveProgram work(command({folder_ / "b", "--to=100%", "--watch=3", "--slower=900"}), {});
  ASSERT_TRUE(work.read_until(": moved\n")) << work.text();
  ASSERT_TRUE(work.read_until(": moved\n", work.text().find(": moved\n") + 1)) << work.text();
  kill(engines_[1]->pid(), SIGKILL);
  EXPECT_EQ(work.wait(), 1);
  EXPECT_CONTAINS(work.text(), "stopped: process " + name + " has ended\n");
  EXPECT_EQ(matches(work.text(), "(pid .*): taken back\n").size(), 1U) << work.text();
}

TEST_F(Rollout, LeavesAProcessWhereSomebodyElseMovesIt) {
  fs::copy(folder_ / "a", folder_ / "c", fs::copy_options::recursive);
  start_engine();
  start_engine();
  LiveProgram work(command({folder_ / "b", "--to=100%", "--watch=4", "--slower=900", "--json"}),
                   {});
  ASSERT_TRUE(work.read_until(": moved\n")) << work.text();
  ASSERT_TRUE(work.read_until(": moved\n", work.text().find(": moved\n") + 1)) << work.text();
  const std::string pid = std::to_string(engines_[0]->pid());
  exits(0, run_fibshim({"swap", "--pid=" + pid, "--wait", "--dir=" + stats(), folder_ / "c"}));
  EXPECT_EQ(work.wait(), 1);
  EXPECT_CONTAINS(work.text(), "stopped: process " + pid + " was moved by somebody else\n");
  const nlohmann::json json = parse_json(work.text().substr(work.text().find("\n{") + 1));
  EXPECT_EQ(json["not_taken_back"],
            (nlohmann::json{"pid " + pid +
                            ": left where somebody else has moved it: " + (folder_ / "c")}));
  EXPECT_EQ(folders(), (Folders{"c", "a"}));
}

TEST_F(Rollout, TakesBackWhenInterrupted) {
  start_engine();
  start_engine();
  LiveProgram work(command({folder_ / "b", "--watch=3", "--slower=900", "--to=100%"}), {});
  ASSERT_TRUE(work.read_until(": moved\n")) << work.text();
  ASSERT_TRUE(work.read_until(": moved\n", work.text().find(": moved\n") + 1)) << work.text();
  kill(work.pid(), SIGINT);
  EXPECT_EQ(work.wait(), 1);
  EXPECT_CONTAINS(work.text(), "stopped: interrupted\n");
  // A time that was never set would show as a very large number.
  EXPECT_EQ(matches(work.text(), "([0-9]{9,})").size(), 0U) << work.text();
  EXPECT_EQ(folders(), (Folders{"a", "a"}));
}

TEST_F(Rollout, TakesBackWhenNobodyReadsItsOutput) {
  start_engine();
  std::vector<std::string> piped = {"bash", "-c",
                                    "\"$0\" \"$@\" | head -n 1; exit ${PIPESTATUS[0]}"};
  const auto words = command({folder_ / "b", "--watch=0.5", "--slower=900", "--to=100%"});
  piped.insert(piped.end(), words.begin(), words.end());
  EXPECT_CONTAINS(exits(1, run_program(piped)).out, "before: ");
  EXPECT_EQ(folders(), (Folders{"a"}));
}

TEST_F(Rollout, GoesOnWithoutItsTerminalUnderNohup) {
  start_engine();
  std::vector<std::string> nohup = {"sh", "-c", "trap '' HUP; exec \"$0\" \"$@\""};
  const auto words = command({folder_ / "b", "--watch=0.5", "--slower=900", "--to=100%"});
  nohup.insert(nohup.end(), words.begin(), words.end());
  LiveProgram work(nohup, {});
  ASSERT_TRUE(work.read_until(": moved\n")) << work.text();
  kill(work.pid(), SIGHUP);
  EXPECT_EQ(work.wait(), 0) << work.text();
  EXPECT_EQ(folders(), (Folders{"b"}));
}

TEST_F(Rollout, RefusesWhatCannotBe) {
  exits(1, rollout({folder_ / "b"}));  // no stats folder
  fs::create_directories(stats());
  EXPECT_CONTAINS(exits(1, rollout({folder_ / "bad"})).err, "the config folder is not valid");
  EXPECT_CONTAINS(exits(1, rollout({folder_ / "b"})).err, "runs on another folder");
  for (const char* shares : {"50%,10%", "0", "101%", "half", ","}) {
    EXPECT_CONTAINS(exits(2, rollout({folder_ / "b", "--to", shares})).err,
                    "--to: takes rising shares");
  }
  for (const char* time : {"60x", "s", "-1s", "0.05", "25h", "1441m"}) {
    EXPECT_CONTAINS(exits(2, rollout({folder_ / "b", "--watch", time})).err,
                    "takes a time from 0.1 to 86400 seconds, such as 60, 60s, 5m or 1h, not '");
  }
  for (const char* time : {"60", "60s", "0.5s", "1440m", "24h"}) {
    EXPECT_CONTAINS(exits(1, rollout({folder_ / "b", "--watch", time})).err,
                    "runs on another folder");
  }
  exits(2, rollout({}));
}

TEST(StepBuckets, LieOneAfterTheOther) {
  for (uint32_t bucket = 1; bucket < kStepBuckets; ++bucket) {
    EXPECT_EQ(step_bucket(step_bucket_begin(bucket)), bucket);
    EXPECT_EQ(step_bucket(step_bucket_begin(bucket) - 1), bucket - 1);
  }
  EXPECT_EQ(step_bucket(0), 0U);
  EXPECT_EQ(step_bucket(UINT64_MAX), kStepBuckets - 1);
}

}  // namespace
}  // namespace fibshim::test
