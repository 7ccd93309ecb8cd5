// Calls of a host whose driver has seeded faults (SIMCUDA_CHAOS), and their permitted results. A
// fault of the host's own call reaches the host unchanged. A fault of a call that the shim makes on
// its own account loses the substitution or, with strict errors, fails the launch with that code.
// No other effect may be visible. Without faults each call must succeed.
#pragma once

#include <stdlib.h>

#include "tests/conformance/hosts/host.h"

namespace conform {

inline bool has_faults() {
  static const bool has = getenv("SIMCUDA_CHAOS") != nullptr;
  return has;
}

// True if a replacement that fails makes its launch fail.
inline bool is_strict() {
  static const bool is = [] {
    const char* on_error = getenv("FIBSHIM_ON_ERROR");
    return on_error == nullptr || strcmp(on_error, "fallback") != 0;
  }();
  return is;
}

// True if the folder is swapped meanwhile, possibly for none: each launch then runs the original or
// a replacement.
inline bool is_swapping() {
  static const bool is = getenv("CONFORM_SWAPS") != nullptr;
  return is;
}

struct Attempt {
  CUresult result = CUDA_SUCCESS;
  SimcudaHostCall struck = {};

  bool is_done() const { return result == CUDA_SUCCESS; }
  // The shim made the call with arguments of its own, which failed without the host seeing it.
  bool hides_a_fault() const { return is_done() && struck.fault != 0; }
};

// Makes one call, and tells the driver that it is the host's own.
template <class Call>
Attempt attempt(const char* name, const Call& call, const char* file, int line) {
  Attempt made;
  if (has_faults()) cuda().simcuda_begin_host_call(name);
  made.result = call();
  if (has_faults()) {
    cuda().simcuda_end_host_call(&made.struck);
  } else {
    check_code(CUDA_SUCCESS, made.result, name, file, line);
  }
  return made;
}

// Makes a call that may fail only by a fault of its own; repeats it until it succeeds.
template <class Call>
void call_until_done(const char* name, const Call& call, const char* file, int line) {
  Attempt made;
  do {
    made = attempt(name, call, file, line);
    check_code(static_cast<CUresult>(made.struck.fault), made.result, name, file, line);
  } while (made.result != CUDA_SUCCESS);
}

#define ATTEMPT(name, ...) \
  ::conform::attempt(      \
      #name, [&] { return ::conform::cuda().name(__VA_ARGS__); }, __FILE__, __LINE__)
#define HOST(name, ...)       \
  ::conform::call_until_done( \
      #name, [&] { return ::conform::cuda().name(__VA_ARGS__); }, __FILE__, __LINE__)

// Makes a call about graphs, which the shim makes once more for an exec of its own; a failure of
// that one is hidden from the host. Repeats the call until it succeeds, or a replacement could not
// be loaded and errors are strict.
template <class Call>
Attempt call_for_graph(const char* name, const Call& call, const char* file, int line) {
  for (;;) {
    const Attempt made = attempt(name, call, file, line);
    if (made.is_done()) return made;
    if (made.result == made.struck.fault) continue;
    if (!is_strict() || cuda().simcuda_has_struck(made.result) != 1) {
      check_code(CUDA_SUCCESS, made.result, name, file, line);
    }
    return made;
  }
}

#define FOR_GRAPH(name, ...) \
  ::conform::call_for_graph( \
      #name, [&] { return ::conform::cuda().name(__VA_ARGS__); }, __FILE__, __LINE__)

}  // namespace conform
