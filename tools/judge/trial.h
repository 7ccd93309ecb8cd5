// Judges one solution on the GPU, in a worker process: all its cases, in order.
#pragma once

#include "tools/judge/case_outcome.h"
#include "tools/judge/original_run.h"
#include "tools/judge/python_reference.h"
#include "tools/judge/references.h"

namespace fibshim::judge {

struct Workload;

struct Folder {
  CheckReport report;
  FolderModel model;
  VerifyBlocks verify_blocks;
  std::vector<tools::KernelRecord> recorded;  // give values that nothing else states
};

class Trial {
 public:
  // Loads the solution's image for this GPU. Fails with ErrorCode::no_binary_for_gpu if it has
  // none.
  static Result<std::unique_ptr<Trial>> make(Gpu* gpu, const Folder& folder, uint32_t solution,
                                             const TrialOptions& options);

  // After an outcome with is_gpu_lost nothing more can be run in this process.
  CaseOutcome judge(const Workload& workload);

  // For code that launches the kernel in other ways (batch_invariance.h).
  CUfunction kernel() const { return kernel_; }
  const Subject& subject() const { return subject_; }
  const std::vector<std::pair<Variant, Call>>& calls() const { return calls_; }
  // The tensors and numbers of one case's inputs.
  Result<CaseData> make_data(const Call& call, const Workload& workload, const AxisValues& axes,
                             int run, bool wants_tensors = true) const;
  // Adds the numbers that the definition does not name. In run 0, eps is the reference's, unless the
  // pattern states another.
  void add_numbers(const Call& call, int run, CaseData* data) const;

 private:
  Trial(Gpu* gpu, const Folder& folder, const TrialOptions& options)
      : gpu_(gpu), folder_(folder), options_(options), originals_(options.originals) {}

  Result<void> judge_call(const Call& call, const Workload& workload, const AxisValues& axes,
                          CaseOutcome* outcome);
  // Returns false if the shim would run the original.
  Result<bool> run_once(const Call& call, const Workload& workload, const AxisValues& axes, int run,
                        bool is_misaligned, CaseOutcome* outcome);
  bool has_reference() const { return python_ != nullptr || !subject_.op.empty(); }
  Result<void> sample(const Call& call, const Workload& workload, const AxisValues& axes,
                      CaseOutcome* outcome);
  Result<void> sample_one_law(const Call& call, const AxisValues& axes,
                              const DefinitionArgument& probs, const DefinitionArgument& samples,
                              CaseOutcome* outcome);
  Result<Tensor> draw(const CaseData& data, DeviceBuffers* buffers, const Launch& launch,
                      const DefinitionArgument& samples, CaseOutcome* outcome);
  Result<void> renew_random_inputs(CaseData* data, int run) const;
  Tolerance tolerance_of(const OutputSpec& output) const;
  Result<void> compare(const CaseData& data, const std::vector<BufferSpec>& specs,
                       DeviceBuffers* buffers, CaseOutcome* outcome);
  // Each output beside what it must be: as told, or by the reference.
  Result<std::vector<Comparison>> compare_outputs(const CaseData& data,
                                                  const std::vector<OutputSpec>& outputs,
                                                  const std::vector<Tensor>& found,
                                                  std::map<std::string, Tensor> told) const;
  // `recorded`: what the original has put out for these inputs.
  Result<void> measure_distances(const CaseData& data, std::map<std::string, Tensor> recorded,
                                 DeviceBuffers* buffers, CaseOutcome* outcome) const;

  Gpu* gpu_;
  const Folder& folder_;
  const TrialOptions& options_;
  Subject subject_;
  CUfunction kernel_ = nullptr;
  std::vector<std::pair<Variant, Call>> calls_;
  std::unique_ptr<PythonReference> python_;
  Originals originals_;
  std::map<std::string, Tensor> told_;  // the original's outputs in this run
  CUdeviceptr flush_ = 0;
  int large_cases_ = 0;  // that have run
};

}  // namespace fibshim::judge
