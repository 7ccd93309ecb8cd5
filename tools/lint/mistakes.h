// Mistakes in a folder that loads: what it says is sound, and cannot be what its writer meant. `fibshim
// check` names them as errors; an engine, which loads the folder, does not look for them.
#pragma once

#include "loader/compile/model.h"
#include "loader/read/diagnostics.h"

namespace fibshim {

// `model` has been bound and has no error that keeps it from loading.
void find_mistakes(const FolderModel& model, Diagnostics* diagnostics);

}  // namespace fibshim
