// Where every launch enters: the exported launch functions themselves.
//
// Hot: a kernel that no pattern knows costs one table lookup, one count and a jump to the driver,
// 17 instructions in all, and no stack: the host's arguments lie where the driver expects them. A
// compiler makes nearly three times as many of the same C++, because it takes the arguments off the
// stack and puts them back. So x86-64 has it in assembly; below is the same for other machines, and
// what both rely on is asserted.
#include <stddef.h>

#include "shim/counters.h"
#include "shim/driver.h"
#include "shim/handles.h"
#include "shim/launch_entry.h"

namespace fibshim {
namespace {

constexpr CounterIndex kUntrackedCounter = counter_of(0, Outcome::untracked);

#if defined(__x86_64__)

static_assert(kHashFactor == 0x9e3779b97f4a7c15);
static_assert(offsetof(HandleTable, mask) == 0 && sizeof(HandleTable) == 16);
static_assert(sizeof(HandleSlot) == 16 && offsetof(HandleSlot, key) == 0 &&
              offsetof(HandleSlot, value) == 8);
static_assert(kUntracked == 1 && kUntrackedCounter * sizeof(uint64_t) == 56);

// Registers: only those that a call may change and that carry no argument. The handle's slot is the
// first that its hash names or the next one; further ones are left to the slow side.
asm(R"(
  .text
  .hidden fibshim_handle_table, fibshim_counters

.macro fibshim_launch_entry name, handle
  .hidden fibshim_slow_\name, fibshim_real_\name
  .globl \name
  .type \name, @function
  .p2align 5
\name:
  .cfi_startproc
  endbr64
  movabsq $0x9e3779b97f4a7c15, %r11
  imulq \handle, %r11
  movq fibshim_handle_table(%rip), %r10
  shrq $32, %r11
  andq (%r10), %r11                      # table->mask
  shlq $4, %r11
  leaq 16(%r10,%r11), %r11               # the slot
  cmpq \handle, (%r11)
  jne 2f
1:
  testb $1, 8(%r11)                      # kUntracked
  je fibshim_slow_\name
  movq fibshim_counters@gottpoff(%rip), %rax
  movq %fs:(%rax), %rax
  testq %rax, %rax                       # the thread's first launch
  je fibshim_slow_\name
  incq 56(%rax)
  jmp *fibshim_real_\name(%rip)
2:
  addq $16, %r11                         # there is one more slot than the mask reaches
  cmpq \handle, (%r11)
  je 1b
  jmp fibshim_slow_\name
  .cfi_endproc
  .size \name, . - \name
.endm
)");

#define LAUNCH(name, handle_register) asm("fibshim_launch_entry " #name ", %" handle_register);
FIBSHIM_LAUNCHES(LAUNCH)
#undef LAUNCH

}  // namespace
}  // namespace fibshim

#else

inline bool is_plainly_untracked(const void* handle) {
  uint64_t* const counters = t_counters;
  if ((find_handle(handle) & kUntracked) == 0 || counters == nullptr) return false;
  count_in(counters, kUntrackedCounter);
  return true;
}

}  // namespace
}  // namespace fibshim

using namespace fibshim;  // NOLINT(google-build-using-namespace): this file is all hooks

#define FIBSHIM_ENTER(name, handle, ...)                                      \
  {                                                                           \
    if (is_plainly_untracked(handle)) return FIBSHIM_REAL(name)(__VA_ARGS__); \
    return fibshim_slow_##name(__VA_ARGS__);                                  \
  }

#define FIBSHIM_GEOMETRY                                                                 \
  unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y, \
      unsigned block_z, unsigned shared_mem, CUstream stream, void **params
#define FIBSHIM_GEOMETRY_NAMES \
  grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_mem, stream, params

CUresult hook_cuLaunchKernel(CUfunction function, FIBSHIM_GEOMETRY, void** extra)
    FIBSHIM_ENTER(cuLaunchKernel, function, function, FIBSHIM_GEOMETRY_NAMES, extra) CUresult
    hook_cuLaunchKernel_ptsz(CUfunction function, FIBSHIM_GEOMETRY, void** extra)
        FIBSHIM_ENTER(cuLaunchKernel_ptsz, function, function, FIBSHIM_GEOMETRY_NAMES,
                      extra) CUresult
    hook_cuLaunchCooperativeKernel(CUfunction function, FIBSHIM_GEOMETRY)
        FIBSHIM_ENTER(cuLaunchCooperativeKernel, function, function,
                      FIBSHIM_GEOMETRY_NAMES) CUresult
    hook_cuLaunchCooperativeKernel_ptsz(CUfunction function, FIBSHIM_GEOMETRY)
        FIBSHIM_ENTER(cuLaunchCooperativeKernel_ptsz, function, function,
                      FIBSHIM_GEOMETRY_NAMES) CUresult
    hook_cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction function, void** params,
                          void** extra)
        FIBSHIM_ENTER(cuLaunchKernelEx, function, config, function, params, extra) CUresult
    hook_cuLaunchKernelEx_ptsz(const CUlaunchConfig* config, CUfunction function, void** params,
                               void** extra)
        FIBSHIM_ENTER(cuLaunchKernelEx_ptsz, function, config, function, params, extra)

#endif
