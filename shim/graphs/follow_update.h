// Repeats an update of the host's exec in the one that runs beside it.
#pragma once

#include "shim/graphs/survey.h"

namespace fibshim {

// Sets in the running variant's exec what the host's has taken over, if these are other parameters
// alone, and what was proved holds for them. False: it may hold some of them; make it anew. Requires
// the exec's lock, and a survey that is written.
bool follow_update(const Survey& survey, Exec* exec, Variant* running);

}  // namespace fibshim
