#include "shim/launch_path.h"

#include "loader/program.h"
#include "shim/images.h"
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

bool make_params(const Decision& decision, const LaunchView& view, LaunchPlan* plan) {
  const Snapshot& snapshot = *decision.snapshot;
  const Binding& binding = *decision.binding;
  if (binding.is_identity) {
    plan->params = const_cast<void**>(view.params);
    return true;
  }
  const ArgumentMap* arguments = snapshot.begin(binding.arguments);
  const uint32_t count = binding.arguments.count;
  for (uint32_t i = 0; i < count; ++i) {
    const ArgumentMap& argument = arguments[i];
    if (__builtin_expect(argument.kind == ArgumentMap::Kind::pass, 1)) {
      plan->pointers[i] = static_cast<char*>(view.params[argument.param]) + argument.offset;
      continue;
    }
    int64_t value;
    if (!run_program(snapshot.begin(argument.program), argument.program.count, view, &value)) {
      return false;
    }
    if (argument.kind == ArgumentMap::Kind::integer) {
      if (!fits_size(value, argument.size)) return false;
    } else if (argument.size == 4) {
      const float narrow = static_cast<float>(program_detail::bits_double(value));
      __builtin_memcpy(&value, &narrow, sizeof narrow);
    }
    plan->values[i] = value;
    plan->pointers[i] = &plan->values[i];
  }
  plan->params = plan->pointers;
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
      !make_geometry(decision, view, plan) || !make_params(decision, view, plan)) {
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
  const Record& record = *reinterpret_cast<const Record*>(slot);
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

bool finish_redirect(const LaunchPlan& plan, CUresult result) {
  if (__builtin_expect(result == CUDA_SUCCESS, 1)) {
    count(counter_of(plan.decision->series, Outcome::hit));
    return false;
  }
  count(counter_of(plan.decision->series, Outcome::error));
  report_failed_launch(*plan.decision, result);
  return on_error() == OnError::fallback;
}

}  // namespace fibshim
