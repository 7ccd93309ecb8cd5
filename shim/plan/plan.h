// The plan: what becomes of one launch.
//
//   (record, snapshot, launch)  ->  plan
//
// Everything that decides is here, once: eager launches on the slow side, kernel nodes of graphs, `verify`,
// `bench`, `record` and `suggest` all ask plan_launch(); the fast side, and kernel nodes first of all, ask
// fast_plan.h, which carries out the form that the loader has made of the same binding. Pure: no driver, no
// globals, no allocation, no counts. What needs those (loading an image, caching a decision) is the caller's,
// passed in as `decide`.
// In any doubt the plan is the original.
#pragma once

#include "shim/abi/outcomes.h"
#include "shim/abi/settings.h"
#include "shim/abi/snapshot.h"
#include "shim/plan/fit.h"
#include "shim/plan/resolution.h"
#include "shim/registry/record.h"

namespace fibshim {

// One launch as the host asked for it. `view.params` is null when `extra` holds a packed buffer.
struct LaunchRequest {
  const void* handle;
  LaunchView view;
  void** extra;
  CUstream stream;
  bool is_per_thread_stream;  // what stream 0 is
  bool must_keep_kernel;      // something else refers to the original's node: count, never redirect
};

enum class LaunchAction : uint8_t {
  original,  // call the driver with the host's own arguments
  redirect,  // launch `decision->kernel` with `params` and `geometry`
  fail,      // return `decision->error`
};

// What to do instead, and room for it. Lives on the caller's stack; not zeroed.
struct LaunchPlan {
  LaunchAction action;
  Outcome outcome;             // what the launch is counted as, once it was made
  const Record* record;        // of the original; null: its handle is not known
  void* const* arguments;      // the original's, one pointer each; null: they cannot be read
  const Candidate* candidate;  // that decided, or came nearest; null: no pattern fits
  const Decision* decision;    // its decision; null: the definition's name could not be computed
  void** params;
  uint32_t geometry[kGeometryCount];
  void* pointers[kMaxParams];
  int64_t values[kMaxParams];
  void* unpacked[kMaxParams];
  DecisionRoom uncached;  // for `decide`, where there is no memory to keep the decision
};

// The values of the launch that the definition's name holds. False: they cannot be computed.
bool compute_key(const Candidate& candidate, const LaunchView& view, int64_t* key);

// Which of them a launch has; null: no `when` is for it.
const Decision* choose(const Decision& choice, const LaunchView& view);

// A packed buffer (`extra`) as pointers to the single parameters, of which `out` has room for all. False: not one that can be read.
bool unpack_extra(const Record& record, void** extra, void** out);

// Finds the arguments in `request`, of whichever form. False: not in one that can be read; the driver
// will refuse such a launch.
bool find_arguments(const Record& record, LaunchRequest* request, LaunchPlan* plan);

// A launch whose candidate has decided.
void plan_decided(const Candidate& candidate, const Decision& decision, Mode mode,
                  const LaunchRequest& request, LaunchPlan* plan);

// The replacement's geometry, one value of it, and its arguments. False: one of them has no value.
bool compute_geometry(const Decision& decision, const LaunchView& view,
                      uint32_t (&geometry)[kGeometryCount]);
bool compute_dimension(const Decision& decision, uint32_t index, const LaunchView& view,
                       uint32_t* out);
bool compute_arguments(const Decision& decision, const LaunchView& view, void** pointers,
                       int64_t* values);

// What a launch with such a decision is counted as, when nothing else is in its way.
Outcome outcome_of(DecisionKind kind);

// Whether the pattern's own where clause holds, and the solution's.
bool pattern_holds(const Candidate& candidate, const LaunchView& view);
bool solution_holds(const Decision& decision, const LaunchView& view);

// How far a candidate that did not decide has come. The plan reports the furthest; of equals, the first.
enum class Stage : uint8_t { none, no_key, where, no_solution, when };
void keep_nearest(Stage stage, const Candidate& candidate, const Decision* decision,
                  Stage* furthest, LaunchPlan* plan);

// Tries the record's candidates in order. `decide(candidate, key)` gives the decision for a candidate's
// key: cached or made now, never null.
template <class Decide>
void plan_launch(const Record& record, Mode mode, LaunchRequest* request, LaunchPlan* plan,
                 const Decide& decide) {
  plan->action = LaunchAction::original;
  plan->outcome = Outcome::untracked;
  plan->record = &record;
  plan->arguments = nullptr;
  plan->candidate = nullptr;
  plan->decision = nullptr;
  if (!find_arguments(record, request, plan)) return;
  plan->arguments = request->view.params;
  Stage furthest = Stage::none;
  for (uint32_t i = 0; i < record.candidate_count; ++i) {
    Candidate& candidate = record.candidates[i];
    request->view.captures = candidate.captures;
    int64_t key[kMaxKey];
    if (!compute_key(candidate, request->view, key)) {
      keep_nearest(Stage::no_key, candidate, nullptr, &furthest, plan);
      continue;
    }
    const Decision& decision = decide(candidate, key);
    if (!pattern_holds(candidate, request->view)) {
      keep_nearest(Stage::where, candidate, &decision, &furthest, plan);
    } else if (decision.kind == DecisionKind::no_solution) {
      keep_nearest(Stage::no_solution, candidate, &decision, &furthest, plan);
    } else if (decision.kind != DecisionKind::choice) {
      return plan_decided(candidate, decision, mode, *request, plan);
    } else if (const Decision* const chosen = choose(decision, request->view)) {
      return plan_decided(candidate, *chosen, mode, *request, plan);
    } else {
      keep_nearest(Stage::when, candidate, &decision, &furthest, plan);
    }
  }
}

// --- attributes, of launches and of graph nodes ---

enum class AttributeRule : uint8_t {
  keep,
  drop,      // it is about the original: its cluster, its cooperation
  if_waits,  // only for a replacement that waits for the kernel before it
};
AttributeRule rule_of(CUlaunchAttributeID id);

inline constexpr unsigned kMaxAttributes = 32;

// The host's attributes as far as they hold for the replacement, and its cluster. False: too many to copy.
bool plan_attributes(const CUlaunchAttribute* given, unsigned given_count, const LaunchPlan& plan,
                     CUlaunchAttribute (&out)[kMaxAttributes], unsigned* out_count);

// The device itself updates the node: its parameters are written elsewhere, so it keeps its kernel.
bool is_device_updatable(const CUlaunchAttribute* attributes, unsigned count);

inline bool has_cluster(const LaunchPlan& plan) { return plan.decision->binding->has_cluster != 0; }

}  // namespace fibshim
