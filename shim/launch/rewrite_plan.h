// Plans a rewrite: the kernels of several nodes of a graph, read as one launch.
#pragma once

#include "shim/launch/node_plan.h"
#include "shim/plan/rewrite_rules.h"

namespace fibshim {

// The launch of one of a rewrite's kernels.
struct MemberLaunch {
  const Record* record;
  NodeParams params;    // its node's; what they point to must live as long as the RewriteCall
  uint32_t cluster[3];  // 0: none
};

// The launches of all kernels, read as one launch. Not movable: it points into itself.
struct RewriteCall {
  RewriteCall() = default;
  RewriteCall(const RewriteCall&) = delete;
  RewriteCall& operator=(const RewriteCall&) = delete;

  const Rewrite* rewrite;
  NodeParams first;
  Record record;
  Candidate candidate;
  LaunchRequest request;
  Param layout[kMaxParams];
  void* params[kMaxParams];
  uint32_t geometry[kMaxRewriteKernels][kGeometryCount];
};

// The decision of an earlier launch, which holds for others of the same kernels and key.
struct KnownDecision {
  const Rewrite* rewrite;  // null: none
  HandleKind kind;
  CUcontext context;
  uint32_t key_count;
  int64_t key[kMaxKey];
  DecisionRoom room;
};

// All functions require a read section.

// Returns the record of a kernel that is a member of some rewrite of the generation. Learns the
// handle if needed. Null: of no rewrite.
const Record* find_member(const void* handle, const Generation& generation);
// True if the kernel is such a member in the generation in force.
bool has_members(const void* handle);
bool is_member(const Record& record, const Rewrite& rewrite, uint32_t member);

// Returns false if the arguments cannot be read, or the pattern's `where` does not hold.
bool read_call(const Generation& generation, const Rewrite& rewrite, const MemberLaunch* members,
               RewriteCall* out);
// Fills in the ranges that the kernels read and write, one for each nonempty buffer of the rewrite.
// False: one cannot be computed.
bool read_buffers(const RewriteCall& call, BufferRange* out, uint32_t* count);

// True if the `where` of a planned node's pattern holds, even if the plan was refused.
bool holds_for_node(const LaunchPlan& plan, const NodeParams& params, const uint32_t (&cluster)[3]);

// Plans the one launch, and counts nothing. The plan holds its counter. `known`: of this generation,
// without quarantined solutions; used if it fits, else overwritten; null: none.
LaunchAction plan_rewrite(RewriteCall* call, NodePlan* plan, KnownDecision* known = nullptr);

// Returns the counter of a rewrite for an outcome without a solution.
CounterIndex counter_of_rewrite(const RewriteCall& call, Outcome outcome);

}  // namespace fibshim
