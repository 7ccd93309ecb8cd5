// The kernels that FlashInfer compiles at run time for sampling, of the headers in its wheel: the instances that its
// csrc/{sampling,renorm}.cu ask for. Compiled for its symbols, never run.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <flashinfer/air_top_p.cuh>
#include <flashinfer/sampling.cuh>
#include <flashinfer/topk.cuh>

using namespace flashinfer;

struct Null {
  template <class T>
  operator T*() const {
    return nullptr;
  }
} constexpr null;

template <class Id>
void sample() {
  using namespace sampling;
  SamplingFromLogits<float, Id>(null, null, null, 1, 8, true, null, 0, null, 0);
  SamplingFromProb<float, Id>(null, null, null, null, 1, 8, true, null, 0, null, 0);
  TopPSamplingFromProb<float, Id>(null, null, null, null, null, 1, 1, 8, true, null, 0, null, 0);
  TopKSamplingFromProb<float, Id>(null, null, null, null, null, 1, 1, 8, true, null, 0, null, 0);
  MinPSamplingFromProb<float, Id>(null, null, null, null, null, 1, 1, 8, true, null, 0, null, 0);
  TopKTopPSamplingFromProb<float, Id>(null, null, null, null, null, null, 1, 1, 1, 8, true, null, 0,
                                      null, 0);
}

template <class T>
void of_top_k() {
  sampling::RadixTopKRenormProbMultiCTA<T, int>(null, null, null, 1, 1, 8, null);
  sampling::RadixTopKMaskLogitsMultiCTA<T, int>(null, null, null, 1, 1, 8, null);
}

void instantiate() {
  sampling::OnlineSoftmax<float>(null, null, 1, 8, null, 1, null, 0, false);
  sampling::TopPRenormProb<float>(null, null, null, 1, 1, 8);
  sampling::air_top_p::AirTopPRenormProb<true, float>(null, null, null, 1, 1, 8, null);
  sampling::air_top_p::AirTopPRenormProb<false, float>(null, null, null, 1, 1, 8, null);
  sampling::ChainSpeculativeSampling<float, int>(null, null, null, null, null, null, 1, 1, 8, true,
                                                 null, 0, null, 0);
  sample<int32_t>();
  sample<int64_t>();
  of_top_k<float>();
  of_top_k<__half>();
  of_top_k<__nv_bfloat16>();
}
