// Messages to people: one line each, "fibshim[pid] level: text", to stderr or FIBSHIM_LOG_FILE.
//
// Never on the launch path's fast side. Uses a stack buffer and one write(2): no allocation, no
// stdio lock, so that it can be called while the host holds any lock of its own.
#pragma once

#include "shim/abi/settings.h"

namespace fibshim {

// Writes if FIBSHIM_LOG includes `level`. Cuts the text at about 2000 bytes.
void log_message(LogLevel level, const char* format, ...) __attribute__((format(printf, 2, 3)));

}  // namespace fibshim
