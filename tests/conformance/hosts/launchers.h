// Threads that launch kernels until they are stopped, and count their launches.
#pragma once

#include <atomic>
#include <thread>

#include "tests/conformance/hosts/host.h"

namespace conform {

class Launchers {
 public:
  // In each turn a thread launches conform_step with every shape, then a kernel that no pattern
  // knows.
  Launchers(const Gpu& gpu, int count, const Gpu::Handles& handles,
            const std::vector<int>& shapes = {1}) {
    for (int i = 0; i < count; ++i) {
      threads_.emplace_back([this, &gpu, handles, shapes] {
        gpu.enter();
        long launches = 0;
        long after = 0;
        while (!is_over_.load(std::memory_order_relaxed)) {
          const bool is_after = is_moved_.load(std::memory_order_acquire);
          for (const int shape : shapes) OK(gpu.launch(handles.step, shape));
          OK(gpu.launch(handles.free, 1));
          ++launches;
          after += is_after ? 1 : 0;
        }
        each_.fetch_add(launches);
        after_.fetch_add(after);
      });
    }
  }
  // after() counts the turns that begin from now on.
  void set_moved() { is_moved_.store(true, std::memory_order_release); }
  // Stops the threads. Returns how often each of the kernels was launched.
  long stop() {
    is_over_.store(true);
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
    return each_.load();
  }
  long after() const { return after_.load(); }

 private:
  std::atomic<bool> is_over_{false}, is_moved_{false};
  std::atomic<long> each_{0}, after_{0};
  std::vector<std::thread> threads_;
};

}  // namespace conform
