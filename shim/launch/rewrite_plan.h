// The plan of a rewrite: the kernels of several nodes of a graph, read as one launch.
#pragma once

#include "shim/launch/node_plan.h"
#include "shim/plan/rewrite_rules.h"

namespace fibshim {

// The launch of one of a rewrite's kernels.
struct MemberLaunch {
  const Record* record;
  NodeParams params;    // its node's; what it points to must live as long as the call
  uint32_t cluster[3];  // 0: none
};

// The launches of all kernels, read as one call. Not movable: it points into itself.
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

// All within a read section.

// The record of a kernel that is a member of some rewrite of the generation; learnt if need be. Null: of none.
const Record* find_member(const void* handle, const Generation& generation);
// True if the generation in force has such a member.
bool has_members(const void* handle);
bool is_member(const Record& record, const Rewrite& rewrite, uint32_t member);

// False: their arguments cannot be read, or the pattern's where does not hold.
bool read_call(const Generation& generation, const Rewrite& rewrite, const MemberLaunch* members,
               RewriteCall* out);
// Fills in the ranges that the kernels read and write, one for each of the rewrite's buffers that
// is not empty. False: one cannot be computed.
bool read_buffers(const RewriteCall& call, BufferRange* out, uint32_t* count);

// Whether the pattern that a node was planned by holds for it, whatever became of the plan.
bool holds_for_node(const LaunchPlan& plan, const NodeParams& params, const uint32_t (&cluster)[3]);

// Plans the one launch, and counts nothing. What it is counted as stands in the plan.
LaunchAction plan_rewrite(RewriteCall* call, NodePlan* plan);

// The counter of a rewrite that needs no solution to be counted.
CounterIndex counter_of_rewrite(const RewriteCall& call, Outcome outcome);

}  // namespace fibshim
