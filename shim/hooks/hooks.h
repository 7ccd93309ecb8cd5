// The hooks, which the host calls in place of the driver. Declared from the hook table: hook_<name>
// in C++, <name> to the linker.
//
// Thin: each does one thing beside the real call. Any thread, any time, even before cuInit. The
// real pointer is resolved on demand; in a process without a driver a hook returns an error.
// Out-parameters are written only after success and if they are not null.
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
