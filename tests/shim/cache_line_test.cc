// A launch writes no cache line that another thread's launch reads or writes, and so threads do not slow
// each other down. Proven by a trace of every load and store (tests/bench/access_trace.c) of two threads
// that launch the same kernels in turn: exact, and the same on every machine, where a measurement of
// throughput depends on its processors and neighbours.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <sstream>

#include "tests/bench/launch_turns.h"
#include "tests/shim/preloaded_engine.h"
#include "tests/support/process.h"

namespace fibshim {
namespace {

constexpr uintptr_t kLineBytes = 64;

struct WrittenLines {
  std::set<uintptr_t> touched;
  std::set<uintptr_t> written;
  long stores = 0;
};

// The lines that each of the two turns touches.
void read_trace(const std::string& trace, WrittenLines (&turns)[2]) {
  WrittenLines* lines = nullptr;
  std::istringstream in(trace);
  for (std::string line; std::getline(in, line);) {
    int turn = 0;
    char kind = 0;
    unsigned long address = 0;
    unsigned size = 0;
    if (sscanf(line.c_str(), "turn %d", &turn) == 1) lines = &turns[turn];
    if (sscanf(line.c_str(), " %c %lx,%u", &kind, &address, &size) != 3) continue;
    for (uintptr_t at = address / kLineBytes; at <= (address + size - 1) / kLineBytes; ++at) {
      lines->touched.insert(at);
      if (kind != 'L') lines->written.insert(at);
    }
    if (kind != 'L') ++lines->stores;
  }
}

std::vector<uintptr_t> common(const std::set<uintptr_t>& a, const std::set<uintptr_t>& b) {
  std::vector<uintptr_t> both;
  std::set_intersection(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(both));
  return both;
}

void expect_nothing_shared(std::map<std::string, std::string> environment) {
  environment["LD_LIBRARY_PATH"] = build_dir() + "/sim";
  environment["SIMCUDA_FAST"] = "1";
  environment["VALGRIND_LAUNCHER"] = "valgrind";  // a tool does not start without
  const std::vector<std::string> command = {build_dir() + "/bench/access_trace",
                                            "--tool=access_trace",
                                            "-q",
                                            "--log-fd=1",
                                            build_dir() + "/bench/launch_turns",
                                            "bench_untracked",
                                            "bench_fallback",
                                            "bench_hit",
                                            "bench_hit_remap"};
  const ProcessResult result = run_process(command, environment);
  ASSERT_FALSE(result.timed_out);
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.err, "");
  WrittenLines turns[2];
  read_trace(result.out, turns);
  for (const WrittenLines& turn : turns) {
    // At the least, each launch counts itself.
    ASSERT_GE(turn.stores, bench::kLaunchesPerTurn) << result.out.substr(0, 1000);
  }
  for (const uintptr_t line : common(turns[0].written, turns[1].touched)) {
    ADD_FAILURE() << std::hex << "line 0x" << line * kLineBytes
                  << " is written by one thread and touched by the other";
  }
  for (const uintptr_t line : common(turns[0].touched, turns[1].written)) {
    ADD_FAILURE() << std::hex << "line 0x" << line * kLineBytes
                  << " is touched by one thread and written by the other";
  }
  // The harness sees sharing where there is some: the kernel's handle is read by both.
  EXPECT_FALSE(common(turns[0].touched, turns[1].touched).empty());
}

TEST(CacheLines, TheSimulatedDriverSharesNoneThatALaunchWrites) { expect_nothing_shared({}); }

TEST(CacheLines, TheShimSharesNoneThatALaunchWrites) {
  const PreloadedEngine engine;
  expect_nothing_shared(engine.environment(build_dir() + "/bench/config"));
  // The launches were what they should be: of four kinds, two are hits.
  long hits = 0;
  const nlohmann::json stats = engine.stats();
  for (const auto& counter : stats["counters"]) {
    if (counter["outcome"] == "hit") hits += counter["count"].get<long>();
  }
  EXPECT_EQ(hits, 2 * 2 * (bench::kWarmUpLaunches + bench::kLaunchesPerTurn));
}

}  // namespace
}  // namespace fibshim
