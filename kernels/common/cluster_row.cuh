// Sums over a row that a cluster shares: of any number of blocks, whose threads together are the row's.
//
// A row's warps are numbered through its blocks. Their sums meet in each block's shared memory, and are
// added up in row.cuh's order: the result does not depend on the number of blocks.
#pragma once

#include "product.cuh"

namespace fibshim {

__device__ inline uint32_t rank_in_cluster() {
  uint32_t rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

__device__ inline uint32_t blocks_of_cluster() {
  uint32_t count;
  asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(count));
  return count;
}

// The sums of all warps of a row. Each block of the row's cluster has all of them.
template <int kWarps>
struct WarpSums {
  alignas(16) float sums[kWarps];
  uint64_t barrier;  // waits for the bytes of `sums`
};

// Makes the barrier and arrives at the cluster's. No sum may be sent before every block of the
// cluster has arrived.
template <int kWarps>
__device__ void begin_sums(WarpSums<kWarps>& all) {
  if (threadIdx.x == 0) {
    const uint32_t barrier = shared_address(&all.barrier);
    make_barrier(barrier, 1);
    publish_barriers();
    expect_bytes(barrier, sizeof all.sums);
  }
  arrive_at_cluster();
}

// Lane i sends to block i.
template <int kWarps>
__device__ void send_sum(WarpSums<kWarps>& all, int warp, uint32_t blocks, float sum) {
  const uint32_t lane = threadIdx.x % 32;
  if (lane >= blocks) return;
  uint32_t to, barrier;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
               : "=r"(to)
               : "r"(shared_address(all.sums + warp)), "r"(lane));
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
               : "=r"(barrier)
               : "r"(shared_address(&all.barrier)), "r"(lane));
  asm volatile(
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(to),
      "r"(__float_as_uint(sum)), "r"(barrier)
      : "memory");
}

// Adds up in the order of row.cuh's sum_over_row().
template <int kWarps>
__device__ float sum_over_row(WarpSums<kWarps>& all, int thread, uint32_t blocks, float value) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    value += __shfl_xor_sync(0xffffffffu, value, distance);
  }
  if (blocks == 1) {
    if (threadIdx.x % 32 == 0) all.sums[thread / 32] = value;
    __syncthreads();
  } else {
    send_sum(all, thread / 32, blocks, value);
    wait_for_bytes(shared_address(&all.barrier), 0);
  }
  float4 sums = reinterpret_cast<const float4*>(all.sums)[0];
#pragma unroll
  for (int i = 1; i < kWarps / 4; ++i) {
    const float4 more = reinterpret_cast<const float4*>(all.sums)[i];
    sums = {sums.x + more.x, sums.y + more.y, sums.z + more.z, sums.w + more.w};
  }
  return sums.x + sums.y + sums.z + sums.w;
}

}  // namespace fibshim
