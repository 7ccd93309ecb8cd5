// Serves requests that `fibshim swap` and `fibshim shadow` make in the process's control block
// (abi/control_format.h). Called only by the watcher.
#pragma once

#include <stdint.h>

namespace fibshim {

// Executes the request of this value of ControlBlock::ask, and answers it.
void serve_request(uint32_t word);

// Executes the job's decision on a prepared move, or aborts the move when its time is over.
void follow_decision();

}  // namespace fibshim
