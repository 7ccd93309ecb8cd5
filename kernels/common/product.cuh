// What the matrix products share: copies into shared memory, barriers that count their bytes, pairs of sums.
#pragma once

#include "vector.cuh"

namespace fibshim {

__device__ inline uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

__device__ inline void copy_16_bytes(uint32_t to, const void* from) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(to), "l"(from)
               : "memory");
}

// Arrives at a barrier in shared memory, which then waits for so many bytes.
__device__ inline void expect_bytes(uint32_t barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}

__device__ inline void store_pair(__nv_bfloat16* to, float x, float y) {
  *reinterpret_cast<__nv_bfloat162*>(to) = __floats2bfloat162_rn(x, y);
}
__device__ inline void store_pair(float* to, float x, float y) {
  *reinterpret_cast<float2*>(to) = float2{x, y};
}

}  // namespace fibshim
