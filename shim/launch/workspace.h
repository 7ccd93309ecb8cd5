// Workspaces: device memory of a solution's own, which "workspace" in its launch block asks for.
//
// Launches in one stream run one after the other, and so share one block for each solution; a node
// of a graph has a block of its own, or shares one with nodes of its exec that it is ordered with.
// A block is zeroed when it is made and never again. All blocks of a process have kMaxWorkspace
// bytes at most. Slow path: makes driver calls.
#pragma once

#include "shim/plan/plan.h"
#include "shim/registry/generation.h"

namespace fibshim {

struct Workspace {
  // Whose it is. A later generation may have another solution at the same address.
  const Solution* owner;
  uint64_t generation;

  // Of a stream's block.
  uint64_t key;
  Workspace* next;
  uint64_t
      stream;  // its id, which is never used again, unlike its handle; 0: the block is a graph's

  CUcontext context;
  uint64_t address;
  int64_t bytes;
  bool is_gone;      // with its context
  bool is_released;  // it is to be freed
  Workspace* newer;
  Workspace* older;
};

// Completes the plan of a launch, a redirect with workspace_bytes, by the stream's block. Returns
// false if it cannot be had.
bool give_workspace(const LaunchRequest& request, LaunchPlan* plan);

// True if the block can be that of this plan.
inline bool suits(const Workspace& workspace, const LaunchPlan& plan) {
  return workspace.owner == &solution_of(*plan.decision) &&
         workspace.generation == plan.candidate->generation->number &&
         workspace.bytes >= plan.workspace_bytes;
}

// Makes a block for a node of a graph with this plan. `context`: null: the current one. Null: it
// cannot be had.
Workspace* make_workspace(CUcontext context, const LaunchPlan& plan);
// Leaves the block to the watcher, which frees it: that waits for what runs, as no call of the host
// may.
void release_workspace(Workspace* workspace);
void free_released_workspaces();

// Call before a stream, a context, or what belongs to a generation ends. Blocks of graphs are
// released by their owners.
void end_workspaces_of_stream(CUstream stream);
void end_workspaces_of_context(CUcontext context);
void end_workspaces_of_generation(uint64_t number);
// Call if a context, and their memory with it, ends or has ended. Null: it is unknown which.
void forget_workspaces_of_context(CUcontext context);

// For the atfork handlers.
void lock_workspaces_for_fork();
void unlock_workspaces_after_fork(bool is_child);

}  // namespace fibshim
