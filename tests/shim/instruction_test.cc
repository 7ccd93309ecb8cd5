// The instructions that the shim adds to one launch, counted by callgrind. They are the same on
// every run and every machine with the same compiler, so the launch path cannot grow unnoticed.
// `make bench` prints these counts beside nanoseconds.
//
// A ceiling is the count that was measured when it was last set, with at most a twentieth more for
// other compilers, and never above the aim. Lower the ceilings when the path gets shorter.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <map>
#include <string>
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

TEST(LaunchPath, AddsNoMoreInstructionsThanItsCeiling) {
  std::vector<std::string> kernels;
  for (const Ceiling& ceiling : kCeilings) kernels.emplace_back(ceiling.kernel);
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
  EXPECT_EQ(launches, wanted);

  for (const Ceiling& ceiling : kCeilings) {
    const double added = with_shim.at(ceiling.kernel) - without.at(ceiling.kernel);
    EXPECT_LE(added, ceiling.most_instructions) << ceiling.kernel;
    // 0 would mean that the launches did not go through the shim.
    EXPECT_GT(added, 0) << ceiling.kernel;
    RecordProperty(ceiling.kernel, std::to_string(added));
    printf("%-16s adds %g instructions (at most %g; aim: %g)\n", ceiling.kernel, added,
           ceiling.most_instructions, ceiling.aim);
  }
}

// If some launches of a definition are checked, each launch only counts down to the next check.
TEST(LaunchPath, AddsOneCounterWhereSomeLaunchesAreChecked) {
  const std::vector<std::string> kernels = {"bench_untracked", "bench_hit", "bench_hit_remap"};
  const auto count = [&](const char* rate) {
    const PreloadedEngine engine;
    auto environment = engine.environment(build_dir() + "/bench/config");
    environment["FIBSHIM_SHADOW"] = rate;
    return bench::count_instructions(kernels, environment);
  };
  const auto without = count("off");
  const auto checked = count("1/1000000000");
  EXPECT_EQ(checked.at("bench_untracked"), without.at("bench_untracked"));
  for (const char* kernel : {"bench_hit", "bench_hit_remap"}) {
    const double added = checked.at(kernel) - without.at(kernel);
    EXPECT_GT(added, 0) << kernel;
    EXPECT_LE(added, 27) << kernel;
    printf("%-16s adds %g instructions\n", kernel, added);
  }
}

// A graph launch looks up its exec and adds the number of each outcome.
// tests/conformance/hosts/exec_cases.cc counts the other costs of execs, in driver calls.
TEST(GraphLaunch, AddsNoMoreInstructionsThanItsCeiling) {
  constexpr double kMostInstructions = 161;
  const PreloadedEngine engine;
  const double added =
      bench::count_instructions({"graph"}, engine.environment(build_dir() + "/bench/config"))
          .at("graph") -
      bench::count_instructions({"graph"}, {}).at("graph");
  const nlohmann::json executions = engine.stats()["executions"];
  EXPECT_EQ(executions["hit"].get<long>(), bench::kCountedLaunches);
  EXPECT_LE(added, kMostInstructions);
  EXPECT_GT(added, 0);
  printf("%-16s adds %g instructions (at most %g)\n", "graph", added, kMostInstructions);
}

// The same for graphs.
TEST(LaunchPath, AddsOneCounterWhereSomeGraphLaunchesAreChecked) {
  const auto count = [](const char* rate, long launches) {
    const PreloadedEngine engine;
    auto environment = engine.environment(pytorch_config());
    environment["SIMCUDA_FAST"] = "1";
    environment["FIBSHIM_SHADOW"] = rate;
    const ProcessResult result =
        run_process({"valgrind", "--tool=callgrind", "--toggle-collect=fibshim::launch_exec(*",
                     "--callgrind-out-file=/dev/null", build_dir() + "/tests/hosts/shadow_host",
                     "replay", std::to_string(launches), "0"},
                    environment);
    const std::string before = "Collected : ";
    const size_t at = result.err.find(before);
    EXPECT_NE(at, std::string::npos) << result.err;
    return at == std::string::npos ? 0 : atof(result.err.c_str() + at + before.size());
  };
  const auto per_launch = [&](const char* rate) {
    return (count(rate, 300) - count(rate, 100)) / 200;
  };
  const double added = per_launch("1/1000000000") - per_launch("off");
  EXPECT_GT(added, 0);
  EXPECT_LE(added, 10);
  printf("a graph's launch adds %g instructions\n", added);
}

}  // namespace
}  // namespace fibshim
