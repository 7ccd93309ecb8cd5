#include "shim/launch_path.h"

#include <stddef.h>

#include "loader/program.h"
#include "shim/driver.h"
#include "shim/graphs.h"
#include "shim/images.h"
#include "shim/launch_entry.h"
#include "shim/launch_slow.h"
#include "shim/settings_in_force.h"

namespace fibshim {
namespace {

// A packed buffer (`extra`) as pointers to the single parameters. False: not one that can be read.
bool unpack_extra(const Record& record, void** extra, void** out) {
  char* buffer = nullptr;
  const size_t* size = nullptr;
  for (; *extra != CU_LAUNCH_PARAM_END; extra += 2) {
    if (extra[0] == CU_LAUNCH_PARAM_BUFFER_POINTER) {
      buffer = static_cast<char*>(extra[1]);
    } else if (extra[0] == CU_LAUNCH_PARAM_BUFFER_SIZE) {
      size = static_cast<const size_t*>(extra[1]);
    } else {
      return false;
    }
  }
  if (buffer == nullptr || size == nullptr || *size < record.params_bytes) return false;
  for (uint32_t i = 0; i < record.param_count; ++i) out[i] = buffer + record.params[i].offset;
  return true;
}

// Exactly one of the two ways must have been used; a kernel without parameters needs neither.
bool find_params(const Record& record, LaunchRequest* request, void** room) {
  if (request->extra != nullptr) {
    if (request->view.params != nullptr || !unpack_extra(record, request->extra, room)) {
      return false;
    }
    request->view.params = room;
    return true;
  }
  return request->view.params != nullptr || record.param_count == 0;
}

bool compute_key(const Candidate& candidate, const LaunchView& view, int64_t* key) {
  for (uint32_t i = 0; i < candidate.key_count; ++i) {
    const Program program = candidate.key[i].program;
    if (!run_program(candidate.snapshot->begin(program), program.count, view, &key[i])) {
      return false;
    }
  }
  return true;
}

// Stores an integer in a parameter's size. A 4-byte parameter takes what either int32 or uint32 can
// hold; the kernel knows which it is.
bool fits_size(int64_t value, uint32_t size) {
  if (size >= 8) return true;
  const int bits = static_cast<int>(size) * 8;
  return value >= -(int64_t{1} << (bits - 1)) && value < (int64_t{1} << bits);
}

// The replacement's arguments: pointers to where the original's lie, or to `values`.
inline bool make_params(const Decision& decision, const LaunchView& view, void** pointers,
                        int64_t* values) {
  const ArgumentMap* const arguments = decision.arguments;
  const uint32_t count = decision.argument_count;
  for (uint32_t i = 0; i < count; ++i) {
    const ArgumentMap& argument = arguments[i];
    if (__builtin_expect(argument.kind == ArgumentMap::Kind::pass, 1)) {
      pointers[i] = static_cast<char*>(view.params[argument.param]) + argument.offset;
      continue;
    }
    int64_t value;
    if (!run_program(decision.snapshot->begin(argument.program), argument.program.count, view,
                     &value)) {
      return false;
    }
    if (argument.kind == ArgumentMap::Kind::integer) {
      if (!fits_size(value, argument.size)) return false;
    } else if (argument.size == 4) {
      const float narrow = static_cast<float>(program_detail::bits_double(value));
      __builtin_memcpy(&value, &narrow, sizeof narrow);
    }
    values[i] = value;
    pointers[i] = &values[i];
  }
  return true;
}

bool make_geometry(const Decision& decision, const LaunchView& view, LaunchPlan* plan) {
  const Snapshot& snapshot = *decision.snapshot;
  for (uint32_t i = 0; i < kGeometryCount; ++i) {
    const GeometryMap& map = decision.binding->geometry[i];
    if (map.kind == GeometryMap::Kind::constant) {
      plan->geometry[i] = map.constant;
    } else if (map.kind == GeometryMap::Kind::copy) {
      plan->geometry[i] = view.geometry[map.index];
    } else {
      int64_t value;
      if (!run_program(snapshot.begin(map.program), map.program.count, view, &value)) return false;
      // Dimensions are positive; shared memory may be none.
      if (value < (i == kSharedMem ? 0 : 1) || value > INT32_MAX) return false;
      plan->geometry[i] = static_cast<uint32_t>(value);
    }
  }
  return true;
}

// A launch whose pattern has decided: fills the plan, counting what does not lead to a redirect.
void plan_decided(const Decision& decision, const LaunchRequest& request, LaunchPlan* plan) {
  const LaunchView& view = request.view;
  auto falls_back = [&](Outcome outcome) {
    count(counter_of(decision.series, outcome));
    plan->action = LaunchAction::original;
  };
  switch (decision.kind) {
    case DecisionKind::ready: break;
    case DecisionKind::no_solution: return falls_back(Outcome::fallback_no_solution);
    case DecisionKind::arch: return falls_back(Outcome::fallback_arch);
    case DecisionKind::refused: return falls_back(Outcome::fallback_refused);
    case DecisionKind::in_capture: return falls_back(Outcome::fallback_in_capture);
    case DecisionKind::failed:
      falls_back(Outcome::error);
      if (on_error() == OnError::fail && mode() != Mode::observe) {
        plan->action = LaunchAction::fail;
        plan->error = decision.error;
      }
      return;
  }
  const Program where = decision.binding->where;
  if (!run_program(decision.snapshot->begin(where), where.count, view, nullptr) ||
      !make_geometry(decision, view, plan)) {
    return falls_back(Outcome::fallback_where);
  }
  if (decision.is_identity) {
    plan->params = const_cast<void**>(view.params);
  } else if (make_params(decision, view, plan->pointers, plan->values)) {
    plan->params = plan->pointers;
  } else {
    return falls_back(Outcome::fallback_where);
  }
  if (__builtin_expect(request.must_keep_kernel, 0)) return falls_back(Outcome::fallback_refused);
  if (__builtin_expect(mode() == Mode::observe, 0)) return falls_back(Outcome::observed);
  plan->action = LaunchAction::redirect;
  plan->kernel = decision.kernel;
  plan->decision = &decision;
}

}  // namespace

void plan_launch(LaunchRequest* request, LaunchPlan* plan) {
  plan->action = LaunchAction::original;
  uintptr_t slot = find_handle(request->handle);
  if (__builtin_expect(slot == 0, 0)) slot = learn_handle(request->handle);
  if (__builtin_expect(slot == 0, 0)) return count_unknown();
  if ((slot & kUntracked) != 0) return count_untracked();
  const Record& record = *record_of(slot);
  plan->record = &record;
  // The driver will refuse such a launch; the shim only counts it.
  if (!find_params(record, request, plan->unpacked)) return count_untracked();

  // The first candidate that does not decide says why the launch fell back, if none does.
  const Candidate* unresolved = nullptr;
  uint32_t fallback_series = 0;
  Outcome fallback = Outcome::untracked;
  for (uint32_t i = 0; i < record.candidate_count; ++i) {
    Candidate& candidate = record.candidates[i];
    request->view.captures = candidate.captures;
    int64_t key[kMaxKey];
    if (!compute_key(candidate, request->view, key)) {
      if (unresolved == nullptr && fallback == Outcome::untracked) unresolved = &candidate;
      continue;
    }
    uint32_t key_count = candidate.key_count;
    if (__builtin_expect(g_has_unlike_devices.load(std::memory_order_relaxed), 0)) {
      key[key_count++] = device_class_of_launch(*request);
    }
    const Decision* decision = find_decision(candidate, key, key_count);
    if (__builtin_expect(decision == nullptr, 0)) {
      decision = decide(record, &candidate, key, key_count, request->stream,
                        request->is_per_thread_stream, &plan->uncached);
    }
    const bool holds = run_program(candidate.where, candidate.where_count, request->view, nullptr);
    if (holds && decision->kind != DecisionKind::no_solution) {
      return plan_decided(*decision, *request, plan);
    }
    if (unresolved == nullptr && fallback == Outcome::untracked) {
      fallback = holds ? Outcome::fallback_no_solution : Outcome::fallback_where;
      fallback_series = decision->series;
    }
  }
  if (unresolved != nullptr) return count_unresolved(*unresolved);
  count(counter_of(fallback_series, fallback));
}

bool finish_redirect(const Decision& decision, CUresult result) {
  if (__builtin_expect(result == CUDA_SUCCESS, 1)) {
    count(counter_of(decision.series, Outcome::hit));
    return false;
  }
  count(counter_of(decision.series, Outcome::error));
  report_failed_launch(decision, result);
  return on_error() == OnError::fallback;
}

namespace {

void fill_geometry(const LaunchFrame& frame, LaunchView* view) {
  for (int i = 0; i < 3; ++i) view->geometry[kGridX + i] = static_cast<uint32_t>(frame.grid[i]);
  view->geometry[kBlockX] = static_cast<uint32_t>(frame.block_xy[0]);
  view->geometry[kBlockY] = static_cast<uint32_t>(frame.block_xy[1]);
  view->geometry[kBlockZ] = static_cast<uint32_t>(frame.block_z);
  for (int i = 0; i < 3; ++i) view->geometry[kClusterX + i] = 1;
  view->geometry[kSharedMem] = static_cast<uint32_t>(frame.shared_mem);
}

// A where clause. Alignment checks, which lead it where there are any, are made here.
inline bool holds(const Step* step, uint32_t count, const LaunchView& view) {
  const Step* const end = step + count;
  for (; step < end && step->op == Op::require_aligned; ++step) {
    const auto* at = static_cast<const char*>(view.params[step->index]) + step->offset;
    if ((program_detail::read_bytes<int64_t>(at) & step->imm) != 0) return false;
  }
  return step == end || run_program(step, static_cast<uint32_t>(end - step), view, nullptr);
}

// A pattern's where clause, which reads no geometry. Apart, so that route() needs no stack of its own.
__attribute__((noinline)) bool holds_for(const LaunchFrame& frame, const Candidate& candidate) {
  LaunchView view;
  view.params = frame.params;
  view.captures = candidate.captures;
  return holds(candidate.where, candidate.where_count, view);
}

// One of the original's geometry values, straight from the caller's arguments.
inline uint32_t geometry_of(const LaunchFrame& frame, uint32_t index) {
  static constexpr uint8_t kOffsets[kGeometryCount] = {
      offsetof(LaunchFrame, grid),         offsetof(LaunchFrame, grid) + 8,
      offsetof(LaunchFrame, grid) + 16,    offsetof(LaunchFrame, block_xy),
      offsetof(LaunchFrame, block_xy) + 8, offsetof(LaunchFrame, block_z),
      offsetof(LaunchFrame, one),          offsetof(LaunchFrame, one),
      offsetof(LaunchFrame, one),          offsetof(LaunchFrame, shared_mem)};
  const auto* at = reinterpret_cast<const char*>(&frame) + kOffsets[index];
  return static_cast<uint32_t>(program_detail::read_bytes<uint64_t>(at));
}

// A geometry value that is not constant. The commonest forms are computed here. False: it has no value.
inline bool make_dimension(const Decision& decision, uint32_t index, const LaunchFrame& frame,
                           const LaunchView& view, uint32_t* out) {
  const GeometryMap& map = decision.binding->geometry[index];
  if (map.kind == GeometryMap::Kind::copy) {
    *out = geometry_of(frame, map.index);
    return true;
  }
  int64_t value;
  if (!run_program(decision.snapshot->begin(map.program), map.program.count, view, &value)) {
    return false;
  }
  // Dimensions are positive; shared memory may be none.
  if (value < (index == kSharedMem ? 0 : 1) || value > INT32_MAX) return false;
  *out = static_cast<uint32_t>(value);
  return true;
}

// Launches the replacement that a decision names. `view` has the launch's parameters and captures.
template <const LaunchFunctions& kFunctions>
__attribute__((noinline)) LaunchResult redirect(const LaunchFrame& frame, const Decision& decision,
                                                const Candidate& candidate, uint64_t* counters) {
  LaunchView view;
  view.params = frame.params;
  view.captures = candidate.captures;
  if (decision.reads_geometry) fill_geometry(frame, &view);
  if (!decision.is_fast || !holds(decision.where, decision.where_count, view)) {
    return route_slowly(frame, kFunctions);
  }
  uint32_t geometry[kGeometryCount];
  __builtin_memcpy(geometry, decision.constants, sizeof geometry);
  for (uint32_t left = decision.has_dynamic; left != 0; left &= left - 1) {
    const auto index = static_cast<uint32_t>(__builtin_ctz(left));
    if (!make_dimension(decision, index, frame, view, &geometry[index])) {
      return route_slowly(frame, kFunctions);
    }
  }
  void* pointers[kMaxFastArguments];
  int64_t values[kMaxFastArguments];
  void** arguments = frame.params;
  if (!decision.is_identity) {
    if (!make_params(decision, view, pointers, values)) return route_slowly(frame, kFunctions);
    arguments = pointers;
  }
  // The launch may wait for room in the driver's queue, and the handle die meanwhile.
  const CounterIndex hit = counter_of(decision.series, Outcome::hit);
  const CUresult result = kFunctions.launch->load(std::memory_order_relaxed)(
      decision.kernel, geometry[kGridX], geometry[kGridY], geometry[kGridZ], geometry[kBlockX],
      geometry[kBlockY], geometry[kBlockZ], geometry[kSharedMem], frame.stream, arguments, nullptr);
  if (__builtin_expect(result == CUDA_SUCCESS, 1)) {
    count_in(counters, hit);
    return done(CUDA_SUCCESS);
  }
  return finish_redirect(decision, result) ? kGoesOn : done(result);
}

// Carries a launch out. `slot` is what launch_entry.cc found of the handle. The fast side serves a kernel
// that one pattern fits, by one int32 parameter, with a decision that is made; the rest is slow.
template <const LaunchFunctions& kFunctions>
inline LaunchResult route(const LaunchFrame& frame, uintptr_t slot) {
  uint64_t* const counters = t_counters;
  void** const params = frame.params;
  if (__builtin_expect((slot & kSimple) == 0 || counters == nullptr || params == nullptr ||
                           g_slow_reasons.load(std::memory_order_relaxed) != 0 ||
                           (kFunctions.has_extra && frame.extra != nullptr),
                       0)) {
    return route_slowly(frame, kFunctions);
  }
  const Candidate& candidate = record_of(slot)->candidates[0];
  const auto* at = static_cast<const char*>(params[candidate.key_param]) + candidate.key_offset;
  const Decision* decision =
      find_decision_by_one(candidate, program_detail::read_bytes<int32_t>(at));
  if (__builtin_expect(decision == nullptr, 0)) return route_slowly(frame, kFunctions);
  if (candidate.where_count != 0 && !holds_for(frame, candidate)) {
    return route_slowly(frame, kFunctions);
  }
  if (decision->kind == DecisionKind::ready) {
    return redirect<kFunctions>(frame, *decision, candidate, counters);
  }
  if (decision->kind > DecisionKind::refused) return route_slowly(frame, kFunctions);
  count_in(counters, decision->fallback_counter);
  return kGoesOn;
}

// Handles whose slot is further from its place than launch_entry.cc looks.
inline uintptr_t found_slot(const LaunchFrame& frame, uintptr_t slot) {
  return __builtin_expect(slot != 0, 1)
             ? slot
             : find_handle(reinterpret_cast<const void*>(frame.function));
}

}  // namespace

constinit std::atomic<int> g_slow_reasons{0};

}  // namespace fibshim

// --- what launch_entry.cc calls ---

using fibshim::LaunchFrame;
using fibshim::LaunchResult;

#define FIBSHIM_ROUTE(name, plain, ex, is_per_thread_stream, has_extra)                  \
  static constexpr fibshim::LaunchFunctions kFunctions_##name = {                        \
      &fibshim::real::plain, &fibshim::real::ex, is_per_thread_stream, has_extra};       \
  LaunchResult fibshim_route_##name(const LaunchFrame* frame, uintptr_t slot) {          \
    return fibshim::route<kFunctions_##name>(*frame, fibshim::found_slot(*frame, slot)); \
  }

FIBSHIM_ROUTE(cuLaunchKernel, cuLaunchKernel, cuLaunchKernelEx, false, true)
FIBSHIM_ROUTE(cuLaunchKernel_ptsz, cuLaunchKernel_ptsz, cuLaunchKernelEx_ptsz, true, true)
// The replacement of a cooperative kernel is an ordinary one.
FIBSHIM_ROUTE(cuLaunchCooperativeKernel, cuLaunchKernel, cuLaunchKernelEx, false, false)
FIBSHIM_ROUTE(cuLaunchCooperativeKernel_ptsz, cuLaunchKernel_ptsz, cuLaunchKernelEx_ptsz, true,
              false)
