// Where every launch enters: the exported launch functions themselves.
//
// Hot: a kernel that no pattern knows costs one table lookup within a read section, one count and a
// jump to the driver, 25 instructions in all, and no stack: the host's arguments lie where the driver
// expects them. A compiler makes nearly three times as many of the same C++, because it takes the
// arguments off the stack and puts them back. So x86-64 has it in assembly; below is the same for other
// machines, and for ThreadSanitizer, which sees no assembly. What both rely on is asserted.
#include <stddef.h>

#include "shim/counters/counters.h"
#include "shim/driver/driver.h"
#include "shim/registry/handles.h"
#include "shim/launch/launch_entry.h"
#include "shim/base/read_section.h"

namespace fibshim {
namespace {

constexpr CounterIndex kUntrackedCounter = counter_of(0, Outcome::untracked);

#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__)

static_assert(kHashFactor == 0x9e3779b97f4a7c15);
static_assert(offsetof(HandleTable, mask) == 0 && sizeof(HandleTable) == 16);
static_assert(sizeof(HandleSlot) == 16 && offsetof(HandleSlot, key) == 0 &&
              offsetof(HandleSlot, value) == 8);
static_assert(kUntracked == 1 && kUntrackedCounter * sizeof(uint64_t) == 56 &&
              offsetof(ReaderState, fast) == 0);

// The frame that the assembly below lays out.
static_assert(offsetof(LaunchFrame, hit) == 48 && offsetof(LaunchFrame, return_address) == 72 &&
              offsetof(LaunchFrame, block_z) == 80 && offsetof(LaunchFrame, params) == 104 &&
              sizeof(LaunchFrame) == 120);
static_assert(kGoesOn == uint64_t{1} << 32);

// Registers: only those that a call may change and that carry no argument. The handle's slot is the
// first that its hash names or the next one; further ones are left to the slow side.
asm(R"(
  .text
  .hidden fibshim_handle_table, fibshim_reader, fibshim_counters, fibshim_finish_launch

# Falls through to 3 when the launch is not a plain one: the thread's ReaderState in rax, or 0; unless 0,
# within the read section, and the slot's value in r11, or 0.
.macro fibshim_enter name, handle
  .globl \name
  .type \name, @function
  .hidden fibshim_real_\name
  .p2align 5
\name:
  .cfi_startproc
  endbr64
  movq fibshim_reader@gottpoff(%rip), %rax
  movabsq $0x9e3779b97f4a7c15, %r11
  movq %fs:(%rax), %rax
  imulq \handle, %r11
  testq %rax, %rax                       # the thread's first launch
  je 2f
  incq (%rax)                            # enter
  movq fibshim_handle_table(%rip), %r10
  shrq $32, %r11
  andq (%r10), %r11                      # table->mask
  shlq $4, %r11
  leaq 16(%r10,%r11), %r10               # the slot
  cmpq \handle, (%r10)
  jne 2f
1:
  movq 8(%r10), %r11
  testb $1, %r11b                        # kUntracked
  je 3f
  movq fibshim_counters@gottpoff(%rip), %r10
  movq %fs:(%r10), %r10
  xorl %r11d, %r11d
  testq %r10, %r10                       # none of its own: the route counts
  je 3f
  incq (%rax)                            # leave
  incq 56(%r10)
  jmp *fibshim_real_\name(%rip)
2:
  xorl %r11d, %r11d
  testq %rax, %rax
  je 3f
  addq $16, %r10                         # there is one more slot than the mask reaches
  cmpq \handle, (%r10)
  je 1b
3:
.endm

.macro fibshim_framed_launch name
  .hidden fibshim_route_\name
  fibshim_enter \name, %rdi
  subq $72, %rsp
  .cfi_adjust_cfa_offset 72
  movq %rdi, (%rsp)
  movq %rsi, 8(%rsp)
  movq %rdx, 16(%rsp)
  movq %rcx, 24(%rsp)
  movq %r8, 32(%rsp)
  movq %r9, 40(%rsp)
  movq %rsp, %rdi
  movq %r11, %rsi
  movq %rax, %rdx
  call fibshim_route_\name
  testq %rax, %rax
  jne 4f
  addq $72, %rsp
  .cfi_adjust_cfa_offset -72
  ret
4:
  .cfi_adjust_cfa_offset 72
  btq $32, %rax                          # kGoesOn
  jc 5f
  movq %rsp, %rdi
  movq %rax, %rsi
  call fibshim_finish_launch
  btq $32, %rax
  jc 5f
  addq $72, %rsp
  .cfi_adjust_cfa_offset -72
  ret
5:
  .cfi_adjust_cfa_offset 72
  movq (%rsp), %rdi
  movq 8(%rsp), %rsi
  movq 16(%rsp), %rdx
  movq 24(%rsp), %rcx
  movq 32(%rsp), %r8
  movq 40(%rsp), %r9
  addq $72, %rsp
  .cfi_adjust_cfa_offset -72
  jmp *fibshim_real_\name(%rip)
  .cfi_endproc
  .size \name, . - \name
.endm

.macro fibshim_config_launch name
  .hidden fibshim_route_\name
  fibshim_enter \name, %rsi
  movq %r11, %r8
  movq %rax, %r9
  jmp fibshim_route_\name
  .cfi_endproc
  .size \name, . - \name
.endm
)");

#define LAUNCH(name) asm("fibshim_framed_launch " #name);
FIBSHIM_FRAMED_LAUNCHES(LAUNCH)
#undef LAUNCH
#define LAUNCH(name) asm("fibshim_config_launch " #name);
FIBSHIM_CONFIG_LAUNCHES(LAUNCH)
#undef LAUNCH

}  // namespace
}  // namespace fibshim

#else

// `is_plain`: the launch was one of a kernel that no pattern knows, and is counted. Otherwise what
// the routes below take; within the read section unless `reader` is null.
struct Entered {
  bool is_plain;
  uintptr_t slot;
  ReaderState* reader;
};

inline Entered enter(const void* handle) {
  ReaderState* const reader = t_reader;
  if (reader == nullptr) return {false, 0, nullptr};
  enter_fast_section(reader);
  const uintptr_t slot = find_handle(handle);
  if ((slot & kUntracked) == 0) return {false, slot, reader};
  leave_fast_section(reader);
  count(kUntrackedCounter);
  return {true, slot, reader};
}

}  // namespace
}  // namespace fibshim

using namespace fibshim;  // NOLINT(google-build-using-namespace): this file is all hooks

// The same in C++: plainly untracked launches go straight on, the others by way of a frame.
#define FIBSHIM_FRAMED(name, extra_or_null, ...)                                                   \
  {                                                                                                \
    const Entered entered = enter(function);                                                       \
    if (entered.is_plain) return FIBSHIM_REAL(name)(__VA_ARGS__);                                  \
    LaunchFrame frame = {reinterpret_cast<uint64_t>(function),                                     \
                         {grid_x, grid_y, grid_z},                                                 \
                         {block_x, block_y},                                                       \
                         0,                                                                        \
                         {},                                                                       \
                         0,                                                                        \
                         block_z,                                                                  \
                         shared_mem,                                                               \
                         stream,                                                                   \
                         params,                                                                   \
                         extra_or_null};                                                           \
    const LaunchResult ended =                                                                     \
        fibshim_finish_launch(&frame, fibshim_route_##name(&frame, entered.slot, entered.reader)); \
    return ended == kGoesOn ? FIBSHIM_REAL(name)(__VA_ARGS__) : static_cast<CUresult>(ended);      \
  }

#define FIBSHIM_GEOMETRY                                                                 \
  unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y, \
      unsigned block_z, unsigned shared_mem, CUstream stream, void **params
#define FIBSHIM_GEOMETRY_NAMES \
  grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_mem, stream, params

CUresult hook_cuLaunchKernel(CUfunction function, FIBSHIM_GEOMETRY, void** extra)
    FIBSHIM_FRAMED(cuLaunchKernel, extra, function, FIBSHIM_GEOMETRY_NAMES, extra) CUresult
    hook_cuLaunchKernel_ptsz(CUfunction function, FIBSHIM_GEOMETRY, void** extra)
        FIBSHIM_FRAMED(cuLaunchKernel_ptsz, extra, function, FIBSHIM_GEOMETRY_NAMES, extra) CUresult
    hook_cuLaunchCooperativeKernel(CUfunction function, FIBSHIM_GEOMETRY)
        FIBSHIM_FRAMED(cuLaunchCooperativeKernel, nullptr, function,
                       FIBSHIM_GEOMETRY_NAMES) CUresult
    hook_cuLaunchCooperativeKernel_ptsz(CUfunction function, FIBSHIM_GEOMETRY)
        FIBSHIM_FRAMED(cuLaunchCooperativeKernel_ptsz, nullptr, function, FIBSHIM_GEOMETRY_NAMES)

#define FIBSHIM_CONFIG(name)                                                                    \
  CUresult hook_##name(const CUlaunchConfig* config, CUfunction function, void** params,        \
                       void** extra) {                                                          \
    const Entered entered = enter(function);                                                    \
    if (entered.is_plain) return FIBSHIM_REAL(name)(config, function, params, extra);           \
    return fibshim_route_##name(config, function, params, extra, entered.slot, entered.reader); \
  }
            FIBSHIM_CONFIG_LAUNCHES(FIBSHIM_CONFIG)

#endif
