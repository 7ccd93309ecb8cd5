#include "shim/hooks/resolve_hooks.h"

#include <string.h>

#include "shim/base/settings_in_force.h"
#include "shim/hooks/call_real.h"
#include "shim/hooks/hooks.h"

namespace fibshim {
namespace {

struct HookRow {
  const char* name;
  void* hook;
  const std::atomic<void*>* real;
};

const HookRow kHooks[] = {
#define HOOK(name, type) {#name, reinterpret_cast<void*>(&hook_##name), as_slot(&real::name)},
#include "shim/driver/hook_table.h"
#undef HOOK
};

void exchange_result(CUresult result, void** function) {
  if (result == CUDA_SUCCESS && function != nullptr && *function != nullptr && is_active() &&
      resolve_driver()) {
    *function = exchange_pointer(*function);
  }
}

}  // namespace

void* exchange_pointer(void* given) {
  for (const HookRow& row : kHooks) {
    if (row.real->load(std::memory_order_relaxed) == given) return row.hook;
  }
  return given;
}

void* hook_for_name(const char* name) {
  if (name[0] != 'c' || name[1] != 'u') return nullptr;
  for (const HookRow& row : kHooks) {
    if (strcmp(row.name, name) == 0) return row.hook;
  }
  return nullptr;
}

}  // namespace fibshim

using namespace fibshim;  // NOLINT(google-build-using-namespace): hooks

// The real call comes first, with the caller's own version and flags. Then the pointer is
// exchanged.
CUresult hook_cuGetProcAddress(const char* symbol, void** function, int version, cuuint64_t flags) {
  const CUresult result = call_real(real::cuGetProcAddress, symbol, function, version, flags);
  exchange_result(result, function);
  return result;
}

CUresult hook_cuGetProcAddress_v2(const char* symbol, void** function, int version,
                                  cuuint64_t flags, CUdriverProcAddressQueryResult* status) {
  const CUresult result =
      call_real(real::cuGetProcAddress_v2, symbol, function, version, flags, status);
  exchange_result(result, function);
  return result;
}
