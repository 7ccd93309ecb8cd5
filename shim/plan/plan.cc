#include "shim/plan/plan.h"

#include "shim/abi/program.h"
#include "shim/plan/fast_plan.h"

namespace fibshim {
namespace {

__attribute__((noinline)) bool run_steps(const Step* steps, uint32_t count, const LaunchView& view,
                                         int64_t* result) {
  return run_program(steps, count, view, result);
}

// Most programs are empty, or one step: they cost no call.
__attribute__((always_inline)) inline bool run(const Snapshot& snapshot, Program program,
                                               const LaunchView& view, int64_t* result) {
  const Step* const steps = snapshot.begin(program);
  if (program.count == 0) return true;
  if (program.count == 1 && result != nullptr) {
    if (steps->op == Op::load_field) return program_detail::load_field(view, *steps, result);
    if (steps->op == Op::push) {
      *result = steps->imm;
      return true;
    }
  }
  return run_steps(steps, program.count, view, result);
}

// True if a value fits a parameter of `size` bytes as a signed or an unsigned integer: only the
// kernel knows which it is.
bool fits_size(int64_t value, uint32_t size) {
  if (size >= 8) return true;
  if (size == 4) {
    constexpr int64_t kLeast = INT32_MIN;
    return value >= kLeast && value <= int64_t{UINT32_MAX};
  }
  const int bits = static_cast<int>(size) * 8;
  return value >= -(int64_t{1} << (bits - 1)) && value < (int64_t{1} << bits);
}

}  // namespace

bool compute_key(const Candidate& candidate, const LaunchView& view, int64_t* key) {
  const Snapshot& snapshot = *candidate.snapshot;
  const KeyPart* const parts = snapshot.begin(candidate.pattern->key);
  for (uint32_t i = 0; i < candidate.pattern->key.count; ++i) {
    if (!run(snapshot, parts[i].program, view, &key[i])) return false;
  }
  return true;
}

const Decision* choose(const Decision& choice, const LaunchView& view) {
  const Choices& choices = *choice.choices;
  for (uint32_t i = 0; i < choices.count; ++i) {
    if (run(*choice.snapshot, choices.list[i].when, view, nullptr)) return choices.list[i].decision;
  }
  return nullptr;
}

PackedParams read_packed(void** extra) {
  PackedParams out = {};
  for (; *extra != CU_LAUNCH_PARAM_END; extra += 2) {
    if (extra[0] == CU_LAUNCH_PARAM_BUFFER_POINTER) {
      out.bytes = static_cast<char*>(extra[1]);
    } else if (extra[0] == CU_LAUNCH_PARAM_BUFFER_SIZE && extra[1] != nullptr) {
      out.size = *static_cast<const size_t*>(extra[1]);
    } else {
      return {};
    }
  }
  return out;
}

bool unpack_extra(const Record& record, void** extra, void** out) {
  const PackedParams packed = read_packed(extra);
  if (packed.bytes == nullptr || packed.size < record.params_bytes) return false;
  for (uint32_t i = 0; i < record.param_count; ++i) {
    out[i] = packed.bytes + record.params[i].offset;
  }
  return true;
}

bool find_arguments(const Record& record, LaunchRequest* request, LaunchPlan* plan) {
  // Exactly one of the two forms must be used; a kernel without parameters needs neither.
  if (request->extra == nullptr) return request->view.params != nullptr || record.param_count == 0;
  if (request->view.params != nullptr || !unpack_extra(record, request->extra, plan->unpacked)) {
    return false;
  }
  request->view.params = plan->unpacked;
  return true;
}

bool pattern_holds(const Candidate& candidate, const LaunchView& view) {
  return run(*candidate.snapshot, candidate.pattern->where, view, nullptr);
}

bool solution_holds(const Decision& decision, const LaunchView& view) {
  return run(*decision.snapshot, decision.binding->where, view, nullptr);
}

void keep_nearest(Stage stage, const Candidate& candidate, const Decision* decision,
                  Stage* furthest, LaunchPlan* plan) {
  if (stage <= *furthest) return;
  *furthest = stage;
  plan->candidate = &candidate;
  plan->decision = decision;
  plan->outcome =
      stage == Stage::no_solution ? Outcome::fallback_no_solution : Outcome::fallback_where;
}

namespace {

bool compute_workspace(const Decision& decision, const LaunchView& view, int64_t* bytes) {
  *bytes = 0;
  const Program program = decision.binding->workspace;
  return program.count == 0 ||
         (run(*decision.snapshot, program, view, bytes) && *bytes >= 1 && *bytes <= kMaxWorkspace);
}

}  // namespace

void plan_decided(const Candidate& candidate, const Decision& decision, Mode mode,
                  const LaunchRequest& request, LaunchPlan* plan) {
  plan->candidate = &candidate;
  plan->decision = &decision;
  plan->action = LaunchAction::original;
  plan->outcome = outcome_of(decision.kind);
  if (decision.binding != nullptr && is_quarantined(decision)) {
    plan->outcome = Outcome::fallback_quarantined;
    return;
  }
  if (decision.kind == DecisionKind::failed && mode != Mode::observe &&
      decision.on_error == OnError::fail) {
    plan->action = LaunchAction::fail;
    plan->outcome = Outcome::error;
  }
  if (decision.kind != DecisionKind::ready) return;
  const LaunchView& view = request.view;
  const bool holds = solution_holds(decision, view) &&
                     compute_geometry(decision, view, plan->geometry) &&
                     compute_workspace(decision, view, &plan->workspace_bytes) &&
                     choose_arguments(decision, view, plan->pointers, plan->values, &plan->params);
  if (!holds) {
    plan->outcome = Outcome::fallback_where;
  } else if (request.must_keep_kernel) {
    plan->outcome = Outcome::fallback_refused;
  } else if (mode == Mode::observe) {
    plan->outcome = Outcome::observed;
  } else {
    plan->action = LaunchAction::redirect;
  }
}

bool compute_dimension(const Decision& decision, uint32_t index, const LaunchView& view,
                       uint32_t* out) {
  const GeometryMap& map = decision.binding->geometry[index];
  int64_t value = 0;
  switch (map.kind) {
    case GeometryMap::Kind::constant: *out = map.constant; return true;
    case GeometryMap::Kind::copy: *out = view.geometry[map.index]; return true;
    case GeometryMap::Kind::program: break;
  }
  if (!run(*decision.snapshot, map.program, view, &value)) return false;
  // Dimensions are positive; shared memory may be 0.
  if (value < (index == kSharedMem ? 0 : 1) || value > INT32_MAX) return false;
  *out = static_cast<uint32_t>(value);
  return true;
}

bool compute_geometry(const Decision& decision, const LaunchView& view,
                      uint32_t (&geometry)[kGeometryCount]) {
  for (uint32_t i = 0; i < kGeometryCount; ++i) {
    if (!compute_dimension(decision, i, view, &geometry[i])) return false;
  }
  return true;
}

bool compute_arguments(const Decision& decision, const LaunchView& view, void** pointers,
                       int64_t* values) {
  const ArgumentMap* const arguments = decision.snapshot->begin(decision.binding->arguments);
  const uint32_t count = decision.binding->arguments.count;
  for (uint32_t i = 0; i < count; ++i) {
    const ArgumentMap& argument = arguments[i];
    const auto at = [&] {
      return static_cast<char*>(view.params[argument.param]) + argument.offset;
    };
    if (__builtin_expect(argument.kind == ArgumentMap::Kind::pass, 1)) {
      pointers[i] = at();
      continue;
    }
    int64_t value = 0;
    if (!run(*decision.snapshot, argument.program, view, &value)) return false;
    if (argument.kind == ArgumentMap::Kind::shifted) {
      value = program_detail::add_shift(at(), value);
    } else if (argument.kind == ArgumentMap::Kind::integer) {
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

bool read_pointer(const Snapshot& snapshot, const LaunchView& view, uint32_t param, uint32_t offset,
                  Program shift, uint64_t* address) {
  int64_t bytes = 0;
  if (!run(snapshot, shift, view, &bytes)) return false;
  const char* const at = static_cast<const char*>(view.params[param]) + offset;
  *address = static_cast<uint64_t>(program_detail::add_shift(at, bytes));
  return true;
}

Outcome outcome_of(DecisionKind kind) {
  switch (kind) {
    case DecisionKind::ready: return Outcome::hit;
    case DecisionKind::no_solution: return Outcome::fallback_no_solution;
    case DecisionKind::arch: return Outcome::fallback_arch;
    case DecisionKind::refused: return Outcome::fallback_refused;
    case DecisionKind::in_capture: return Outcome::fallback_in_capture;
    case DecisionKind::failed: return Outcome::error_fallback;
    case DecisionKind::choice: return Outcome::fallback_where;
  }
  return Outcome::error_fallback;
}

AttributeRule rule_of(CUlaunchAttributeID id) {
  switch (id) {
    case CU_LAUNCH_ATTRIBUTE_COOPERATIVE:
    case CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION:
    case CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE:
    case CU_LAUNCH_ATTRIBUTE_PREFERRED_CLUSTER_DIMENSION: return AttributeRule::drop;
    case CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION: return AttributeRule::if_waits;
    default: return AttributeRule::keep;
  }
}

bool plan_attributes(const CUlaunchAttribute* given, unsigned given_count, const LaunchPlan& plan,
                     CUlaunchAttribute (&out)[kMaxAttributes], unsigned* out_count) {
  unsigned count = 0;
  for (unsigned i = 0; i < given_count; ++i) {
    const AttributeRule rule = rule_of(given[i].id);
    if (rule == AttributeRule::drop) continue;
    if (rule == AttributeRule::if_waits && !solution_of(*plan.decision).may_begin_early()) continue;
    if (count == kMaxAttributes) return false;
    out[count++] = given[i];
  }
  if (has_cluster(plan)) {
    if (count == kMaxAttributes) return false;
    out[count++] = cluster_attribute(plan.geometry);
  }
  *out_count = count;
  return true;
}

bool is_device_updatable(const CUlaunchAttribute* attributes, unsigned count) {
  for (unsigned i = 0; i < count; ++i) {
    if (attributes[i].id == CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE &&
        attributes[i].value.deviceUpdatableKernelNode.deviceUpdatable != 0) {
      return true;
    }
  }
  return false;
}

}  // namespace fibshim
