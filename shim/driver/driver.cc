#include "shim/driver/driver.h"

#include <dlfcn.h>
#include <string.h>

#include "shim/hooks/hooks.h"
#include "shim/driver/real_dl.h"
#include "shim/launch/sticky_errors.h"

namespace fibshim {

namespace real {
#define HOOK(name, type) constinit std::atomic<type> name{nullptr};
#include "shim/driver/hook_table.h"
#undef HOOK
#define CALL(name, type) constinit std::atomic<type> name{nullptr};
FIBSHIM_CALLED_FUNCTIONS(CALL)
#undef CALL
}  // namespace real

namespace {

struct HookRow {
  const char* name;
  void* hook;
  std::atomic<void*>* slot;
};

// std::atomic of a function pointer and of void* have one representation on this platform.
template <class Function>
std::atomic<void*>* as_slot(std::atomic<Function>* slot) {
  static_assert(sizeof(*slot) == sizeof(std::atomic<void*>));
  return reinterpret_cast<std::atomic<void*>*>(slot);
}

const HookRow kHooks[] = {
#define HOOK(name, type) {#name, reinterpret_cast<void*>(&hook_##name), as_slot(&real::name)},
#include "shim/driver/hook_table.h"
#undef HOOK
};
constexpr int kHookCount = sizeof(kHooks) / sizeof(kHooks[0]);

struct CalledRow {
  const char* name;
  std::atomic<void*>* slot;
};

const CalledRow kCalled[] = {
#define CALL(name, type) {#name, as_slot(&real::name)},
    FIBSHIM_CALLED_FUNCTIONS(CALL)
#undef CALL
};

std::atomic<bool> g_is_resolved;

constexpr char kDriverSoname[] = "libcuda.so.1";

}  // namespace

bool resolve_driver() {
  if (__builtin_expect(g_is_resolved.load(std::memory_order_acquire), 1)) return true;
  if (!is_mapped(kDriverSoname)) return false;
  // The reference is kept: a driver that was once found stays mapped.
  void* library = dlopen(kDriverSoname, RTLD_LAZY | RTLD_NOLOAD);
  if (library == nullptr) return false;
  const DlsymFunction find = real_dlsym();
  for (const CalledRow& row : kCalled) {
    row.slot->store(find(library, row.name), std::memory_order_relaxed);
  }
  bool has_any = false;
  for (const HookRow& row : kHooks) {
    void* found = find(library, row.name);
    // A driver built without -Bsymbolic hands out this library's own export: never call ourselves.
    if (found == row.hook) found = nullptr;
    has_any = has_any || found != nullptr;
    row.slot->store(found, std::memory_order_relaxed);
  }
  (void)dlerror();  // of functions that this driver does not have
  if (has_any) g_is_resolved.store(true, std::memory_order_release);
  return has_any;
}

void note_failed_call(const void* slot, CUresult result) {
  if (find_sticky_error(result) == nullptr) return;
  const char* name = "a call";
  for (const HookRow& row : kHooks) {
    if (row.slot == slot) name = row.name;
  }
  note_error(name, result);
}

void* exchange_pointer(void* given) {
  for (const HookRow& row : kHooks) {
    if (row.slot->load(std::memory_order_relaxed) == given) return row.hook;
  }
  return given;
}

void* hook_for_name(const char* name) {
  if (name[0] != 'c' || name[1] != 'u') return nullptr;
  for (int i = 0; i < kHookCount; ++i) {
    if (strcmp(kHooks[i].name, name) == 0) return kHooks[i].hook;
  }
  return nullptr;
}

}  // namespace fibshim
