// The kernels that FlashInfer compiles at run time for writing keys and values into pages, and for merging states of attention, of
// the headers in its wheel: the instances that its csrc/{page,cascade}.cu ask for. Compiled for its symbols, never run.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <flashinfer/attention/cascade.cuh>
#include <flashinfer/page.cuh>

using namespace flashinfer;

template <class T>
void append() {
  AppendPagedKVCache<T, int32_t>(paged_kv_t<T, int32_t>(), nullptr, nullptr, nullptr, nullptr, 1, 1,
                                 1, 1, 1);
}

template <class T>
void merge() {
  T* const x = nullptr;
  float* const s = nullptr;
  MergeState(x, s, x, s, x, s, 1, 1, 64);
  MergeStateInPlace(x, s, x, s, 1, 1, 64);
  MergeStates(x, s, x, s, 1, 1, 1, 64);
  VariableLengthMergeStates(x, s, static_cast<int32_t*>(nullptr), x, s, 1, nullptr, 1, 64, false);
}

void instantiate() {
  append<__half>();
  append<__nv_bfloat16>();
  append<__nv_fp8_e4m3>();
  merge<__half>();
  merge<__nv_bfloat16>();
}
