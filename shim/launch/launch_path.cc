#include "shim/launch/launch_path.h"

#include <stddef.h>

#include "shim/abi/program.h"
#include "shim/driver/driver.h"
#include "shim/registry/generation.h"
#include "shim/graphs/graphs.h"
#include "shim/registry/images.h"
#include "shim/launch/launch_entry.h"
#include "shim/launch/launch_slow.h"
#include "shim/base/read_section.h"
#include "shim/launch/served_solutions.h"
#include "shim/base/settings_in_force.h"

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
  const ArgumentMap* const arguments = decision.snapshot->begin(decision.binding->arguments);
  const uint32_t count = decision.binding->arguments.count;
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

// A geometry value that an expression gives. False: it has none.
inline bool compute_dimension(const Decision& decision, uint32_t index, const LaunchView& view,
                              uint32_t* out) {
  const Program program = decision.binding->geometry[index].program;
  int64_t value;
  if (!run_program(decision.snapshot->begin(program), program.count, view, &value)) return false;
  // Dimensions are positive; shared memory may be none.
  if (value < (index == kSharedMem ? 0 : 1) || value > INT32_MAX) return false;
  *out = static_cast<uint32_t>(value);
  return true;
}

bool make_geometry(const Decision& decision, const LaunchView& view, LaunchPlan* plan) {
  for (uint32_t i = 0; i < kGeometryCount; ++i) {
    const GeometryMap& map = decision.binding->geometry[i];
    if (map.kind == GeometryMap::Kind::constant) {
      plan->geometry[i] = map.constant;
    } else if (map.kind == GeometryMap::Kind::copy) {
      plan->geometry[i] = view.geometry[map.index];
    } else if (!compute_dimension(decision, i, view, &plan->geometry[i])) {
      return false;
    }
  }
  return true;
}

// A launch whose pattern has decided: fills the plan, counting what does not lead to a redirect.
void plan_decided(const Decision& decision, Mode mode, const LaunchRequest& request,
                  LaunchPlan* plan) {
  const LaunchView& view = request.view;
  auto falls_back = [&](Outcome outcome) {
    count(counter_of(decision.series, outcome));
    plan->outcome = outcome;
    plan->action = LaunchAction::original;
  };
  if (decision.binding != nullptr && is_quarantined(decision.series)) {
    return falls_back(Outcome::fallback_quarantined);
  }
  switch (decision.kind) {
    case DecisionKind::ready: break;
    case DecisionKind::no_solution: return falls_back(Outcome::fallback_no_solution);
    case DecisionKind::arch: return falls_back(Outcome::fallback_arch);
    case DecisionKind::refused: return falls_back(Outcome::fallback_refused);
    case DecisionKind::in_capture: return falls_back(Outcome::fallback_in_capture);
    case DecisionKind::failed:
      falls_back(Outcome::error);
      if (mode == Mode::observe) return;
      note_failure(decision.series, decision.error);
      if (decision.on_error == OnError::fail) {
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
  if (decision.binding->is_identity != 0) {
    plan->params = const_cast<void**>(view.params);
  } else if (make_params(decision, view, plan->pointers, plan->values)) {
    plan->params = plan->pointers;
  } else {
    return falls_back(Outcome::fallback_where);
  }
  if (__builtin_expect(request.must_keep_kernel, 0)) return falls_back(Outcome::fallback_refused);
  if (__builtin_expect(mode == Mode::observe, 0)) return falls_back(Outcome::observed);
  plan->action = LaunchAction::redirect;
  plan->outcome = Outcome::hit;
  plan->kernel = decision.kernel;
  plan->decision = &decision;
}

}  // namespace

void plan_launch(LaunchRequest* request, LaunchPlan* plan) {
  plan->action = LaunchAction::original;
  plan->outcome = Outcome::untracked;
  plan->record = nullptr;
  plan->arguments = nullptr;
  uintptr_t slot = find_handle(request->handle);
  if (__builtin_expect(slot == 0 || (slot & kUnmatched) != 0, 0)) {
    slot = learn_handle(request->handle);
  }
  if (__builtin_expect(slot == 0, 0)) return count_unknown();
  if ((slot & kUntracked) != 0) return count_untracked();
  const Record& record = *record_of(slot);
  plan->record = &record;
  // The driver will refuse such a launch; the shim only counts it.
  if (!find_params(record, request, plan->unpacked)) return count_untracked();
  plan->arguments = request->view.params;
  if (record.candidate_count == 0) return count_untracked();

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
    if (record.kind == HandleKind::kernel &&
        __builtin_expect(g_tells_devices_apart.load(std::memory_order_acquire), 0)) {
      key[key_count++] = device_key_of_launch(*request);
    }
    const Decision* decision = find_decision(candidate, key, key_count);
    if (__builtin_expect(decision == nullptr, 0)) {
      decision = decide(record, &candidate, key, key_count, *request, &plan->uncached);
    }
    const bool holds = run_program(candidate.where, candidate.where_count, request->view, nullptr);
    if (holds && decision->kind != DecisionKind::no_solution) {
      return plan_decided(*decision, candidate.generation->mode, *request, plan);
    }
    if (unresolved == nullptr && fallback == Outcome::untracked) {
      fallback = holds ? Outcome::fallback_no_solution : Outcome::fallback_where;
      fallback_series = decision->series;
    }
  }
  plan->outcome = unresolved != nullptr ? Outcome::fallback_where : fallback;
  if (unresolved != nullptr) return count_unresolved(*unresolved);
  count(counter_of(fallback_series, fallback));
}

bool finish_redirect(const LaunchPlan& plan, CUresult result) {
  if (__builtin_expect(result == CUDA_SUCCESS, 1)) return false;
  const Decision& decision = *plan.decision;
  take_back(decision.counter);
  return end_failed_launch(decision.series, result, decision.on_error);
}

LaunchResult finish_launch(const LaunchFrame& frame, LaunchResult result) {
  if (result == kGoesOn) return result;
  const auto code = static_cast<CUresult>(static_cast<uint32_t>(result));
  if ((result & kIsDone) != 0 || code == CUDA_SUCCESS) return static_cast<uint32_t>(code);
  const auto hit = static_cast<CounterIndex>(frame.hit);
  take_back(hit);
  const uint32_t series = hit / kOutcomeSlots;
  return end_failed_launch(series, code, on_error_of_series(series)) ? kGoesOn
                                                                     : static_cast<uint32_t>(code);
}

namespace {

// --- the fast side ---
//
// Every function below is entered within the thread's read section, and leaves it before it calls
// anything: the driver, where the launch may wait for room in a queue while its own handle dies, or
// the slow side.

void fill_geometry(const LaunchFrame& frame, LaunchView* view) {
  for (int i = 0; i < 3; ++i) view->geometry[kGridX + i] = static_cast<uint32_t>(frame.grid[i]);
  view->geometry[kBlockX] = static_cast<uint32_t>(frame.block_xy[0]);
  view->geometry[kBlockY] = static_cast<uint32_t>(frame.block_xy[1]);
  view->geometry[kBlockZ] = static_cast<uint32_t>(frame.block_z);
  for (int i = 0; i < 3; ++i) view->geometry[kClusterX + i] = 1;
  view->geometry[kSharedMem] = static_cast<uint32_t>(frame.shared_mem);
}

template <class Integer>
inline int64_t read_key(const Candidate& candidate, void* const* params) {
  return program_detail::read_bytes<Integer>(static_cast<const char*>(params[candidate.key_param]) +
                                             candidate.key_offset);
}

inline bool checks_hold(const Checks& checks, void* const* params) {
  uint64_t bits = 0;
  for (uint32_t i = 0; i < checks.aligned_count; i += 2) {
#pragma GCC unroll 2
    for (uint32_t k = 0; k < 2; ++k) {
      bits |= program_detail::read_bytes<uint64_t>(params[checks.aligned[i + k]]);
    }
  }
  if ((bits & checks.alignment_mask) != 0) return false;
  for (uint32_t i = 0; i < checks.not_null_count; ++i) {
    // Addresses from 2^63 on have no value in expressions.
    if (program_detail::read_bytes<int64_t>(params[checks.not_null[i]]) <= 0) return false;
  }
  return true;
}

// False: not a dimension.
inline bool make_dimension(const Dimension& dimension, const LaunchFrame& frame,
                           uint32_t* geometry) {
  const void* const at = dimension.source == Dimension::Source::param
                             ? frame.params[dimension.at]
                             : reinterpret_cast<const char*>(&frame) + dimension.at;
  uint32_t less_one = program_detail::read_bytes<uint32_t>(at) - 1;
  if (less_one >= uint32_t{INT32_MAX}) return false;
  if (dimension.shift != Dimension::kNotComputed) {
    less_one = dimension.divisor == 0 ? less_one >> dimension.shift : less_one / dimension.divisor;
    if (less_one >= dimension.most) less_one = dimension.most - 1;
  }
  geometry[dimension.target] = less_one + 1;
  return true;
}

// Leaves the section and launches. The hit is counted before the launch, and taken back by
// finish_launch() if it fails, so that nothing has to be kept across it.
template <const LaunchFunctions& kFunctions>
inline LaunchResult launch_replacement(LaunchFrame& frame, const Decision& decision,
                                       ReaderState* reader, const uint32_t* geometry,
                                       void** arguments) {
  const CounterIndex hit = decision.counter;
  const CUfunction kernel = decision.kernel;
  frame.hit = hit;
  leave_fast_section(reader);
  count(hit);
  return static_cast<uint32_t>(kFunctions.launch->load(std::memory_order_relaxed)(
      kernel, geometry[0], geometry[1], geometry[2], geometry[3], geometry[4], geometry[5],
      geometry[6], frame.stream, arguments, nullptr));
}

// Leaves the section for the slow side.
template <const LaunchFunctions& kFunctions>
__attribute__((noinline)) LaunchResult leave_for_slow_side(const LaunchFrame& frame,
                                                           ReaderState* reader) {
  if (reader != nullptr) leave_fast_section(reader);
  return route_slowly(frame, kFunctions);
}

// A decision with expressions.
template <const LaunchFunctions& kFunctions>
__attribute__((noinline)) LaunchResult launch_computed(LaunchFrame& frame,
                                                       const Candidate& candidate,
                                                       const Decision& decision,
                                                       ReaderState* reader) {
  LaunchView view;
  view.params = frame.params;
  view.captures = candidate.captures;
  fill_geometry(frame, &view);
  const Program where = decision.binding->where;
  if (!run_program(candidate.where, candidate.where_count, view, nullptr) ||
      !run_program(decision.snapshot->begin(where), where.count, view, nullptr)) {
    return leave_for_slow_side<kFunctions>(frame, reader);
  }
  uint32_t geometry[kPlainGeometryCount];
  __builtin_memcpy(geometry, decision.geometry, sizeof geometry);
  for (uint32_t left = decision.has_dynamic; left != 0; left &= left - 1) {
    const auto index = static_cast<uint32_t>(__builtin_ctz(left));
    uint32_t value = 0;
    const GeometryMap& map = decision.binding->geometry[index];
    if (map.kind == GeometryMap::Kind::copy) {
      value = view.geometry[map.index];
    } else if (!compute_dimension(decision, index, view, &value)) {
      return leave_for_slow_side<kFunctions>(frame, reader);
    }
    geometry[index == kSharedMem ? kPlainGeometryCount - 1 : index] = value;
  }
  void* pointers[kMaxFastArguments];
  int64_t values[kMaxFastArguments];
  void** arguments = frame.params;
  if (decision.binding->is_identity == 0) {
    if (!make_params(decision, view, pointers, values)) {
      return leave_for_slow_side<kFunctions>(frame, reader);
    }
    arguments = pointers;
  }
  return launch_replacement<kFunctions>(frame, decision, reader, geometry, arguments);
}

// A decision without expressions, whose checks hold.
template <const LaunchFunctions& kFunctions>
__attribute__((noinline)) LaunchResult launch_directly(LaunchFrame& frame, const Decision& decision,
                                                       ReaderState* reader) {
  uint32_t geometry[kPlainGeometryCount];
  __builtin_memcpy(geometry, decision.geometry, sizeof geometry);
  if (decision.dimension_count != 0) {
    static_assert(kMaxDimensions == 2);
    if (!make_dimension(decision.dimensions[0], frame, geometry) ||
        (decision.dimension_count > 1 &&
         !make_dimension(decision.dimensions[1], frame, geometry))) {
      return leave_for_slow_side<kFunctions>(frame, reader);
    }
  }
  void* pointers[kMaxFastArguments];
  void** arguments = frame.params;
  if (decision.argument_count != 0) {
    for (uint32_t i = 0; i < decision.argument_count; i += 8) {
#pragma GCC unroll 8
      for (uint32_t k = 0; k < 8; ++k) pointers[i + k] = frame.params[decision.arguments[i + k]];
    }
    arguments = pointers;
  }
  return launch_replacement<kFunctions>(frame, decision, reader, geometry, arguments);
}

// Handles whose slot is further from its place than launch_entry.cc looks.
__attribute__((noinline)) uintptr_t find_far_handle(const void* handle) {
  return find_handle(handle);
}

// Carries a launch out, or hands it to `go_slowly`. `slot` is the handle's, or 0. The fast side serves a
// kernel that one pattern fits, whose key is one parameter at most, with a decision that is made.
template <const LaunchFunctions& kFunctions, class GoSlowly>
__attribute__((always_inline)) inline LaunchResult route(LaunchFrame& frame, uintptr_t slot,
                                                         ReaderState* reader, bool has_attributes,
                                                         const GoSlowly& go_slowly) {
  void** const params = frame.params;
  if (__builtin_expect((slot & kSimple) == 0, 0)) {
    if (slot != 0 || reader == nullptr) return go_slowly();
    slot = find_far_handle(reinterpret_cast<const void*>(frame.function));
    if ((slot & kUntracked) != 0) {
      leave_fast_section(reader);
      count_untracked();
      return kGoesOn;
    }
    if ((slot & kSimple) == 0) return go_slowly();
  }
  if (__builtin_expect(params == nullptr || g_slow_reasons.load(std::memory_order_relaxed) != 0,
                       0)) {
    return go_slowly();
  }
  const Candidate& candidate = simple_candidate_of(slot);
  int64_t key = 0;
  if (__builtin_expect(candidate.key_kind == KeyKind::int32, 1)) {
    key = read_key<int32_t>(candidate, params);
  } else if (candidate.key_kind == KeyKind::int64) {
    key = read_key<int64_t>(candidate, params);
  }
  const Decision* const decision = find_decision_by_one(candidate, key);
  if (__builtin_expect(decision == nullptr, 0)) return go_slowly();
  if (__builtin_expect(!checks_hold(decision->checks, params), 0)) return go_slowly();
  if (__builtin_expect(has_attributes && decision->waits_for_previous, 0)) return go_slowly();
  const Way way = way_now(*decision);
  if (__builtin_expect(way == Way::direct, 1)) {
    return launch_directly<kFunctions>(frame, *decision, reader);
  }
  if (__builtin_expect(way == Way::original, 1)) {
    const CounterIndex counter = decision->counter;
    leave_fast_section(reader);
    count(counter);
    return kGoesOn;
  }
  return way == Way::computed ? launch_computed<kFunctions>(frame, candidate, *decision, reader)
                              : go_slowly();
}

template <const LaunchFunctions& kFunctions>
inline LaunchResult route_framed(LaunchFrame& frame, uintptr_t slot, ReaderState* reader) {
  const auto go_slowly = [&] { return leave_for_slow_side<kFunctions>(frame, reader); };
  if (kFunctions.has_extra && __builtin_expect(frame.extra != nullptr, 0)) return go_slowly();
  return route<kFunctions>(frame, slot, reader, false, go_slowly);
}

// Attributes that need no look at the replacement, but for whether it waits: none, or programmatic
// stream serialization alone, which is dropped where it does not.
inline bool has_plain_attributes(const CUlaunchConfig& config) {
  return config.numAttrs == 0 ||
         (config.numAttrs == 1 && config.attrs != nullptr &&
          config.attrs->id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION);
}

template <const LaunchFunctions& kFunctions>
inline CUresult route_config(const CUlaunchConfig* config, CUfunction function, void** params,
                             void** extra, uintptr_t slot, ReaderState* reader) {
  const auto go_slowly = [&] {
    if (reader != nullptr) leave_fast_section(reader);
    return done(launch_config_slowly(config, function, params, extra, kFunctions));
  };
  LaunchResult result;
  LaunchFrame frame;
  if (__builtin_expect(reader == nullptr || config == nullptr || extra != nullptr ||
                           !has_plain_attributes(*config),
                       0)) {
    result = go_slowly();
  } else {
    frame.grid[0] = config->gridDimX;
    frame.grid[1] = config->gridDimY;
    frame.grid[2] = config->gridDimZ;
    frame.block_xy[0] = config->blockDimX;
    frame.block_xy[1] = config->blockDimY;
    frame.block_z = config->blockDimZ;
    frame.shared_mem = config->sharedMemBytes;
    frame.stream = config->hStream;
    frame.params = params;
    frame.function = reinterpret_cast<uint64_t>(function);
    frame.extra = nullptr;
    result = route<kFunctions>(frame, slot, reader, config->numAttrs != 0, go_slowly);
  }
  if (__builtin_expect(result != 0, 0)) result = finish_launch(frame, result);
  if (result != kGoesOn) return static_cast<CUresult>(result);
  return kFunctions.launch_ex->load(std::memory_order_relaxed)(config, function, params, extra);
}

}  // namespace

constinit std::atomic<int> g_slow_reasons{0};

}  // namespace fibshim

// --- what launch_entry.cc calls ---

using fibshim::LaunchFrame;
using fibshim::LaunchResult;

LaunchResult fibshim_finish_launch(const LaunchFrame* frame, LaunchResult result) {
  return fibshim::finish_launch(*frame, result);
}

// Whether the driver's own of a function is known.
#define FIBSHIM_HAS(name) \
  [] { return fibshim::real::name.load(std::memory_order_relaxed) != nullptr; }

#define FIBSHIM_ROUTE(name, plain, ex, is_per_thread_stream, has_extra)                   \
  static constexpr fibshim::LaunchFunctions kFunctions_##name = {                         \
      &fibshim::real::plain, &fibshim::real::ex, FIBSHIM_HAS(name), is_per_thread_stream, \
      has_extra};                                                                         \
  LaunchResult fibshim_route_##name(LaunchFrame* frame, uintptr_t slot,                   \
                                    fibshim::ReaderState* reader) {                       \
    return fibshim::route_framed<kFunctions_##name>(*frame, slot, reader);                \
  }

FIBSHIM_ROUTE(cuLaunchKernel, cuLaunchKernel, cuLaunchKernelEx, false, true)
FIBSHIM_ROUTE(cuLaunchKernel_ptsz, cuLaunchKernel_ptsz, cuLaunchKernelEx_ptsz, true, true)
// The replacement of a cooperative kernel is an ordinary one.
FIBSHIM_ROUTE(cuLaunchCooperativeKernel, cuLaunchKernel, cuLaunchKernelEx, false, false)
FIBSHIM_ROUTE(cuLaunchCooperativeKernel_ptsz, cuLaunchKernel_ptsz, cuLaunchKernelEx_ptsz, true,
              false)

#define FIBSHIM_ROUTE_CONFIG(name, plain, is_per_thread_stream)                                    \
  static constexpr fibshim::LaunchFunctions kFunctions_##name = {                                  \
      &fibshim::real::plain, &fibshim::real::name, FIBSHIM_HAS(name), is_per_thread_stream, true}; \
  CUresult fibshim_route_##name(const CUlaunchConfig* config, CUfunction function, void** params,  \
                                void** extra, uintptr_t slot, fibshim::ReaderState* reader) {      \
    return fibshim::route_config<kFunctions_##name>(config, function, params, extra, slot,         \
                                                    reader);                                       \
  }

FIBSHIM_ROUTE_CONFIG(cuLaunchKernelEx, cuLaunchKernel, false)
FIBSHIM_ROUTE_CONFIG(cuLaunchKernelEx_ptsz, cuLaunchKernel_ptsz, true)
