#include "shim/hooks/hook_addresses.h"

#include <string.h>

#include "shim/hooks/hooks.h"
#include "shim/launch/lost_context.h"

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

void report_failed_call(const void* slot, CUresult result) {
  if (find_sticky_error(result) == nullptr) return;
  for (const HookRow& row : kHooks) {
    if (row.real == slot) return report_if_lost(row.name, result);
  }
}

}  // namespace fibshim
