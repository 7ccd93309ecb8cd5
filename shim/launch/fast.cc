// The exported launch functions, and the fast side of a launch, which nearly every launch takes.
//
// Hot: runs on every launch. A kernel that no pattern knows costs one table lookup within a read section and
// one count; a redirected one adds a decision lookup, the checks and its arguments. Forbidden here, and kept
// out by a test of the object's undefined symbols: locks, allocation, getenv, dlsym, logging, exceptions and
// driver calls other than the launch. Whatever needs one of those is in slow.cc.
//
// Each function is entered within the thread's read section, and leaves it before it calls anything: the
// driver, where the launch may wait for room in a queue while its own handle dies, or the slow side.
#include "shim/launch/launch.h"

#include "shim/base/hot.h"
#include "shim/base/read_section.h"
#include "shim/base/slow_reasons.h"
#include "shim/counters/counters.h"
#include "shim/driver/driver.h"
#include "shim/plan/fast_plan.h"
#include "shim/plan/plan.h"
#include "shim/plan/remembered.h"
#include "shim/registry/decisions.h"
#include "shim/registry/handles.h"

namespace fibshim {
namespace {

constexpr CounterIndex kUntracked0 = counter_of(0, Outcome::untracked);

// A launch whose arguments came in registers and on the stack. kEnd: of its trampoline.
template <const LaunchFunctions& kFunctions, auto kEnd>
struct FramedLaunch {
  using End = Target;

  LaunchFrame& frame;
  static constexpr bool kHasAttributes = false;
  static constexpr const LaunchFunctions& functions() { return kFunctions; }

  CUfunction function() const { return reinterpret_cast<CUfunction>(frame.function); }
  void** params() const { return frame.params; }
  CUstream stream() const { return frame.stream; }
  void** extra() const { return kFunctions.has_extra ? frame.extra : nullptr; }
  bool is_plain() const { return extra() == nullptr; }
  // False: they take a look on the slow side.
  bool read_attributes(uint32_t (&)[3], const CUlaunchAttribute**) const { return true; }
  uint32_t geometry(uint32_t i) const {
    // The stream and the parameters are between the values, which are in the plain order. No table: it would be one more
    // line to read.
    return static_cast<uint32_t>(reinterpret_cast<const uint64_t*>(&frame)[i < 5 ? i + 1 : i + 3]);
  }
  static_assert(offsetof(LaunchFrame, grid) == 8 && offsetof(LaunchFrame, block_xy) == 32 &&
                offsetof(LaunchFrame, block_z) == 64 && offsetof(LaunchFrame, shared_mem) == 72);

  End original() const { return driver_function(kFunctions.api); }
  End ended(CUresult result) const {
    return end_launch(frame, result, reinterpret_cast<End>(kEnd));
  }
  End slowly() const { return route_slowly(frame, kFunctions); }
};

// A launch with a CUlaunchConfig.
template <const LaunchFunctions& kFunctions>
struct ConfigLaunch {
  using End = CUresult;

  const CUlaunchConfig* config;
  CUfunction handle;
  void** given_params;
  void** given_extra;
  static constexpr bool kHasAttributes = true;
  static constexpr const LaunchFunctions& functions() { return kFunctions; }

  CUfunction function() const { return handle; }
  void** params() const { return given_params; }
  CUstream stream() const { return config->hStream; }
  void** extra() const { return given_extra; }
  // No attributes, or programmatic stream serialization alone, which is dropped for a replacement that does
  // not wait: the rest needs a look at the replacement.
  bool is_plain() const {
    return config != nullptr && given_extra == nullptr &&
           (config->numAttrs == 0 ||
            (config->numAttrs == 1 && config->attrs != nullptr &&
             config->attrs->id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION));
  }
  bool read_attributes(uint32_t (&cluster)[3], const CUlaunchAttribute** early) const {
    if (config == nullptr || (config->numAttrs != 0 && config->attrs == nullptr)) return false;
    for (unsigned i = 0; i < config->numAttrs; ++i) {
      const CUlaunchAttribute& attribute = config->attrs[i];
      const AttributeRule rule = rule_of(attribute.id);
      if (rule == AttributeRule::keep) return false;
      if (rule == AttributeRule::if_waits) {
        if (*early != nullptr) return false;
        *early = &attribute;
      }
      if (attribute.id != CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION) continue;
      cluster[0] = attribute.value.clusterDim.x;
      cluster[1] = attribute.value.clusterDim.y;
      cluster[2] = attribute.value.clusterDim.z;
    }
    return true;
  }
  uint32_t geometry(uint32_t i) const {
    // gridDimX to sharedMemBytes lie in the plain order.
    return (&config->gridDimX)[i];
  }
  static_assert(offsetof(CUlaunchConfig, gridDimX) == 0 &&
                offsetof(CUlaunchConfig, blockDimZ) == 20 &&
                offsetof(CUlaunchConfig, sharedMemBytes) == 24);

  End original() const {
    return kFunctions.launch_ex->load(std::memory_order_relaxed)(config, handle, given_params,
                                                                 given_extra);
  }
  End ended(CUresult result) const { return result; }
  End slowly() const {
    return launch_config_slowly(config, handle, given_params, given_extra, kFunctions);
  }
};

template <class Launch>
__attribute__((noinline)) typename Launch::End leave_for_slow_side(Launch launch,
                                                                   ReaderState* reader) {
  leave_fast_section(reader);
  return launch.slowly();
}

template <class Launch>
__attribute__((noinline)) typename Launch::End end_failed(Launch launch, CounterIndex hit,
                                                          OnError on_error, CUresult result) {
  return end_failed_launch(hit, result, on_error == OnError::fallback) ? launch.original()
                                                                       : launch.ended(result);
}

// The hit is counted before the launch, and taken back if it fails: a process that ends within it has
// counted it. `call(kernel)` makes it.
template <class Launch, class Call>
inline typename Launch::End launch_counted(Launch launch, const Decision& decision,
                                           ReaderState* reader, const Call& call) {
  const CounterIndex hit = decision.counter;
  const OnError on_error = decision.on_error;
  const CUfunction kernel = decision.kernel;
  count_in(reader->counters, hit);
  leave_fast_section(reader);
  const CUresult result = call(kernel);
  if (__builtin_expect(result != CUDA_SUCCESS, 0)) {
    return end_failed(launch, hit, on_error, result);
  }
  return launch.ended(result);
}

template <class Launch>
inline typename Launch::End launch_replacement(Launch launch, const Decision& decision,
                                               ReaderState* reader,
                                               const uint32_t (&geometry)[kPlainGeometryCount],
                                               void** arguments) {
  return launch_counted(launch, decision, reader, [&](CUfunction kernel) {
    return Launch::functions().launch->load(std::memory_order_relaxed)(
        kernel, geometry[0], geometry[1], geometry[2], geometry[3], geometry[4], geometry[5],
        geometry[6], launch.stream(), arguments, nullptr);
  });
}

// The launch is made by a plan that this thread remembers, or else goes to the slow side.
template <class Launch>
__attribute__((noinline)) typename Launch::End launch_remembered(Launch launch,
                                                                 const Record& record,
                                                                 ReaderState* reader) {
  if (reader->memory == nullptr || !record.inputs.are_whole ||
      record.param_count > kMaxFastArguments) {
    return leave_for_slow_side(launch, reader);
  }
  uint32_t cluster[3] = {1, 1, 1};
  const CUlaunchAttribute* early = nullptr;
  if (!launch.read_attributes(cluster, &early)) return leave_for_slow_side(launch, reader);
  void** params = launch.params();
  void* unpacked[kMaxFastArguments];
  if (launch.extra() != nullptr) {
    if (params != nullptr || !unpack_extra(record, launch.extra(), unpacked)) {
      return leave_for_slow_side(launch, reader);
    }
    params = unpacked;
  }
  if (params == nullptr) return leave_for_slow_side(launch, reader);
  InputValues inputs;
  read_inputs(
      record, params,
      [&](uint32_t i) {
        return i < kClusterX    ? launch.geometry(i)
               : i < kSharedMem ? cluster[i - kClusterX]
                                : launch.geometry(kPlainSharedMem);
      },
      &inputs);
  const RememberedLaunch* const found =
      find_remembered(*reader->memory, record, handle_changes(), inputs);
  if (found == nullptr) return leave_for_slow_side(launch, reader);
  if (found->decision == nullptr) {
    count_in(reader->counters, found->counter);
    leave_fast_section(reader);
    return launch.original();
  }
  const Decision& decision = *found->decision;
  const Way way = way_now(decision);
  // The attribute goes on to a replacement that waits.
  const bool stays = early != nullptr && decision.fast.may_begin_early != 0;
  const auto launch_ex = Launch::functions().launch_ex->load(std::memory_order_relaxed);
  if (way == Way::slow || ((stays || found->has_cluster) && launch_ex == nullptr) ||
      (way == Way::sampled && !skip_sample(decision))) {
    return leave_for_slow_side(launch, reader);
  }
  // Of what is remembered nothing is read once the section is left: a driver's callback may launch something.
  void* pointers[kMaxFastArguments];
  int64_t computed[kMaxRememberedValues];
  void** const arguments = make_remembered_arguments(*found, params, pointers, computed);
  const uint32_t* const geometry = found->geometry;
  if (!stays && !found->has_cluster) {
    const uint32_t plain[kPlainGeometryCount] = {
        geometry[kGridX],  geometry[kGridY],  geometry[kGridZ],    geometry[kBlockX],
        geometry[kBlockY], geometry[kBlockZ], geometry[kSharedMem]};
    return launch_replacement(launch, decision, reader, plain, arguments);
  }
  CUlaunchAttribute attributes[2];
  CUlaunchConfig config;
  put_geometry(geometry, &config);
  config.hStream = launch.stream();
  config.attrs = attributes;
  config.numAttrs = 0;
  if (stays) attributes[config.numAttrs++] = *early;
  if (found->has_cluster) attributes[config.numAttrs++] = cluster_attribute(geometry);
  return launch_counted(launch, decision, reader, [&](CUfunction kernel) {
    return launch_ex(&config, kernel, arguments, nullptr);
  });
}

// A decision without expressions, whose checks hold.
template <class Launch>
FIBSHIM_HOT inline typename Launch::End launch_directly(Launch launch, const Decision& decision,
                                                        ReaderState* reader) {
  uint32_t geometry[kPlainGeometryCount];
  void** arguments;
  void* room[kMaxFastArguments];
  const auto geometry_of = [&](uint32_t i) { return launch.geometry(i); };
  if (!compose_direct(decision.fast, launch.params(), geometry_of, geometry, room, &arguments)) {
    return leave_for_slow_side(launch, reader);
  }
  return launch_replacement(launch, decision, reader, geometry, arguments);
}

// True if the launch may be decided by the fast form alone. The attribute goes on to a replacement that waits.
template <class Launch>
inline bool is_decided(const Launch& launch, const Decision& decision) {
  const bool stays = Launch::kHasAttributes && decision.fast.may_begin_early != 0;
  return fast_checks_hold(decision.fast.checks, launch.params()) && !stays;
}

// Carries out a sampled decision for launches that are not checked. A separate function, so that ordinary hits do not
// pay for it.
template <class Launch>
__attribute__((noinline)) typename Launch::End launch_unless_checked(Launch launch,
                                                                     const Candidate& candidate,
                                                                     const Decision& decision,
                                                                     ReaderState* reader) {
  if (decision.fast.way != FastWay::direct) {
    return launch_remembered(launch, *candidate.record, reader);
  }
  return is_decided(launch, decision) && skip_sample(decision)
             ? launch_directly(launch, decision, reader)
             : leave_for_slow_side(launch, reader);
}

// Carries out a decision. `way`: as it was when the decision was found.
template <class Launch>
inline typename Launch::End launch_decided(Launch launch, const Candidate& candidate,
                                           const Decision& decision, Way way, ReaderState* reader) {
  if (__builtin_expect(way == Way::direct, 1)) {
    return is_decided(launch, decision) ? launch_directly(launch, decision, reader)
                                        : launch_remembered(launch, *candidate.record, reader);
  }
  switch (way) {
    case Way::original:
      if (!fast_checks_hold(decision.fast.checks, launch.params())) break;
      count_in(reader->counters, decision.counter);
      leave_fast_section(reader);
      return launch.original();
    case Way::remembered: break;
    case Way::sampled: return launch_unless_checked(launch, candidate, decision, reader);
    default: return leave_for_slow_side(launch, reader);
  }
  return launch_remembered(launch, *candidate.record, reader);
}

// No solution is for the launch, or none can serve it. Where a choice has none, whether or not the pattern's own where holds: it
// falls back, and is counted alike.
template <class Launch>
__attribute__((noinline)) typename Launch::End launch_unserved(Launch launch,
                                                               const Decision& decision,
                                                               ReaderState* reader) {
  count_in(reader->counters, decision.counter);
  leave_fast_section(reader);
  return launch.original();
}

template <class Launch>
typename Launch::End launch_tracked(Launch launch, uintptr_t slot, ReaderState* reader);

template <class Launch>
inline typename Launch::End launch_untracked(Launch launch, ReaderState* reader) {
  leave_fast_section(reader);
  count_in(reader->counters, kUntracked0);
  return launch.original();
}

// A slot that is not a plain candidate's, or a launch that is not plain: the handle's may be further from its place, or nothing
// is known of it.
template <class Launch>
__attribute__((noinline)) typename Launch::End launch_unusual(Launch launch, uintptr_t slot,
                                                              ReaderState* reader) {
  // While there are such reasons nothing is found near: into a capture nothing is launched yet, and nothing counted.
  if (g_slow_reasons.load(std::memory_order_relaxed) != 0) {
    return leave_for_slow_side(launch, reader);
  }
  if (slot == 0) slot = find_handle(launch.function());
  if ((slot & kUntracked) != 0) return launch_untracked(launch, reader);
  if ((slot & kSimple) != 0) {
    const bool is_plain = launch.params() != nullptr && launch.is_plain();
    return is_plain ? launch_tracked(launch, slot, reader)
                    : launch_remembered(launch, *simple_candidate_of(slot).record, reader);
  }
  if (slot == 0 || (slot & kUnmatched) != 0) return leave_for_slow_side(launch, reader);
  return launch_remembered(launch, *entry_of(slot)->record, reader);
}

// A kernel that some pattern fits.
template <class Launch>
FIBSHIM_HOT __attribute__((noinline)) typename Launch::End launch_tracked(Launch launch,
                                                                          uintptr_t slot,
                                                                          ReaderState* reader) {
  if ((slot & kSimple) == 0) return launch_unusual(launch, slot, reader);
  if (launch.params() == nullptr || !launch.is_plain()) return launch_unusual(launch, 0, reader);
  const Candidate& candidate = simple_candidate_of(slot);
  const int64_t key = read_fast_key(candidate.fast_key, launch.params());
  Way way;
  const Decision* decision = find_decision_by_one(candidate, key, &way);
  if (decision == nullptr) return leave_for_slow_side(launch, reader);
  if (__builtin_expect(way == Way::chosen, 0)) {
    const Decision& choice = *decision;
    if (!choice.choices->is_fast) return launch_remembered(launch, *candidate.record, reader);
    decision = choose_fast(*choice.choices, launch.params(),
                           [&](uint32_t i) { return launch.geometry(i); });
    if (decision == nullptr) return launch_unserved(launch, choice, reader);
    way = way_now(*decision);
  }
  return launch_decided(launch, candidate, *decision, way, reader);
}

template <class Launch>
inline typename Launch::End route(Launch launch) {
  ReaderState* const reader = t_fast_reader;
  if (__builtin_expect(reader == nullptr, 0)) return launch.slowly();
  enter_fast_section(reader);
  const uintptr_t slot = find_near_handle(launch.function());
  if (__builtin_expect((slot & kUntracked) == 0, 0)) return launch_tracked(launch, slot, reader);
  return launch_untracked(launch, reader);
}

}  // namespace

#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__)

// The exported functions. A compiler would copy arguments on the stack to call the driver. So these are trampolines, like
// that of dlsym: each saves the argument registers, gets the target, restores the registers and jumps. The host's arguments then
// are where the driver expects them. A launch that is done jumps to the trampoline's own end, in a cache line that is needed
// anyway. A trampoline uses no offset into a struct: it passes the stack as a LaunchFrame, and pops what it has pushed.
asm(R"(
.macro fibshim_trampoline name
  .pushsection .text.hot, "ax", @progbits
  .globl \name
  .type \name, @function
  .p2align 6
\name:
  .cfi_startproc
  subq $8, %rsp                # the stack is aligned for the call
  pushq %r9
  pushq %r8
  pushq %rcx
  pushq %rdx
  pushq %rsi
  pushq %rdi
  .cfi_adjust_cfa_offset 56
  movq %rsp, %rdi
  call fibshim_route_\name
  popq %rdi
  popq %rsi
  popq %rdx
  popq %rcx
  popq %r8
  popq %r9
  addq $8, %rsp
  .cfi_adjust_cfa_offset -56
  jmp *%rax
  .globl fibshim_end_\name
  .hidden fibshim_end_\name
fibshim_end_\name:          # the result is in the register of the first argument
  movl %edi, %eax
  ret
  .cfi_endproc
  .size \name, . - \name
  .popsection
.endm
)");

asm("fibshim_trampoline cuLaunchKernel");
asm("fibshim_trampoline cuLaunchKernel_ptsz");
asm("fibshim_trampoline cuLaunchCooperativeKernel");
asm("fibshim_trampoline cuLaunchCooperativeKernel_ptsz");

extern "C" {
#define END(name) __attribute__((visibility("hidden"))) void fibshim_end_##name()
END(cuLaunchKernel);
END(cuLaunchKernel_ptsz);
END(cuLaunchCooperativeKernel);
END(cuLaunchCooperativeKernel_ptsz);
#undef END
}
#define FIBSHIM_END(name) fibshim_end_##name

#else

#define FIBSHIM_END(name) fibshim_return_result  // the hooks compare its address

#endif

#define FRAMED(name, api, plain, ex, is_per_thread_stream, has_extra)                            \
  static constexpr LaunchFunctions kFunctions_##name = {LaunchApi::api, &real::plain, &real::ex, \
                                                        is_per_thread_stream, has_extra};        \
  FIBSHIM_HOT Target fibshim_route_##name(LaunchFrame* frame) {                                  \
    return route(FramedLaunch<kFunctions_##name, &FIBSHIM_END(name)>{*frame});                   \
  }

FRAMED(cuLaunchKernel, kernel, cuLaunchKernel, cuLaunchKernelEx, false, true)
FRAMED(cuLaunchKernel_ptsz, kernel_ptsz, cuLaunchKernel_ptsz, cuLaunchKernelEx_ptsz, true, true)
// The replacement of a cooperative kernel is an ordinary one.
FRAMED(cuLaunchCooperativeKernel, cooperative, cuLaunchKernel, cuLaunchKernelEx, false, false)
FRAMED(cuLaunchCooperativeKernel_ptsz, cooperative_ptsz, cuLaunchKernel_ptsz, cuLaunchKernelEx_ptsz,
       true, false)
#undef FRAMED
#undef FIBSHIM_END

#define WITH_CONFIG(name, api, plain, is_per_thread_stream)                                        \
  static constexpr LaunchFunctions kFunctions_##name = {LaunchApi::api, &real::plain, &real::name, \
                                                        is_per_thread_stream, true};               \
  FIBSHIM_HOT CUresult launch_##name(const CUlaunchConfig* config, CUfunction function,            \
                                     void** params, void** extra) {                                \
    return route(ConfigLaunch<kFunctions_##name>{config, function, params, extra});                \
  }

WITH_CONFIG(cuLaunchKernelEx, ex, cuLaunchKernel, false)
WITH_CONFIG(cuLaunchKernelEx_ptsz, ex_ptsz, cuLaunchKernel_ptsz, true)
#undef WITH_CONFIG

}  // namespace fibshim
