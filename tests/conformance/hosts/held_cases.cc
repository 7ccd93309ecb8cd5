// Threads are within a launch while they are cancelled, or the process forks. lib_hold.cc keeps
// them there.
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/conformance/hosts/host.h"

namespace conform {
namespace {

// A thread within its first launch, of curated_n2, which does not end by itself.
class HeldThread {
 public:
  HeldThread(const Gpu& gpu, CUfunction step) : gpu_(gpu), step_(step) {
    CHECK(pipe(says_) == 0 && pipe(waits_) == 0);
    const std::string ends = std::to_string(says_[1]) + "," + std::to_string(waits_[0]);
    setenv("CONFORM_HOLD", ends.c_str(), 1);
    CHECK(pthread_create(&thread_, nullptr, run, this) == 0);
    char byte;
    CHECK(read(says_[0], &byte, 1) == 1);
    unsetenv("CONFORM_HOLD");
  }
  ~HeldThread() {
    for (const int end : {says_[0], says_[1], waits_[0], waits_[1]}) close(end);
  }
  HeldThread(const HeldThread&) = delete;
  HeldThread& operator=(const HeldThread&) = delete;

  void cancel() {
    void* result = nullptr;
    CHECK(pthread_cancel(thread_) == 0 && pthread_join(thread_, &result) == 0);
    CHECK(result == PTHREAD_CANCELED);
  }
  void let_go() { CHECK(write(waits_[1], "x", 1) == 1 && pthread_join(thread_, nullptr) == 0); }

 private:
  static void* run(void* self) {
    const auto& held = *static_cast<HeldThread*>(self);
    held.gpu_.enter();
    OK(held.gpu_.launch(held.step_, 2));
    return nullptr;
  }

  const Gpu& gpu_;
  CUfunction step_;
  pthread_t thread_;
  int says_[2];
  int waits_[2];
};

// Loads and unloads modules: their records are reused only if no launch may read them.
void use_modules(const Gpu& gpu, int rounds) {
  for (int i = 0; i < rounds; ++i) {
    const CUmodule module = gpu.load_module();
    OK(gpu.launch(gpu.function(module), 1));
    OK(cuda().cuModuleUnload(module));
  }
}

}  // namespace
}  // namespace conform

// Records that cancelled threads were reading are reused: memory does not grow.
CASE(cancelled_launches) {
  using namespace conform;
  constexpr int kRounds = 1000;
  constexpr long kMostBytes = 128 << 10;
  const Gpu gpu;
  const CUfunction step = gpu.step();
  constexpr int kCancelled = 4;
  for (int i = 0; i < kCancelled; ++i) HeldThread(gpu, step).cancel();
  // Growing once, such as CUPTI's buffers while they are first filled, is no leak: a leak grows in
  // every turn.
  int turns = 0;
  long grown = LONG_MAX;
  while (grown > kMostBytes && turns < 4) {
    const long before = resident_bytes();
    use_modules(gpu, kRounds);
    grown = resident_bytes() - before;
    ++turns;
  }
  if (grown > kMostBytes) fail(__FILE__, __LINE__, std::to_string(grown) + " bytes more");
  // The cancelled launches never returned, but had been counted.
  state({}, {.hit = turns * kRounds + kCancelled});
}

// The forked child has no other thread to wait for, and its parent's held launch ends normally.
GPU_CASE(fork_in_a_launch) {
  using namespace conform;
  const CUfunction step = gpu.step();
  const CUmodule module = gpu.load_module();
  const CUfunction other = gpu.function(module);
  HeldThread held(gpu, step);
  const pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    for (int i = 0; i < 3; ++i) {
      EXPECT_CODE(CUDA_ERROR_NOT_INITIALIZED, gpu.launch(other, 1));
      EXPECT_CODE(CUDA_ERROR_NOT_INITIALIZED, cuda().cuModuleUnload(module));
    }
    state({}, {.error = 1, .untracked = 2});
    _exit(0);
  }
  expect_exit(child);
  use_modules(gpu, 100);
  held.let_go();
  use_modules(gpu, 100);
  gpu.finish({.curated1 = 200, .curated2 = 1}, {.hit = 201});
}
