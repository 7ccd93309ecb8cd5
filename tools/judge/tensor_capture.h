// `fibshim record --tensors` keeps tensors of a program's launches as FlashInfer Trace workloads.
// This module makes the plan that the recorder carries out (shim/abi/tensor_plan.h), and a dataset
// of the files that the recorder writes.
#pragma once

#include "loader/compile/model.h"
#include "shim/abi/tensor_plan.h"

namespace fibshim::judge {

struct CaptureOptions {
  std::vector<std::string> definitions;  // globs; empty: all
  TensorPolicy policy = TensorPolicy::by_shape;
  uint32_t count = 3;
  std::string axis;  // for TensorPolicy::by_axis
  uint64_t limit_bytes = uint64_t{1} << 30;
  uint32_t seconds = 0;
  bool keeps_statistics = false;
};

// Parses "first:K", "every:N", "shape:K" or "axis:NAME:K". Returns what is wrong, or "".
std::string read_policy(const std::string& text, CaptureOptions* options);

// Returns the plan's bytes. Fails if the plan would keep nothing. *notes: definitions that cannot
// be kept, and why.
Result<std::string> make_tensor_plan(const FolderModel& model, const CaptureOptions& options,
                                     std::vector<std::string>* notes);

struct CapturedWorkloads {
  size_t processes = 0, workloads = 0, duplicates = 0;
  uint64_t bytes = 0;
  std::map<std::string, uint64_t> losses;  // reason -> launches that were not kept
  std::vector<std::string> faults;         // files that could not be read whole
};

// Makes a dataset (definitions/, workloads/ and blob/) in `output`, which must not exist or be
// empty, from the files that processes have written to `folder`. `model`: of the folder from which
// the plan was made.
Result<CapturedWorkloads> write_workloads(const FolderModel& model, const std::string& folder,
                                          const std::string& output);

}  // namespace fibshim::judge
