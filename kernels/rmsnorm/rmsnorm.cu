// RMSNorm, in the place of PyTorch's fused F.rms_norm kernel: y = x / sqrt(mean(x^2) + eps) * w,
// and the 1 / sqrt(...) of every row in `rstd`, as PyTorch's backward pass wants it.
//
// Memory-bound: every row is read once, with 16-byte loads, and stays in registers until it is
// written. The weight's loads are issued before the reduction, so that they wait beside the row's.
//
// Accuracy: products and the sum within a warp are fp32 (squares of 16-bit floats are exact), the
// last steps of the sum and the root are double. For normally distributed rows `rstd` so is the
// nearest float in about nine rows of ten, and off by at most 9e-8 (PyTorch's own: six to seven of
// ten, 1.4e-7). y takes the same two fp32 multiplications as there, rounded once at the end.
//
// One length of row per compilation: -DHIDDEN=4096. Pointers are aligned to 16 bytes. The kernels
// need exactly the block size below; the table of solutions (config/pytorch/solutions) repeats it.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

#ifndef HIDDEN
#error "compile with -DHIDDEN=<elements in a row>"
#endif

namespace {

constexpr int kElementsPerVector = 8;  // of 2 bytes: one 16-byte access
constexpr int kVectorsPerRow = HIDDEN / kElementsPerVector;
static_assert(HIDDEN % kElementsPerVector == 0, "rows are read in vectors of 8 elements");

// Short rows: a group of lanes holds a row, one vector a lane, and serves two rows of its block.
// grid = ceil_div(batch_size, 32), block = 256.
// Long rows: a block holds a row, two vectors a thread. grid = batch_size, block = HIDDEN / 16.
constexpr bool kIsShort = kVectorsPerRow <= 32;
constexpr int kRowsPerLaneGroup = 2;
constexpr int kRowsPerBlock = kIsShort ? 32 : 1;
constexpr int kVectorsPerThread = 2;  // long rows
constexpr int kThreads = kIsShort ? kVectorsPerRow * kRowsPerBlock / kRowsPerLaneGroup
                                  : kVectorsPerRow / kVectorsPerThread;
// Three quarters of an SM's threads: 40 registers each, so that row and weight stay in them, and
// yet twice the bytes in flight that cover DRAM's latency.
constexpr int kThreadsPerSm = 1536;
constexpr int kBlocksPerSm = kThreadsPerSm / kThreads;
static_assert(!kIsShort || kThreads % kVectorsPerRow == 0, "a block holds whole lane groups");
static_assert(kThreads % 32 == 0 && kThreads <= 1024, "blocks are whole warps");
static_assert(!kIsShort || (kVectorsPerRow & (kVectorsPerRow - 1)) == 0,
              "a short row's lanes reduce by butterfly");

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

struct Vector {
  uint32_t pairs[kElementsPerVector / 2];
};

// A row is read once: it must not drive the weight out of L1.
__device__ Vector load_once(const uint4* from) {
  Vector vector;
  asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(vector.pairs[0]), "=r"(vector.pairs[1]), "=r"(vector.pairs[2]),
                 "=r"(vector.pairs[3])
               : "l"(from));
  return vector;
}

// The weight is read by every row: cached.
__device__ Vector load(const uint4* from) {
  const uint4 bits = __ldg(from);
  return {{bits.x, bits.y, bits.z, bits.w}};
}

// Makes `vector` wait for `other`, without changing it: `zero` is 0, which the compiler cannot
// know. Left alone, the assembler moves the weight's loads behind the row's arrival to save
// registers, and their latency shows.
__device__ void arrive_together(Vector& vector, const Vector& other, uint32_t zero) {
  vector.pairs[0] ^= other.pairs[0] & zero;
}

__device__ void store(uint4* to, const Vector& vector) {
  *to = {vector.pairs[0], vector.pairs[1], vector.pairs[2], vector.pairs[3]};
}

template <class T>
__device__ float sum_of_squares(const Vector& vector) {
  float sums[kElementsPerVector / 2];
#pragma unroll
  for (int i = 0; i < kElementsPerVector / 2; ++i) {
    const float2 x = Pair<T>::unpack(vector.pairs[i]);
    sums[i] = fmaf(x.y, x.y, x.x * x.x);
  }
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

// 1 / sqrt(sum / HIDDEN + eps): the hardware's estimate (within 2 ulp of fp32) and one Newton step
// in double. Where the estimate is 0, infinite or NaN it is already the answer.
__device__ float reciprocal_root_mean_square(double sum, float eps) {
  const double mean = fma(sum, 1.0 / HIDDEN, static_cast<double>(eps));
  const float estimate = rsqrtf(static_cast<float>(mean));
  const double root = static_cast<double>(estimate);
  const double error = fma(-mean * root, root, 1.0);
  const float refined = static_cast<float>(fma(0.5 * root, error, root));
  return estimate > 0.0f && estimate < __int_as_float(0x7f800000) ? refined : estimate;
}

template <class T>
__device__ Vector normalize(const Vector& row, const Vector& weight, float rstd) {
  Vector result;
#pragma unroll
  for (int i = 0; i < kElementsPerVector / 2; ++i) {
    const float2 x = Pair<T>::unpack(row.pairs[i]);
    const float2 w = Pair<T>::unpack(weight.pairs[i]);
    result.pairs[i] = Pair<T>::pack({x.x * rstd * w.x, x.y * rstd * w.y});
  }
  return result;
}

// The row's sum in every thread of the block. fp32 within a warp, double across warps.
[[maybe_unused]] __device__ double sum_over_block(float value) {
  constexpr int kWarps = kThreads / 32;
  __shared__ double warp_sums[kWarps];
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    value += __shfl_xor_sync(0xffffffffu, value, distance);
  }
  if (threadIdx.x % 32 == 0) warp_sums[threadIdx.x / 32] = value;
  __syncthreads();
  // Every thread reads all of them: one broadcast each, and shorter chains than more shuffles make.
  constexpr int kChains = kWarps % 4 == 0 ? 4 : 2;
  double sums[kChains];
#pragma unroll
  for (int i = 0; i < kChains; ++i) sums[i] = warp_sums[i];
#pragma unroll
  for (int i = kChains; i < kWarps; ++i) sums[i % kChains] += warp_sums[i];
#pragma unroll
  for (int i = 1; i < kChains; ++i) sums[0] += sums[i];
  return sums[0];
}

template <class T>
__device__ void normalize_long_row(const T* hidden_states, const T* weight, T* output, float* rstd,
                                   float eps, int batch_size) {
  const int64_t row = blockIdx.x;
  const uint4* const row_vectors =
      reinterpret_cast<const uint4*>(hidden_states) + row * kVectorsPerRow;
  const uint4* const weight_vectors = reinterpret_cast<const uint4*>(weight);
  uint4* const output_vectors = reinterpret_cast<uint4*>(output) + row * kVectorsPerRow;

  Vector x[kVectorsPerThread];
  Vector w[kVectorsPerThread];
#pragma unroll
  for (int i = 0; i < kVectorsPerThread; ++i) {
    x[i] = load_once(row_vectors + i * kThreads + threadIdx.x);
  }
#pragma unroll
  for (int i = 0; i < kVectorsPerThread; ++i) {
    w[i] = load(weight_vectors + i * kThreads + threadIdx.x);
  }

  // Rows are blocks, so the number of rows is only good for its sign.
  const uint32_t zero = static_cast<uint32_t>(batch_size) >> 31;
#pragma unroll
  for (int i = 0; i < kVectorsPerThread; ++i) arrive_together(x[i], w[i], zero);

  float sum = sum_of_squares<T>(x[0]);
#pragma unroll
  for (int i = 1; i < kVectorsPerThread; ++i) sum += sum_of_squares<T>(x[i]);
  const float row_rstd = reciprocal_root_mean_square(sum_over_block(sum), eps);
  if (threadIdx.x == 0) rstd[row] = row_rstd;

#pragma unroll
  for (int i = 0; i < kVectorsPerThread; ++i) {
    store(output_vectors + i * kThreads + threadIdx.x, normalize<T>(x[i], w[i], row_rstd));
  }
}

template <class T>
__device__ void normalize_short_rows(const T* hidden_states, const T* weight, T* output,
                                     float* rstd, float eps, int batch_size) {
  constexpr int kLanes = kVectorsPerRow;
  constexpr int kGroups = kThreads / kLanes;
  const int lane = threadIdx.x % kLanes;
  const uint32_t first_row = blockIdx.x * kRowsPerBlock + threadIdx.x / kLanes;
  const uint32_t end_row = batch_size;
  const int64_t first_vector = int64_t{first_row} * kVectorsPerRow + lane;
  const uint4* const row_vectors = reinterpret_cast<const uint4*>(hidden_states) + first_vector;
  uint4* const output_vectors = reinterpret_cast<uint4*>(output) + first_vector;

  // Rows past the end are zeros that nobody stores: every lane takes part in the shuffles.
  Vector x[kRowsPerLaneGroup] = {};
#pragma unroll
  for (int i = 0; i < kRowsPerLaneGroup; ++i) {
    if (first_row + i * kGroups < end_row) x[i] = load_once(row_vectors + i * kThreads);
  }
  const Vector w = load(reinterpret_cast<const uint4*>(weight) + lane);
  arrive_together(x[0], w, static_cast<uint32_t>(batch_size) >> 31);

  double sum[kRowsPerLaneGroup];
#pragma unroll
  for (int i = 0; i < kRowsPerLaneGroup; ++i) sum[i] = sum_of_squares<T>(x[i]);
#pragma unroll
  for (int distance = kLanes / 2; distance > 0; distance /= 2) {
#pragma unroll
    for (int i = 0; i < kRowsPerLaneGroup; ++i) {
      sum[i] += __shfl_xor_sync(0xffffffffu, sum[i], distance);
    }
  }

#pragma unroll
  for (int i = 0; i < kRowsPerLaneGroup; ++i) {
    const float row_rstd = reciprocal_root_mean_square(sum[i], eps);
    if (first_row + i * kGroups < end_row) {
      if (lane == 0) rstd[first_row + i * kGroups] = row_rstd;
      store(output_vectors + i * kThreads, normalize<T>(x[i], w, row_rstd));
    }
  }
}

}  // namespace

#define JOIN_(hidden, dtype) rmsnorm_h##hidden##_##dtype
#define JOIN(hidden, dtype) JOIN_(hidden, dtype)

#define RMSNORM_KERNEL(dtype, T)                                                           \
  extern "C" __global__ void __launch_bounds__(kThreads, kBlocksPerSm)                     \
      JOIN(HIDDEN, dtype)(const T* hidden_states, const T* weight, T* output, float* rstd, \
                          float eps, int batch_size) {                                     \
    if constexpr (kIsShort) {                                                              \
      normalize_short_rows<T>(hidden_states, weight, output, rstd, eps, batch_size);       \
    } else {                                                                               \
      normalize_long_row<T>(hidden_states, weight, output, rstd, eps, batch_size);         \
    }                                                                                      \
  }

RMSNORM_KERNEL(bf16, __nv_bfloat16)
RMSNORM_KERNEL(fp16, __half)
