#include "shim/hooks/call_real.h"

#include "shim/launch/lost_context.h"

namespace fibshim {

void report_failed_call(const void* slot, CUresult result) {
  if (find_sticky_error(result) != nullptr) report_if_lost(name_of_function(slot), result);
}

}  // namespace fibshim
