// Runs originals, whose outputs their replacements must equal (original.h). For workers.
#pragma once

#include "tools/judge/device_buffers.h"

namespace fibshim::judge {

// A worker prints this before it launches an original. If it is the last output, the original ended
// it.
inline constexpr char kOriginalRuns[] = "(the original kernel was running)\n";

struct OriginalAnswer {
  std::map<std::string, Tensor> outputs;
  CUfunction kernel = nullptr;
  std::string why;            // why there are no outputs; "" if there are
  bool is_no_launch = false;  // the reason is that such a launch was never made
  bool is_gpu_lost = false;   // the reason is that it faulted: this process can run nothing more
};

class Originals {
 public:
  // `recording`: path of the recording, beside which the images are.
  explicit Originals(std::string recording) : recording_(std::move(recording)) {}

  // Runs the original. Fails if a driver call fails, other than the original's own launch.
  Result<OriginalAnswer> ask(Gpu* gpu, const OriginalCase& original, const Launch& launch,
                             const CaseData& data, const std::vector<BufferSpec>& specs,
                             DeviceBuffers* buffers);

 private:
  // The error says why the kernel cannot be loaded.
  Result<CUfunction> load(Gpu* gpu, const tools::KernelRecord& kernel);

  std::string recording_;
  std::map<std::string, CUfunction> loaded_;  // by image and symbol
};

}  // namespace fibshim::judge
