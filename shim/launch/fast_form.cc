#include "shim/launch/fast_form.h"

#include "shim/counters/counters.h"
#include "shim/launch/launch_path.h"
#include "shim/launch/served_solutions.h"

namespace fibshim {
namespace {

// Steps that have not been recognised yet.
struct Rest {
  const Step* at;
  const Step* end;

  bool is_next(Op op, uint32_t ahead = 0) const { return at + ahead < end && at[ahead].op == op; }
  bool is_done() const { return at == end; }
};

// `pointer % 16 == 0`. False: not this, or there is no room.
bool take_alignment(Rest* rest, Checks* out) {
  if (!rest->is_next(Op::require_aligned)) return false;
  const Step& step = *rest->at;
  if (step.offset != 0 || step.index > UINT8_MAX || step.imm < 0 || step.imm > UINT8_MAX ||
      (out->aligned_count != 0 && out->alignment_mask != step.imm) ||
      out->aligned_count == sizeof out->aligned) {
    return false;
  }
  out->alignment_mask = static_cast<uint8_t>(step.imm);
  out->aligned[out->aligned_count++] = static_cast<uint8_t>(step.index);
  ++rest->at;
  return true;
}

// `pointer != 0`, either way round.
bool take_not_null(Rest* rest, Checks* out) {
  const bool is_load_first = rest->is_next(Op::load_param) && rest->is_next(Op::push, 1);
  if (!is_load_first && !(rest->is_next(Op::push) && rest->is_next(Op::load_param, 1)))
    return false;
  if (!rest->is_next(Op::ne, 2) || !rest->is_next(Op::require, 3)) return false;
  const Step& load = rest->at[is_load_first ? 0 : 1];
  const Step& number = rest->at[is_load_first ? 1 : 0];
  if (number.imm != 0 || load.offset != 0 || load.index > UINT8_MAX ||
      load.type != ValueType::address || out->not_null_count == sizeof out->not_null) {
    return false;
  }
  out->not_null[out->not_null_count++] = static_cast<uint8_t>(load.index);
  rest->at += 4;
  return true;
}

bool take_checks(const Step* steps, uint32_t count, Checks* checks) {
  Rest rest = {steps, steps + count};
  while (!rest.is_done()) {
    if (!take_alignment(&rest, checks) && !take_not_null(&rest, checks)) return false;
  }
  return true;
}

void fill_up(Checks* checks) {
  while (checks->aligned_count % 2 != 0) {
    checks->aligned[checks->aligned_count] = checks->aligned[checks->aligned_count - 1];
    ++checks->aligned_count;
  }
}

// Where the caller's geometry lies in its frame, as far as a dimension may be copied from there: not a
// cluster, which it has none of, nor shared memory, which may be 0.
constexpr uint8_t kInFrame[kGeometryCount] = {
    offsetof(LaunchFrame, grid),         offsetof(LaunchFrame, grid) + 8,
    offsetof(LaunchFrame, grid) + 16,    offsetof(LaunchFrame, block_xy),
    offsetof(LaunchFrame, block_xy) + 8, offsetof(LaunchFrame, block_z)};

bool take_source(Rest* rest, Dimension* out) {
  if (rest->is_next(Op::load_geometry) && kInFrame[rest->at->index] != 0) {
    out->source = Dimension::Source::frame;
    out->at = kInFrame[rest->at->index];
  } else if (rest->is_next(Op::load_param) && rest->at->offset == 0 &&
             rest->at->index <= UINT8_MAX &&
             (rest->at->type == ValueType::int32 || rest->at->type == ValueType::uint32)) {
    out->source = Dimension::Source::param;
    out->at = static_cast<uint8_t>(rest->at->index);
  } else {
    return false;
  }
  ++rest->at;
  return true;
}

// A number that is pushed, from 1 on.
bool take_number(Rest* rest, uint32_t* out) {
  if (!rest->is_next(Op::push) || rest->at->imm < 1 || rest->at->imm > INT32_MAX) return false;
  *out = static_cast<uint32_t>(rest->at->imm);
  ++rest->at;
  return true;
}

bool take_op(Rest* rest, Op op) {
  if (!rest->is_next(op)) return false;
  ++rest->at;
  return true;
}

// source | ceil_div(source, number); alone, or with min(.., number) or min(number, ..) around it
bool take_dimension(const Step* steps, uint32_t count, Dimension* out) {
  Rest rest = {steps, steps + count};
  out->most = INT32_MAX;
  bool is_limited = take_number(&rest, &out->most);
  if (!take_source(&rest, out)) return false;
  uint32_t number = 0;
  if (rest.is_next(Op::push) && rest.is_next(Op::ceil_div, 1)) {
    out->shift = 0;
    if (!take_number(&rest, &number) || !take_op(&rest, Op::ceil_div)) return false;
    if ((number & (number - 1)) == 0) {
      out->shift = static_cast<uint8_t>(__builtin_ctz(number));
    } else {
      out->divisor = number;
    }
  }
  if (!is_limited && take_number(&rest, &number)) {
    out->most = number;
    is_limited = true;
  }
  if (is_limited && out->shift == Dimension::kNotComputed) out->shift = 0;
  return (!is_limited || take_op(&rest, Op::min)) && rest.is_done();
}

// cuLaunchKernel's order: the three values of a cluster are left out.
uint32_t plain_index(uint32_t index) { return index == kSharedMem ? 6 : index; }

// Geometry that the launch supplies. False: an expression that is not among the common ones.
bool take_dimensions(const Snapshot& snapshot, const Binding& binding, Decision* decision) {
  for (uint32_t i = 0; i < kGeometryCount; ++i) {
    if ((decision->has_dynamic >> i & 1) == 0) continue;
    const GeometryMap& map = binding.geometry[i];
    if (decision->dimension_count == kMaxDimensions) return false;
    Dimension& dimension = decision->dimensions[decision->dimension_count];
    dimension.shift = Dimension::kNotComputed;
    // A dimension is at least 1; shared memory may be none.
    if (i == kSharedMem) return false;
    if (map.kind == GeometryMap::Kind::copy) {
      if (kInFrame[map.index] == 0) return false;
      dimension.at = kInFrame[map.index];
    } else if (!take_dimension(snapshot.begin(map.program), map.program.count, &dimension)) {
      return false;
    }
    dimension.target = i;
    ++decision->dimension_count;
  }
  return true;
}

// Arguments that are whole parameters of the original.
bool take_arguments(const Snapshot& snapshot, const Binding& binding, Decision* decision) {
  if (binding.is_identity != 0) return true;
  const ArgumentMap* arguments = snapshot.begin(binding.arguments);
  for (uint32_t i = 0; i < binding.arguments.count; ++i) {
    const ArgumentMap& argument = arguments[i];
    if (argument.kind != ArgumentMap::Kind::pass || argument.offset != 0 ||
        argument.param > UINT8_MAX) {
      return false;
    }
    decision->arguments[i] = static_cast<uint8_t>(argument.param);
  }
  decision->argument_count = static_cast<uint8_t>((binding.arguments.count + 7) / 8 * 8);
  return true;
}

// The numbers, and which values are none.
void take_geometry(const Binding& binding, Decision* decision) {
  for (uint32_t i = 0; i < kGeometryCount; ++i) {
    const GeometryMap& map = binding.geometry[i];
    // Without a cluster its three values are never looked at.
    if (i >= kClusterX && i <= kClusterZ) continue;
    if (map.kind == GeometryMap::Kind::constant) {
      decision->geometry[plain_index(i)] = map.constant;
    } else {
      decision->has_dynamic = static_cast<uint16_t>(decision->has_dynamic | 1u << i);
    }
  }
}

Outcome outcome_of(DecisionKind kind) {
  switch (kind) {
    case DecisionKind::ready: return Outcome::hit;
    case DecisionKind::no_solution: return Outcome::fallback_no_solution;
    case DecisionKind::arch: return Outcome::fallback_arch;
    case DecisionKind::refused: return Outcome::fallback_refused;
    case DecisionKind::in_capture: return Outcome::fallback_in_capture;
    case DecisionKind::failed: return Outcome::error;
  }
  return Outcome::error;
}

// The pattern's where clause. What was taken is whole, even if the rest cannot be.
bool take_all_checks(const Candidate& candidate, Decision* decision) {
  const bool is_all = take_checks(candidate.where, candidate.where_count, &decision->checks);
  fill_up(&decision->checks);
  return is_all;
}

Way way_of(const Candidate& candidate, Decision* decision) {
  switch (decision->kind) {
    case DecisionKind::in_capture:
    case DecisionKind::failed: return Way::slow;
    case DecisionKind::no_solution:
    case DecisionKind::arch:
    case DecisionKind::refused:
      return take_all_checks(candidate, decision) ? Way::original : Way::slow;
    case DecisionKind::ready: break;
  }
  const Snapshot& snapshot = *decision->snapshot;
  const Binding& binding = *decision->binding;
  if (binding.has_cluster != 0 || binding.arguments.count > kMaxFastArguments) return Way::slow;
  // A launch that fails on the fast side knows its series alone.
  if (on_error_of_series(decision->series) != decision->on_error) return Way::slow;
  take_geometry(binding, decision);
  decision->waits_for_previous =
      snapshot.begin(snapshot.solutions)[binding.solution].waits_for_previous != 0;
  const bool is_direct =
      take_checks(candidate.where, candidate.where_count, &decision->checks) &&
      take_checks(snapshot.begin(binding.where), binding.where.count, &decision->checks) &&
      take_dimensions(snapshot, binding, decision) && take_arguments(snapshot, binding, decision);
  fill_up(&decision->checks);
  return is_direct ? Way::direct : Way::computed;
}

}  // namespace

void make_ready_for_fast_side(const Candidate& candidate, Decision* decision) {
  decision->counter = counter_of(decision->series, outcome_of(decision->kind));
  decision->way = way_of(candidate, decision);
}

}  // namespace fibshim
