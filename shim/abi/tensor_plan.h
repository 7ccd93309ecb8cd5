// What `fibshim record --tensors` asks of processes, and what they leave: copies of the tensors of chosen launches.
//
// The plan lies in the folder of the recordings (kTensorPlanFile): a TensorPlan, then its entries, values, tensors and
// steps, each as many as it says. An entry is what one pattern reads as a call of one definition. Each process that
// finds it keeps a file beside its recording, "<pid>-<start_time>.tensors": a TensorsHeader at 0, then blocks from
// header_bytes up to used_bytes. Nothing is kept without a plan.
#pragma once

#include <stdint.h>

#include "shim/abi/snapshot.h"

namespace fibshim {

inline constexpr char kTensorPlanFile[] = "tensors.plan";
inline constexpr char kTensorPlanMagic[8] = {'F', 'I', 'B', 'T', 'P', 'L', 'N', 0};
inline constexpr char kTensorsSuffix[] = ".tensors";
inline constexpr char kTensorsMagic[8] = {'F', 'I', 'B', 'T', 'E', 'N', 'S', 0};
inline constexpr uint32_t kTensorsVersion = 1;
inline constexpr uint32_t kTensorDims = 8;
inline constexpr uint32_t kMostTensors = 32;       // of a launch
inline constexpr uint32_t kMostTensorValues = 64;  // the same
inline constexpr uint32_t kMostTensorEntries = 8192;
inline constexpr uint64_t kTensorPoolBytes = uint64_t{256} << 20;  // of copies that are under way

// Which launches of an entry are kept.
enum class TensorPolicy : uint32_t {
  first,     // the first `count`
  every,     // each `count`th
  by_shape,  // `count` for each combination of the axes
  by_axis,   // `count` for each value of one axis
};

struct TensorPlan {
  char magic[8];
  uint32_t version;
  uint32_t keeps_statistics;  // and no values
  uint64_t digest[2];         // Snapshot::digest
  uint64_t limit_bytes;       // of a process's file
  uint32_t seconds;           // from the first launch that is wanted; 0: no limit
  TensorPolicy policy;
  uint32_t count;  // at least 1
  uint32_t entry_count, value_count, tensor_count, step_count;
  uint32_t reserved;
};

struct TensorPlanEntry {
  char pattern[120];     // as in counters_format.h
  char definition[128];  // the same
  uint32_t first_value, value_count;
  uint32_t first_tensor, tensor_count;
  uint32_t policy_value;  // by_axis: which of its values
  uint32_t reserved;
};

struct TensorPlanValue {
  uint32_t first_step, step_count;
  uint32_t is_axis;  // constant ones, too
  uint32_t reserved;
};

struct TensorPlanTensor {
  uint32_t first_step, step_count;  // of its address
  uint32_t is_output;
  uint32_t element_bytes;
  // How an element reads, for statistics: exponent bits, 0 of an integer, and bits below them.
  uint32_t exponent_bits, mantissa_bits;
  uint32_t is_signed;
  uint32_t has_infinity;  // the largest exponent means that; else only all bits set are no number
  uint32_t dim_count;
  uint32_t dims[kTensorDims];  // which of the entry's values
  uint32_t reserved;
};

// Launches that a plan wants and that were not kept, by why.
enum class TensorLoss : uint32_t {
  captured,   // into a graph, or while a stream captures
  too_large,  // for the pool
  no_room,    // in the pool, at that moment
  unknown,    // a value or a pointer, or memory that is not as large as the shape
  limit,      // of bytes
  late,       // after the time
  failed,     // the driver refused the launch or a copy, or the file could not be written
  duplicate,  // of inputs that are kept
};
inline constexpr uint32_t kTensorLossCount = 8;

struct TensorsHeader {
  char magic[8];
  uint32_t version;
  uint32_t header_bytes;
  uint64_t used_bytes;  // atomic
  uint64_t pid;
  uint64_t start_time;
  uint64_t created_unix_ns;
  uint64_t kept;                      // atomic
  uint64_t losses[kTensorLossCount];  // atomic
};

struct KeptTensor {
  uint32_t tensor;  // of the entry
  uint32_t reserved;
  uint64_t bytes;  // that follow
  uint64_t count, nan_count, infinity_count;
  double least, largest, mean, deviation;  // of the finite ones
};

// Followed by int64_t[value_count], KeptTensor[tensor_count], and the bytes of each tensor, each padded to 8.
struct KeptLaunch {
  uint64_t bytes;  // of the whole block
  uint32_t entry;
  uint32_t value_count, tensor_count;
  uint32_t reserved;
  uint64_t number;  // among the entry's launches, from 0 on
  uint64_t unix_ns;
};

}  // namespace fibshim
