// FlashInfer's kernels that sample from probabilities, of the headers in its wheel, with their code: the instances that
// tests/gpu/sampling.py launches.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <flashinfer/sampling.cuh>

namespace flashinfer::sampling {

#if FLASHINFER_VERSION >= 7
#define STRIDES , uint32_t, uint32_t
#else
#define STRIDES
#endif
#define RANDOM uint64_t*, uint64_t, uint64_t*, uint64_t STRIDES
#define INSTANCES(is_deterministic)                                                           \
  template __global__ void INSTANCE(SamplingFromProb, is_deterministic)(                      \
      float*, int32_t*, bool*, int32_t*, uint32_t, RANDOM);                                   \
  template __global__ void INSTANCE(TopKSamplingFromProb, is_deterministic)(                  \
      float*, int32_t*, bool*, int32_t*, int32_t*, uint32_t, uint32_t, RANDOM);               \
  template __global__ void INSTANCE(TopPSamplingFromProb, is_deterministic)(                  \
      float*, int32_t*, bool*, int32_t*, float*, float, uint32_t, RANDOM);                    \
  template __global__ void INSTANCE(TopKTopPSamplingFromProb, is_deterministic)(              \
      float*, int32_t*, float*, int32_t*, bool*, int32_t*, int32_t, float, uint32_t, RANDOM); \
  template __global__ void INSTANCE(MinPSamplingFromProb, is_deterministic)(                  \
      float*, float*, int32_t*, bool*, int32_t*, float, uint32_t, RANDOM)
#define INSTANCE(name, is_deterministic) \
  name##Kernel<1024, SCAN_ALGO, REDUCE_ALGO, 4, is_deterministic, float, int32_t>

INSTANCES(true);
INSTANCES(false);

#ifdef HAS_SPLIT_ROWS
#define SPLIT_ROWS(mode)                                                                        \
  template __global__ void SplitRowRejectionSamplingFromProbKernel<                             \
      SPLIT_ROW_SAMPLING_THREADS, SCAN_ALGO, 4, SplitRowSamplingMode::mode>(                    \
      float*, int32_t*, bool*, int32_t*, int32_t*, float*, int32_t, float, uint32_t, uint32_t,  \
      RANDOM)
SPLIT_ROWS(kTopP);
SPLIT_ROWS(kTopK);
SPLIT_ROWS(kTopKTopP);
#endif

}  // namespace flashinfer::sampling
