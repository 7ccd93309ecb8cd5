// fibshim swap on engines that run under the shim on the simulated driver: one, several, ranks of a
// job, and the messages about processes that do not move.

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <filesystem>
#include <memory>

#include "tests/support/text.h"
#include "tests/tools/counters_file_builder.h"
#include "tests/tools/live_program.h"

namespace fibshim::test {
namespace {

namespace fs = std::filesystem;

class Swap : public testing::Test {
 protected:
  Swap() {
    copy_demo_folders(folder_.path());
    fs::create_directory_symlink("a", folder_ / "link");
  }

  // Makes `before` launches, waits for a line of input, and makes `after` more.
  std::unique_ptr<LiveProgram> engine(int before, int after,
                                      const std::map<std::string, std::string>& added = {}) const {
    auto out = std::make_unique<LiveProgram>(
        std::vector<std::string>{build_path("tests/hosts/engine"), "--hidden=4096", "--rows=1",
                                 "--launches=" + std::to_string(before + after),
                                 "--pause-after=" + std::to_string(before)},
        under_shim(folder_ / "link", stats(), added));
    EXPECT_TRUE(out->read_until("paused\n")) << out->text();
    return out;
  }

  void repoint(const char* folder) const {
    fs::remove(folder_ / "link");
    fs::create_directory_symlink(folder, folder_ / "link");
  }

  static void finish(LiveProgram* engine) {
    engine->write("\n");
    EXPECT_EQ(engine->wait(), 0) << engine->text();
  }

  ProgramResult swap(std::vector<std::string> arguments) const {
    arguments.insert(arguments.begin(), "swap");
    return run_fibshim(arguments, {{{"FIBSHIM_STATS_DIR", stats()}}, ""});
  }
  nlohmann::json stats_json() const {
    return parse_json(
        run_fibshim({"stats", "--json", "--per-process"}, {{{"FIBSHIM_STATS_DIR", stats()}}, ""})
            .out);
  }
  // Hits by the last component of the folder's path.
  std::map<std::string, int> hits() const {
    std::map<std::string, int> out;
    const nlohmann::json json = stats_json();
    for (const auto& counter : json["counters"]) {
      if (counter["outcome"] != "hit") continue;
      out[fs::path(counter["config"].get<std::string>()).filename()] += counter["count"].get<int>();
    }
    return out;
  }
  std::string folder_of(const LiveProgram& engine) const {
    const nlohmann::json json = stats_json();
    for (const auto& process : json["processes"]) {
      if (process["pid"] == engine.pid()) return process["folder"]["path"];
    }
    return "";
  }
  std::string pid_line(const LiveProgram& engine, const std::string& rest) const {
    return "pid " + std::to_string(engine.pid()) + ": " + rest + "\n";
  }
  // The line about a move between two of these folders. It shows the first one's resolved path.
  std::string moved_line(const LiveProgram& engine, const char* from, const char* to) const {
    return pid_line(
        engine, "moved from " + fs::canonical(folder_ / from).string() + " to " + (folder_ / to));
  }
  std::string stats() const { return folder_ / "stats"; }

  TemporaryFolder folder_;
};

using Counts = std::map<std::string, int>;

TEST_F(Swap, MovesAProcessAndCountsByFolder) {
  const auto process = engine(10, 5);
  const ProgramResult result = exits(0, swap({folder_ / "b", "--wait"}));
  EXPECT_EQ(result.out, moved_line(*process, "a", "b"));
  EXPECT_EQ(result.err,
            "fibshim swap: processes that start later with FIBSHIM_CONFIG=" + (folder_ / "link") +
                " read " + fs::canonical(folder_ / "a").string() + "; --link repoints it\n");
  const nlohmann::json folder = stats_json()["processes"][0]["folder"];
  EXPECT_EQ(folder["path"], fs::canonical(folder_ / "b").string());
  EXPECT_EQ(folder["swaps"], 1);
  EXPECT_EQ(folder["off"], false);
  // Both folders have the same images, so none is kept that the present folder does not use.
  EXPECT_GT(folder["images"]["count"], 0);
  EXPECT_EQ(folder["images"]["kept_count"], 0);
  const std::string text = run_fibshim({"stats"}, {{{"FIBSHIM_STATS_DIR", stats()}}, ""}).out;
  EXPECT_CONTAINS(text, "\n1 process in " + fs::canonical(folder_ / "b").string() + " (");
  EXPECT_CONTAINS(text, "); 1 move\n");
  EXPECT_CONTAINS(text, " loaded (");
  const std::string look =
      run_fibshim({"inspect", "--pid", std::to_string(process->pid())}, {}).out;
  EXPECT_CONTAINS(look, "    now in  " + fs::canonical(folder_ / "b").string() + "; 1 move\n");
  finish(process.get());
  EXPECT_EQ(hits(), (Counts{{"a", 10}, {"b", 5}}));
}

// A list of folders works like one folder to move from and to. Each link in it is followed.
TEST_F(Swap, MovesFromAndToSeveralFolders) {
  fs::create_directories(folder_ / "more/patterns");
  const auto list = [&](const char* first) { return (folder_ / first) + ":" + (folder_ / "more"); };
  const auto in_force = [&](const char* first) {
    return fs::canonical(folder_ / first).string() + ":" + fs::canonical(folder_ / "more").string();
  };
  const auto process = engine(10, 5, {{"FIBSHIM_CONFIG", list("link")}});
  EXPECT_EQ(folder_of(*process), in_force("a"));
  EXPECT_EQ(swap({list("a"), "--dry-run"}).out,
            pid_line(*process, "would_stay: it is there already"));
  const ProgramResult result = exits(0, swap({list("b"), "--from", list("link"), "--wait"}));
  EXPECT_EQ(result.out, pid_line(*process, "moved from " + in_force("a") + " to " + list("b")));
  EXPECT_EQ(result.err, "fibshim swap: processes that start later with FIBSHIM_CONFIG=" +
                            list("link") + " read " + in_force("a") + "\n");
  EXPECT_EQ(folder_of(*process), in_force("b"));
  EXPECT_EQ(swap({"--rollback", "--wait"}).exit_code, 0);
  EXPECT_EQ(folder_of(*process), in_force("a"));
  repoint("b");
  for (int i = 0; i < 200 && folder_of(*process) != in_force("b"); ++i) usleep(50'000);
  EXPECT_EQ(folder_of(*process), in_force("b"));
  finish(process.get());
  std::map<std::string, int> hits;
  const nlohmann::json json = stats_json();
  for (const auto& counter : json["counters"]) {
    if (counter["outcome"] == "hit") hits[counter["config"]] += counter["count"].get<int>();
  }
  EXPECT_EQ(hits, (Counts{{in_force("a"), 10}, {in_force("b"), 5}}));
}

TEST_F(Swap, RepointsNoListOfFolders) {
  fs::create_directories(folder_ / "more/patterns");
  const std::string list = (folder_ / "link") + ":" + (folder_ / "more");
  const auto process = engine(1, 1, {{"FIBSHIM_CONFIG", list}});
  EXPECT_CONTAINS(exits(1, swap({folder_ / "b", "--link"})).err,
                  "cannot repoint it: it names several folders");
  EXPECT_CONTAINS(exits(2, swap({(folder_ / "b") + ":" + (folder_ / "more"), "--link"})).err,
                  "--link takes one folder");
  finish(process.get());
}

TEST_F(Swap, GoesOffAndOnAgain) {
  const auto process = engine(10, 5);
  const std::string a = fs::canonical(folder_ / "a");
  EXPECT_EQ(swap({"--off", "--wait"}).out, pid_line(*process, "moved from " + a + " to off"));
  EXPECT_EQ(stats_json()["processes"][0]["folder"]["off"], true);
  EXPECT_EQ(stats_json()["processes"][0]["mode"], "off");
  EXPECT_EQ(swap({"--on", "--wait"}).out, pid_line(*process, "moved from off to " + a));
  EXPECT_EQ(stats_json()["processes"][0]["folder"]["off"], false);
  EXPECT_EQ(stats_json()["processes"][0]["mode"], "apply");
  EXPECT_EQ(swap({"--off", "--wait"}).exit_code, 0);
  finish(process.get());
  EXPECT_EQ(hits(), (Counts{{"a", 10}}));
  EXPECT_EQ(stats_json()["totals"]["untracked"], 5);
}

TEST_F(Swap, ChecksTheFolderFirst) {
  const auto process = engine(1, 1);
  const ProgramResult result = exits(1, swap({folder_ / "bad", "--wait"}));
  EXPECT_EQ(result.out, "");
  EXPECT_CONTAINS(result.err, ":2:13: error: ");
  EXPECT_EQ(stats_json()["processes"][0]["folder"]["refusals"], 0);
  finish(process.get());
}

TEST_F(Swap, SaysWhyAProcessRefuses) {
  const auto process = engine(1, 1);
  const ProgramResult result = exits(1, swap({folder_ / "bad", "--no-check", "--wait"}));
  EXPECT_EQ(
      result.out.rfind(
          "pid " + std::to_string(process->pid()) + ": refused: " + (folder_ / "bad/patterns/"), 0),
      0u)
      << result.out;
  EXPECT_CONTAINS(result.out, ":2:13: error: ");
  const nlohmann::json folder = stats_json()["processes"][0]["folder"];
  EXPECT_EQ(folder["path"], fs::canonical(folder_ / "a").string());
  EXPECT_EQ(folder["refusals"], 1);
  EXPECT_EQ(folder["swaps"], 0);
  finish(process.get());
  // The process itself prints one warning.
  const std::string& text = process->text();
  const size_t warning = text.find("warn: ");
  EXPECT_NE(warning, std::string::npos) << text;
  EXPECT_EQ(text.find("warn: ", warning + 1), std::string::npos) << text;
  EXPECT_EQ(hits(), (Counts{{"a", 2}}));
}

TEST_F(Swap, RepointsTheLinkForLaterProcesses) {
  const auto process = engine(2, 3);
  const ProgramResult result = exits(0, swap({folder_ / "b", "--link"}));
  EXPECT_EQ(result.err,
            "fibshim swap: " + (folder_ / "link") + " now leads to " + (folder_ / "b") + "\n");
  const auto later = engine(1, 0);
  finish(later.get());
  finish(process.get());
  EXPECT_EQ(hits(), (Counts{{"a", 2}, {"b", 4}}));
}

TEST_F(Swap, MovesOnlyTheProcessesThatAreNamed) {
  const auto one = engine(1, 1);
  const auto other = engine(1, 1);
  EXPECT_EQ(swap({folder_ / "b", "--wait", "--pid", std::to_string(one->pid())}).out,
            moved_line(*one, "a", "b"));
  EXPECT_CONTAINS(exits(1, swap({folder_ / "b", "--pid", "4194399"})).err,
                  "no counters of process 4194399");
  finish(one.get());
  finish(other.get());
  EXPECT_EQ(hits(), (Counts{{"a", 3}, {"b", 1}}));
}

// As in a container that was started again: its first process always has pid 1.
TEST_F(Swap, LeavesOutAnEarlierProcessOfThePid) {
  const auto process = engine(1, 1);
  CountersFileBuilder earlier(static_cast<uint64_t>(process->pid()),
                              start_time_of(process->pid()) - 1);
  write_text(stats() + "/" + earlier.file_name(), earlier.bytes());
  const std::string pid = std::to_string(process->pid());
  EXPECT_EQ(exits(0, swap({folder_ / "b", "--pid", pid, "--link"})).out,
            moved_line(*process, "a", "b"));
  EXPECT_EQ(fs::canonical(folder_ / "link"), fs::canonical(folder_ / "b"));
  finish(process.get());
}

TEST_F(Swap, WithoutWaitingSaysWhoWasAsked) {
  const auto process = engine(1, 1);
  EXPECT_EQ(exits(0, swap({folder_ / "b"})).out,
            pid_line(*process, "asked to move from " + fs::canonical(folder_ / "a").string() +
                                   " to " + (folder_ / "b")));
  // The next request waits until this one is done.
  EXPECT_CONTAINS(swap({folder_ / "b", "--wait"}).out, ": moved from ");
  finish(process.get());
}

TEST_F(Swap, SaysWhoDoesNotAnswer) {
  const auto process = engine(1, 1);
  EXPECT_EQ(swap({folder_ / "a", "--wait"}).exit_code, 0);  // it can answer
  kill(process->pid(), SIGSTOP);
  EXPECT_TRUE(process->wait_until_stopped());
  const ProgramResult late = exits(1, swap({folder_ / "b", "--wait=0.2", "--json"}));
  const nlohmann::json json = parse_json(late.out);
  EXPECT_EQ(json["to"], folder_ / "b");
  EXPECT_EQ(json["processes"][0]["pid"], process->pid());
  EXPECT_EQ(json["processes"][0]["state"], "timed_out");
  EXPECT_EQ(json["processes"][0]["reason"], "it has not answered in time");
  // The process carries out the request as soon as it can.
  kill(process->pid(), SIGCONT);
  EXPECT_EQ(swap({folder_ / "b", "--wait"}).exit_code, 0);
  finish(process.get());
}

TEST_F(Swap, SaysThatAProcessHasEndedOrCannotBeMoved) {
  CountersFileBuilder ended(4194399, 1);
  write_text(stats() + "/" + ended.file_name(), ended.bytes());
  ProgramResult result = exits(1, swap({folder_ / "b", "--wait", "--pid", "4194399"}));
  EXPECT_EQ(result.out, "pid 4194399: dead: it has ended\n");
  // A process that never started the thread that moves it. The request stays in the file.
  CountersFileBuilder threadless(static_cast<uint64_t>(getpid()), start_time_of(getpid()));
  write_text(stats() + "/" + threadless.file_name(), threadless.bytes());
  for (const bool waits : {true, false}) {
    result =
        swap({folder_ / "b", waits ? "--wait=0.1" : "--json", "--pid", std::to_string(getpid())});
    EXPECT_EQ(result.exit_code, 1);
    EXPECT_CONTAINS(result.out, "no_watcher");
  }
  EXPECT_CONTAINS(read_text(stats() + "/" + threadless.file_name()), folder_ / "b");
  std::filesystem::remove(stats() + "/" + threadless.file_name());
  // "all" does not include files of ended processes.
  result = swap({folder_ / "b", "--wait"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_EQ(result.err,
            "fibshim swap: no such process runs under the shim with counters in " + stats() + "\n");
}

TEST_F(Swap, PrintsJsonWhereNobodyIsAsked) {
  fs::create_directory(stats());
  ProgramResult result = exits(1, swap({folder_ / "b", "--json"}));
  nlohmann::json json = parse_json(result.out);
  EXPECT_EQ(json["error"], "no such process runs under the shim with counters in " + stats());
  EXPECT_EQ(json["processes"], nlohmann::json::array());
  result = swap({folder_ / "bad", "--json"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_EQ(parse_json(result.out)["error"], "the config folder is not valid");
  EXPECT_CONTAINS(result.err, ":2:13: error: ");
  result = swap({folder_ / "b", "--json", "--dir", folder_ / "none"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_EQ(parse_json(result.out)["error"], (folder_ / "none") + ": no such folder");
}

// A mistake that an engine accepts and only `check` reports: a "where" that always holds.
TEST_F(Swap, MovesNobodyToAFolderWithMistakesUnlessForced) {
  const std::string pattern = folder_ / "b/patterns/torch-rms-norm-bf16.json";
  auto json = parse_json(read_text(pattern));
  json["where"].push_back("weight >= 0");
  write_text(pattern, json.dump());
  const auto process = engine(1, 1);
  ProgramResult result = exits(1, swap({folder_ / "b", "--wait", "--json"}));
  EXPECT_EQ(parse_json(result.out)["error"], "the config folder has mistakes");
  EXPECT_CONTAINS(result.err, "[always-true]\n");
  EXPECT_CONTAINS(result.err, "--force");
  EXPECT_EQ(folder_of(*process), fs::canonical(folder_ / "a"));
  result = exits(0, swap({folder_ / "b", "--wait", "--force", "--json"}));
  EXPECT_EQ(result.err.find("fibshim swap: " + (folder_ / "b") + " has a mistake: "), 0u)
      << result.err;
  const auto moved = parse_json(result.out)["processes"][0];
  EXPECT_EQ(moved["from"], fs::canonical(folder_ / "a").string());
  EXPECT_EQ(moved["to"], folder_ / "b");
  // --force does not help with a folder that the processes would refuse.
  exits(1, swap({folder_ / "bad", "--force"}));
  finish(process.get());
}

// Nor to one with faults that only the JSON Schemas, "verify" blocks or measurements have.
TEST_F(Swap, MovesNobodyToAFolderThatCheckFails) {
  const auto process = engine(1, 1);
  fs::path solution;
  for (const auto& entry : fs::recursive_directory_iterator(folder_ / "b/solutions")) {
    if (entry.path().extension() == ".json") solution = entry.path();
  }
  ASSERT_FALSE(solution.empty());
  const std::string before = read_text(solution);
  const struct {
    const char* key;
    const char* value;
    const char* said;
  } kRows[] = {{"author", "3", "[schema]\n"},
               {"sources", R"([{"path": "x"}])", "[schema]\n"},
               {"verify", R"({"opp": "rmsnorm"})", "\"opp\""}};
  for (const auto& row : kRows) {
    SCOPED_TRACE(row.key);
    auto json = parse_json(before);
    json[row.key] = parse_json(row.value);
    write_text(solution, json.dump());
    EXPECT_EQ(run_fibshim({"check", folder_ / "b"}).exit_code, 1);
    const ProgramResult result = exits(1, swap({folder_ / "b", "--wait"}));
    EXPECT_CONTAINS(result.err, row.said);
  }
  write_text(solution, before);
  write_text(folder_ / "b/measurements.json", "[");
  EXPECT_CONTAINS(exits(1, swap({folder_ / "b", "--wait"})).err, "measurements.json:1:2: error: ");
  fs::remove(folder_ / "b/measurements.json");
  auto json = parse_json(before);
  json["description"] = nullptr;
  write_text(solution, json.dump());
  exits(0, swap({folder_ / "b", "--wait"}));
  finish(process.get());
}

TEST_F(Swap, SaysThatLaterProcessesFindNoFolder) {
  const auto process = engine(1, 1);
  fs::remove(folder_ / "link");
  fs::create_symlink("link", folder_ / "link");
  const ProgramResult result = exits(0, swap({folder_ / "b", "--wait"}));
  EXPECT_EQ(result.err,
            "fibshim swap: processes that start later with FIBSHIM_CONFIG=" + (folder_ / "link") +
                " find no folder there: Too many levels of symbolic links; --link "
                "repoints it\n");
  finish(process.get());
}

TEST_F(Swap, RefusesAFolderForProcessesOfDifferentFoldersUnlessTold) {
  fs::copy(folder_ / "a", folder_ / "c", fs::copy_options::recursive);
  const auto one = engine(1, 1);
  const auto other = engine(1, 1);
  EXPECT_EQ(swap({folder_ / "b", "--wait", "--pid", std::to_string(one->pid())}).exit_code, 0);
  const ProgramResult refused = exits(1, swap({folder_ / "c", "--wait"}));
  EXPECT_EQ(refused.out, "");
  EXPECT_CONTAINS(refused.err, "the processes run on different folders: " +
                                   fs::canonical(folder_ / "a").string() + " (pid " +
                                   std::to_string(other->pid()) + "), ");
  EXPECT_EQ(swap({folder_ / "c", "--wait", "--from", folder_ / "b"}).out,
            moved_line(*one, "b", "c"));
  // A process that uses the folder already need not move.
  EXPECT_EQ(swap({folder_ / "c", "--wait"}).exit_code, 0);
  EXPECT_EQ(swap({folder_ / "a", "--wait", "--pid", std::to_string(one->pid())}).exit_code, 0);
  EXPECT_EQ(swap({folder_ / "b", "--wait", "--all"}).exit_code, 0);
  finish(one.get());
  finish(other.get());
  EXPECT_EQ(hits(), (Counts{{"a", 2}, {"b", 2}}));
}

TEST_F(Swap, RollsEachProcessBack) {
  const auto one = engine(1, 1);
  const auto other = engine(1, 1);
  EXPECT_EQ(swap({folder_ / "b", "--wait", "--pid", std::to_string(one->pid())}).exit_code, 0);
  const ProgramResult seen = exits(1, swap({"--rollback", "--dry-run"}));
  const std::string b = fs::canonical(folder_ / "b");
  const std::string a = fs::canonical(folder_ / "a");
  EXPECT_CONTAINS(seen.out, pid_line(*one, "would_move: from " + b + " to " + a));
  EXPECT_CONTAINS(seen.out, pid_line(*other, "refused: it has been in no other folder"));
  const ProgramResult result = exits(1, swap({"--rollback", "--wait"}));
  EXPECT_CONTAINS(result.out, pid_line(*one, "moved from " + b + " to " + a));
  EXPECT_CONTAINS(result.out, pid_line(*other, "refused: it has been in no other folder"));
  for (const auto& process : stats_json()["processes"]) {
    EXPECT_EQ(process["folder"]["previous"], process["pid"] == one->pid() ? b : "");
  }
  // From off back to the folder before.
  EXPECT_EQ(swap({"--off", "--wait"}).exit_code, 0);
  EXPECT_EQ(swap({"--rollback", "--wait"}).exit_code, 0);
  finish(one.get());
  finish(other.get());
  EXPECT_EQ(hits(), (Counts{{"a", 4}}));
}

TEST_F(Swap, DryRunAsksNobody) {
  const auto process = engine(1, 1);
  const std::string a = fs::canonical(folder_ / "a");
  EXPECT_EQ(exits(0, swap({folder_ / "b", "--dry-run"})).out,
            pid_line(*process, "would_move: from " + a + " to " + (folder_ / "b")));
  EXPECT_EQ(exits(0, swap({"--on", "--dry-run"})).out,
            pid_line(*process, "would_stay: it is there already"));
  EXPECT_EQ(exits(1, swap({folder_ / "bad", "--dry-run"})).out, "");
  const nlohmann::json json = parse_json(swap({"--off", "--dry-run", "--json"}).out);
  EXPECT_EQ(json["processes"][0]["state"], "would_move");
  EXPECT_EQ(json["processes"][0]["from"], a);
  EXPECT_EQ(stats_json()["processes"][0]["folder"]["swaps"], 0);
  finish(process.get());
}

TEST_F(Swap, MovesNobodyWhereTheLinkCannotBeRepointed) {
  const auto process = engine(1, 1, {{"FIBSHIM_CONFIG", folder_ / "a"}});
  const ProgramResult result = exits(1, swap({folder_ / "b", "--link"}));
  EXPECT_EQ(result.err,
            "fibshim swap: " + (folder_ / "a") + ": cannot repoint it: it is no symbolic link\n");
  EXPECT_EQ(stats_json()["processes"][0]["folder"]["swaps"], 0);
  finish(process.get());
}

TEST_F(Swap, TellsOfAProcessThatEndsMeanwhile) {
  const auto process = engine(1, 1);
  const auto stays = engine(1, 1);
  kill(process->pid(), SIGSTOP);
  EXPECT_TRUE(process->wait_until_stopped());
  LiveProgram command({build_path("bin/fibshim"), "swap", folder_ / "b", "--wait"},
                      {{{"FIBSHIM_STATS_DIR", stats()}}, ""});
  while (folder_of(*stays) != fs::canonical(folder_ / "b")) usleep(20'000);
  kill(process->pid(), SIGKILL);
  (void)process->wait();
  EXPECT_EQ(command.wait(), 0) << command.text();
  EXPECT_CONTAINS(command.text(), ": dead: it has ended meanwhile\n");
  EXPECT_CONTAINS(command.text(), moved_line(*stays, "a", "b"));
  finish(stays.get());
}

// ---- a folder that is refused at the start

TEST_F(Swap, TellsAndMovesAProcessWhoseFolderWasRefusedAtItsStart) {
  for (const bool is_asked : {true, false}) {
    repoint("bad");
    const auto process = engine(1, 2);
    EXPECT_CONTAINS(process->text(), "; kernels run unchanged");
    const nlohmann::json folder = stats_json()["processes"].back()["folder"];
    EXPECT_EQ(folder["state"], "refused");
    EXPECT_CONTAINS(folder["refusal"].get<std::string>(), ":2:13: error: ");
    EXPECT_EQ(folder["movable"], true);
    const std::string text =
        run_fibshim({"stats", "--per-process"}, {{{"FIBSHIM_STATS_DIR", stats()}}, ""}).out;
    EXPECT_CONTAINS(text, "1 process refused");
    EXPECT_CONTAINS(text, "  in no folder");
    repoint("b");
    if (is_asked) {
      EXPECT_EQ(swap({folder_ / "b", "--wait"}).out,
                pid_line(*process, "moved from no folder to " + (folder_ / "b")));
    } else {
      while (stats_json()["processes"].back()["folder"]["state"] == "refused") usleep(20'000);
    }
    EXPECT_EQ(stats_json()["processes"].back()["folder"]["state"], "on");
    finish(process.get());
    EXPECT_EQ(hits()["b"], is_asked ? 2 : 4);
  }
}

// Nothing has been launched or loaded yet.
TEST_F(Swap, MovesAProcessThatHasOnlyMadeAContext) {
  const auto process = engine(0, 1);
  EXPECT_EQ(swap({folder_ / "b", "--wait"}).out, moved_line(*process, "a", "b"));
  finish(process.get());
  EXPECT_EQ(hits(), (Counts{{"b", 1}}));
}

// ---- ranks of one job

TEST_F(Swap, MovesAJobTogether) {
  const auto first = engine(1, 2, {{"FIBSHIM_JOB", "train"}});
  const auto second = engine(1, 2, {{"FIBSHIM_JOB", "train"}});
  const auto other = engine(1, 2, {{"FIBSHIM_JOB", "serve"}});
  const ProgramResult result = exits(0, swap({folder_ / "b", "--job", "train"}));
  EXPECT_CONTAINS(result.out, moved_line(*first, "a", "b"));
  EXPECT_CONTAINS(result.out, moved_line(*second, "a", "b"));
  EXPECT_LACKS(result.out, std::to_string(other->pid()));
  for (const auto& engine : {first.get(), second.get(), other.get()}) finish(engine);
  EXPECT_EQ(hits(), (Counts{{"a", 5}, {"b", 4}}));
}

TEST_F(Swap, FindsAJobByAVariable) {
  const auto by_label = engine(1, 1, {{"SLURM_JOB_ID", "17"}});
  const std::string large(100'000, 'x');  // before the variable
  const auto by_environment =
      engine(1, 1, {{"A", large}, {"FIBSHIM_JOB", "x"}, {"SLURM_JOB_ID", "17"}});
  const auto other = engine(1, 1, {{"SLURM_JOB_ID", "18"}});
  EXPECT_EQ(swap({folder_ / "b", "--job", "SLURM_JOB_ID=17"}).exit_code, 0);
  for (const auto& engine : {by_label.get(), by_environment.get(), other.get()}) finish(engine);
  EXPECT_EQ(hits(), (Counts{{"a", 4}, {"b", 2}}));
}

// The pid in a container's counters file is here that of a program of the job.
TEST_F(Swap, TakesNoProcessOfTheSamePidForOneOfTheJob) {
  const LiveProgram program({"sleep", "1000"}, {{{"SLURM_JOB_ID", "17"}}, ""});
  CountersFileBuilder other(static_cast<uint64_t>(program.pid()), 1);
  const std::string path = stats() + "/" + other.file_name();
  write_text(path, other.bytes());
  const int fd = open(path.c_str(), O_RDWR | O_CLOEXEC);  // so that it counts as live
  ASSERT_EQ(stats_json()["processes"][0]["alive"], true);
  EXPECT_CONTAINS(exits(1, swap({folder_ / "b", "--job", "SLURM_JOB_ID=17", "--dry-run"})).err,
                  "no such process runs");
  close(fd);
}

TEST_F(Swap, MovesNoneOfAJobWhereOneRefuses) {
  const auto willing = engine(1, 2, {{"FIBSHIM_JOB", "train"}});
  // A folder that the strict processes do not trust.
  fs::permissions(folder_ / "b", fs::perms::others_write, fs::perm_options::add);
  const auto strict = engine(1, 2, {{"FIBSHIM_JOB", "train"}});
  const auto lenient = engine(1, 2, {{"FIBSHIM_JOB", "train"}, {"FIBSHIM_TRUST", "all"}});
  const ProgramResult result = exits(1, swap({folder_ / "b", "--job", "train", "--no-check"}));
  EXPECT_CONTAINS(result.out, ": refused: ");
  EXPECT_LACKS(result.out, ": moved");
  EXPECT_CONTAINS(result.out,
                  pid_line(*lenient, "aborted: another process of the job has not prepared"));
  // They accept a later request.
  fs::permissions(folder_ / "b", fs::perms::others_write, fs::perm_options::remove);
  EXPECT_EQ(swap({folder_ / "b", "--job", "train"}).exit_code, 0);
  for (const auto& engine : {willing.get(), strict.get(), lenient.get()}) finish(engine);
  EXPECT_EQ(hits(), (Counts{{"a", 3}, {"b", 6}}));
}

TEST_F(Swap, MovesNoneOfAJobWhereOneDoesNotAnswer) {
  const auto first = engine(1, 1, {{"FIBSHIM_JOB", "train"}});
  const auto second = engine(1, 1, {{"FIBSHIM_JOB", "train"}});
  kill(second->pid(), SIGSTOP);
  EXPECT_TRUE(second->wait_until_stopped());
  const ProgramResult result = exits(1, swap({folder_ / "b", "--job", "train", "--wait=0.2"}));
  EXPECT_LACKS(result.out, ": moved");
  EXPECT_CONTAINS(result.out, pid_line(*second, "timed_out: it has not answered in time"));
  EXPECT_CONTAINS(result.out,
                  pid_line(*first, "aborted: another process of the job has not prepared"));
  kill(second->pid(), SIGCONT);
  finish(first.get());
  finish(second.get());
  EXPECT_EQ(hits(), (Counts{{"a", 4}}));
}

// ---- usage

TEST_F(Swap, ExplainsWrongUsage) {
  for (const std::vector<std::string>& arguments :
       std::vector<std::vector<std::string>>{{},
                                             {"/a", "--off"},
                                             {"--on", "--off"},
                                             {"/a", "--all", "--pid", "1"},
                                             {"/a", "--job", "x", "--all"},
                                             {"/a", "--job", ""},
                                             {"/a", "--job="},
                                             {"/a", "--dir", ""},
                                             {"--off", "--link"},
                                             {"/a", "--wait=soon"},
                                             {"/a", "--wait=0"},
                                             {"/a", "--wait=1000"}}) {
    EXPECT_EQ(exits(2, swap(arguments)).out, "");
  }
}

}  // namespace
}  // namespace fibshim::test
