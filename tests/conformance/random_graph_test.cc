// Random graphs (hosts/graph_program.h): each program is run without the shim, which tells what it writes, and with it,
// while it moves between folders. Every byte that may be read must be the same, whatever ran for whatever; every node
// and every execution must be counted once, and as what it was.
//
// CONFORMANCE_GRAPHS      how many graphs each of the shards runs (default 100)
// CONFORMANCE_FIRST_SEED  the first seed (default 1)
//
// With shadow checks (FIBSHIM_SHADOW) some launches run the originals, and solutions beside them: nobody may see any of it,
// and no check may find a difference, as there is none. Where each launch is checked, replacements that compute something
// else make no difference either.
//
// A difference is made smaller before it is shown: `conform graph SEED INDEX STEPS OPS` runs what is left.

#include <filesystem>
#include <sstream>

#include <nlohmann/json.hpp>

#include "tests/conformance/conform_run.h"

namespace fibshim::conformance {
namespace {

namespace fs = std::filesystem;

constexpr int kGraphShards = 8;
constexpr int kTimeLimitS = 250;

// What is checked.
struct Checks {
  std::string shadow = "off";  // FIBSHIM_SHADOW
  bool may_change = false;     // the programs change it
  bool are_wrong = false;      // replacements compute something else
  long graphs_of_process = 500;
};

// Folders "a", "b" and "c", of which the last two lack what these rows name.
std::string make_folders() {
  const std::string root = make_temporary_dir();
  const std::map<std::string, std::vector<std::string>> lacking = {
      {"a", {}}, {"b", {"abc", "cd", "a"}}, {"c", {"ab", "de", "gh", "b8", "bd"}}};
  for (const auto& [name, labels] : lacking) {
    fs::copy(conform_path("graphs_config"), root + "/" + name, fs::copy_options::recursive);
    for (const std::string& label : labels) {
      fs::remove(root + "/" + name + "/patterns/graph-" + label + ".json");
      fs::remove(root + "/" + name + "/solutions/curated_graph_" + label + "_n64.json");
    }
  }
  return root;
}

const std::string& folders() {
  static const std::string made = make_folders();
  return made;
}

// Orders are told apart by their numbers.
HostRun run_graphs(std::vector<std::string> words, bool has_shim, long order,
                   const Checks& checks) {
  words.insert(words.begin(), "conform");
  words.push_back(folders());
  Environment environment = {{"FIBSHIM_CONFIG", folders() + "/a"},
                             {"SIMCUDA_KERNELS", conform_path("libgraph_kernels.so")},
                             {"SIMCUDA_ORDER", std::to_string(order)},
                             {"SIMCUDA_LATER", std::to_string(order)},
                             {"FIBSHIM_SHADOW", checks.shadow},
                             {"SIMCUDA_LOG", ""}};
  if (checks.may_change) environment["GRAPHS_RATES"] = "1";
  if (checks.are_wrong) environment["GRAPHS_WRONG"] = "1";
  return HostRun(words, environment, has_shim ? shim_path() : "", kTimeLimitS);
}

// What a run says, line by line: "graph 3" -> what it wrote; "curated_ab" -> how often it ran.
std::map<std::string, std::string> said(const HostRun& run) {
  std::map<std::string, std::string> all;
  std::istringstream in(run.process().out);
  for (std::string line; std::getline(in, line);) {
    const size_t space = line.rfind(' ');
    if (!line.starts_with(' ')) all[line.substr(0, space)] = line.substr(space + 1);
  }
  return all;
}

std::string list(const std::vector<int>& all) {
  std::string text;
  for (const int one : all) text += (text.empty() ? "" : ",") + std::to_string(one);
  return text.empty() ? "-" : text;
}

long sum(const nlohmann::json& numbers) {
  long all = 0;
  for (const auto& [outcome, number] : numbers.items()) all += number.get<long>();
  return all;
}

// "graph_ab_n64": of the kernels that it stands for.
std::string letters_of(const std::string& definition) {
  return definition.substr(6, definition.rfind('_') - 6);
}

// Every node and every execution, and as what ran. Returns what is wrong; "" when nothing is.
std::string miscounted(const HostRun& run, const std::map<std::string, std::string>& stated,
                       const Checks& checks) {
  std::string wrong;
  const auto number = [&](const std::string& name) { return std::stol(stated.at(name)); };
  const auto compare = [&](const std::string& what, long counted, long expected) {
    if (counted != expected) {
      wrong += what + ": " + std::to_string(counted) + " counted, not " + std::to_string(expected) +
               "\n";
    }
  };
  const nlohmann::json stats = stats_json(run.stats_dir());
  compare("nodes", sum(stats["nodes"]), number("nodes"));
  compare("executions", sum(stats["executions"]), number("executions"));
  compare("nodes in bodies", sum(stats["body_nodes"]), number("body_nodes"));
  for (const auto& shape : stats["shadow"]) {
    if (!checks.are_wrong) compare("differences found", shape["mismatches"].get<long>(), 0);
  }
  if (checks.shadow == "1/1") {
    for (const char* const outcome : {"hit", "absorbed"}) {
      compare(outcome, stats["executions"][outcome].get<long>(), 0);
    }
  }
  // A solution that is checked runs, too.
  if (is_real_driver() || checks.shadow != "off" || checks.may_change) return wrong;
  Tally hits;
  for (const auto& counter : stats["counters"]) {
    if (counter["outcome"] != "hit") continue;
    hits[letters_of(counter["definition"])] += counter["executions"].get<long>();
  }
  long ran = 0;
  long absorbed = 0;
  long replaced_in_bodies = 0;
  for (const auto& [name, count] : stated) {
    if (!name.starts_with("graph_") && !name.starts_with("curated_")) continue;
    ran += std::stol(count);
    if (!name.starts_with("curated_")) continue;
    const std::string letters = name.substr(8);
    // A solution for one kernel may also have run in bodies, where nobody counts it.
    const long in_bodies = std::stol(count) - hits[letters];
    if (letters.size() == 1 && in_bodies > 0) {
      replaced_in_bodies += in_bodies;
    } else {
      compare("hits of " + letters, hits[letters], std::stol(count));
    }
    absorbed += std::stol(count) * (letters == "b8" ? 7 : static_cast<long>(letters.size()) - 1);
  }
  const bool has_hits = stats["body_nodes"]["hit"] != 0;
  if (replaced_in_bodies > (has_hits ? number("body_runs") : 0)) {
    wrong += std::to_string(replaced_in_bodies) + " replacements ran in bodies\n";
  }
  compare("absorbed", stats["executions"]["absorbed"].get<long>(), absorbed);
  compare("what ran, and what need not", number("executions") + number("body_runs"),
          ran + absorbed);
  return wrong;
}

class Shrinker {
 public:
  Shrinker(long seed, long index, Checks checks)
      : seed_(seed), index_(index), checks_(std::move(checks)) {}

  std::string run() {
    const std::map<std::string, std::string> whole = said(run_one(false, 1));
    if (!differs()) return "";
    for (bool is_smaller = true; is_smaller;) {
      is_smaller = leave_out(std::stoi(whole.at("ops")), &ops_);
      is_smaller |= leave_out(std::stoi(whole.at("steps")), &steps_);
    }
    return "conform graph " + std::to_string(seed_) + " " + std::to_string(index_) + " " +
           list(steps_) + " " + list(ops_) + "\n" + run_one(false, 1).process().out +
           "with the shim:\n" + run_one(true, 1).process().out;
  }

 private:
  HostRun run_one(bool has_shim, long order) const {
    return run_graphs(
        {"graph", std::to_string(seed_), std::to_string(index_), list(steps_), list(ops_)},
        has_shim, order, checks_);
  }

  // Where orders that the edges permit write the same, and with the shim something else is written, or miscounted.
  bool differs() const {
    const auto truth = said(run_one(false, 1))["graph 0"];
    if (truth.empty() || truth != said(run_one(false, 2))["graph 0"]) return false;
    for (long order = 1; order <= 4; ++order) {
      const HostRun run = run_one(true, order);
      auto stated = said(run);
      if (stated["graph 0"] != truth || !miscounted(run, stated, checks_).empty()) {
        return true;
      }
    }
    return false;
  }

  bool leave_out(int count, std::vector<int>* left_out) {
    bool is_smaller = false;
    for (int i = 0; i < count; ++i) {
      if (std::find(left_out->begin(), left_out->end(), i) != left_out->end()) continue;
      left_out->push_back(i);
      if (differs()) {
        is_smaller = true;
      } else {
        left_out->pop_back();
      }
    }
    return is_smaller;
  }

  long seed_, index_;
  Checks checks_;
  std::vector<int> steps_, ops_;
};

class RandomGraphs : public testing::TestWithParam<int> {
 protected:
  // `begin`: how many graphs of the test's own are left out.
  void run(long graphs, const Checks& checks, long begin = 0);
  // In all that has run.
  long absorbed_ = 0;
  long checks_ = 0;
  long checks_of_rewrites_ = 0;
};

void RandomGraphs::run(long graphs, const Checks& checks, long begin) {
  const long first = number_from("CONFORMANCE_FIRST_SEED", 1);
  graphs += begin;
  for (long done = begin; done < graphs && !HasFailure(); done += checks.graphs_of_process) {
    const long seed = first + done / checks.graphs_of_process * kGraphShards + GetParam();
    const std::string count = std::to_string(std::min(checks.graphs_of_process, graphs - done));
    SCOPED_TRACE("conform graphs " + std::to_string(seed) + " " + count);
    const HostRun truth =
        run_graphs({"graphs", std::to_string(seed), count}, false, 2 * seed, checks);
    ASSERT_EQ(truth.process().exit_code, 0) << truth.process().err;
    const HostRun run =
        run_graphs({"graphs", std::to_string(seed), count}, true, 2 * seed + 1, checks);
    ASSERT_EQ(run.process().exit_code, 0) << run.process().err;
    if (!checks.are_wrong) {
      EXPECT_EQ(run.process().err, "");
    }
    const std::map<std::string, std::string> expected = said(truth);
    const std::map<std::string, std::string> stated = said(run);
    std::string wrong = miscounted(run, stated, checks);
    std::string first_wrong;
    for (const auto& [name, text] : expected) {
      if (!name.starts_with("graph ") || stated.at(name) == text) continue;
      wrong += name + " writes something else\n";
      if (first_wrong.empty()) first_wrong = name.substr(6);
    }
    if (!wrong.empty()) {
      std::string smaller;
      for (long i = 0; smaller.empty() && i < std::min(checks.graphs_of_process, graphs - done);
           ++i) {
        if (first_wrong.empty() || std::stol(first_wrong) == i)
          smaller = Shrinker(seed, i, checks).run();
      }
      FAIL() << wrong << (smaller.empty() ? "no graph alone shows it" : smaller);
    }
    const nlohmann::json stats = stats_json(run.stats_dir());
    absorbed_ += stats["executions"]["absorbed"].get<long>();
    for (const auto& shape : stats["shadow"]) {
      const long of_shape = shape["checks"].get<long>();
      checks_ += of_shape;
      if (letters_of(shape["definition"]).size() > 1) checks_of_rewrites_ += of_shape;
    }
  }
}

TEST_P(RandomGraphs, WriteWhatTheyWriteAndAreCounted) {
  const long graphs = number_from("CONFORMANCE_GRAPHS", is_real_driver() ? 40 : 100);
  run(graphs, {});
  // A graph in five has a rewrite, by the way they are made.
  EXPECT_GT(absorbed_, graphs / 10);
}

TEST_P(RandomGraphs, WriteWhatTheyWriteWhileSolutionsAreChecked) {
  const long graphs = number_from("CONFORMANCE_GRAPHS", 100) / 4;
  // Which launches are checked also depends on how soon that is made ready.
  for (long turn = 0; turn < 4 && checks_of_rewrites_ == 0 && !HasFailure(); ++turn) {
    const Checks checks = {.shadow = "1/2"};
    run(graphs, checks, turn * checks.graphs_of_process);
  }
  printf("%ld checks, %ld of rewrites\n", checks_, checks_of_rewrites_);
  EXPECT_GT(checks_, 0);
  EXPECT_GT(checks_of_rewrites_, 0);
}

TEST_P(RandomGraphs, RunOriginalsAloneWhileEachLaunchIsChecked) {
  run(number_from("CONFORMANCE_GRAPHS", 100) / 4, {.shadow = "1/1", .are_wrong = true});
}

TEST_P(RandomGraphs, WriteWhatTheyWriteWhileRatesChange) {
  run(number_from("CONFORMANCE_GRAPHS", 100) / 10, {.may_change = true});
}

// Few graphs of each process: once something was checked, no exec of the host holds replacements.
TEST_P(RandomGraphs, RunOriginalsAloneWhenTheyAreTold) {
  run(number_from("CONFORMANCE_GRAPHS", 100) / 10,
      {.may_change = true, .are_wrong = true, .graphs_of_process = 5});
}

INSTANTIATE_TEST_SUITE_P(Conformance, RandomGraphs, testing::Range(0, kGraphShards));

}  // namespace
}  // namespace fibshim::conformance
