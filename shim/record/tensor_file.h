// A process's file of kept tensors, and the plan that asks for it.
#pragma once

#include "shim/abi/recorder_api.h"
#include "shim/abi/tensor_plan.h"

namespace fibshim {

// The plan in force, with all numbers in it checked. Immutable once it was read.
struct ReadPlan {
  const TensorPlan* plan = nullptr;  // null: nothing is wanted
  const TensorPlanEntry* entries = nullptr;
  const TensorPlanValue* values = nullptr;
  const TensorPlanTensor* tensors = nullptr;
  const Step* steps = nullptr;
};

// Reads `folder`'s plan and makes the file. Nothing is wanted where there is no plan; a plan or a file that cannot
// be used is logged.
ReadPlan open_tensors(const RecorderHost& host, const char* folder);

// Counts; may be called from any thread once the file is there.
void count_kept();
void count_loss(TensorLoss loss);

// Appends a block, whose pieces follow one another. One thread at a time calls this. False: it
// could not be written.
struct Piece {
  const void* data;
  uint64_t bytes;
};
bool append_block(const Piece* pieces, uint32_t count);

}  // namespace fibshim
