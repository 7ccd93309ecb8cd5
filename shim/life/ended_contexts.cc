#include "shim/life/ended_contexts.h"

#include "shim/driver/context_scope.h"
#include "shim/graphs/exec_table.h"
#include "shim/launch/captures.h"
#include "shim/launch/lost_context.h"
#include "shim/launch/recording.h"
#include "shim/launch/shadow_launch.h"
#include "shim/launch/workspace.h"
#include "shim/registry/devices.h"
#include "shim/registry/handles.h"
#include "shim/registry/modules.h"

namespace fibshim {

void forget_functions_of_ending(CUcontext context) {
  forget_functions(context);
  drop_recording_events();
}

void forget_modules_of_ended(CUcontext context) {
  freeze_execs_of_context(context);
  forget_modules_of_context(context);
  forget_workspaces_of_context(context);
}

void forget_contexts_that_ended_here() {
  uint64_t ended = g_ended_primary_contexts.exchange(0, std::memory_order_acq_rel);
  for (; ended != 0; ended &= ended - 1) {
    const auto device = static_cast<CUdevice>(__builtin_ctzll(ended));
    const CUcontext context = primary_context_of(device);
    forget_functions_of_ending(context);
    count_ended_stream();
    drop_shadow_of_context(context);
    forget_modules_of_ended(context);
    end_captures_of_primary_context(device, false);
    forget_lost_primary_context(device);
  }
}

}  // namespace fibshim
