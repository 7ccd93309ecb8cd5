// Brings a decision into the form that the fast side of a launch carries out: compact, and without
// expressions where the common ones do.
//
// The commonest expressions are recognised by their compiled steps: alignment and null checks, and a
// geometry value that is a number, one of the launch's own, an int32 parameter, or those divided with
// ceil_div and limited with min. A decision that has others is carried out with the interpreter; one
// that the fast side cannot carry out at all is left to the slow side.
#ifndef FIBSHIM_SHIM_LAUNCH_FAST_FORM_H_
#define FIBSHIM_SHIM_LAUNCH_FAST_FORM_H_

#include "shim/registry/decisions.h"

namespace fibshim {

// Fills what the fast side reads of a decision that is about to be published. Slow path only.
void make_ready_for_fast_side(const Candidate& candidate, Decision* decision);

}  // namespace fibshim

#endif  // FIBSHIM_SHIM_LAUNCH_FAST_FORM_H_
