// What `fibshim swap` asks of the process in its control block (abi/control_format.h). The watcher's thread alone calls
// this.
#pragma once

#include <stdint.h>

namespace fibshim {

// Does what a word of the control block asks for, and answers.
void serve_request(uint32_t word);

// Does what the job has decided on a move that is prepared, or gives it up when its time is over.
void follow_decision();

}  // namespace fibshim
