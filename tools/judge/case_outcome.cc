#include "tools/judge/case_outcome.h"

#include <algorithm>
#include <iterator>

namespace fibshim::judge {

void merge(const CaseOutcome& other, CaseOutcome* outcome) {
  static constexpr const char* kOrder[] = {kSkipped,   kPassed,  kNotJudged,
                                           kIncorrect, kTimeout, kRuntimeError};
  const auto severity = [](const std::string& status) {
    return std::find(std::begin(kOrder), std::end(kOrder), status) - std::begin(kOrder);
  };
  if (outcome->status.empty() || severity(other.status) > severity(outcome->status)) {
    outcome->status = other.status;
    outcome->log = other.log;
  }
  outcome->max_absolute_error = std::max(outcome->max_absolute_error, other.max_absolute_error);
  outcome->max_relative_error = std::max(outcome->max_relative_error, other.max_relative_error);
  outcome->matched_ratio = std::min(outcome->matched_ratio, other.matched_ratio);
  outcome->original_distance = std::max(outcome->original_distance, other.original_distance);
  outcome->solution_distance = std::max(outcome->solution_distance, other.solution_distance);
  outcome->bytes = std::max(outcome->bytes, other.bytes);
  outcome->is_gpu_lost = outcome->is_gpu_lost || other.is_gpu_lost;
  // The slowest way of being called is the one to answer for.
  if (other.latency_ms <= outcome->latency_ms) return;
  outcome->latency_ms = other.latency_ms;
  outcome->original_ms = other.original_ms;
  outcome->trial_ms = other.trial_ms;
  outcome->lowest_ms = other.lowest_ms;
  outcome->highest_ms = other.highest_ms;
}

}  // namespace fibshim::judge
