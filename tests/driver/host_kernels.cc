// See host_kernels.h.
#include "tests/driver/host_kernels.h"

#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <algorithm>

#include "shim/shadow/compare.h"
#include "tests/driver/image.h"
#include "tests/driver/simcuda.h"

namespace simcuda {

template <class T>
T HostCall::arg(size_t index) const {
  T value{};
  const Param& param = info.params[index];
  memcpy(&value, params + param.offset, sizeof value < param.size ? sizeof value : param.size);
  return value;
}

namespace {

struct Bf16 {
  uint16_t bits;
  explicit operator float() const {
    const uint32_t wide = uint32_t{bits} << 16;
    float value;
    memcpy(&value, &wide, sizeof value);
    return value;
  }
  static Bf16 round(float value) {  // to nearest, ties to even
    uint32_t wide;
    memcpy(&wide, &value, sizeof wide);
    if (value != value) return {0x7fff};
    wide += 0x7fff + ((wide >> 16) & 1);
    return {static_cast<uint16_t>(wide >> 16)};
  }
};

struct Fp16 {
  uint16_t bits;
  explicit operator float() const {
    const uint32_t sign = uint32_t{bits & 0x8000u} << 16;
    const uint32_t exponent = (bits >> 10) & 31, fraction = bits & 1023;
    if (exponent == 0) {
      const float value = ldexpf(static_cast<float>(fraction), -24);
      return sign != 0 ? -value : value;
    }
    const uint32_t wide = exponent == 31 ? sign | 0x7f800000 | fraction << 13
                                         : sign | (exponent + 112) << 23 | fraction << 13;
    float value;
    memcpy(&value, &wide, sizeof value);
    return value;
  }
  static Fp16 round(float value) {  // to nearest, ties to even
    uint32_t wide;
    memcpy(&wide, &value, sizeof wide);
    const auto sign = static_cast<uint16_t>((wide >> 16) & 0x8000);
    const uint32_t magnitude = wide & 0x7fffffff;
    if (magnitude > 0x7f800000) return {0x7fff};
    if (magnitude >= 0x477ff000) return {static_cast<uint16_t>(sign | 0x7c00)};
    if (magnitude < 0x38800000) {  // subnormal: the unit is 2^-24
      const float scaled = ldexpf(fabsf(value), 24);
      return {static_cast<uint16_t>(sign | static_cast<uint16_t>(nearbyintf(scaled)))};
    }
    const uint32_t rounded = magnitude + 0xfff + ((magnitude >> 13) & 1);
    return {static_cast<uint16_t>(sign | ((rounded - 0x38000000) >> 13))};
  }
};

// Computes y = x * rsqrt(mean(x^2) + eps) * weight, and rsqrt(...) of each row.
template <class T>
void rms_norm(const T* x, const T* weight, T* y, float* rstd, float eps, int64_t rows,
              int64_t hidden) {
  for (int64_t row = 0; row < rows; ++row, x += hidden, y += hidden) {
    double sum = 0;
    for (int64_t i = 0; i < hidden; ++i) {
      const auto value = static_cast<float>(x[i]);
      sum += static_cast<double>(value) * value;
    }
    const auto factor = static_cast<float>(1.0 / sqrt(sum / static_cast<double>(hidden) + eps));
    if (rstd != nullptr) rstd[row] = factor;
    for (int64_t i = 0; i < hidden; ++i) {
      const float scale = weight != nullptr ? static_cast<float>(weight[i]) : 1.0f;
      y[i] = T::round(static_cast<float>(x[i]) * factor * scale);
    }
  }
}

// (int N, float eps, X, gamma, beta, mean, rstd, Y), one block per row.
template <class T>
void torch_rms_norm(const HostCall& call) {
  rms_norm(call.arg<const T*>(2), call.arg<const T*>(3), call.arg<T*>(7), call.arg<float*>(6),
           call.arg<float>(1), call.grid[0], call.arg<int32_t>(0));
}

// (hidden_states, weight, output, rstd, float eps, int rows); the hidden size is in the name. A
// grid that is too small leaves rows unwritten here, too: kernels/common/row.cuh puts several short
// rows into a block, or one long row.
template <class T>
void curated_rms_norm(const HostCall& call) {
  const int64_t hidden = atoll(call.info.name.c_str() + strlen("rmsnorm_h"));
  const int64_t rows_per_block = hidden <= 256 ? 2048 / hidden : hidden <= 1024 ? 4 : 1;
  const int64_t rows = std::min<int64_t>(call.arg<int32_t>(5), call.grid[0] * rows_per_block);
  rms_norm(call.arg<const T*>(0), call.arg<const T*>(1), call.arg<T*>(2), call.arg<float*>(3),
           call.arg<float>(4), rows, hidden);
}

// The kernels of tests/driver/contract/*.cu.
void sim_store(const HostCall& call) { *call.arg<int32_t*>(0) = call.arg<int32_t>(1); }
void sim_increment(const HostCall& call) {
  *call.arg<uint32_t*>(0) += call.grid[0] * call.grid[1] * call.grid[2];
}
void sim_cluster(const HostCall& call) {
  *call.arg<int32_t*>(0) = static_cast<int32_t>(call.cluster[0]) + call.arg<int32_t>(1);
}
struct Batch {
  int32_t* to;
  int32_t values[1000];
};
void sim_batch(const HostCall& call) {
  const auto batch = call.arg<Batch>(0);
  *batch.to = batch.values[0];
}

// The kernels of tests/gpu/frameworks: (x, y, int n), one element per thread.
void plus_one(const HostCall& call) {
  const int64_t n = std::min<int64_t>(call.arg<int32_t>(2), int64_t{call.grid[0]} * call.block[0]);
  for (int64_t i = 0; i < n; ++i) call.arg<float*>(1)[i] = call.arg<const float*>(0)[i] + 1;
}
void double_f32(const HostCall& call) {
  const int64_t n = std::min<int64_t>(call.arg<int32_t>(2), int64_t{call.grid[0]} * call.block[0]);
  for (int64_t i = 0; i < n; ++i) call.arg<float*>(1)[i] = 2 * call.arg<const float*>(0)[i];
}

// shim/shadow/compare.cu
void shadow_compare(const HostCall& call) {
  const auto job = call.arg<fibshim::CompareJob>(0);
  for (uint32_t i = 0; i < job.output_count; ++i) {
    fibshim::ShadowTotals totals = {};
    const uint64_t count = fibshim::element_count(job.outputs[i]);
    for (uint64_t at = 0; at < count; ++at) {
      fibshim::compare_element(job.outputs[i], at, &totals);
    }
    job.answer->totals[i] = totals;
  }
  __atomic_store_n(&job.answer->done, job.number, __ATOMIC_RELEASE);
}

// Returns the library of SIMCUDA_KERNELS, or null if that is unset. Aborts if the library cannot be
// opened, since tests would then pass without running anything.
void* kernel_library() {
  static void* const library = [] {
    const char* const path = getenv("SIMCUDA_KERNELS");
    if (path == nullptr || *path == '\0') return static_cast<void*>(nullptr);
    void* const opened = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (opened == nullptr) {
      fprintf(stderr, "SIMCUDA_KERNELS: %s\n", dlerror());
      abort();
    }
    return opened;
  }();
  return library;
}

SimcudaKernel find_library_kernel(const char* name) {
  void* const library = kernel_library();
  return library == nullptr ? nullptr : reinterpret_cast<SimcudaKernel>(dlsym(library, name));
}

void run_library_kernel(const HostCall& call) {
  std::vector<const void*> params;
  for (const Param& param : call.info.params) params.push_back(call.params + param.offset);
  find_library_kernel(call.info.name.c_str())(params.data(), call.grid, call.block);
}

bool has_layout(const KernelInfo& info, std::initializer_list<uint32_t> sizes) {
  if (info.params.size() != sizes.size()) return false;
  size_t i = 0;
  for (const uint32_t size : sizes)
    if (info.params[i++].size != size) return false;
  return true;
}

bool contains(const std::string& text, const char* part) {
  return text.find(part) != std::string::npos;
}

bool ends_with(const std::string& text, const char* end) {
  const size_t length = strlen(end);
  return text.size() >= length && text.compare(text.size() - length, length, end) == 0;
}

}  // namespace

bool waits_by_itself(const KernelInfo& info) {
  return find_library_kernel(info.name.c_str()) == nullptr ||
         find_library_kernel((info.name + "_waits").c_str()) != nullptr;
}

HostKernel find_host_kernel(const KernelInfo& info) {
  const std::string& name = info.name;
  if (find_library_kernel(name.c_str()) != nullptr) return run_library_kernel;
  if (contains(name, "vectorized_layer_norm_kernelI") && contains(name, "Lb1EEEv") &&
      has_layout(info, {4, 4, 8, 8, 8, 8, 8, 8})) {
    if (contains(name, "IN3c108BFloat16EfLb1EEE")) return torch_rms_norm<Bf16>;
    if (contains(name, "IN3c104HalfEfLb1EEE")) return torch_rms_norm<Fp16>;
  }
  // The same kernel under another name: tests/shim/hosts/engine_kernels.cu.
  if (name == "engine_rms_norm_bf16") return torch_rms_norm<Bf16>;
  if (name == "engine_rms_norm_fp16") return torch_rms_norm<Fp16>;
  if (name.rfind("rmsnorm_h", 0) == 0 && has_layout(info, {8, 8, 8, 8, 4, 4})) {
    if (ends_with(name, "_bf16")) return curated_rms_norm<Bf16>;
    if (ends_with(name, "_fp16")) return curated_rms_norm<Fp16>;
  }
  if (ends_with(name, "plus_one") && has_layout(info, {8, 8, 4})) return plus_one;
  if (name == "plus_one_f32" || name == "plus_one_clustered_f32") return plus_one;
  if (name == "double_f32") return double_f32;
  if (name == fibshim::kCompareKernel) return shadow_compare;
  if (name == "sim_store" && has_layout(info, {8, 4})) return sim_store;
  if (name == "sim_increment" && has_layout(info, {8})) return sim_increment;
  if (name == "sim_batch") return sim_batch;
  if (name == "sim_cluster" && has_layout(info, {8, 4})) return sim_cluster;
  return nullptr;
}

}  // namespace simcuda
