// The instructions that the shim adds to one launch, counted by callgrind. They are the same on
// every run and every machine with the same compiler, so the launch path cannot grow unnoticed.
// `make bench` prints these counts beside nanoseconds.
//
// A ceiling is the count that was measured when it was last set, with at most a twentieth more for
// other compilers, and never above the aim. Lower the ceilings when the path gets shorter.
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tests/bench/instruction_count.h"
#include "tests/shim/preloaded_engine.h"

namespace fibshim {
namespace {

struct Ceiling {
  const char* kernel;        // of tests/bench/launches.cu
  const char* outcome;       // of its launches; otherwise the count would mean nothing
  double most_instructions;  // the shim may add so many to a direct call
  double aim;                // the project's promise
};
constexpr Ceiling kCeilings[] = {
    {"bench_untracked", "untracked", 40, 40},
    {"bench_fallback", "fallback_no_solution", 86, 90},
    {"bench_hit", "hit", 160, 160},
    {"bench_hit_remap", "hit", 212, 220},
    // The solution that is tried last of two: at most 3 ns more than a hit.
    {"bench_hit_chosen", "hit", 200, 200},
    // As engines' kernels are read: two patterns fit, and expressions decide and compute.
    {"bench_hit_computed", "hit", 450, 450},
    // A launch as cuBLAS makes it: a packed struct, of which 20 fields are read, and a cluster.
    {"bench_packed", "hit", 860, 860},
};

// A graph launch looks up its exec and adds the number of each outcome.
// tests/conformance/hosts/exec_cases.cc counts the other costs of execs, in driver calls.
constexpr double kMostOfAGraph = 161;

TEST(LaunchPath, AddsNoMoreInstructionsThanItsCeiling) {
  std::vector<std::string> kernels;
  for (const Ceiling& ceiling : kCeilings) kernels.emplace_back(ceiling.kernel);
  kernels.emplace_back("graph");
  const PreloadedEngine engine;
  const auto without = bench::count_instructions(kernels, {});
  const auto with_shim =
      bench::count_instructions(kernels, engine.environment(build_dir() + "/bench/config"));

  std::map<std::string, long> launches;
  const nlohmann::json stats = engine.stats();
  for (const auto& counter : stats["counters"]) {
    launches[counter["outcome"].get<std::string>()] += counter["count"].get<long>();
  }
  std::map<std::string, long> wanted;
  for (const Ceiling& ceiling : kCeilings) wanted[ceiling.outcome] += bench::kCountedLaunches;
  const long executions = wanted["hit"] + bench::kCountedLaunches;
  wanted["hit"] += 1;  // the graph's node
  EXPECT_EQ(launches, wanted);
  EXPECT_EQ(stats["executions"]["hit"].get<long>(), executions);

  const auto expect_at_most = [&](const char* name, double most, double aim) {
    const double added = with_shim.at(name) - without.at(name);
    EXPECT_LE(added, most) << name;
    // 0 would mean that the launches did not go through the shim.
    EXPECT_GT(added, 0) << name;
    RecordProperty(name, std::to_string(added));
    printf("%-16s adds %g instructions (at most %g; aim: %g)\n", name, added, most, aim);
  };
  for (const Ceiling& ceiling : kCeilings) {
    expect_at_most(ceiling.kernel, ceiling.most_instructions, ceiling.aim);
  }
  expect_at_most("graph", kMostOfAGraph, kMostOfAGraph);
}

// If some launches of a definition are checked, each launch only counts down to the next check, and
// so does each launch of a graph, whatever its nodes.
TEST(LaunchPath, AddsOneCounterWhereSomeLaunchesAreChecked) {
  const auto count = [&](const char* rate) {
    const PreloadedEngine engine;
    auto environment = engine.environment(build_dir() + "/bench/config");
    environment["FIBSHIM_SHADOW"] = rate;
    return bench::count_instructions(
        {"bench_untracked", "bench_hit", "bench_hit_remap", "graph_of_ten"}, environment);
  };
  const auto without = count("off");
  const auto checked = count("1/1000000000");
  EXPECT_EQ(checked.at("bench_untracked"), without.at("bench_untracked"));
  constexpr std::pair<const char*, double> kMost[] = {
      {"bench_hit", 27}, {"bench_hit_remap", 27}, {"graph_of_ten", 10}};
  for (const auto& [name, most] : kMost) {
    const double added = checked.at(name) - without.at(name);
    EXPECT_GT(added, 0) << name;
    EXPECT_LE(added, most) << name;
    printf("%-16s adds %g instructions\n", name, added);
  }
}

}  // namespace
}  // namespace fibshim
