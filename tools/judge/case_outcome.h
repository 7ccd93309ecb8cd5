// The options of a trial and the outcome of one case, which the judge exchanges with its worker processes.
#pragma once

#include <stdint.h>

#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

namespace fibshim::judge {

class PythonInterpreter;

struct TrialOptions {
  bool is_bench = false;
  bool ignores_when = false;  // also judge sizes that the solution's `when` excludes
  int device = 0;
  int runs = 0;  // of each case, each with other inputs; 0: three, of large cases one
  std::optional<double> atol, rtol, required_matched_ratio;
  bool measures_distances = false;  // CaseOutcome::original_distance, solution_distance
  std::string python;  // whose torch runs the definition's reference; "": the native reference
  PythonInterpreter* interpreter = nullptr;  // of it, running; null: the native reference
  std::string data_root;                     // of recorded workloads' safetensors
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

// The outcome is wrong, for the first reason that is found.
void find_wrong(std::string why, CaseOutcome* outcome);

// Merges another run's outcome into *outcome: the record of several runs has the worst of them.
void merge(const CaseOutcome& other, CaseOutcome* outcome);

nlohmann::ordered_json to_json(const CaseOutcome& outcome);
CaseOutcome outcome_from_json(const nlohmann::ordered_json& json);

}  // namespace fibshim::judge
