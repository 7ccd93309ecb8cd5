// Moving to another config folder while the process launches: the cases of swap_cases.cc, each with
// folders of its own, and the counts by folder.

#include <filesystem>
#include <fstream>

#include <nlohmann/json.hpp>

#include "tests/conformance/conform_run.h"
#include "tests/support/text.h"

namespace fibshim::conformance {
namespace {

namespace fs = std::filesystem;

}  // namespace

// "a" is the suite's own folder; in "b" shape 1 has the kernel of shape 2, and no rewrite; "none" has no pattern for
// conform_step; "apart" has no rewrites; "lenient" is "b" with fallbacks for errors; "bad" is refused; the images of "torn" are not those that it names, the ones of "fresh" are in no other
// folder; "link" leads to "a".
std::string make_swap_folders() {
  std::string root = make_temporary_dir();
  for (const char* name : {"a", "b", "none", "apart", "bad", "torn", "fresh"}) {
    fs::copy(conform_path("config"), root + "/" + name, fs::copy_options::recursive);
  }
  (void)exits(
      0,
      run_shell("for folder in torn fresh; do\n"
                "  for image in " +
                root +
                "/$folder/solutions/*.cubin; do\n"
                "    before=$(sha256sum <$image | cut -c 1-64)\n"
                "    cp $image $image.new && printf more >>$image.new && mv $image.new $image\n"
                "    [ $folder = torn ] || sed -i s/$before/$(sha256sum <$image | cut -c 1-64)/ " +
                root +
                "/$folder/solutions/*.json\n"
                "  done\n"
                "done\n"));
  for (const auto& entry : fs::recursive_directory_iterator(root + "/b/solutions")) {
    if (entry.path().extension() != ".json") continue;
    nlohmann::json solution = nlohmann::json::parse(std::ifstream(entry.path()));
    if (solution["launch"]["kernel"] != "curated_n1") continue;
    solution["launch"]["kernel"] = "curated_n2";
    std::ofstream(entry.path()) << solution.dump(2);
  }
  fs::remove(root + "/b/patterns/conform-join.json");
  fs::remove(root + "/none/patterns/conform-step.json");
  for (const char* name : {"conform-join", "conform-join-void", "conform-watch"}) {
    fs::remove(root + "/apart/patterns/" + name + ".json");
  }
  std::ofstream(root + "/bad/patterns/conform-step.json") << "{\n  \"label\": nothing\n}\n";
  fs::copy(root + "/b", root + "/lenient", fs::copy_options::recursive);
  std::ofstream(root + "/lenient/fibshim.json") << R"({"on_error": "fallback"})";
  fs::create_symlink("a", root + "/link");
  return root;
}

namespace {

struct Move {
  const char* name;
  const char* words;
  int messages = 0;               // lines that the shim writes
  bool is_told_by_kernel = true;  // what ran says in which folder: only shape 1 differs, in "b"
  const char* only_simulated = nullptr;  // why, if so
  const char* chaos = "";                // SIMCUDA_CHAOS
  const char* devices = "";              // SIMCUDA_DEVICES
};

const Move kMoves[] = {
    {"UnderLoad", "swap_under_load"},
    {"AndGraphs", "swap_and_graphs", 0, false},
    {"AndChangedGraphs", "swap_and_changed_graphs", 0, false},
    {"AndManyGraphs", "swap_and_many_graphs", 0, false},
    {"AndRewrites", "swap_and_rewrites", 0, false},
    {"AndUserObjects", "swap_and_user_objects", 0, false},
    {"GraphDetails", "swap_graph_details", 1, false, "it makes driver calls fail"},
    {"GraphWaits", "swap_graph_waits", 0, false, "it makes driver calls fail"},
    {"GraphOfEndedModule", "swap_graph_of_ended_module", 0, false, "it counts driver calls"},
    {"GraphGoesBack", "swap_graph_goes_back", 0, false, "it makes driver calls fail"},
    {"AndSetModules", "swap_and_set_modules", 0, false},
    {"BesideEnds", "swap_beside_ends", 0, false, "it asks which calls were made", "", "90,90"},
    {"GraphInThreads", "swap_graph_in_threads", 0, false, "it asks which calls were made"},
    {"WhileChecked", "swap_while_checked", 0, false, "it makes driver calls fail"},
    {"Refused", "swap_refused", 4},
    {"Unloadable", "swap_unloadable", 1, false, "it makes driver calls fail"},
    {"LinkToWhatIsNotYetWhole", "swap_link_to_half", 1, false},
    {"OffAndOn", "swap_off_and_on"},
    {"OffAndGraphs", "swap_off_and_graphs", 0, false},
    {"AndUpdatedGraphs", "swap_and_updated_graphs", 0, false},
    {"AndSameUpdates", "swap_and_same_updates", 0, false},
    {"AndSetAfterUpdates", "swap_and_set_after_updates", 0, false},
    {"AndSetAfterCopiedUpdates", "swap_and_set_after_copied_updates", 0, false},
    {"AndChildGraphsSet", "swap_and_child_graphs_set", 0, false},
    {"AndRefusedUpdates", "swap_and_refused_updates", 1, false, "it makes driver calls fail"},
    {"AndRefusedFunctions", "swap_and_refused_functions", 0, false, "it makes driver calls fail"},
    {"AndUpdatesOfEndedModules", "swap_and_updates_of_ended_modules", 0, false},
    {"AndUpdatedClusters", "swap_and_updated_clusters", 0, false, "it asks which calls were made"},
    {"AndCopiedClusters", "swap_and_copied_clusters", 0, false},
    {"AndUnknownGraphs", "swap_and_unknown_graphs", 0, false},
    {"Link", "swap_link"},
    {"AndUnload", "swap_and_unload"},
    {"AndHandOut", "swap_and_hand_out", 0, true, nullptr, "seed=1,slow=1000,pause=4000"},
    {"AndOnError", "swap_and_on_error", 1, false, "it makes driver calls fail"},
    {"DecidedForAnother", "swap_decided_for_another"},
    {"AndFork", "swap_and_fork", 1},
    {"WhileForking", "swap_while_forking", 50},
    {"Memory", "swap_memory", 0, false},
};

void PrintTo(const Move& row, std::ostream* out) { *out << row.name; }

// Hits by folder, its path's last name.
Tally hits_by_folder(const std::string& stats_dir) {
  Tally tally;
  const nlohmann::json stats = stats_json(stats_dir);
  for (const auto& counter : stats["counters"]) {
    if (counter["outcome"] != "hit") continue;
    tally[fs::path(counter["config"].get<std::string>()).filename()] +=
        counter["count"].get<long>();
  }
  return tally;
}

class Swap : public testing::TestWithParam<Move> {};

TEST_P(Swap, Holds) {
  const Move& row = GetParam();
  if (row.only_simulated != nullptr && is_real_driver()) GTEST_SKIP() << row.only_simulated;
  const std::string folders = make_swap_folders();
  const HostRun run(
      {"conform", row.words, folders},
      {{"FIBSHIM_CONFIG", folders + "/link"},
       {"SIMCUDA_LOG", ""},
       {"SIMCUDA_CHAOS", row.chaos},
       {"SIMCUDA_DEVICES", row.devices},
       {"MALLOC_PERTURB_", "165"}},  // what is used after it was freed is not what it was
      shim_path(), 120);
  if (run.was_skipped()) GTEST_SKIP() << run.process().out;
  run.expect_holds(row.messages);
  Tally ran;
  long replaced = 0;
  for (const auto& [pid, tally] : run.stated()) {
    for (const auto& [name, count] : tally) {
      if (name.starts_with("ran:curated")) replaced += count;
      if (name == "ran:curated_n1" && count != 0) ran["a"] += count;
      if (name == "ran:curated_n2" && count != 0) ran["b"] += count;
    }
  }
  if (row.is_told_by_kernel) {
    EXPECT_EQ(hits_by_folder(run.stats_dir()), ran) << run.process().out;
  } else if (std::string(row.name).starts_with("Graph")) {
    EXPECT_EQ(stats_json(run.stats_dir())["executions"]["hit"].get<long>(), replaced);
  }
}

TEST(FollowedRewrites, KeepTheFolderOfTheirExec) {
  const std::string folders = make_swap_folders();
  const HostRun run({"conform", "rewrite_follows_while_moving", folders},
                    {{"FIBSHIM_CONFIG", folders + "/link"}, {"SIMCUDA_LOG", ""}}, shim_path(), 120);
  if (run.was_skipped()) GTEST_SKIP() << run.process().out;
  ASSERT_EQ(run.process().exit_code, 0) << run.process().err;
  long joined = 0, apart = 0;
  ASSERT_EQ(sscanf(run.process().out.c_str(), "joined %ld, apart %ld", &joined, &apart), 2);
  const nlohmann::json executions = stats_json(run.stats_dir())["executions"];
  EXPECT_EQ(executions["hit"].get<long>(), joined);
  EXPECT_EQ(executions["absorbed"].get<long>(), joined);
  EXPECT_GT(apart, 0);
}

INSTANTIATE_TEST_SUITE_P(Conformance, Swap, testing::ValuesIn(kMoves), kByName);

TEST(SwapLink, IsFollowedHoweverItIsRepointed) {
  const std::string preload = conform_path("libconform_link_flips.so") + ":" + shim_path();
  for (const char* when : {"start", "later"}) {
    const std::string folders = make_swap_folders();
    const HostRun run({"conform", "swap_link_flips", folders, when},
                      {{"FIBSHIM_CONFIG", folders + "/link"}, {"SIMCUDA_LOG", ""}}, preload, 20);
    run.expect_holds(0);
  }
}

TEST(SwapFile, MayBeScribbledOverWithoutHarm) {
  const std::string folders = make_swap_folders();
  const HostRun run({"conform", "swap_scribbled", folders},
                    {{"FIBSHIM_CONFIG", folders + "/link"}, {"SIMCUDA_LOG", ""}}, shim_path(), 120);
  EXPECT_EQ(run.process().exit_code, 0) << run.process().out << run.process().err;
  EXPECT_TRUE(run.messages().empty()) << run.process().err;
}

// Folders of which "a" and "signed", which is "b" otherwise, are signed with the key that is returned;
// so is "open", in which others can write.
std::string sign_swap_folders(const std::string& folders) {
  const std::string program = build_dir() + "/bin/fibshim";
  const std::string key = folders + "/key";
  fs::copy(folders + "/b", folders + "/signed", fs::copy_options::recursive);
  (void)exits(0, run_process({"minisign", "-G", "-W", "-p", key + ".pub", "-s", key + ".key"}));
  for (const char* name : {"a", "signed"}) {
    const std::string folder = folders + "/" + name;
    for (const auto& command :
         {std::vector<std::string>{program, "check", "--write-manifest", folder},
          {"minisign", "-S", "-s", key + ".key", "-m", folder + "/fibshim.manifest"}}) {
      (void)exits(0, run_process(command));
    }
  }
  fs::copy(folders + "/signed", folders + "/open", fs::copy_options::recursive);
  fs::permissions(folders + "/open/patterns", fs::perms::others_write, fs::perm_options::add);
  std::ifstream file(key + ".pub");
  std::string text;
  while (std::getline(file, text) && text.starts_with("untrusted")) continue;
  return text;
}

TEST(SwapRules, AreThoseThatTheProcessBeganWith) {
  const std::string folders = make_swap_folders();
  const std::string key = sign_swap_folders(folders);
  const HostRun run({"conform", "swap_keeps_rules", folders}, {{"FIBSHIM_CONFIG", folders + "/a"},
                                                               {"FIBSHIM_REQUIRE_KEY", key},
                                                               {"FIBSHIM_JOB", ""},
                                                               {"SLURM_JOB_ID", "17"}});
  run.expect_holds(4);
}

// Whatever the variable holds that is no key has signed nothing.
TEST(SwapRules, WithoutAKeyThatCanBeUsedNoFolderIs) {
  const std::string folders = make_swap_folders();
  const std::string key = sign_swap_folders(folders);
  const std::string comment = "untrusted comment: ";
  for (const std::string& value :
       {std::string("no key"), folders + "/missing.pub", key + "x",
        // With the key at its end, which is cut off; and with the key where the cut is.
        comment + std::string(9000, 'x') + "\n" + key,
        comment + std::string(8191 - comment.size() - 1 - key.size(), 'x') + "\n" + key + "more"}) {
    const HostRun run({"conform", "start_refused"},
                      {{"FIBSHIM_CONFIG", folders + "/a"}, {"FIBSHIM_REQUIRE_KEY", value}});
    run.expect_holds();
    ASSERT_EQ(run.messages().size(), 1u) << run.process().err;
    EXPECT_CONTAINS(run.messages()[0], "kernels run unchanged");
  }
  // Unset and empty are the same.
  const HostRun run({"conform", "swap_refused", folders},
                    {{"FIBSHIM_CONFIG", folders + "/a"}, {"FIBSHIM_REQUIRE_KEY", ""}});
  run.expect_holds();
}

}  // namespace
}  // namespace fibshim::conformance
