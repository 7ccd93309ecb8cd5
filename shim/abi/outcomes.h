// The outcomes of a launch, as one table from which the shim counts and `fibshim stats` prints.
// The numbers are part of the counters file's format: append, never renumber.
#pragma once

#include <stdint.h>

namespace fibshim {

enum class Outcome : uint8_t {
  hit,
  fallback_no_solution,
  fallback_where,
  fallback_arch,
  fallback_refused,
  fallback_in_capture,
  error,
  untracked,
  observed,
  fallback_quarantined,
  error_fallback,
  fallback_graph,
  absorbed,
  shadowed,
};

struct OutcomeInfo {
  Outcome outcome;
  const char* name;
  const char* meaning;
};

inline constexpr OutcomeInfo kOutcomes[] = {
    {Outcome::hit, "hit", "redirected"},
    {Outcome::fallback_no_solution, "fallback_no_solution",
     "a pattern named a definition that the folder has no solution for"},
    {Outcome::fallback_where, "fallback_where",
     "a where clause did not hold, or no solution's when"},
    {Outcome::fallback_arch, "fallback_arch", "no image for this GPU"},
    {Outcome::fallback_refused, "fallback_refused", "dtype, outputs or layout do not fit"},
    {Outcome::fallback_in_capture, "fallback_in_capture",
     "the stream is capturing and the decision was not ready"},
    {Outcome::error, "error",
     "a matched solution failed to load or to launch, and the call returned that"},
    {Outcome::untracked, "untracked", "no pattern knows this kernel"},
    {Outcome::observed, "observed", "would have been a hit, but FIBSHIM_MODE is observe"},
    {Outcome::fallback_quarantined, "fallback_quarantined",
     "its solution failed too often (FIBSHIM_QUARANTINE), or was found wrong "
     "(FIBSHIM_ON_MISMATCH)"},
    {Outcome::error_fallback, "error_fallback",
     "a matched solution failed to load or to launch, and the original ran"},
    {Outcome::fallback_graph, "fallback_graph",
     "a node of a graph that keeps its original; fibshim stats says why"},
    {Outcome::absorbed, "absorbed",
     "a node of a graph that does not run: a hit does its work (rewrite patterns)"},
    {Outcome::shadowed, "shadowed",
     "would have been a hit; the original ran, to be compared with the solution (FIBSHIM_SHADOW)"},
};
inline constexpr uint32_t kOutcomeCount = sizeof(kOutcomes) / sizeof(kOutcomes[0]);

}  // namespace fibshim
