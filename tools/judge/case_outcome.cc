#include "tools/judge/case_outcome.h"

#include <math.h>

#include <algorithm>
#include <iterator>

#include <nlohmann/json.hpp>

namespace fibshim::judge {
namespace {

using Json = nlohmann::ordered_json;

// The outcome's members by their names, for both directions.
template <class Outcome, class Visit>
void visit_members(Outcome& outcome, const Visit& visit) {
  visit("status", outcome.status);
  visit("log", outcome.log);
  visit("is_gpu_lost", outcome.is_gpu_lost);
  visit("max_absolute_error", outcome.max_absolute_error);
  visit("max_relative_error", outcome.max_relative_error);
  visit("matched_ratio", outcome.matched_ratio);
  visit("latency_ms", outcome.latency_ms);
  visit("original_ms", outcome.original_ms);
  visit("trial_ms", outcome.trial_ms);
  visit("lowest_ms", outcome.lowest_ms);
  visit("highest_ms", outcome.highest_ms);
  visit("original_distance", outcome.original_distance);
  visit("solution_distance", outcome.solution_distance);
  visit("bytes", outcome.bytes);
}

}  // namespace

void find_wrong(std::string why, CaseOutcome* outcome) {
  outcome->status = kIncorrect;
  if (outcome->log.empty()) outcome->log = std::move(why);
}

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

Json to_json(const CaseOutcome& outcome) {
  Json json;
  visit_members(outcome, [&](const char* name, const auto& member) { json[name] = member; });
  return json;
}

CaseOutcome outcome_from_json(const Json& json) {
  CaseOutcome outcome;
  visit_members(outcome, [&](const char* name, auto& member) {
    // Infinity is no JSON number; it was written as null.
    if constexpr (std::is_same_v<decltype(member), double&>) {
      member = json.at(name).is_null() ? INFINITY : json.at(name).get<double>();
    } else {
      json.at(name).get_to(member);
    }
  });
  return outcome;
}

}  // namespace fibshim::judge
