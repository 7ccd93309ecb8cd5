// What a redirected launch leaves behind where a stream is capturing: the host may read the node, and must find
// its own kernel.
#pragma once

#include "shim/graphs/graphs.h"

namespace fibshim {

// From before the launch until the driver has answered. Does nothing for a plan that is no redirect, nor while
// no stream of the process captures.
class CapturedLaunch {
 public:
  CapturedLaunch(const LaunchRequest& request, const LaunchPlan& plan);
  CapturedLaunch(const CapturedLaunch&) = delete;
  CapturedLaunch& operator=(const CapturedLaunch&) = delete;

  // False: no memory for the original.
  bool can_be_redirected() const { return !is_needed_ || saved_ != nullptr; }

  // Keeps the original of the node that the launch became, or gives it up.
  void end(CUresult result) const;

 private:
  const LaunchRequest& request_;
  bool is_needed_;
  SavedNode* saved_;
};

}  // namespace fibshim
