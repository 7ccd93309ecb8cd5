#include "shim/driver/driver.h"

#include <dlfcn.h>
#include <stdio.h>

#include "shim/driver/real_dl.h"

namespace fibshim {

// The line of what the fast side reads begins here.
asm(".pushsection fibshim_hot, \"aw\"; .balign 64; .popsection");

namespace real {
#define HOOK(name, type) constinit std::atomic<type> name{nullptr};
#include "shim/driver/hook_table.h"
#undef HOOK
#define CALL(name, type) constinit std::atomic<type> name{nullptr};
FIBSHIM_CALLED_FUNCTIONS(CALL)
#undef CALL
}  // namespace real

namespace {

struct Row {
  const char* name;
  std::atomic<void*>* slot;
};

const Row kFunctions[] = {
#define HOOK(name, type) {#name, as_slot(&real::name)},
#include "shim/driver/hook_table.h"
#undef HOOK
#define CALL(name, type) {#name, as_slot(&real::name)},
    FIBSHIM_CALLED_FUNCTIONS(CALL)
#undef CALL
};

// Defined by the linker: the address range of this library.
extern "C" const char __ehdr_start[] __attribute__((visibility("hidden")));
extern "C" const char _end[] __attribute__((visibility("hidden")));

// True for this library's own exports, which a driver that was built without -Bsymbolic returns.
bool is_own(const void* function) { return function >= __ehdr_start && function < _end; }

std::atomic<bool> g_is_resolved;
std::atomic<void*> g_library;  // written before g_is_resolved

constexpr char kDriverSoname[] = "libcuda.so.1";

}  // namespace

bool resolve_driver() {
  if (__builtin_expect(g_is_resolved.load(std::memory_order_acquire), 1)) return true;
  if (!is_mapped(kDriverSoname)) return false;
  // The reference is never released, so the driver stays mapped.
  void* const library = real_dlopen()(kDriverSoname, RTLD_LAZY | RTLD_NOLOAD);
  if (library == nullptr) return false;
  const DlsymFunction find = real_dlsym();
  bool has_any = false;
  for (const Row& row : kFunctions) {
    void* found = find(library, row.name);
    if (is_own(found)) found = nullptr;
    has_any = has_any || found != nullptr;
    row.slot->store(found, std::memory_order_relaxed);
  }
  (void)dlerror();  // clears errors for functions that this driver does not have
  g_library.store(library, std::memory_order_relaxed);
  if (has_any) g_is_resolved.store(true, std::memory_order_release);
  return has_any;
}

ErrorText::ErrorText(CUresult result) {
  const char* name = nullptr;
  if (call_driver(real::cuGetErrorName, result, &name) != CUDA_SUCCESS) name = nullptr;
  snprintf(text, sizeof text, "%s (%d)", name == nullptr ? "CUDA error" : name,
           static_cast<int>(result));
}

const char* name_of_function(const void* slot) {
  for (const Row& row : kFunctions) {
    if (row.slot == slot) return row.name;
  }
  return "a call";
}

void* find_driver_function(const char* name) {
  if (!resolve_driver()) return nullptr;
  void* const found = real_dlsym()(g_library.load(std::memory_order_relaxed), name);
  return is_own(found) ? nullptr : found;
}

}  // namespace fibshim
