// What `fibshim verify` and `fibshim bench` share: which cases there are, a worker for each solution,
// records, resuming, table and verdict.
#pragma once

#include "tools/judge/records.h"
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
};

// The exit code.
int run_judge(const JudgeOptions& options);

// Cases of a definition: explicit values (of the command line, else of the "verify" block) in all
// combinations; else, for verify, made ones and recorded ones, for bench recorded ones, or made ones
// where none is recorded.
std::vector<Workload> make_cases(const Subject& subject, const JudgeOptions& options,
                                 const std::vector<Workload>& recorded);

// A record's axes: "batch_size=1 page=16".
std::string axes_words(const nlohmann::ordered_json& record);

// Records as a table for people, and the line that sums them up.
std::string format_records(const std::vector<nlohmann::ordered_json>& records, bool is_bench);
std::string format_verdict(const std::vector<nlohmann::ordered_json>& records, size_t skipped,
                           bool is_bench);

nlohmann::ordered_json to_json(const CaseOutcome& outcome);
CaseOutcome outcome_from_json(const nlohmann::ordered_json& json);

}  // namespace fibshim::judge
