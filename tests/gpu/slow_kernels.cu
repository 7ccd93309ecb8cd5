// A replacement that is right and slow: by name and parameters the folder's RMSNorm of 4096. rollout.py puts it in the
// solution's place.
#include <cuda_bf16.h>

extern "C" __global__ void rmsnorm_h4096_bf16(const __nv_bfloat16* x, const __nv_bfloat16* weight,
                                              __nv_bfloat16* y, float* rstd, float eps, int rows) {
  constexpr int kHidden = 4096;
  constexpr long long kCyclesLost = 1'000'000;
  __shared__ float sum;
  const long long begin = clock64();
  while (clock64() - begin < kCyclesLost) {
  }
  for (int row = blockIdx.x; row < rows; row += gridDim.x) {
    if (threadIdx.x == 0) sum = 0;
    __syncthreads();
    float own = 0;
    for (int i = threadIdx.x; i < kHidden; i += blockDim.x) {
      const float value = __bfloat162float(x[static_cast<size_t>(row) * kHidden + i]);
      own += value * value;
    }
    atomicAdd(&sum, own);
    __syncthreads();
    const float factor = rsqrtf(sum / kHidden + eps);
    if (threadIdx.x == 0 && rstd != nullptr) rstd[row] = factor;
    for (int i = threadIdx.x; i < kHidden; i += blockDim.x) {
      const size_t at = static_cast<size_t>(row) * kHidden + i;
      y[at] = __float2bfloat16(__bfloat162float(x[at]) * factor * __bfloat162float(weight[i]));
    }
    __syncthreads();
  }
}
