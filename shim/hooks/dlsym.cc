// The exported dlsym, dlvsym and dlopen.
//
// A lookup that does not name a hooked function must reach libc's function as if this library were
// not there: libc looks at the caller's return address (RTLD_NEXT, RTLD_DEFAULT, and for dlopen the
// caller's own search path), so the exports are tail jumps. They pick a target, restore the
// argument registers and jump. FIBSHIM_DEEPBIND=clear removes RTLD_DEEPBIND from dlopen's mode.
// Except for hooked names nothing here allocates, logs or takes a lock, since allocators call dlsym
// from malloc.
#include <dlfcn.h>
#include <stdint.h>
#include <string.h>

#include "shim/driver/real_dl.h"
#include "shim/base/settings_in_force.h"
#include "shim/driver/driver.h"
#include "shim/hooks/resolve_hooks.h"

namespace fibshim {
namespace {

// Returns what the caller would have found, exchanged for the hook if it is the driver's own
// function. The driver is resolved first, since the lookup whose result the caller gets must be the
// last that may change dlerror().
void* hooked_lookup(void* handle, const char* name, void* found_hook) {
  const bool has_driver = resolve_driver();
  void* found = real_dlsym()(handle, name);
  if (found == found_hook) {
    // The global scope always contains this library's export. What counts is the next definition. A
    // driver that is only in the caller's own scope cannot be found from here.
    found = real_dlsym()(RTLD_NEXT, name);
    if (found == nullptr && has_driver) {
      (void)dlerror();  // clears the error of the lookup that found nothing
      return found_hook;
    }
  }
  return found != nullptr && has_driver && is_active() ? exchange_pointer(found) : found;
}

void* hooked_dlsym(void* handle, const char* name) {
  return hooked_lookup(handle, name, hook_for_name(name));
}

void* hooked_dlvsym(void* handle, const char* name, const char* version) {
  const bool has_driver = resolve_driver();
  void* found = real_dlvsym()(handle, name, version);
  return found != nullptr && has_driver && is_active() ? exchange_pointer(found) : found;
}

// True for hooked names, except with RTLD_NEXT, which depends on the caller: it wants the
// definition after its own.
bool wants_hook(void* handle, const char* name) {
  return name != nullptr && name[0] == 'c' && name[1] == 'u' && handle != RTLD_NEXT &&
         hook_for_name(name) != nullptr;
}

}  // namespace
}  // namespace fibshim

extern "C" {

// Called only by the assembly below.
__attribute__((visibility("hidden"), used)) void* fibshim_pick_dlsym(void* handle,
                                                                     const char* name) {
  return fibshim::wants_hook(handle, name) ? reinterpret_cast<void*>(&fibshim::hooked_dlsym)
                                           : reinterpret_cast<void*>(fibshim::real_dlsym());
}

__attribute__((visibility("hidden"), used)) void* fibshim_pick_dlvsym(void* handle,
                                                                      const char* name) {
  return fibshim::wants_hook(handle, name) ? reinterpret_cast<void*>(&fibshim::hooked_dlvsym)
                                           : reinterpret_cast<void*>(fibshim::real_dlvsym());
}

// `saved_mode`: the slot from which the caller's mode will be restored. The upper half of the slot
// is undefined.
__attribute__((visibility("hidden"), used)) void* fibshim_pick_dlopen(const char*, int mode,
                                                                      uint64_t,
                                                                      uint64_t* saved_mode) {
  if (__builtin_expect((mode & RTLD_DEEPBIND) != 0, 0) && fibshim::clears_deepbind()) {
    *saved_mode = static_cast<unsigned>(mode & ~RTLD_DEEPBIND);
  }
  return reinterpret_cast<void*>(fibshim::real_dlopen());
}

}  // extern "C"

// `pick` gets the arguments, and as a fourth one the address where the second is saved.
#if defined(__x86_64__)

#define FIBSHIM_TAIL_JUMP(name, pick)    \
  asm(".text\n"                          \
      ".p2align 4\n"                     \
      ".globl " name                     \
      "\n"                               \
      ".type " name ", @function\n" name \
      ":\n"                              \
      "  .cfi_startproc\n"               \
      "  endbr64\n"                      \
      "  pushq %rdi\n"                   \
      "  .cfi_adjust_cfa_offset 8\n"     \
      "  pushq %rsi\n"                   \
      "  .cfi_adjust_cfa_offset 8\n"     \
      "  pushq %rdx\n"                   \
      "  .cfi_adjust_cfa_offset 8\n"     \
      "  leaq 8(%rsp), %rcx\n"           \
      "  call " pick                     \
      "\n"                               \
      "  popq %rdx\n"                    \
      "  .cfi_adjust_cfa_offset -8\n"    \
      "  popq %rsi\n"                    \
      "  .cfi_adjust_cfa_offset -8\n"    \
      "  popq %rdi\n"                    \
      "  .cfi_adjust_cfa_offset -8\n"    \
      "  jmp *%rax\n"                    \
      "  .cfi_endproc\n"                 \
      ".size " name ", . - " name "\n")

#elif defined(__aarch64__)

#define FIBSHIM_TAIL_JUMP(name, pick)    \
  asm(".text\n"                          \
      ".p2align 4\n"                     \
      ".globl " name                     \
      "\n"                               \
      ".type " name ", %function\n" name \
      ":\n"                              \
      "  .cfi_startproc\n"               \
      "  hint #34\n" /* bti c */         \
      "  stp x29, x30, [sp, #-48]!\n"    \
      "  .cfi_adjust_cfa_offset 48\n"    \
      "  .cfi_rel_offset x30, 8\n"       \
      "  stp x0, x1, [sp, #16]\n"        \
      "  str x2, [sp, #32]\n"            \
      "  add x3, sp, #24\n"              \
      "  bl " pick                       \
      "\n"                               \
      "  mov x16, x0\n"                  \
      "  ldr x2, [sp, #32]\n"            \
      "  ldp x0, x1, [sp, #16]\n"        \
      "  ldp x29, x30, [sp], #48\n"      \
      "  .cfi_adjust_cfa_offset -48\n"   \
      "  .cfi_restore x30\n"             \
      "  br x16\n"                       \
      "  .cfi_endproc\n"                 \
      ".size " name ", . - " name "\n")

#else
#error "dlsym needs a tail jump for this architecture: add one beside the others"
#endif

FIBSHIM_TAIL_JUMP("dlsym", "fibshim_pick_dlsym");
FIBSHIM_TAIL_JUMP("dlvsym", "fibshim_pick_dlvsym");
FIBSHIM_TAIL_JUMP("dlopen", "fibshim_pick_dlopen");
