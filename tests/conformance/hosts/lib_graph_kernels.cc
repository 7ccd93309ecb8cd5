// The kernels of graph_kernels.cu for the simulated driver (SIMCUDA_KERNELS). With GRAPHS_WRONG the
// replacements compute something else.
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <utility>

namespace {

template <class T>
T argument(const void* bytes) {
  T value;
  memcpy(&value, bytes, sizeof value);
  return value;
}

template <class... Parameters, size_t... kIndex>
void call(void (*kernel)(Parameters...), const void* const* params,
          std::index_sequence<kIndex...>) {
  kernel(argument<Parameters>(params[kIndex])...);
}

template <class... Parameters>
void call(void (*kernel)(Parameters...), const void* const* params) {
  call(kernel, params, std::index_sequence_for<Parameters...>());
}

bool is_wrong(const char* name) {
  static const bool are_wrong = getenv("GRAPHS_WRONG") != nullptr;
  return are_wrong && strncmp(name, "curated_", 8) == 0;
}

}  // namespace

#define KERNEL(name, parameters, ...)                                                 \
  static void run_##name parameters {                                                 \
    const uint32_t mistake = is_wrong(#name) ? 1 : 0;                                 \
    for (int32_t i = 0; i < n; ++i) {                                                 \
      __VA_ARGS__                                                                     \
      out[i] ^= mistake;                                                              \
    }                                                                                 \
  }                                                                                   \
  extern "C" void name(const void* const* params, const uint32_t*, const uint32_t*) { \
    call(run_##name, params);                                                         \
  }
#define WAITING_KERNEL(name, parameters, ...) \
  extern "C" void name##_waits() {}           \
  KERNEL(name, parameters, __VA_ARGS__)
#define ON_BOTH
#include "tests/conformance/hosts/graph_kernels.cu"
