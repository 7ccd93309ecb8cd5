// What `fibshim record --tensors` keeps of a program's launches, as FlashInfer Trace workloads: makes the plan that the
// recorder carries out (shim/abi/tensor_plan.h), and a dataset of what it left.
#pragma once

#include "loader/compile/model.h"
#include "shim/abi/tensor_plan.h"

namespace fibshim::judge {

struct CaptureOptions {
  std::vector<std::string> definitions;  // globs; empty: all
  TensorPolicy policy = TensorPolicy::by_shape;
  uint32_t count = 3;
  std::string axis;  // of by_axis
  uint64_t limit_bytes = uint64_t{1} << 30;
  uint32_t seconds = 0;
  bool keeps_statistics = false;
};

// Reads "first:K", "every:N", "shape:K" or "axis:NAME:K". Empty, or what is wrong.
std::string read_policy(const std::string& text, CaptureOptions* options);

// The plan's bytes. Fails where it wants nothing. *notes: definitions that cannot be kept, and why.
Result<std::string> make_tensor_plan(const FolderModel& model, const CaptureOptions& options,
                                     std::vector<std::string>* notes);

struct CapturedWorkloads {
  size_t processes = 0, workloads = 0, duplicates = 0;
  uint64_t bytes = 0;
  std::map<std::string, uint64_t> losses;  // by why
  std::vector<std::string> faults;         // files that could not be read whole
};

// Makes a dataset in `output`, which is not there or empty, of what processes have left in `folder`: definitions/,
// workloads/ and blob/. `model`: of the folder that the plan was made of.
Result<CapturedWorkloads> write_workloads(const FolderModel& model, const std::string& folder,
                                          const std::string& output);

}  // namespace fibshim::judge
