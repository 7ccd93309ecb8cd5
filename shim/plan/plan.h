// The plan: what happens to one launch.
//
//   (record, snapshot, launch)  ->  plan
//
// All rules are here, once: eager launches on the slow side, kernel nodes of graphs, `verify`,
// `bench`, `record` and `suggest` all call plan_launch(). The fast side, and at first kernel nodes,
// use fast_plan.h, which executes the fast form that the loader has made of the same binding. Pure:
// no driver, no globals, no allocation, no counts. What needs those (loading an image, caching a
// decision) is done by `decide`, which the caller passes. In any doubt the plan is the original.
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
  bool is_per_thread_stream;  // stream 0 is the per-thread default stream
  bool must_keep_kernel;      // something else refers to the original's node: count, never redirect
};

enum class LaunchAction : uint8_t {
  original,  // call the driver with the host's own arguments
  redirect,  // launch `decision->kernel` with `params` and `geometry`
  fail,      // return `decision->error`
};

// The plan of one launch, with room for its values. On the caller's stack; not zeroed.
struct LaunchPlan {
  LaunchAction action;
  Outcome outcome;             // what the launch is counted as once it was made
  const Record* record;        // of the original; null: its handle is unknown
  void* const* arguments;      // the original's, one pointer each; null: they cannot be read
  const Candidate* candidate;  // the one that decided or came nearest; null: no pattern fits
  const Decision* decision;    // its decision; null: the definition's name could not be computed
  void** params;
  uint32_t geometry[kGeometryCount];
  int64_t workspace_bytes;  // that put_workspace() must supply; 0: none
  void* pointers[kMaxParams];
  int64_t values[kMaxParams];
  void* unpacked[kMaxParams];
  DecisionRoom uncached;  // for `decide`, if there is no memory to cache the decision
};

// Computes the launch's values that are part of the definition's name. False: one has no value.
bool compute_key(const Candidate& candidate, const LaunchView& view, int64_t* key);

// Returns the first decision of a choice whose `when` holds for the launch, or null.
const Decision* choose(const Decision& choice, const LaunchView& view);

// Parameters that the host packed into one buffer, which may end before the last one does, as
// NCCL's.
struct PackedParams {
  char* bytes;  // null: `extra` is malformed
  size_t size;
};
PackedParams read_packed(void** extra);

// Fills `out` with pointers to all parameters in a packed buffer (`extra`). False: it is malformed.
bool unpack_extra(const Record& record, void** extra, void** out);

// Finds the arguments in `request`, in either form. Returns false if they cannot be read; the
// driver will refuse such a launch.
bool find_arguments(const Record& record, LaunchRequest* request, LaunchPlan* plan);

// Plans a launch for the decision of one of its candidates.
void plan_decided(const Candidate& candidate, const Decision& decision, Mode mode,
                  const LaunchRequest& request, LaunchPlan* plan);

// Compute the replacement's geometry, one value of it, and its arguments. False: a value cannot be
// computed or is out of range.
bool compute_geometry(const Decision& decision, const LaunchView& view,
                      uint32_t (&geometry)[kGeometryCount]);
bool compute_dimension(const Decision& decision, uint32_t index, const LaunchView& view,
                       uint32_t* out);
bool compute_arguments(const Decision& decision, const LaunchView& view, void** pointers,
                       int64_t* values);
// The same, unless the replacement takes the original's arguments unchanged.
inline bool choose_arguments(const Decision& decision, const LaunchView& view, void** pointers,
                             int64_t* values, void*** arguments) {
  const bool is_identity = decision.binding->is_identity != 0;
  *arguments = is_identity ? const_cast<void**>(view.params) : pointers;
  return is_identity || compute_arguments(decision, view, pointers, values);
}

// Returns what a launch with such a decision is counted as, if nothing else prevents it.
Outcome outcome_of(DecisionKind kind);

// Returns the solution of a decision that has one.
inline const Solution& solution_of(const Decision& decision) {
  const Snapshot& snapshot = *decision.snapshot;
  return snapshot.begin(snapshot.solutions)[decision.binding->solution];
}

// Reads a pointer of the original's and adds its shift. False: that cannot be computed.
bool read_pointer(const Snapshot& snapshot, const LaunchView& view, uint32_t param, uint32_t offset,
                  Program shift, uint64_t* address);

// Completes the arguments of a redirect with the address of its workspace.
inline void put_workspace(uint64_t address, LaunchPlan* plan) {
  plan->values[solution_of(*plan->decision).workspace - 1] = static_cast<int64_t>(address);
}

// True if the `where` of the pattern, or of the solution, holds.
bool pattern_holds(const Candidate& candidate, const LaunchView& view);
bool solution_holds(const Decision& decision, const LaunchView& view);

// How far a candidate came that did not decide. The plan reports the first of the furthest.
enum class Stage : uint8_t { none, no_key, where, no_solution, when };
void keep_nearest(Stage stage, const Candidate& candidate, const Decision* decision,
                  Stage* furthest, LaunchPlan* plan);

// Tries the record's candidates in order. `decide(candidate, key)` returns the decision for a
// candidate's key, cached or made now.
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
  drop,      // describes the original alone: its cluster, its cooperative launch
  if_waits,  // keep only for a replacement that waits for the kernel before it
};
AttributeRule rule_of(CUlaunchAttributeID id);

inline constexpr unsigned kMaxAttributes = 32;

inline CUlaunchAttribute cluster_attribute(const uint32_t* geometry) {
  CUlaunchAttribute attribute = {};
  attribute.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
  attribute.value.clusterDim = {geometry[kClusterX], geometry[kClusterY], geometry[kClusterZ]};
  return attribute;
}

// Copies the host's attributes that apply to the replacement; adds its cluster. False: too many.
bool plan_attributes(const CUlaunchAttribute* given, unsigned given_count, const LaunchPlan& plan,
                     CUlaunchAttribute (&out)[kMaxAttributes], unsigned* out_count);

// True if kernels on the device update the node: its parameters are written elsewhere, so it keeps
// its kernel.
bool is_device_updatable(const CUlaunchAttribute* attributes, unsigned count);

// Into what the driver takes: the parameters of a launch or of a node.
template <class Target>
void put_geometry(const uint32_t* geometry, Target* target) {
  target->gridDimX = geometry[kGridX];
  target->gridDimY = geometry[kGridY];
  target->gridDimZ = geometry[kGridZ];
  target->blockDimX = geometry[kBlockX];
  target->blockDimY = geometry[kBlockY];
  target->blockDimZ = geometry[kBlockZ];
  target->sharedMemBytes = geometry[kSharedMem];
}

// The reverse. Writes no cluster.
template <class Source>
void get_geometry(const Source& source, uint32_t* geometry) {
  geometry[kGridX] = source.gridDimX;
  geometry[kGridY] = source.gridDimY;
  geometry[kGridZ] = source.gridDimZ;
  geometry[kBlockX] = source.blockDimX;
  geometry[kBlockY] = source.blockDimY;
  geometry[kBlockZ] = source.blockDimZ;
  geometry[kSharedMem] = source.sharedMemBytes;
}

inline bool has_cluster(const LaunchPlan& plan) { return plan.decision->binding->has_cluster != 0; }

}  // namespace fibshim
