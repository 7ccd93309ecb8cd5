// One launch that is checked (FIBSHIM_SHADOW): the solution runs on copies of what the launch
// writes, the original on the host's own memory, and a kernel compares both (abi/shadow_api.h). The
// host sees what the original has written.
//
// The solution runs first, when nothing that it reads has changed yet; memory that it both reads
// and writes is copied. A check never prevents the original: a launch that cannot be checked is
// counted by its reason.
#pragma once

#include "shim/abi/shadow_api.h"
#include "shim/plan/plan.h"

namespace fibshim {

// Call once, after libfibshadow.so was opened.
void start_shadow(const ShadowApi& api);
bool has_shadow();

// Allocates memory for the checks of the current context, unless a stream of the process captures.
void prepare_shadow();

class ShadowLaunch {
 public:
  // Begins a check of a launch that `plan` would redirect: reserves room and copies. With `nodes`
  // the launch is a node of a graph, to which nodes that copy are added.
  ShadowLaunch(const LaunchRequest& request, const LaunchPlan& plan, ShadowNodes* nodes = nullptr);
  ShadowLaunch(const ShadowLaunch&) = delete;
  ShadowLaunch& operator=(const ShadowLaunch&) = delete;

  // Returns the solution's launch on the copies, or null if there is no check.
  LaunchPlan* plan() { return miss_ == ShadowMiss::none ? &plan_ : nullptr; }
  ShadowMiss miss() const { return miss_; }
  // Call if the launch on the copies failed.
  void give_up(CUresult result);
  // Call after the original's launch.
  void compare(bool has_original);
  // Adds the comparison after the original's node. Null: the driver refuses.
  CUgraphNode compare_in_graph(CUgraphNode node) const;

 private:
  void begin(const LaunchRequest& request, const LaunchPlan& plan);
  ShadowMiss begin_in_stream();
  ShadowMiss find_blocks(const LaunchPlan& plan, const LaunchView& view);
  ShadowMiss redirect_to_copies(const LaunchRequest& request, const LaunchPlan& plan);

  ShadowNodes* const nodes_;  // null: an eager launch
  ShadowMiss miss_ = ShadowMiss::none;
  bool has_room_ = false;
  ShadowCheck check_;
  struct Tensor {
    const TensorUse* use;
    uint64_t pointer;         // as the host passes it
    uint64_t address, bytes;  // what it means
    uint64_t count[kMaxShadowAxes], stride[kMaxShadowAxes];
  };
  bool is_compared(const Tensor& tensor) const;
  bool has_compared() const;
  bool can_all_move() const;
  uint32_t tensor_count_ = 0;
  Tensor tensors_[kMaxTensors];
  LaunchPlan plan_;
  void* params_[kMaxParams];
  uint32_t patched_bytes_ = 0;
  // Parameters with pointers to copies: a kernel has no more than 4096 bytes, but for a few whose
  // launches are not checked.
  alignas(16) char patched_[4096];
};

// Counts a launch of a graph that was to be checked but had no checks. `series`: of a node that
// would have had one; `lacks_room`: there was no memory for the exec with them.
void count_unchecked_graph(uint32_t series, bool lacks_room);
// Call for each check in a graph that will not be launched again. `number`: ShadowNodes::number.
void end_check_in_graph(uint32_t number, bool was_launched);

// Called by the watcher: reports finished checks. `may_call_driver`: also allocates memory that
// launches have asked for. Returns true if more results are to come.
bool work_on_shadow(bool may_call_driver);

// Call before a context ends, or after it has ended; null: any.
void drop_shadow_of_context(CUcontext context);

// For the atfork handlers.
void lock_shadow_for_fork();
void unlock_shadow_after_fork(bool is_child);

}  // namespace fibshim
