// What a launch costs the calling thread on a real GPU, by way of launching: through whatever is
// preloaded, and past it, straight into the driver.
//
// Launches come in batches that fit the driver's queue, so that none waits for the GPU. Every batch
// through the preload has a direct one of the same kernel beside it, before or after it by turns, and
// what counts is the difference of the two: both see the same clock, the same neighbours and the
// same addresses. In each round the ways come in a random order. One JSON line per process, with medians.
// The ways "noise" and "function_noise" are direct on both sides.
//
//   overhead_launch LABEL ROUNDS
#include <stdio.h>
#include <stdlib.h>

#include <algorithm>
#include <chrono>
#include <random>
#include <string>
#include <vector>

#include "tests/bench/engine.h"
#include "tests/bench/median.h"

namespace fibshim::bench {
namespace {

constexpr int kBatch = 256;
constexpr int kWarmUpRounds = 20;

struct Way {
  const char* name;
  const char* kernel;  // of launches.cu
  bool is_direct;      // past the preload, too
  bool is_function;    // a CUfunction; else a CUkernel
  CUfunction handle = nullptr;
  std::vector<double> direct_ns = {};  // per launch, by batch
  std::vector<double> ns = {};
  std::vector<double> added_ns = {};
};

double launch_batch(const Way& way, PFN_cuLaunchKernel_v4000 function, CUstream stream,
                    Arguments& arguments) {
  using Clock = std::chrono::steady_clock;
  const auto begin = Clock::now();
  for (int i = 0; i < kBatch; ++i) {
    require(launch(function, way.handle, stream, arguments), way.name);
  }
  const std::chrono::duration<double, std::nano> elapsed = Clock::now() - begin;
  require(cuda().synchronize(stream), "cuStreamSynchronize");
  return elapsed.count() / kBatch;
}

void launch_pair(Way* way, int round, CUstream stream, Arguments& arguments) {
  const auto direct = cuda().direct_launch;
  const auto function = way->is_direct ? direct : cuda().launch;
  const bool is_direct_first = round % 2 == 0;
  const double first = launch_batch(*way, is_direct_first ? direct : function, stream, arguments);
  const double second = launch_batch(*way, is_direct_first ? function : direct, stream, arguments);
  if (round < 0) return;
  way->direct_ns.push_back(is_direct_first ? first : second);
  way->ns.push_back(is_direct_first ? second : first);
  way->added_ns.push_back(way->ns.back() - way->direct_ns.back());
}

void measure(const char* label, int rounds) {
  Way ways[] = {{"untracked", "bench_untracked", false, false},
                {"fallback", "bench_fallback", false, false},
                {"hit", "bench_hit", false, false},
                {"hit_remap", "bench_hit_remap", false, false},
                {"hit_chosen", "bench_hit_chosen", false, false},
                {"noise", "bench_untracked", true, false},
                {"function_untracked", "bench_untracked", false, true},
                {"function_fallback", "bench_fallback", false, true},
                {"function_hit", "bench_hit", false, true},
                {"function_hit_remap", "bench_hit_remap", false, true},
                {"function_hit_chosen", "bench_hit_chosen", false, true},
                {"function_noise", "bench_untracked", true, true}};
  const CUstream stream = start_thread();
  Arguments arguments;
  std::vector<Way*> order;
  for (Way& way : ways) {
    way.handle = way.is_function ? load_function("launches", way.kernel)
                                 : load_kernel("launches", way.kernel);
    order.push_back(&way);
  }
  std::minstd_rand random;
  for (int round = -kWarmUpRounds; round < rounds; ++round) {
    std::shuffle(order.begin(), order.end(), random);
    for (Way* const way : order) launch_pair(way, round, stream, arguments);
  }
  printf("{\"preload\": \"%s\"", label);
  for (const Way& way : ways) {
    printf(", \"%s\": {\"ns\": %.1f, \"direct_ns\": %.1f, \"added_ns\": %.2f}", way.name,
           median(way.ns), median(way.direct_ns), median(way.added_ns));
  }
  printf("}\n");
}

}  // namespace
}  // namespace fibshim::bench

int main(int argc, char** argv) {
  if (argc != 3 || atoi(argv[2]) <= 0) {
    fprintf(stderr, "usage: overhead_launch LABEL ROUNDS\n");
    return 2;
  }
  fibshim::bench::measure(argv[1], atoi(argv[2]));
  return 0;
}
