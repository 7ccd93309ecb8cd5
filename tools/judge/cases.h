// The options of `verify` and `bench`, and the cases that follow from them.
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
  std::string originals;  // a recording whose kernels serve as references; "": ordinary references
  std::string output;
  std::string tolerances;  // from recorded outputs: "show", "write", or ""
  bool keeps = false;      // keep the times in the folder's measurements.json
  std::string kept_from;   // file of times that were measured elsewhere, to keep there; "": none
  double timeout_s = 300;
  bool wants_json = false;
  bool is_quiet = false;
  bool checks_references = false;
  bool checks_batch_invariance = false;
};

// Adds the sizes around each number in `when` clauses: there another solution takes over.
void add_bounds(const SolutionSpec& solution, const std::string& axis, std::vector<int64_t>* sizes);

// The cases of a definition. Explicit values (of the command line, else of the "verify" block) are
// used in all combinations; the other axes get usual sizes. `verify` adds the recorded cases.
// `bench` uses only the recorded ones, if there are any and no value is explicit. Sets *why_none if
// there are no cases.
std::vector<Workload> make_cases(const Subject& subject, const JudgeOptions& options,
                                 const std::vector<Workload>& recorded,
                                 std::string* why_none = nullptr);

}  // namespace fibshim::judge
