#include "shim/base/upcalls.h"

namespace fibshim::upcalls {

#define UPCALL(name, result) constinit std::atomic<result (*)()> g_##name{nullptr};
FIBSHIM_UPCALLS(UPCALL)
#undef UPCALL

}  // namespace fibshim::upcalls
