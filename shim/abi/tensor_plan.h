// The request of `fibshim record --tensors` to processes, and their answer: copies of the tensors
// of chosen launches.
//
// The plan is a file in the folder of the recordings (kTensorPlanFile): a TensorPlan, then its
// entries, values, tensors and steps, in the numbers that it gives. An entry stands for the
// launches that one pattern reads as calls of one definition. Each process that finds a plan writes
// a file beside its recording, "<pid>-<start_time>.tensors": a TensorsHeader at 0, then blocks from
// header_bytes up to used_bytes. Without a plan nothing is kept.
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
inline constexpr uint32_t kMostTensorValues = 64;  // of a launch
inline constexpr uint32_t kMostTensorEntries = 8192;
inline constexpr uint64_t kTensorPoolBytes = uint64_t{256} << 20;  // of copies in flight

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
  uint32_t keeps_statistics;  // instead of values
  uint64_t digest[2];         // Snapshot::digest
  uint64_t limit_bytes;       // of each process's file
  uint32_t seconds;           // counted from the first wanted launch; 0: no limit
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
  uint32_t policy_value;  // by_axis: index of the axis among its values
  uint32_t reserved;
};

struct TensorPlanValue {
  uint32_t first_step, step_count;
  uint32_t is_axis;  // also of an axis that is constant
  uint32_t reserved;
};

struct TensorPlanTensor {
  uint32_t first_step, step_count;  // of its address
  uint32_t is_output;
  uint32_t element_bytes;
  // For statistics: an element's exponent bits (0 for an integer) and the bits below.
  uint32_t exponent_bits, mantissa_bits;
  uint32_t is_signed;
  uint32_t has_infinity;  // the largest exponent means infinity or NaN; else only all ones are NaN
  uint32_t dim_count;
  uint32_t dims[kTensorDims];  // indices into the entry's values
  uint32_t reserved;
};

// Why a launch that the plan wants was not kept.
enum class TensorLoss : uint32_t {
  captured,   // it went into a graph, or some stream was capturing
  too_large,  // larger than the pool
  no_room,    // the pool was full at that moment
  unknown,    // a value or a pointer is unknown, or the memory is smaller than the shape
  limit,      // limit_bytes was reached
  late,       // `seconds` had passed
  failed,     // the driver refused the launch or a copy, or the file could not be written
  duplicate,  // the same inputs are kept already
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
  uint32_t tensor;  // index among the entry's tensors
  uint32_t reserved;
  uint64_t bytes;  // size of its data, which follows
  uint64_t count, nan_count, infinity_count;
  double least, largest, mean, deviation;  // of the finite elements
};

// Followed by int64_t[value_count], KeptTensor[tensor_count], and the bytes of each tensor, padded
// to a multiple of 8.
struct KeptLaunch {
  uint64_t bytes;  // of the whole block
  uint32_t entry;
  uint32_t value_count, tensor_count;
  uint32_t reserved;
  uint64_t number;  // among the entry's launches, from 0
  uint64_t unix_ns;
};

}  // namespace fibshim
