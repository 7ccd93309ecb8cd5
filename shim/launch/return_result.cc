// The function to which a trampoline jumps when the slow side has made the launch (launch.h).
#include "shim/launch/launch.h"

#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__)

// The result is in the register of the first argument.
asm(R"(
  .pushsection .text.hot, "ax", @progbits
  .globl fibshim_return_result
  .hidden fibshim_return_result
  .type fibshim_return_result, @function
  .p2align 4
fibshim_return_result:
  .cfi_startproc
  movl %edi, %eax
  ret
  .cfi_endproc
  .size fibshim_return_result, . - fibshim_return_result
  .popsection
)");

#else

// Never called: the hooks compare its address (hooks/launch_hooks.cc).
extern "C" void fibshim_return_result() {}

#endif
