// Two threads launch the same kernel, first one, then the other; both live throughout. For the test
// that finds in a trace of all loads and stores which cache lines both touch. Each thread's
// launches are between two stores to addresses that the reader of the trace knows.
//
//   launch_turns KERNEL...
#include "tests/bench/launch_turns.h"

#include <pthread.h>
#include <stdio.h>
#include <sys/mman.h>

#include <functional>
#include <thread>
#include <vector>

#include "tests/bench/engine.h"

namespace fibshim::bench {
namespace {

volatile char* g_marks;
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
    g_marks[begin_mark(turn)] = 1;
    launch_all(kLaunchesPerTurn);
    g_marks[end_mark(turn)] = 1;
  }
  pthread_barrier_wait(&g_turn);
}

}  // namespace
}  // namespace fibshim::bench

int main(int argc, char** argv) {
  using namespace fibshim::bench;  // NOLINT(google-build-using-namespace): a short main
  void* const marks = mmap(reinterpret_cast<void*>(kMarksAddress), 4096, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
  if (argc < 2 || marks != reinterpret_cast<void*>(kMarksAddress)) {
    fprintf(stderr, "usage: launch_turns KERNEL...; 0x%lx must be free\n", kMarksAddress);
    return 2;
  }
  g_marks = static_cast<volatile char*>(marks);
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
