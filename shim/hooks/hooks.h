// The hooks: what the host calls in the driver's place. Their declarations, made from the hook table:
// hook_<name> in C++, <name> to the linker.
//
// Thin: each does one thing beside the real call. Any thread, any time, before cuInit too. The real pointer is
// resolved on demand; in a process without a driver a hook returns what a missing driver means.
// Out-parameters are touched only after success and when they are not null.
//
// The assembler name keeps them apart from cuda.h's own declarations, some of which are macros for
// a later version of the same name. A definition whose type differs from the table's does not
// compile.
#pragma once

#include <type_traits>

#include "shim/driver/cuda_names.h"

#define HOOK(name, type)                                                        \
  extern "C" __attribute__((visibility("default"))) std::remove_pointer_t<type> \
      hook_##name __asm__(#name);
#include "shim/driver/hook_table.h"
#undef HOOK
