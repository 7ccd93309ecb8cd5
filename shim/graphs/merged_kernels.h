// Kernels of a graph that run as one launch (rewrites.h): how that launch is read again, and how it
// follows changes of their parameters.
//
// All functions require a read section.
#pragma once

#include "shim/graphs/exec_table.h"
#include "shim/launch/rewrite_plan.h"

namespace fibshim {

// Reads the launches of a rewrite's kernels as one. `kernels`: their indexes among `nodes`, in the
// rewrite's order; `params`: theirs. False: a kernel is none of the rewrite's, or its pattern does
// not fit. `generation`: the rewrite's, which need not be in force any more.
bool read_merged(const Generation& generation, const Block<KernelNode>& nodes,
                 const Rewrite& rewrite, const uint32_t* kernels, const NodeParams* params,
                 RewriteCall* call);

// Reads what runs in the node of kernel `first` of `variant`. `kernels`: gets its kernels, in the
// rewrite's order. False: there is none, it is of another generation than the one in force, or it
// cannot be read.
bool read_instance(const Originals& originals, const Variant& variant, size_t first,
                   uint32_t (&kernels)[kMaxRewriteKernels], RewriteCall* call);

// Repeats changed parameters in an exec that runs beside the host's. Whatever was proved when it was
// made must hold for the new values, too; otherwise, and if the driver refuses, a function returns
// false: make another exec, since this one may hold some of the changes. Requires the exec's lock.
class Following {
 public:
  // `written`: has the new parameters; null: the originals hold them.
  Following(Exec* exec, Variant* variant, const TakenOver* written);

  // False: nothing can be followed.
  bool may_follow() const { return may_follow_; }
  // Call for each changed kernel, then finish(). `params`: its new ones; `planned`: as planned for
  // it alone.
  bool change(size_t index, const NodeParams& params, PlannedNode& planned);
  bool finish();

 private:
  bool is_apart(size_t index, const NodeParams& params, const Merge* own);
  bool follow_merge(const Merge& merge);
  bool set(CUgraphNode node, const NodeParams& params) const;

  Exec* exec_;
  Variant* variant_;
  const TakenOver* written_;
  const Generation* generation_;  // the variant's, if it may be followed
  bool may_follow_;
  Block<bool> is_changed_;  // of each of Merges::all; false outside the following
  uint32_t first_changed_ = UINT32_MAX;
  uint32_t end_changed_ = 0;
  Block<BufferRange> ranges_;  // room
};

}  // namespace fibshim
