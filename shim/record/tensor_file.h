// A process's file of kept tensors, and the plan that asks for it.
#pragma once

#include "shim/abi/recorder_api.h"
#include "shim/abi/tensor_plan.h"

namespace fibshim {

// The plan in force, with all its numbers checked. Immutable once it was read.
struct ReadPlan {
  const TensorPlan* plan = nullptr;  // null: nothing is wanted
  const TensorPlanEntry* entries = nullptr;
  const TensorPlanValue* values = nullptr;
  const TensorPlanTensor* tensors = nullptr;
  const Step* steps = nullptr;
};

// Reads the folder's plan and makes the file. Without a plan nothing is wanted. An unusable plan or
// file is logged.
ReadPlan open_tensors(const RecorderHost& host, const char* folder);

// Count a launch. Any thread may call these once the file exists.
void count_kept();
void count_loss(TensorLoss loss);

// Appends a block that consists of these pieces. Called by one thread at a time. False: it could
// not be written.
struct Piece {
  const void* data;
  uint64_t bytes;
};
bool append_block(const Piece* pieces, uint32_t count);

}  // namespace fibshim
