// A program that is linked against libcuda.so.1, as few are: its references to hooked functions
// bind to the shim's exports. It prints where each was bound to, one "NAME OBJECT" per line, and
// launches a kernel.
#include <stdio.h>

#include "tests/conformance/hosts/host.h"

// Weak, since functions of later drivers may be missing.
#define HOOK(name, type) extern "C" __attribute__((weak)) void linked_##name() __asm__(#name);
#include "shim/driver/hook_table.h"
#undef HOOK

int main() {
  using namespace conform;
  const struct {
    const char* name;
    const void* function;
  } rows[] = {
#define HOOK(name, type) {#name, reinterpret_cast<const void*>(&linked_##name)},
#include "shim/driver/hook_table.h"
#undef HOOK
  };
  for (const auto& row : rows) printf("%s %s\n", row.name, object_of(row.function).c_str());

  OK(cuInit(0));
  const Gpu gpu;
  CUmodule module = nullptr;
  CUfunction function = nullptr;
  OK(cuModuleLoadData(&module, image(kImage).data()));
  OK(cuModuleGetFunction(&function, module, kStep));
  Arguments arguments(gpu.marks(), 1, 7);
  OK(cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, gpu.stream(), arguments.params(), nullptr));
  OK(cuLaunchKernel_ptsz(function, 1, 1, 1, 32, 1, 1, 0, gpu.stream(), arguments.params(),
                         nullptr));
  gpu.finish({.curated1 = 2}, {.hit = 2});
  return 0;
}
