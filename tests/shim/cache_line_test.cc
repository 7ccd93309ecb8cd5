// A launch writes no cache line that another thread's launch reads or writes, and so threads do not slow
// each other down. Proven by a trace of every load and store (valgrind's lackey) of two threads that
// launch the same kernels in turn: exact, and the same on every machine, where a measurement of
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

// The lines that each of the two turns touches. The trace: " S 04222cac,8", L and M (load, store).
void read_trace(const std::string& trace, WrittenLines (&turns)[2]) {
  WrittenLines* lines = nullptr;
  std::istringstream in(trace);
  for (std::string line; std::getline(in, line);) {
    char kind = 0;
    unsigned long address = 0;
    unsigned size = 0;
    if (sscanf(line.c_str(), " %c %lx,%u", &kind, &address, &size) != 3) continue;
    if (address >= bench::kMarksAddress && address < bench::kMarksAddress + 4096) {
      const uintptr_t offset = address - bench::kMarksAddress;
      lines = offset == bench::begin_mark(0)   ? &turns[0]
              : offset == bench::begin_mark(1) ? &turns[1]
                                               : nullptr;
      continue;
    }
    if (lines == nullptr) continue;
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

void expect_nothing_shared(const std::string& kernels,
                           std::map<std::string, std::string> environment) {
  environment["LD_LIBRARY_PATH"] = build_dir() + "/sim";
  environment["SIMCUDA_FAST"] = "1";
  char first[32], last[32];
  snprintf(first, sizeof first, "%lx", bench::kMarksAddress + bench::begin_mark(0));
  snprintf(last, sizeof last, "%lx", bench::kMarksAddress + bench::end_mark(1));
  // Only what lies between the first mark and the last one comes here: a run makes millions of lines.
  const std::string command = "exec 8>&1; { valgrind --tool=lackey --trace-mem=yes --log-fd=9 " +
                              build_dir() + "/bench/launch_turns " + kernels +
                              " 9>&1 >&8 || echo failed >&2; } | sed -n '/^ S 0*" + first +
                              ",/,/^ S 0*" + last + ",/p' | grep '^ [SLM]'";
  constexpr int kTimeoutS = 280;  // it takes two minutes where four such programs share a processor
  const ProcessResult result = run_process({"/bin/sh", "-c", command}, environment, kTimeoutS);
  ASSERT_FALSE(result.timed_out);
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

constexpr char kKernels[] = "bench_untracked bench_fallback bench_hit bench_hit_remap";

TEST(CacheLines, TheSimulatedDriverSharesNoneThatALaunchWrites) {
  expect_nothing_shared(kKernels, {});
}

TEST(CacheLines, TheShimSharesNoneThatALaunchWrites) {
  const PreloadedEngine engine;
  expect_nothing_shared(kKernels, engine.environment(build_dir() + "/bench/config"));
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
