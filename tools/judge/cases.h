// What `verify` and `bench` are asked for, and the cases that follow from it.
#pragma once

#include "tools/judge/trial.h"

namespace fibshim::judge {

struct JudgeOptions {
  TrialOptions trial;
  std::string folder;
  std::vector<std::string> definitions;  // empty: all
  std::map<std::string, std::vector<int64_t>> axes;
  std::string baseline;   // another config folder
  std::string workloads;  // root of a dataset; "": the folder itself
  std::string recording;  // of a program's launches; "": none
  std::string originals;  // the same, whose kernels are the references; "": references are
  std::string output;
  bool keeps = false;  // times in the folder's measurements.json
  double timeout_s = 300;
  bool wants_json = false;
  bool is_quiet = false;
  bool checks_references = false;
  bool checks_batch_invariance = false;
};

// Adds the sizes around each that a `when` names: where another solution takes over.
void add_bounds(const SolutionSpec& solution, const std::string& axis, std::vector<int64_t>* sizes);

// Cases of a definition: explicit values (of the command line, else of the "verify" block) in all
// combinations; else, for verify, made ones and recorded ones, for bench recorded ones, or made ones
// where none is recorded.
std::vector<Workload> make_cases(const Subject& subject, const JudgeOptions& options,
                                 const std::vector<Workload>& recorded);

}  // namespace fibshim::judge
