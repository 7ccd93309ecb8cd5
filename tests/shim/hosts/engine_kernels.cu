// Kernels with the symbols and parameters of PyTorch's fused RMSNorm, which engines launch and the
// patterns in config/pytorch recognise. They are written to be obviously right, not fast. The host
// program `engine` launches them, with the real driver or the simulated one.
//
// The identifiers are complete mangled names, so that it does not matter how a compiler
// mangles an anonymous namespace.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace {

// One block for each row, with 32 x 4 threads as in PyTorch.
template <class T>
__device__ void rms_norm(int row_length, float eps, const T* x, const T* gamma, float* rstd, T* y) {
  constexpr int max_threads = 1024;
  __shared__ float sums[max_threads];
  const int thread = static_cast<int>(threadIdx.x + threadIdx.y * blockDim.x);
  const int threads = static_cast<int>(blockDim.x * blockDim.y);
  x += static_cast<size_t>(blockIdx.x) * row_length;
  y += static_cast<size_t>(blockIdx.x) * row_length;

  float sum = 0.0f;
  for (int i = thread; i < row_length; i += threads) {
    const float value = static_cast<float>(x[i]);
    sum += value * value;
  }
  sums[thread] = sum;
  __syncthreads();
  if (thread == 0) {
    double total = 0.0;
    for (int i = 0; i < threads; ++i) total += sums[i];
    sums[0] = static_cast<float>(1.0 / sqrt(total / row_length + eps));
    rstd[blockIdx.x] = sums[0];
  }
  __syncthreads();
  const float factor = sums[0];
  for (int i = thread; i < row_length; i += threads)
    y[i] = static_cast<T>(static_cast<float>(x[i]) * factor * static_cast<float>(gamma[i]));
}

}  // namespace

#define ENGINE_KERNEL(name, T)                                                                     \
  extern "C" __global__ void name(int row_length, float eps, const T* x, const T* gamma, const T*, \
                                  float*, float* rstd, T* y) {                                     \
    rms_norm<T>(row_length, eps, x, gamma, rstd, y);                                               \
  }

// at::native::(anonymous namespace)::vectorized_layer_norm_kernel<T, float, true>
ENGINE_KERNEL(
    _ZN2at6native53_GLOBAL__N__a25d6a36_20_layer_norm_kernel_cu_9c5ada8a28vectorized_layer_norm_kernelIN3c108BFloat16EfLb1EEEviT0_PKT_S8_S8_PS5_S9_PS6_,
    __nv_bfloat16)
ENGINE_KERNEL(
    _ZN2at6native53_GLOBAL__N__a25d6a36_20_layer_norm_kernel_cu_9c5ada8a28vectorized_layer_norm_kernelIN3c104HalfEfLb1EEEviT0_PKT_S8_S8_PS5_S9_PS6_,
    __half)

// The same work under names that no pattern fits.
ENGINE_KERNEL(engine_rms_norm_bf16, __nv_bfloat16)
ENGINE_KERNEL(engine_rms_norm_fp16, __half)
