// What looks wrong about a folder that can be loaded as it is: patterns that never decide, launches
// that CUDA would refuse, definitions that nothing solves. `fibshim check` asks for it, an engine
// does not. Only what can be shown is said: a pattern that might match is left alone.
#ifndef FIBSHIM_TOOLS_LINT_ADVICE_H_
#define FIBSHIM_TOOLS_LINT_ADVICE_H_

#include "loader/check/check.h"
#include "loader/read/diagnostics.h"
#include "loader/compile/model.h"

namespace fibshim {

// `model` has been bound and has no error that keeps it from loading.
void advise(const FolderModel& model, const CheckOptions& options, Diagnostics* diagnostics);

}  // namespace fibshim

#endif  // FIBSHIM_TOOLS_LINT_ADVICE_H_
