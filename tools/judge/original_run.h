// Runs originals: what they write is what their replacement must write (original.h). In a worker process.
#pragma once

#include "tools/judge/device_buffers.h"

namespace fibshim::judge {

// What a worker prints last before it launches an original: should it end there, that was the original's doing.
inline constexpr char kOriginalRuns[] = "(the original kernel was running)\n";

struct OriginalAnswer {
  std::map<std::string, Tensor> outputs;
  CUfunction kernel = nullptr;
  std::string why;            // it says nothing; "" when it does
  bool is_no_launch = false;  // because such a launch was never made
  bool is_gpu_lost = false;   // because it faulted: nothing more can be run in this process
};

class Originals {
 public:
  // `recording`: beside which the images lie.
  explicit Originals(std::string recording) : recording_(std::move(recording)) {}

  // Fails when a call of the driver's other than the original's own does.
  Result<OriginalAnswer> ask(Gpu* gpu, const OriginalCase& original, const Launch& launch,
                             const CaseData& data, const std::vector<BufferSpec>& specs,
                             DeviceBuffers* buffers);

 private:
  // The error says why there is none.
  Result<CUfunction> load(Gpu* gpu, const tools::KernelRecord& kernel);

  std::string recording_;
  std::map<std::string, CUfunction> loaded_;  // by image and symbol
};

}  // namespace fibshim::judge
