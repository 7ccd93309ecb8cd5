// Engines that serve requests and check each result, eager and in graphs, under the shim on the
// simulated driver: what users see while a wrong solution is rolled out, and that all ranks of a
// job stop using a solution that one of them finds wrong.
#include <gtest/gtest.h>

#include <filesystem>
#include <memory>

#include "tests/support/text.h"
#include "tests/tools/fibshim_program.h"
#include "tests/tools/live_program.h"

namespace fibshim::test {
namespace {

namespace fs = std::filesystem;

class Serving : public testing::Test {
 protected:
  // The solution in `bad` launches blocks of 128 threads, and is wrong (SHADOW_FAULT_BLOCK).
  Serving() {
    for (const char* name : {"old", "new", "bad"}) {
      fs::copy(build_path("config/pytorch"), folder_ / name, fs::copy_options::recursive);
      const std::string path =
          folder_ / (std::string(name) + "/solutions/fibshim/rmsnorm/fibshim_rmsnorm_h128.json");
      std::string text = read_text(path);
      const std::string block = "\"block\": [256, 1, 1]";
      const size_t at = text.find(block);
      EXPECT_NE(at, std::string::npos);
      const char* const other = name[0] == 'b' ? "128" : name[0] == 'n' ? "64" : "256";
      text.replace(at + 10, 3, other);
      write_text(path, text);
    }
  }

  LiveProgram* start(const std::string& config, std::map<std::string, std::string> environment) {
    environment.insert({{"SIMCUDA_KERNELS", build_path("tests/data/libshadow_faults.so")},
                        {"SHADOW_FAULT", "wrong_for_even_rows"},
                        {"SHADOW_FAULT_BLOCK", "128"}});
    engines_.push_back(std::make_unique<LiveProgram>(
        std::vector<std::string>{build_path("tests/hosts/shadow_host"), "serve"},
        under_shim(folder_ / config, stats(), environment)));
    EXPECT_TRUE(engines_.back()->read_until("serving\n")) << engines_.back()->text();
    return engines_.back().get();
  }

  // How many requests the engine has served, and how many results were wrong.
  struct Users {
    long requests, wrong;
  };
  static Users end(LiveProgram* engine) {
    engine->end_input();
    EXPECT_EQ(engine->wait(), 0) << engine->text();
    const size_t at = engine->text().rfind("{\"requests\"");
    if (at == std::string::npos) return {0, 0};
    const nlohmann::json json = parse_json(engine->text().substr(at));
    return {json["requests"], json["wrong"]};
  }

  nlohmann::json stats_json() const {
    return parse_json(
        run_fibshim({"stats", "--json", "--per-process", "--dir=" + stats()}, {}).out);
  }
  // Launches, or runs in graphs, with one outcome, of a solution or of any.
  enum class Of { launches, graphs };
  long count(const LiveProgram* engine, const std::string& outcome, Of of = Of::launches,
             const std::string& solution = "") const {
    long sum = 0;
    const nlohmann::json stats = stats_json();
    for (const auto& process : stats["processes"]) {
      if (process["pid"] != engine->pid()) continue;
      for (const auto& one : process["counters"]) {
        if (one["outcome"] != outcome) continue;
        if (!solution.empty() && one["solution"] != solution) continue;
        const long launches = one["count"];
        sum += of == Of::launches ? launches : one["executions"].get<long>() - launches;
      }
    }
    return sum;
  }
  template <class Holds>
  static bool wait_until(const Holds& holds) {
    for (int i = 0; i < 400; ++i) {
      if (holds()) return true;
      usleep(50'000);
    }
    return false;
  }
  std::string folder_of(const LiveProgram* engine) const {
    const nlohmann::json stats = stats_json();
    for (const auto& process : stats["processes"]) {
      if (process["pid"] == engine->pid()) return process["folder"]["path"];
    }
    return "";
  }

  std::vector<std::string> rollout(std::vector<std::string> arguments) const {
    arguments.insert(arguments.begin(), {build_path("bin/fibshim"), "rollout", "--dir=" + stats()});
    return arguments;
  }
  std::string stats() const { return folder_ / "stats"; }

  TemporaryFolder folder_;
  std::vector<std::unique_ptr<LiveProgram>> engines_;
};

const std::map<std::string, std::string> kQuarantines = {{"FIBSHIM_ON_MISMATCH", "quarantine_job"},
                                                         {"FIBSHIM_JOB", "train"}};

std::map<std::string, std::string> with(std::map<std::string, std::string> environment,
                                        const std::string& name, const std::string& value) {
  environment[name] = value;
  return environment;
}

TEST_F(Serving, WhatOneRankFindsWrongTheWholeJobLeavesAlone) {
  LiveProgram* const two = start("bad", kQuarantines);
  LiveProgram* const updates = start("bad", with(kQuarantines, "TAKES_OVER", "1"));
  LiveProgram* const alone = start("bad", {{"FIBSHIM_ON_MISMATCH", "quarantine_job"}});
  LiveProgram* const other = start("bad", with(kQuarantines, "FIBSHIM_JOB", "train2"));
  EXPECT_EQ(count(two, "fallback_quarantined"), 0);
  LiveProgram* const one = start("bad", with(kQuarantines, "FIBSHIM_SHADOW", "1/10"));
  for (LiveProgram* const rank : {one, two, updates}) {
    EXPECT_TRUE(wait_until([&] { return count(rank, "fallback_quarantined") > 0; }));
    // Its graphs stop using it, too.
    EXPECT_TRUE(wait_until([&] { return count(rank, "fallback_quarantined", Of::graphs) > 0; }));
  }
  // A rank that joins later.
  LiveProgram* const three = start("bad", kQuarantines);
  EXPECT_TRUE(wait_until([&] { return count(three, "fallback_quarantined") > 0; }));
  for (LiveProgram* const rank : {one, two, three}) {
    const long hits = count(rank, "hit");
    EXPECT_TRUE(wait_until([&, before = count(rank, "fallback_quarantined")] {
      return count(rank, "fallback_quarantined") > before;
    }));
    EXPECT_EQ(count(rank, "hit"), hits);
  }
  // If an exec is updated to nodes that it had before, these are planned anew.
  const long replayed = count(updates, "hit", Of::graphs);
  EXPECT_TRUE(wait_until([&, before = count(updates, "fallback_quarantined", Of::graphs)] {
    return count(updates, "fallback_quarantined", Of::graphs) > before + 20;
  }));
  EXPECT_EQ(count(updates, "hit", Of::graphs), replayed);
  EXPECT_EQ(count(alone, "fallback_quarantined"), 0);
  EXPECT_EQ(count(other, "fallback_quarantined"), 0);
  for (LiveProgram* const rank : {two, three}) {
    (void)end(rank);
    EXPECT_CONTAINS(rank->text(), "a process of job train has found it wrong");
  }
}

// The demonstration in tests/bench/RESULTS.md.
TEST_F(Serving, ARolloutIsStoppedByAPlantedFaultAmongEightProcesses) {
  for (int i = 0; i < 8; ++i) start("old", {{"FIBSHIM_SHADOW", "1/20"}});
  const std::vector<std::string> command =
      rollout({folder_ / "bad", "--to=25%,50%,100%", "--watch=3", "--slower=900", "--force"});
  const ProgramResult result = exits(1, run_program(command));
  EXPECT_CONTAINS(result.out, "shadow checks found a solution wrong");
  EXPECT_EQ(matches(result.out, "(pid [0-9]*): taken back\n").size(), 2U) << result.out;
  printf("fibshim rollout bad --to=25%%,50%%,100%% --watch=3, under FIBSHIM_SHADOW=1/20\n%s\n",
         result.out.c_str());
  printf("%-9s %-7s %9s %14s %8s\n", "process", "folder", "requests", "wrong results", "share");
  size_t touched = 0;
  for (const auto& engine : engines_) {
    EXPECT_EQ(fs::path(folder_of(engine.get())).filename(), "old");
    const bool was_moved =
        result.out.find("pid " + std::to_string(engine->pid()) + ": moved") != std::string::npos;
    const pid_t pid = engine->pid();
    const Users users = end(engine.get());
    printf("%-9d %-7s %9ld %14ld %7.2f%%\n", pid, was_moved ? "bad" : "old", users.requests,
           users.wrong,
           100.0 * static_cast<double>(users.wrong) / static_cast<double>(users.requests));
    EXPECT_TRUE(was_moved || users.wrong == 0) << users.wrong;
    touched += was_moved ? 1 : 0;
  }
  EXPECT_EQ(touched, 2U);
}

// Mismatches of the old folder are the reason for leaving it, and no reason to go back.
TEST_F(Serving, ARolloutOfTheFixArrivesWhereTheOldFolderIsWrong) {
  LiveProgram* const engine = start("bad", {{"FIBSHIM_SHADOW", "1/5"}});
  const auto mismatches = [&] {
    long sum = 0;
    const nlohmann::json stats = stats_json();
    for (const auto& one : stats["shadow"]) sum += one["mismatches"].get<long>();
    return sum;
  };
  LiveProgram work(rollout(
      {folder_ / "new", "--to=50%,100%", "--watch=2s", "--slower=900", "--force", "--json"}));
  ASSERT_TRUE(work.read_until(": moved for 50 % of its launches\n")) << work.text();
  // The old folder still serves half of the launches, wrongly.
  const long found = mismatches();
  EXPECT_GT(found, 0);
  EXPECT_TRUE(wait_until([&] { return mismatches() > found; }));
  EXPECT_EQ(work.wait(), 0) << work.text();
  EXPECT_EQ(folder_of(engine), folder_ / "new");
  EXPECT_EQ(work.text().find("no launch was checked"), std::string::npos) << work.text();
  const nlohmann::json json = parse_json(work.text().substr(work.text().find("\n{") + 1));
  for (const auto& stage : json["stages"]) EXPECT_GT(stage["shadow_checks"], 0);
}

// The fault occurs once, while the second process of the stage has not moved yet.
TEST_F(Serving, ARolloutSeesTheOnlyFaultOfASolutionThatIsLeftAlone) {
  for (int i = 0; i < 2; ++i) {
    start("old", {{"FIBSHIM_SHADOW", "1/1"}, {"FIBSHIM_ON_MISMATCH", "quarantine"}});
  }
  const std::vector<std::string> options = {folder_ / "bad", "--to=100%", "--watch=1",
                                            "--slower=900", "--force"};
  std::vector<std::string> foreseen = options;
  foreseen.insert(foreseen.end(), {"--dry-run", "--json"});
  const nlohmann::json moves =
      parse_json(exits(0, run_program(rollout(foreseen))).out)["stages"][0]["moves"];
  ASSERT_EQ(moves.size(), 2U);
  const bool is_in_order = moves[0] == "pid " + std::to_string(engines_[0]->pid());
  const LiveProgram* const first = engines_[is_in_order ? 0 : 1].get();
  const LiveProgram* const second = engines_[is_in_order ? 1 : 0].get();
  // Faults of the other process are not seen at all.
  exits(0, run_fibshim(
               {"shadow", "off", "--pid=" + std::to_string(second->pid()), "--dir=" + stats()}));
  kill(second->pid(), SIGSTOP);
  LiveProgram work(rollout(options));
  EXPECT_TRUE(work.read_until(": moved\n")) << work.text();
  EXPECT_TRUE(wait_until([&] { return count(first, "fallback_quarantined") > 0; }));
  kill(second->pid(), SIGCONT);
  EXPECT_EQ(work.wait(), 1) << work.text();
  EXPECT_CONTAINS(work.text(), "shadow checks found a solution wrong");
  EXPECT_EQ(folder_of(first), folder_ / "old");
  EXPECT_EQ(folder_of(second), folder_ / "old");
}

// No launch was to be checked before, and none is afterwards.
TEST_F(Serving, ARolloutHasLaunchesCheckedWhileItWatches) {
  LiveProgram* const engine = start("old", {});
  const auto checks = [&] {
    long sum = 0;
    const nlohmann::json all = stats_json();
    for (const auto& one : all["shadow"]) sum += one["checks"].get<long>();
    return sum;
  };
  const std::vector<std::string> options = {"--to=100%", "--watch=1", "--slower=900", "--force"};
  const auto with = [&](const char* folder, std::vector<std::string> more) {
    more.insert(more.begin(), folder_ / folder);
    more.insert(more.end(), options.begin(), options.end());
    return run_program(rollout(more));
  };
  const ProgramResult stopped = exits(1, with("bad", {"--check=1/5"}));
  EXPECT_CONTAINS(stopped.out, "shadow checks found a solution wrong");
  EXPECT_CONTAINS(stopped.out, ": taken back\n");
  EXPECT_EQ(folder_of(engine), folder_ / "old");
  EXPECT_GT(checks(), 0);
  const auto unchecked_hits = [&] { return count(engine, "hit"); };
  // Those under way may still end.
  const long shadowed = count(engine, "shadowed");
  const long hits = unchecked_hits();
  EXPECT_TRUE(wait_until([&] { return unchecked_hits() > hits + 200; }));
  EXPECT_EQ(count(engine, "shadowed"), shadowed);
  // Without, nothing would have been noticed, and that is said.
  EXPECT_CONTAINS(exits(0, with("new", {})).out, "--check, FIBSHIM_SHADOW or ");
  EXPECT_CONTAINS(exits(2, with("new", {"--check=often"})).err, "--check: is 1/N");
}

TEST_F(Serving, OneProcessTakesAShareOfItsLaunchesFirst) {
  LiveProgram* const engine = start("old", {});
  LiveProgram work(rollout(
      {folder_ / "new", "--to=30%,100%", "--watch=1", "--slower=900", "--force", "--json"}));
  const std::string moved =
      "pid " + std::to_string(engine->pid()) + ": moved for 30 % of its launches\n";
  ASSERT_TRUE(work.read_until(moved)) << work.text();
  EXPECT_EQ(folder_of(engine), (folder_ / "new@30%:") + (folder_ / "old"));
  EXPECT_EQ(work.wait(), 0) << work.text();
  EXPECT_EQ(folder_of(engine), folder_ / "new");
  const nlohmann::json json = parse_json(work.text().substr(work.text().find("\n{") + 1));
  EXPECT_EQ(json["stages"][0]["launches_percent"], 30);
  EXPECT_EQ(json["stages"][1]["launches_percent"], 100);
  // Both folders' solutions have run, eager and in graphs.
  const std::string name = "fibshim_rmsnorm_h128";
  for (const Of of : {Of::launches, Of::graphs}) {
    EXPECT_GT(count(engine, "hit", of, name + "@30%"), 0);
    EXPECT_GT(count(engine, "hit", of, name), 0);
  }
  EXPECT_EQ(end(engine).wrong, 0);
}

TEST_F(Serving, AShareThatIsWrongIsTakenBack) {
  LiveProgram* const engine = start("old", {{"FIBSHIM_SHADOW", "1/5"}});
  const ProgramResult result = exits(
      1, run_program(
             rollout({folder_ / "bad", "--to=50%,100%", "--watch=5", "--slower=900", "--force"})));
  EXPECT_CONTAINS(result.out, ": moved for 50 % of its launches\n");
  EXPECT_CONTAINS(result.out, "shadow checks found a solution wrong");
  EXPECT_CONTAINS(result.out, ": taken back\n");
  EXPECT_EQ(folder_of(engine), folder_ / "old");
  EXPECT_LT(end(engine).wrong, 5000);
}

TEST_F(Serving, LaunchesThatFailAreTakenBack) {
  fs::remove(folder_ / "old/solutions/fibshim/rmsnorm/fibshim_rmsnorm_h128.json");
  LiveProgram* const engine = start(
      "old", {{"FIBSHIM_ON_ERROR", "fallback"}, {"SIMCUDA_FAIL", "cuLaunchKernel:rmsnorm_h*=1"}});
  const ProgramResult result = exits(
      1,
      run_program(rollout({folder_ / "new", "--to=100%", "--watch=1", "--slower=900", "--force"})));
  EXPECT_CONTAINS(result.out, " in their solutions (0 before)\n");
  EXPECT_CONTAINS(result.out, ": taken back\n");
  EXPECT_EQ(folder_of(engine), folder_ / "old");
  EXPECT_EQ(end(engine).wrong, 0);
}

// All ranks of a job use the new folder for the same shapes.
TEST_F(Serving, RanksOfAJobShareTheSameLaunches) {
  LiveProgram* const one = start("old", {{"FIBSHIM_JOB", "train"}});
  LiveProgram* const two = start("old", {{"FIBSHIM_JOB", "train"}});
  LiveProgram work(rollout({folder_ / "new", "--to=40%", "--watch=1", "--slower=900", "--force"}));
  EXPECT_EQ(work.wait(), 0) << work.text();
  EXPECT_CONTAINS(work.text(), "job train: moved for 40 % of its launches\n");
  for (LiveProgram* const rank : {one, two}) {
    EXPECT_EQ(folder_of(rank), (folder_ / "new@40%:") + (folder_ / "old"));
  }
  const ProgramResult diff = run_fibshim({"stats", "--diff", "--dir=" + stats()}, {});
  EXPECT_EQ(diff.exit_code, 0) << diff.out << diff.err;
}

// The same kernels, from the image that was loaded, eager alone and in graphs, too: of a graph's nodes all axes are known.
TEST_F(Serving, TheImageThatRanIsToldAndShapesBesides) {
  const ProgramOptions environment =
      under_shim(folder_ / "old", stats(),
                 {{"SIMCUDA_KERNELS", build_path("tests/data/libshadow_faults.so")},
                  {"FIBSHIM_JOB", "train"}});
  const auto run = [&](const char* graph_every) {
    exits(0, run_program({build_path("tests/hosts/shadow_host"), "60", graph_every}, environment));
  };
  const auto diff = [&] {
    return exits(0, run_fibshim({"stats", "--diff", "--dir=" + stats()}, {})).out;
  };
  run("0");
  run("0");
  EXPECT_CONTAINS(diff(), "they decide alike\n");
  EXPECT_EQ(diff().find("SAME SHAPES"), std::string::npos);
  run("6");
  EXPECT_CONTAINS(diff(), "they decide alike\n");
  EXPECT_CONTAINS(diff(), "SAME SHAPES IN");
  const nlohmann::json solution =
      parse_json(read_text(folder_ / "old/solutions/fibshim/rmsnorm/fibshim_rmsnorm_h128.json"));
  const nlohmann::json all = stats_json();
  int hits = 0;
  for (const auto& decision : all["decisions"]) {
    if (decision["outcome"] != "hit") continue;
    ++hits;
    bool is_one = false;
    for (const auto& image : solution["launch"]["images"]) {
      const std::string sum = image["sha256"];
      is_one = is_one || decision["image"] == sum.substr(0, 16);
    }
    EXPECT_TRUE(is_one) << decision.dump();
    EXPECT_NE(decision["shapes"], std::string(64, '0'));
  }
  EXPECT_GT(hits, 0);
}

TEST_F(Serving, WholeProcessesMoveWhereThatIsAskedForOrLaunchesCannotBeShared) {
  LiveProgram* const engine = start("old", {});
  const std::string pid = "pid " + std::to_string(engine->pid());
  EXPECT_CONTAINS(exits(0, run_program(rollout({folder_ / "new", "--dry-run", "--force"}))).out,
                  "10 %: " + pid + " for 10 % of its launches\n50 %: " + pid +
                      " for 50 % of its launches\n100 %: " + pid + "\n");
  EXPECT_EQ(
      exits(0, run_program(rollout({folder_ / "new", "--dry-run", "--force", "--whole"}))).out,
      "10 %: " + pid + "\n");
  // Makes it another definition of the same name.
  const std::string definition = folder_ / "new/definitions/rmsnorm/rmsnorm_h128.json";
  std::string text = read_text(definition);
  const size_t at = text.find("\"batch_size\"");
  ASSERT_NE(at, std::string::npos);
  for (size_t i = text.find("batch_size"); i != std::string::npos; i = text.find("batch_size", i)) {
    text.replace(i, 10, "batch_count");
  }
  write_text(definition, text);
  const ProgramResult refused =
      run_program(rollout({folder_ / "new", "--dry-run", "--force", "--no-check"}));
  EXPECT_CONTAINS(refused.err, pid + " moves as a whole: ");
  EXPECT_CONTAINS(refused.err, "folders that share launches need the same definitions");
  EXPECT_EQ(refused.out, "10 %: " + pid + "\n");
}

}  // namespace
}  // namespace fibshim::test
