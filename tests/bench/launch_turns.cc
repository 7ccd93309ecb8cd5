// Two threads launch the same kernel, first one, then the other; both live throughout. For the test
// that finds in a trace of each thread's launches (access_trace.c) which cache lines both touch.
//
//   launch_turns KERNEL...
#include "tests/bench/launch_turns.h"

#include <pthread.h>
#include <stdio.h>

#include <functional>
#include <thread>
#include <vector>

#include "tests/bench/access_trace.h"
#include "tests/bench/engine.h"

namespace fibshim::bench {
namespace {

pthread_barrier_t g_turn;

void launch_in_turn(int turn, const std::vector<CUfunction>& kernels) {
  const CUstream stream = start_thread();
  const auto function = cuda().launch;
  Arguments arguments;
  const auto launch_all = [&](int times) {
    for (int i = 0; i < times; ++i) {
      for (const CUfunction kernel : kernels) {
        require(launch(function, kernel, stream, arguments), "cuLaunchKernel");
      }
    }
  };
  launch_all(kWarmUpLaunches);
  for (int at = 0; at < 2; ++at) {
    pthread_barrier_wait(&g_turn);
    if (at != turn) continue;
    ACCESS_TRACE_BEGIN(turn);
    launch_all(kLaunchesPerTurn);
    ACCESS_TRACE_END();
  }
  pthread_barrier_wait(&g_turn);
}

}  // namespace
}  // namespace fibshim::bench

int main(int argc, char** argv) {
  using namespace fibshim::bench;  // NOLINT(google-build-using-namespace): a short main
  if (argc < 2) {
    fprintf(stderr, "usage: launch_turns KERNEL...\n");
    return 2;
  }
  std::vector<CUfunction> kernels;
  start_thread();
  for (int i = 1; i < argc; ++i) kernels.push_back(load_kernel("launches", argv[i]));
  pthread_barrier_init(&g_turn, nullptr, 2);
  std::thread first(launch_in_turn, 0, std::cref(kernels));
  std::thread second(launch_in_turn, 1, std::cref(kernels));
  first.join();
  second.join();
  return 0;
}
