#include "loader/compile/field_checks.h"

#include <math.h>
#include <string.h>

#include <algorithm>
#include <optional>

#include "shim/abi/program.h"

namespace fibshim {
namespace {

using Kind = FieldCheck::Kind;

constexpr size_t kFewestChecks = 2;

struct KindOfCheck {
  Kind kind;
  FieldCheck check;
};
using Checks = std::vector<KindOfCheck>;

void add(Checks* checks, Kind kind, uint32_t at, uint32_t other, int64_t imm) {
  checks->push_back(
      {kind, {static_cast<uint16_t>(at), static_cast<uint16_t>(other), static_cast<int32_t>(imm)}});
}

bool is_within(int64_t value, int64_t low, int64_t high) { return value >= low && value <= high; }

void add_long(Checks* checks, uint32_t at, int64_t value) {
  if (value == 0) {  // 0 by the mask of all bits: one check where words take two
    add(checks, Kind::aligned, at, 0, -1);
    return;
  }
  add(checks, Kind::word, at, 0, value & UINT32_MAX);
  add(checks, Kind::word, at + 4, 0, static_cast<int64_t>(static_cast<uint64_t>(value) >> 32));
}

bool add_equal(const Step& step, Checks* checks) {
  switch (step.type) {
    case ValueType::int32:
      if (!is_within(step.imm, INT32_MIN, INT32_MAX)) return false;
      add(checks, Kind::word, step.offset, 0, step.imm);
      return true;
    case ValueType::uint32:
      if (!is_within(step.imm, 0, UINT32_MAX)) return false;
      add(checks, Kind::word, step.offset, 0, step.imm);
      return true;
    case ValueType::uint64:
    case ValueType::address:
      if (step.imm < 0) return false;
      [[fallthrough]];
    case ValueType::int64: add_long(checks, step.offset, step.imm); return true;
    default: return false;
  }
}

// Compares bits. The other zero, which is equal in value, fails here and is left to the step.
bool add_float(const Step& step, Checks* checks) {
  const double value = program_detail::bits_double(step.imm);
  if (isnan(value)) return false;
  if (step.type == ValueType::float64) {
    add_long(checks, step.offset, step.imm);
    return true;
  }
  const auto narrow = static_cast<float>(value);
  int32_t bits;
  memcpy(&bits, &narrow, sizeof bits);
  if (static_cast<double>(narrow) != value) return false;
  add(checks, Kind::word, step.offset, 0, bits);
  return true;
}

// Adds an equality of two integers of the same parameter, if the other one's factor is 1.
bool add_field(const Step& step, Checks* checks) {
  const Field field = program_detail::field_of(step);
  const uint32_t size = size_of(step.type);
  const uint32_t other_size = size_of(field.type);
  if (field.index != step.index || field.factor != 1 || size < 4 || other_size < 4) return false;
  const bool is_plain = field.added == 0;
  const bool are_int32 = step.type == ValueType::int32 && field.type == ValueType::int32;
  const bool are_uint32 = step.type == ValueType::uint32 && field.type == ValueType::uint32;
  if (are_int32 || (are_uint32 && is_plain)) {
    add(checks, Kind::same_word, step.offset, field.offset, field.added);
  } else if (size == 8 && other_size == 8 && is_plain) {
    add(checks, Kind::same_long, step.offset, field.offset, 0);
  } else if (step.type == ValueType::int64 && field.type == ValueType::int32) {
    add(checks, Kind::long_of_word, step.offset, field.offset, field.added);
  } else if (step.type == ValueType::int32 && field.type == ValueType::int64 && is_plain) {
    add(checks, Kind::long_of_word, field.offset, step.offset, 0);
  } else {
    return false;
  }
  return true;
}

bool add_positive(const Step& step, int64_t bound, Checks* checks) {
  if (size_of(step.type) != 8 || step.imm != bound) return false;
  add(checks, Kind::positive, step.offset, 0, 0);
  return true;
}

bool add_check(const Step& step, Checks* checks) {
  if (step.offset > UINT16_MAX - 4) return false;
  switch (step.op) {
    case Op::require_equal: return add_equal(step, checks);
    case Op::require_unequal: return add_positive(step, 0, checks);
    case Op::require_least: return add_positive(step, 1, checks);
    case Op::require_float: return add_float(step, checks);
    case Op::require_field: return add_field(step, checks);
    case Op::require_aligned:
      if (!is_within(step.imm, 0, INT32_MAX)) return false;
      add(checks, Kind::aligned, step.offset, 0, step.imm);
      return true;
    default: return false;
  }
}

// Returns the parameter that most clauses read.
uint16_t find_param(const std::vector<Step>& steps) {
  uint32_t counts[kMaxParams] = {};
  for (const Step& step : steps) {
    if (step.op > Op::require && step.index < kMaxParams) ++counts[step.index];
  }
  return static_cast<uint16_t>(std::ranges::max_element(counts) - counts);
}

}  // namespace

FieldCheckSpec make_field_checks(const std::vector<Step>& steps) {
  FieldCheckSpec spec;
  spec.param = find_param(steps);
  Checks checks;
  for (size_t i = 0; i < steps.size(); ++i) {
    const Step& step = steps[i];
    // From the first step that is not a whole clause on, clauses take several steps.
    if (step.op <= Op::require) {
      spec.rest.insert(spec.rest.end(), steps.begin() + static_cast<ptrdiff_t>(i), steps.end());
      break;
    }
    if (step.index != spec.param || !add_check(step, &checks)) spec.rest.push_back(step);
  }
  if (checks.size() < kFewestChecks || checks.size() > UINT8_MAX) return {};
  std::ranges::stable_sort(checks, {}, &KindOfCheck::kind);
  for (const KindOfCheck& one : checks) {
    spec.checks.push_back(one.check);
    spec.ends[static_cast<size_t>(one.kind)] = static_cast<uint8_t>(spec.checks.size());
  }
  uint8_t end = 0;
  for (uint8_t& one : spec.ends) end = one = std::max(one, end);
  return spec;
}

}  // namespace fibshim
