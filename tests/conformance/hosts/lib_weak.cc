// libconform_weak.so: weak references to every hooked function, as libraries have that work with and
// without a driver. Bound to the shim's exports, or to nothing.
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

// What the reference of that index is bound to; `name` is null behind the last.
extern "C" __attribute__((visibility("default"))) void* conform_weak_hook(int index,
                                                                          const char** name) {
  constexpr int count = sizeof kHooks / sizeof kHooks[0];
  *name = index < count ? kHooks[index].name : nullptr;
  return index < count ? reinterpret_cast<void*>(kHooks[index].bound) : nullptr;
}
