// The launches of the benchmark, for callgrind: the same loop run COUNT times and twice as often,
// so that the difference is COUNT launches and nothing else. Each run ends in a dump of its own.
//
//   launch_loop COUNT KERNEL...
#include <stdio.h>
#include <stdlib.h>
#include <valgrind/callgrind.h>

#include <string>

#include "tests/bench/engine.h"

namespace fibshim::bench {
namespace {

// Not inlined: both runs are the same instructions.
__attribute__((noinline)) void launch_often(CUfunction kernel, CUstream stream,
                                            Arguments& arguments, long count) {
  const auto function = cuda().launch;
  for (long i = 0; i < count; ++i) {
    require(launch(function, kernel, stream, arguments), "cuLaunchKernel");
  }
}

void measure(const char* name, CUstream stream, long count) {
  const CUfunction kernel = load_kernel("launches", name);
  Arguments arguments;
  // The first launches learn, decide and claim the thread's counters. After that a dump separates
  // the runs, so that nothing but their launches lies between two.
  const std::string names[] = {std::string(name) + " 0", std::string(name) + " 1",
                               std::string(name) + " 2"};
  const long counts[] = {8, count, 2 * count};
  for (int i = 0; i < 3; ++i) {
    launch_often(kernel, stream, arguments, counts[i]);
    const char* const dump = names[i].c_str();
    CALLGRIND_DUMP_STATS_AT(dump);
  }
}

}  // namespace
}  // namespace fibshim::bench

int main(int argc, char** argv) {
  using namespace fibshim::bench;  // NOLINT(google-build-using-namespace): a short main
  if (argc < 3) {
    fprintf(stderr, "usage: launch_loop COUNT KERNEL...\n");
    return 2;
  }
  const long count = atol(argv[1]);
  const CUstream stream = start_thread();
  for (int i = 2; i < argc; ++i) measure(argv[i], stream, count);
  return 0;
}
