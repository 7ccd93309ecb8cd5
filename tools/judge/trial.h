// Judges one solution on the GPU, in a worker process: all its cases, in order.
#pragma once

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

struct TrialOptions {
  bool is_bench = false;
  bool ignores_when = false;  // also judge sizes that the solution's `when` excludes
  int device = 0;
  int runs = 3;  // of each case, each with other inputs
  std::optional<double> atol, rtol, required_matched_ratio;
  bool measures_distances = false;  // CaseOutcome::original_distance, solution_distance
  std::string python;     // whose torch runs the definition's reference; "": the native reference
  std::string data_root;  // of recorded workloads' safetensors
  std::string
      originals;  // the recording beside which the originals' images are; "": use references
  int warmups = 10;
  int iterations = 50;
  int trials = 3;
  bool flushes_l2 = true;
  bool uses_graph = false;  // time launches inside a replayed graph, without flushing
};

struct CaseOutcome {
  // FlashInfer Trace's, or "SKIPPED": a `where` excludes the solution; "NOT_JUDGED": nothing says
  // what it must compute.
  std::string status;
  std::string log;           // the reason
  bool is_gpu_lost = false;  // no further case can be run in this process
  double max_absolute_error = 0;
  double max_relative_error = 0;
  double matched_ratio = 1;
  double latency_ms = 0;   // mean of the trials' medians
  double original_ms = 0;  // the same of the original, where `bench` has one
  std::vector<double> trial_ms;
  double lowest_ms = 0, highest_ms = 0;  // the 10th and the 90th percentile of all iterations
  // If floating-point outputs of the original were recorded: the tolerance that separates them from
  // the reference, and the solution from them. Less than 0 if not known.
  double original_distance = -1, solution_distance = -1;
  int64_t bytes = 0;  // moved by a launch at least: each input and output once
};

inline constexpr char kPassed[] = "PASSED";
inline constexpr char kIncorrect[] = "INCORRECT_NUMERICAL";
inline constexpr char kRuntimeError[] = "RUNTIME_ERROR";
inline constexpr char kTimeout[] = "TIMEOUT";
inline constexpr char kSkipped[] = "SKIPPED";
inline constexpr char kNotJudged[] = "NOT_JUDGED";

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
                             int run) const;
  // Adds the numbers that the definition does not name. In run 0, eps is the reference's.
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
  Result<void> measure(CUfunction kernel, const Launch& launch, CaseOutcome* outcome);

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
};

// The bytes per second that a copy inside the GPU's memory moves, counting reads and writes.
Result<double> measure_copy_bandwidth(Gpu* gpu);

// Merges another run's outcome into *outcome: the record of several runs has the worst of them.
void merge(const CaseOutcome& other, CaseOutcome* outcome);

}  // namespace fibshim::judge
