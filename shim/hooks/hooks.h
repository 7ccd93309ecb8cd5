// The hooks' declarations, made from the hook table: hook_<name> in C++, <name> to the linker.
//
// The assembler name keeps them apart from cuda.h's own declarations, some of which are macros for
// a later version of the same name. A definition whose type differs from the table's does not
// compile.
#ifndef FIBSHIM_SHIM_HOOKS_HOOKS_H_
#define FIBSHIM_SHIM_HOOKS_HOOKS_H_

#include <type_traits>

#include "shim/driver/cuda_names.h"

#define HOOK(name, type)                                                        \
  extern "C" __attribute__((visibility("default"))) std::remove_pointer_t<type> \
      hook_##name __asm__(#name);
#include "shim/driver/hook_table.h"
#undef HOOK

#endif  // FIBSHIM_SHIM_HOOKS_HOOKS_H_
