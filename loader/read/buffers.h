// Buffers of files that are done with, for the next ones: fresh memory is cleared, page by page,
// before it is written to. Thread-safe.
#pragma once

#include <mutex>
#include <vector>

namespace fibshim {

// T: a string or vector.
template <class T>
class Buffers {
 public:
  // Larger buffers than `most_bytes` are not kept.
  explicit Buffers(size_t most_bytes) : most_bytes_(most_bytes) {}

  T take() {
    const std::lock_guard lock(mutex_);
    if (buffers_.empty()) return {};
    T buffer = std::move(buffers_.back());
    buffers_.pop_back();
    return buffer;
  }

  void give(T buffer) {
    if (buffer.size() * sizeof(buffer[0]) > most_bytes_) return;
    const std::lock_guard lock(mutex_);
    buffers_.push_back(std::move(buffer));
  }

 private:
  const size_t most_bytes_;
  std::mutex mutex_;
  std::vector<T> buffers_;
};

}  // namespace fibshim
