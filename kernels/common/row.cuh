// A row of 16-bit floats in the registers of the threads that share it, and sums over it.
//
// A row is read once and stays in registers until it is written, so a kernel may write where it reads.
// Some lanes of a warp hold a short row, with several rows per block; a whole block holds a long
// row.
#pragma once

#include <type_traits>

#include "vector.cuh"

namespace fibshim {

// How rows are distributed over the threads of a block. The grid is ceil_div(rows, kRowsPerBlock),
// the block kThreads; the tables of sizes in config/shared repeat both (is_as_in_tables).
template <int kElements_, int kVectorsPerThread_, int kRowsPerBlock_, int kThreadsPerSm>
struct RowPlan {
  static constexpr int kElements = kElements_;
  static constexpr int kVectors = kElements / kElementsPerVector;
  static_assert(kElements % kElementsPerVector == 0, "rows are read in vectors of 8 elements");
  static constexpr int kVectorsPerThread = kVectorsPerThread_;
  // A group of threads shares a row: some lanes of a warp, or a block.
  static constexpr int kBusyThreads = (kVectors + kVectorsPerThread - 1) / kVectorsPerThread;
  static constexpr bool kIsWithinWarp = kBusyThreads <= 32;
  static constexpr int kGroupThreads = kIsWithinWarp ? kBusyThreads : (kBusyThreads + 31) / 32 * 32;
  static constexpr bool kIsEven = kGroupThreads * kVectorsPerThread == kVectors;
  static constexpr int kRowsPerBlock = kRowsPerBlock_;
  static constexpr int kThreads = kRowsPerBlock * kGroupThreads;
  // Leaves each thread enough registers for row and weight, and keeps enough bytes in flight to cover
  // DRAM's latency.
  static constexpr int kBlocksPerSm = kThreadsPerSm / kThreads;
  static_assert(kThreads % 32 == 0 && kThreads <= 1024, "blocks are whole warps");
  static_assert(!kIsWithinWarp || (kGroupThreads & (kGroupThreads - 1)) == 0,
                "lanes reduce by butterfly");
  static_assert(kIsWithinWarp || kRowsPerBlock == 1, "a barrier is for the whole block");
};

// The fastest plan on an H200 over 1 to 16384 rows. Short rows need blocks of 128 to 256 threads,
// because launching a block costs about 1 ns. Long rows need two vectors per thread, or more if
// that makes whole warps.
constexpr int best_vectors_per_thread(int elements) {
  switch (elements) {
    case 64:
    case 256:
    case 512: return 2;
    case 128:
    case 1280: return 1;
    case 768:
    case 2304:
    case 3840:
    case 5376:
    case 9216:
    case 12288: return 3;
    case 1024:
    case 7168:
    case 16384: return 4;
    default: return 2;
  }
}

constexpr int best_rows_per_block(int elements) {
  switch (elements) {
    case 64: return 32;
    case 128: return 16;
    case 256: return 8;
    case 512:
    case 768:
    case 1024: return 4;
    default: return 1;
  }
}

template <int kElements, int kVectorsPerThread = best_vectors_per_thread(kElements),
          int kThreadsPerSm = kElements == 128         ? 2048
                              : kVectorsPerThread <= 2 ? 1536
                                                       : 1024>
using BestPlan =
    RowPlan<kElements, kVectorsPerThread, best_rows_per_block(kElements), kThreadsPerSm>;

// For kernels that keep three rows in registers.
template <int kElements>
constexpr int kVectorsOfThree = kElements == 7168 || kElements == 16384
                                    ? 2
                                    : best_vectors_per_thread(kElements);
template <int kElements>
using ThreeRowPlan =
    BestPlan<kElements, kVectorsOfThree<kElements>, kVectorsOfThree<kElements> == 4 ? 768 : 1024>;

template <int kElements>
using OneVectorPlan = RowPlan<kElements, 1, 1, 2048>;
// For the normalised sum of rows: at 4096 one vector per thread is faster (H200).
template <int kElements>
using SumPlan =
    std::conditional_t<kElements == 4096, OneVectorPlan<kElements>, ThreeRowPlan<kElements>>;

// A line of a family's tables of sizes in config/shared: the block, and how many rows a block of the
// grid has. The build gives them.
struct TableLine {
  int elements, block, rows;
};

template <class Plan>
constexpr bool is_as_in_tables() {
#ifdef FIBSHIM_TABLE_LINES
  constexpr TableLine kLines[] = {FIBSHIM_TABLE_LINES};
  bool is_found = false;
  for (const TableLine& line : kLines) {
    if (line.elements != Plan::kElements) continue;
    if (line.block != Plan::kThreads || line.rows != Plan::kRowsPerBlock) return false;
    is_found = true;
  }
  return is_found;
#else
  return true;
#endif
}

// A thread's part of one row: vectors `thread`, `thread + kGroupThreads`, ...
template <class Plan>
struct RowPart {
  Vector vectors[Plan::kVectorsPerThread];
};

template <class Plan>
__device__ bool has_vector(int index, int thread) {
  return Plan::kIsEven || index < Plan::kVectorsPerThread - 1 ||
         index * Plan::kGroupThreads + thread < Plan::kVectors;
}

template <class Plan, class Load>
__device__ RowPart<Plan> load_row(const void* row, int thread, Load load_vector) {
  RowPart<Plan> part;
#pragma unroll
  for (int i = 0; i < Plan::kVectorsPerThread; ++i) {
    part.vectors[i] = {};
    if (has_vector<Plan>(i, thread)) {
      part.vectors[i] =
          load_vector(static_cast<const uint4*>(row) + i * Plan::kGroupThreads + thread);
    }
  }
  return part;
}

template <class Plan>
__device__ RowPart<Plan> load_row(const void* row, int thread) {
  return load_row<Plan>(row, thread, load);
}

template <class Plan>
__device__ RowPart<Plan> load_row_once(const void* row, int thread) {
  return load_row<Plan>(row, thread, load_once);
}

// Loads a weight, which is the same for all rows.
template <class Plan>
__device__ RowPart<Plan> load_weight(const void* weight, int thread) {
  return load_row<Plan>(weight, thread, load_shared_by_rows);
}

// For data that only the next kernel reads.
template <class Plan>
__device__ void store_row_streaming(void* row, int thread, const RowPart<Plan>& part) {
#pragma unroll
  for (int i = 0; i < Plan::kVectorsPerThread; ++i) {
    if (has_vector<Plan>(i, thread)) {
      store_streaming(static_cast<uint4*>(row) + i * Plan::kGroupThreads + thread, part.vectors[i]);
    }
  }
}

template <class Plan>
__device__ void store_row(void* row, int thread, const RowPart<Plan>& part) {
#pragma unroll
  for (int i = 0; i < Plan::kVectorsPerThread; ++i) {
    if (has_vector<Plan>(i, thread)) {
      store(static_cast<uint4*>(row) + i * Plan::kGroupThreads + thread, part.vectors[i]);
    }
  }
}

template <class Plan>
__device__ void arrive_together(RowPart<Plan>& part, const RowPart<Plan>& other, uint32_t zero) {
#pragma unroll
  for (int i = 0; i < Plan::kVectorsPerThread; ++i) {
    arrive_together(part.vectors[i], other.vectors[i], zero);
  }
}

// The row that a thread works on, and the thread's place in it.
template <class Plan>
struct Place {
  uint32_t row = blockIdx.x * Plan::kRowsPerBlock + threadIdx.x / Plan::kGroupThreads;
  int thread = threadIdx.x % Plan::kGroupThreads;
  bool is_row;  // false past the last row: the thread takes part in shuffles but stores nothing
  __device__ explicit Place(int rows)
      : is_row(Plan::kRowsPerBlock == 1 || row < static_cast<uint32_t>(rows)) {}
};

// Makes a row from function(i, j) -> float2, pair j of vector i, rounded to T.
template <class T, class Plan, class Function>
__device__ RowPart<Plan> make_row(Function function) {
  RowPart<Plan> result;
#pragma unroll
  for (int i = 0; i < Plan::kVectorsPerThread; ++i) {
#pragma unroll
    for (int j = 0; j < kPairsPerVector; ++j) {
      result.vectors[i].pairs[j] = Pair<T>::pack(function(i, j));
    }
  }
  return result;
}

template <class T, class Plan>
__device__ float2 unpack(const RowPart<Plan>& row, int i, int j) {
  return Pair<T>::unpack(row.vectors[i].pairs[j]);
}

template <class T>
__device__ float sum_of_squares(const Vector& vector) {
  float sums[kPairsPerVector];
#pragma unroll
  for (int i = 0; i < kPairsPerVector; ++i) {
    const float2 x = Pair<T>::unpack(vector.pairs[i]);
    sums[i] = fmaf(x.y, x.y, x.x * x.x);
  }
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

template <class T, class Plan>
__device__ float sum_of_squares(const RowPart<Plan>& row) {
  float sum = sum_of_squares<T>(row.vectors[0]);
#pragma unroll
  for (int i = 1; i < Plan::kVectorsPerThread; ++i) sum += sum_of_squares<T>(row.vectors[i]);
  return sum;
}

// Returns, in each lane, the sum of `value` over the row's lanes within a warp.
template <class Plan, class Sum>
__device__ Sum sum_over_lanes(Sum value) {
#pragma unroll
  for (int distance = (Plan::kIsWithinWarp ? Plan::kGroupThreads : 32) / 2; distance > 0;
       distance /= 2) {
    value += __shfl_xor_sync(0xffffffffu, value, distance);
  }
  return value;
}

// Returns, in each thread, the sum over the threads of a row. Sum is the type of the last steps.
// Call it once in a kernel for each kUse: no barrier follows it.
template <class Plan, class Sum, int kUse = 0>
__device__ Sum sum_over_row(float value) {
  if constexpr (Plan::kIsWithinWarp) {
    return sum_over_lanes<Plan>(static_cast<Sum>(value));
  } else {
    constexpr int kWarps = Plan::kGroupThreads / 32;
    __shared__ Sum warp_sums[kWarps];
    value = sum_over_lanes<Plan>(value);
    if (threadIdx.x % 32 == 0) warp_sums[threadIdx.x / 32] = value;
    __syncthreads();
    // Every thread reads all warp sums: each read is a broadcast, and the chains of additions are
    // shorter than with more shuffles.
    constexpr int kChains = kWarps % 4 == 0 ? 4 : kWarps % 2 == 0 ? 2 : 1;
    Sum sums[kChains];
#pragma unroll
    for (int i = 0; i < kChains; ++i) sums[i] = warp_sums[i];
#pragma unroll
    for (int i = kChains; i < kWarps; ++i) sums[i % kChains] += warp_sums[i];
#pragma unroll
    for (int i = 1; i < kChains; ++i) sums[0] += sums[i];
    return sums[0];
  }
}

// Returns 1 / sqrt(mean + eps): the hardware's estimate, within 2 ulp of fp32.
__device__ inline float reciprocal_root(float mean, float eps) { return rsqrtf(mean + eps); }

// The same with one Newton step in double: the nearest float in nine cases of ten. If the estimate
// is 0, infinite or NaN, it is returned unchanged.
__device__ inline float reciprocal_root(double mean, float eps) {
  const double value = mean + static_cast<double>(eps);
  const float estimate = rsqrtf(static_cast<float>(value));
  const double root = static_cast<double>(estimate);
  const double error = fma(-value * root, root, 1.0);
  const float refined = static_cast<float>(fma(0.5 * root, error, root));
  return estimate > 0.0f && estimate < __int_as_float(0x7f800000) ? refined : estimate;
}

}  // namespace fibshim

// ---- the kernels' names: a family defines FIBSHIM_KERNELS(hidden, dtype, T)

#define FIBSHIM_BOUNDS(hidden) \
  __launch_bounds__(fibshim::PlanFor<hidden>::kThreads, fibshim::PlanFor<hidden>::kBlocksPerSm)
#define FIBSHIM_COMPARE_WITH_TABLES(hidden)                           \
  static_assert(fibshim::is_as_in_tables<fibshim::PlanFor<hidden>>(), \
                "the family's tables of sizes have another block or grid, or none");
#define FIBSHIM_BOTH_TYPES(hidden)             \
  FIBSHIM_COMPARE_WITH_TABLES(hidden)          \
  FIBSHIM_KERNELS(hidden, bf16, __nv_bfloat16) \
  FIBSHIM_KERNELS(hidden, fp16, __half)

// Hidden sizes of Llama 3, Qwen 3, DeepSeek V3 and Gemma.
// clang-format off
#define FIBSHIM_HIDDEN_SIZES(X)                                                   \
  X(1024) X(1152) X(2048) X(2304) X(2560) X(3072) X(3584) X(3840) X(4096) X(4608) \
  X(5120) X(5376) X(7168) X(8192) X(16384)
// clang-format on
// These, the sizes of the Q and K norms of their heads, and of the latent norms of DeepSeek V3.
#define FIBSHIM_RMSNORM_SIZES(X) X(64) X(128) X(256) X(512) X(1536) FIBSHIM_HIDDEN_SIZES(X)
// OPT, GPT-2, and PyTorch models of the sizes above.
#define FIBSHIM_LAYERNORM_SIZES(X) \
  X(768) X(1024) X(1280) X(1600) X(2048) X(2560) X(4096) X(5120) X(7168) X(8192) X(9216) X(12288)
