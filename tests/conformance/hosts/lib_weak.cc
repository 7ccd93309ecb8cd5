// libconform_weak.so: weak references to every hooked function, as in libraries that work with and
// without a driver. They are bound to the shim's exports, or to nothing.
#define HOOK(name, type) extern "C" __attribute__((weak)) int weak_##name(...) __asm__(#name);
#include "shim/driver/hook_table.h"
#undef HOOK

namespace {

struct Hook {
  const char* name;
  int (*bound)(...);
};

const Hook kHooks[] = {
#define HOOK(name, type) {#name, &weak_##name},
#include "shim/driver/hook_table.h"
#undef HOOK
};

}  // namespace

// Returns what the reference of that index is bound to; past the last one, *name is null.
extern "C" __attribute__((visibility("default"))) void* conform_weak_hook(int index,
                                                                          const char** name) {
  constexpr int count = sizeof kHooks / sizeof kHooks[0];
  *name = index < count ? kHooks[index].name : nullptr;
  return index < count ? reinterpret_cast<void*>(kHooks[index].bound) : nullptr;
}
