// The kernels that SGLang compiles at run time for an attention layer and for activations, of the sources in its wheel: the
// instances of heads of 128 in bfloat16, for models with 1, 2, 4 and 8 heads of key and value, and the rotation of
// heads of 64. Compiled for its symbols, and for tests/gpu/sglang_rewrites.py.
#include "elementwise/activation.cuh"
// 0.5.20 has this name in two headers.
#define kThreadsPerBlock kThreadsPerBlockOfStore
#include "elementwise/kvcache.cuh"
#undef kThreadsPerBlock
#include "elementwise/qknorm.cuh"
#include "elementwise/rope.cuh"

using namespace sglang;

template <auto... kRuns>
void take() {}

// SGLang gives a row so many threads: twice as many while a thread has 32 bytes or more of keys and of values.
template <template <int64_t, int64_t, uint32_t, bool> class Kernel, int kHeads, uint32_t kThreads>
constexpr auto run_of() {
  return &Kernel<256 * kHeads, 256 * kHeads, kThreads, true>::run;
}
// Before 0.5.21 it chooses them for each launch.
template <template <int64_t, int64_t, bool> class Kernel, int kHeads, uint32_t kThreads>
constexpr auto run_of() {
  return &Kernel<256 * kHeads, 256 * kHeads, true>::run;
}

void instantiate() {
  using Rotation = FusedRopeKernel<true, 128, true, bf16_t>;
  using SmallRotation = FusedRopeKernel<true, 64, true, bf16_t>;
  take<&SmallRotation::run, &SmallRotation::run_fused, &QKNormKernel<128, true, bf16_t>::run,
       &Rotation::run, &Rotation::run_fused, &ActivationKernel<bf16_t, true>::run_activation,
       &ActivationKernel<fp16_t, true>::run_activation, run_of<StoreKVCacheKernel, 1, 32>(),
       run_of<StoreKVCacheKernel, 2, 32>(), run_of<StoreKVCacheKernel, 4, 64>(),
       run_of<StoreKVCacheKernel, 8, 128>()>();
}
