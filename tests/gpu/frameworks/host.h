// What the C++ hosts offer, as programs (main.cc) and to Python's ctypes as libraries: they launch a
// kernel that computes y = x + 1, and say what y holds then. Each way into a launch has a kernel of
// its own name.
#pragma once

#include <stdlib.h>

// Launches `times` times over n floats, a multiple of 2048, on the default stream. Returns
// "plus_one" or "double" if every launch has written that, else what went wrong. `way`: "launch",
// "cooperative", "cluster", and what the host has besides. The text holds until the next call.
extern "C" const char* run_plus_one(const char* way, int n, int times);

namespace fibshim_test {

constexpr int kBlock = 256;
constexpr int kCluster = 2;

inline float input(int i) { return static_cast<float>(i + 2); }

// Which result all launches have written; each has a y of its own.
inline const char* judge(const float* y, int n, int times) {
  bool is_plus_one = true;
  bool is_double = true;
  for (int launch = 0; launch < times; ++launch) {
    for (int i = 0; i < n; ++i, ++y) {
      is_plus_one = is_plus_one && *y == input(i) + 1;
      is_double = is_double && *y == 2 * input(i);
    }
  }
  return is_plus_one ? "plus_one" : is_double ? "double" : "neither, or not the same each time";
}

// `launch_all(x, y)` launches and copies; it returns what went wrong, or null.
template <class LaunchAll>
const char* run_and_judge(int n, int times, const LaunchAll& launch_all) {
  const auto count = static_cast<size_t>(n);
  auto* x = static_cast<float*>(malloc(count * sizeof(float)));
  auto* y = static_cast<float*>(malloc(count * static_cast<size_t>(times) * sizeof(float)));
  const char* verdict = "no memory";
  if (x != nullptr && y != nullptr) {
    for (int i = 0; i < n; ++i) x[i] = input(i);
    const char* error = launch_all(x, y);
    verdict = error == nullptr ? judge(y, n, times) : error;
  }
  free(x);
  free(y);
  return verdict;
}

}  // namespace fibshim_test
