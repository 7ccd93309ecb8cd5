// What the kernels of graph_kernels.cu do on the simulated driver (SIMCUDA_KERNELS).
#include <stddef.h>
#include <stdint.h>
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

}  // namespace

#define KERNEL(name, parameters, ...)                                                 \
  static void run_##name parameters {                                                 \
    for (int32_t i = 0; i < n; ++i) {                                                 \
      __VA_ARGS__                                                                     \
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
