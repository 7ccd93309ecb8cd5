// Kernels for the judge's tests: only their names and parameters matter, the host functions of
// judged_kernels.cc run in their place. Each is right, or wrong in one way.
#include <cuda_bf16.h>

#define JUDGED_NORM(name)                                                                    \
  extern "C" __global__ void name(const __nv_bfloat16* hidden_states,                        \
                                  const __nv_bfloat16* weight, __nv_bfloat16* output,        \
                                  float* rstd, float eps, int batch_size) {                  \
    if (batch_size > 0) *rstd = eps + __bfloat162float(hidden_states[0]) +                   \
                                __bfloat162float(weight[0]) + __bfloat162float(output[0]);   \
  }
JUDGED_NORM(norm_right)
JUDGED_NORM(norm_by_columns)
JUDGED_NORM(norm_ignores_eps)
JUDGED_NORM(norm_leaves_one)
JUDGED_NORM(norm_writes_nan)
JUDGED_NORM(norm_stale)
JUDGED_NORM(norm_past_the_end)
JUDGED_NORM(norm_before_the_start)
JUDGED_NORM(norm_writes_input)
JUDGED_NORM(norm_hangs)
JUDGED_NORM(norm_crashes)
JUDGED_NORM(norm_reads_past_the_end)
JUDGED_NORM(norm_assumes_alignment)
JUDGED_NORM(norm_wrong_rstd)
JUDGED_NORM(norm_slow)
JUDGED_NORM(norm_by_batch)
JUDGED_NORM(norm_by_place)
JUDGED_NORM(norm_of_other_bits)

extern "C" __global__ void norm_with_workspace(const __nv_bfloat16* hidden_states,
                                               const __nv_bfloat16* weight, __nv_bfloat16* output,
                                               float* rstd, float eps, int batch_size, int* counts) {
  if (batch_size > 0) *rstd = eps + counts[0] + __bfloat162float(hidden_states[0]) +
                              __bfloat162float(weight[0]) + __bfloat162float(output[0]);
}

#define JUDGED_ADD_NORM(name)                                                               \
  extern "C" __global__ void name(__nv_bfloat16* hidden_states, __nv_bfloat16* residual,    \
                                  const __nv_bfloat16* weight, __nv_bfloat16* output,       \
                                  __nv_bfloat16* residual_output, float eps, int rows) {    \
    if (rows > 0) output[0] = residual_output[0] = hidden_states[0] + residual[0] + weight[0]; \
    (void)eps;                                                                              \
  }
JUDGED_ADD_NORM(add_norm_right)
JUDGED_ADD_NORM(add_norm_not_in_place)

#define JUDGED_SAMPLE(name)                                                                     \
  extern "C" __global__ void name(const float* probs, const int* top_k, int* samples,           \
                                  unsigned long long seed, int batch_size) {                    \
    if (batch_size > 0) samples[0] = static_cast<int>(probs[0]) + top_k[0] + static_cast<int>(seed); \
  }
JUDGED_SAMPLE(sample_right)
JUDGED_SAMPLE(sample_outside)
JUDGED_SAMPLE(sample_greedy)
