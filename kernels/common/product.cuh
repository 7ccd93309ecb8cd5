// Shared by the matrix products: copies into shared memory, barriers that count their bytes, sums.
#pragma once

#include <type_traits>

#include "vector.cuh"

namespace fibshim {

__device__ inline uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

__device__ inline void copy_16_bytes(uint32_t to, const void* from) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(to), "l"(from)
               : "memory");
}
// The same, or zeros, for which nothing is read.
__device__ inline void copy_16_bytes_or_zeros(uint32_t to, const void* from, bool is_there) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
               "r"(is_there ? 16 : 0)
               : "memory");
}

// Makes a barrier in shared memory. It waits for arrivals, and for bytes that the blocks of a
// cluster send.
__device__ inline void make_barrier(uint32_t barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
// Called after the last barrier is made: makes them visible to other threads and to the cluster.
__device__ inline void publish_barriers() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
// Arrives, and makes the barrier wait for `bytes` more bytes.
__device__ inline void expect_bytes(uint32_t barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}

__device__ inline void wait_for_bytes(uint32_t barrier, int parity) {
  asm volatile(
      "{\n\t.reg .pred done;\n\tagain:\n\t"
      "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n\t"
      "@!done bra again;\n\t}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

__device__ inline void arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
// Arrives as soon as all copies are done that this thread has begun.
__device__ inline void arrive_when_copied(uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}
// Waits for arrivals and bytes of the block's own, wait_for_bytes() also for those of the cluster's other blocks.
__device__ inline void wait(uint32_t barrier, int parity) {
  asm volatile(
      "{\n\t.reg .pred done;\n\tagain:\n\t"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n\t"
      "@!done bra again;\n\t}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

// All threads of the cluster that have not ended must arrive, and then wait.
__device__ inline void arrive_at_cluster() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
__device__ inline void wait_for_cluster() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// Loads operands of 8 rows of A and 32 columns: a lane tells where a row of 8 columns begins.
__device__ inline void load_operands(uint32_t (&b)[4], uint32_t at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(b[0]), "=r"(b[1]), "=r"(b[2]), "=r"(b[3])
               : "r"(at));
}

__device__ inline void store_pair(__nv_bfloat16* to, float x, float y) {
  *reinterpret_cast<__nv_bfloat162*>(to) = __floats2bfloat162_rn(x, y);
}
__device__ inline void store_pair(__half* to, float x, float y) {
  *reinterpret_cast<__half2*>(to) = __floats2half2_rn(x, y);
}
__device__ inline void store_pair(float* to, float x, float y) {
  *reinterpret_cast<float2*>(to) = float2{x, y};
}

// multiply() of vector.cuh, for bfloat16 or fp16.
template <class T>
__device__ inline void multiply_pairs(float (&sums)[4], uint32_t upper0, uint32_t lower0,
                                      uint32_t upper1, uint32_t lower1, uint32_t b0, uint32_t b1) {
  if constexpr (std::is_same_v<T, __half>) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
        : "r"(upper0), "r"(lower0), "r"(upper1), "r"(lower1), "r"(b0), "r"(b1));
  } else {
    multiply(sums, upper0, lower0, upper1, lower1, b0, b1);
  }
}

// Chooses one of the instructions of a warpgroup by its type.
template <class In>
struct Of {};

// Keeps the compiler from moving reads or writes of the sums across this point.
template <int kCount>
__device__ inline void fence_sums(float (&sums)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(sums[i])::"memory");
}

}  // namespace fibshim

// Sums of an instruction of a warpgroup, eight at a time, as operands of `asm`, and their places in its text.
#define FIBSHIM_8(i)                                                                          \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), \
      "+f"(d[i + 6]), "+f"(d[i + 7])
#define FIBSHIM_LIST_8 "%0, %1, %2, %3, %4, %5, %6, %7"
#define FIBSHIM_LIST_16 FIBSHIM_LIST_8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define FIBSHIM_LIST_32 \
  FIBSHIM_LIST_16       \
  ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
