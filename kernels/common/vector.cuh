// Shared by all curated kernels: 16-byte accesses, pairs of 16-bit floats, dependent launch.
//
// Every kernel here is bound by memory. Its threads read and write 16 bytes at a time, issue loads
// ahead of their use, compute in fp32 and round where the replaced kernel rounds.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

namespace fibshim {

constexpr int kElementsPerVector = 8;  // of 2 bytes: one 16-byte access

// Two neighbouring elements, in one 32-bit register; the first is in the low half.
template <class T>
struct Pair;

template <>
struct Pair<__nv_bfloat16> {
  static __device__ float2 unpack(uint32_t bits) {
    return {__uint_as_float(bits << 16), __uint_as_float(bits & 0xffff0000u)};
  }
  static __device__ uint32_t pack(float2 value) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(value.x, value.y);
    return reinterpret_cast<const uint32_t&>(pair);
  }
};

template <>
struct Pair<__half> {
  static __device__ float2 unpack(uint32_t bits) {
    return __half22float2(reinterpret_cast<const __half2&>(bits));
  }
  static __device__ uint32_t pack(float2 value) {
    const __half2 pair = __floats2half2_rn(value.x, value.y);
    return reinterpret_cast<const uint32_t&>(pair);
  }
};

// The two elements rounded to T and widened again.
template <class T>
__device__ float2 round_to(float2 value) {
  return Pair<T>::unpack(Pair<T>::pack(value));
}

constexpr int kPairsPerVector = kElementsPerVector / 2;

struct Vector {
  uint32_t pairs[kPairsPerVector];
};

__device__ inline Vector load(const void* from) {
  Vector vector;
  asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(vector.pairs[0]), "=r"(vector.pairs[1]), "=r"(vector.pairs[2]),
                 "=r"(vector.pairs[3])
               : "l"(from));
  return vector;
}

// For data that is read once: it must not displace other data in L1.
__device__ inline Vector load_once(const void* from) {
  Vector vector;
  asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(vector.pairs[0]), "=r"(vector.pairs[1]), "=r"(vector.pairs[2]),
                 "=r"(vector.pairs[3])
               : "l"(from));
  return vector;
}

// For data that every row reads and nothing in the launch writes.
__device__ inline Vector load_shared_by_rows(const void* from) {
  const uint4 bits = __ldg(static_cast<const uint4*>(from));
  return {{bits.x, bits.y, bits.z, bits.w}};
}

__device__ inline void store(void* to, const Vector& vector) {
  *static_cast<uint4*>(to) = {vector.pairs[0], vector.pairs[1], vector.pairs[2], vector.pairs[3]};
}

// The same as one instruction, for places where nvcc 13.0 would make four stores of store().
__device__ inline void store_whole(void* to, const Vector& vector) {
  __stwb(static_cast<uint4*>(to),
         uint4{vector.pairs[0], vector.pairs[1], vector.pairs[2], vector.pairs[3]});
}

// For data that this launch does not read again: L2 evicts it first, and keeps data that is still
// to be read.
__device__ inline void store_streaming(void* to, const Vector& vector) {
  __stcs(static_cast<uint4*>(to),
         uint4{vector.pairs[0], vector.pairs[1], vector.pairs[2], vector.pairs[3]});
}

__device__ inline float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ inline float to_float(__half x) { return __half2float(x); }

// Loads an element and the next one separately: `from` need only be aligned to an element.
template <class T>
__device__ inline float2 load_pair(const T* from) {
  return {to_float(__ldg(from)), to_float(__ldg(from + 1))};
}

// Returns 0, since no count is negative, but the compiler does not know that.
__device__ inline uint32_t zero_of(int count) { return static_cast<uint32_t>(count) >> 31; }

// Makes `vector` depend on `other` without changing it: `zero` comes from zero_of(). Otherwise the
// assembler saves registers by delaying the second of two loads until the first has arrived, which
// exposes its latency.
__device__ inline void arrive_together(Vector& vector, const Vector& other, uint32_t zero) {
  vector.pairs[0] ^= other.pairs[0] & zero;
}

// Nothing of `vectors` is used before all of both has arrived. With less than all of it, the assembler
// delays later loads.
template <int kVectors>
__device__ void arrive_together(Vector (&vectors)[kVectors], const Vector (&others)[kVectors],
                                uint32_t zero) {
  uint32_t all = others[0].pairs[0];
#pragma unroll
  for (int i = 1; i < kVectors; ++i) all |= vectors[i].pairs[0] | others[i].pairs[0];
#pragma unroll
  for (Vector& vector : vectors) {
#pragma unroll
    for (uint32_t& pair : vector.pairs) pair ^= all & zero;
  }
}

// Computes sums [16, 8] += A [16, 16] * B [16, 8] on the tensor cores. `upper` is rows 0 to 7 of A,
// `lower` rows 8 to 15; 0 and 1 are its columns 0 to 7 and 8 to 15.
__device__ inline void multiply(float (&sums)[4], uint32_t upper0, uint32_t lower0, uint32_t upper1,
                                uint32_t lower1, uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(upper0), "r"(lower0), "r"(upper1), "r"(lower1), "r"(b0), "r"(b1));
}

// Programmatic dependent launch: waits until the writes of the kernel before this one are visible,
// then lets the next kernel be scheduled, which in turn waits here. Without the launch attribute
// both instructions do nothing.
__device__ inline void wait_for_kernel_before() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;\n\tgriddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// The wait and the release apart, for a kernel that releases the next one after its stores: then blocks of the next do not take
// the place of later blocks of this one.
__device__ inline void wait_without_release() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
__device__ inline void release_next() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Called before that wait. Lets the next kernel be scheduled already now if it is certain to be one
// of ours ("next_may_begin", which the shim sets in graphs). Then it is resident and waiting when
// this one ends.
__device__ inline void let_next_begin(int next_may_begin) {
#if __CUDA_ARCH__ >= 900
  if (next_may_begin != 0) asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

}  // namespace fibshim
