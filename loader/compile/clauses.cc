#include "loader/compile/clauses.h"

#include <algorithm>
#include <cstring>

namespace fibshim {
namespace {

// a * b + c, or the nearest 64-bit integer. b is positive, c smaller than b.
int64_t saturated(int64_t a, int64_t b, int64_t c) {
  int64_t exact = 0;
  const bool overflows =
      __builtin_mul_overflow(a, b, &exact) || __builtin_add_overflow(exact, c, &exact);
  return !overflows ? exact : a < 0 ? INT64_MIN : INT64_MAX;
}

// factor * source + added, of an integer parameter. An 8-byte source allows no factor and no
// addend: the sum could exceed 64 bits.
struct Linear {
  const Source* source;
  int64_t factor, added;

  bool fits() const {
    const auto fits_field = [](int64_t value) { return value >= INT16_MIN && value <= INT16_MAX; };
    const bool is_wide = size_of(source->type) == 8;
    return fits_field(factor) && fits_field(added) && (!is_wide || (factor == 1 && added == 0));
  }
};

std::optional<Linear> linear_of(const Values& values, Values::Index index) {
  const Value& value = values[index];
  if (value.is_floating) return std::nullopt;
  if (const Source* const source = values.param_of(index)) return Linear{source, 1, 0};
  const bool is_sum = value.kind == Value::Kind::operation &&
                      (value.op == Op::add || value.op == Op::sub || value.op == Op::mul);
  if (!is_sum) return std::nullopt;
  const bool is_mirrored = values.constant_of(value.right) == nullptr;
  const int64_t* const constant = values.constant_of(is_mirrored ? value.left : value.right);
  if (constant == nullptr || *constant < INT16_MIN || *constant > INT16_MAX) return std::nullopt;
  auto linear = linear_of(values, is_mirrored ? value.right : value.left);
  if (!linear) return std::nullopt;
  if (value.op == Op::mul) {
    linear->factor *= *constant;
    linear->added *= *constant;
  } else if (value.op == Op::add) {
    linear->added += *constant;
  } else if (!is_mirrored) {
    linear->added -= *constant;
  } else {
    *linear = {linear->source, -linear->factor, *constant - linear->added};
  }
  return linear->fits() ? linear : std::nullopt;
}

// An integer of the launch, or a sum of it and a constant, or that divided by a constant, compared with a constant.
Clause describe_range(const Values& values, const Value& clause) {
  if (clause.kind != Value::Kind::operation || clause.op < Op::eq || clause.op > Op::ge) return {};
  const bool is_mirrored = values.constant_of(clause.right) == nullptr;
  const int64_t* const bound = values.constant_of(is_mirrored ? clause.left : clause.right);
  const Value* value = &values[is_mirrored ? clause.right : clause.left];
  if (bound == nullptr) return {};
  Clause range{.kind = Clause::Kind::range};
  const bool is_less = clause.op == Op::lt || clause.op == Op::le;
  const bool is_strict = clause.op == Op::lt || clause.op == Op::gt;
  if (clause.op == Op::eq) {
    range.low = range.high = *bound;
  } else if (clause.op == Op::ne) {
    return {};
  } else if (is_less != is_mirrored) {
    if (is_strict && *bound == INT64_MIN) return {};
    range.high = *bound - is_strict;
  } else {
    if (is_strict && *bound == INT64_MAX) return {};
    range.low = *bound + is_strict;
  }
  const int64_t* const divisor = values.constant_of(value->right);
  if (value->kind == Value::Kind::operation && value->op == Op::div && divisor != nullptr &&
      *divisor > 0) {
    // Division rounds towards 0.
    range.low = range.low > 0            ? saturated(range.low, *divisor, 0)
                : range.low == INT64_MIN ? INT64_MIN
                                         : saturated(range.low - 1, *divisor, 1);
    range.high = saturated(range.high, *divisor, range.high < 0 ? 0 : *divisor - 1);
    value = &values[value->left];
  }
  if (value->kind == Value::Kind::source) {
    range.source = value->source;
    return range;
  }
  const auto linear = linear_of(values, static_cast<Values::Index>(value - &values[0]));
  if (!linear || linear->factor != 1) return {};
  range.source = *linear->source;
  if (range.low != INT64_MIN) range.low = saturated(range.low, 1, -linear->added);
  if (range.high != INT64_MAX) range.high = saturated(range.high, 1, -linear->added);
  return range;
}

// `value % 2^k == 0`.
struct Alignment {
  Values::Index value;
  int64_t mask;
};

std::optional<Alignment> find_alignment(const Values& values, const Value& clause) {
  const auto equal = values.with_constant(clause, Op::eq);
  if (!equal || equal->constant != 0) return std::nullopt;
  const Value& remainder = values[equal->value];
  if (remainder.kind != Value::Kind::operation || remainder.op != Op::mod) return std::nullopt;
  const int64_t* const divisor = values.constant_of(remainder.right);
  if (divisor == nullptr || *divisor <= 0 || (*divisor & (*divisor - 1)) != 0) return std::nullopt;
  return Alignment{remainder.left, *divisor - 1};
}

Step aligned_step(Op op, const Source& source, int64_t mask) {
  Step step = load_step(source);
  step.op = op;
  step.imm = mask;
  return step;
}

std::optional<Step> fuse_bound(const Values& values, Op op, Values::Index value, int64_t bound) {
  const auto linear = linear_of(values, value);
  if (!linear || linear->factor != 1) return std::nullopt;
  const int64_t strict = op == Op::gt ? 1 : op == Op::lt ? -1 : 0;
  if (__builtin_add_overflow(bound, strict - linear->added, &bound)) return std::nullopt;
  Step step = load_step(*linear->source);
  step.op = op == Op::eq                   ? Op::require_equal
            : op == Op::ne                 ? Op::require_unequal
            : op == Op::ge || op == Op::gt ? Op::require_least
                                           : Op::require_most;
  step.imm = bound;
  return step;
}

std::optional<Step> fuse_float(const Values& values, const Value& clause) {
  const bool is_mirrored = values.param_of(clause.left) == nullptr;
  const Source* const param = values.param_of(is_mirrored ? clause.right : clause.left);
  const Value& other = values[is_mirrored ? clause.left : clause.right];
  if (param == nullptr || other.kind != Value::Kind::source ||
      other.source.kind != Source::Kind::floating || !param->is_floating()) {
    return std::nullopt;
  }
  Step step = load_step(*param);
  step.op = Op::require_float;
  step.imm = program_detail::double_bits(other.source.floating);
  return step;
}

// What a Step's imm holds of it. Nothing: it has no room for that.
std::optional<int64_t> pack_field(const Linear& linear) {
  const Source& source = *linear.source;
  if (!linear.fits() || source.offset > UINT16_MAX) return std::nullopt;
  static_assert(kMaxParams <= UINT8_MAX);
  const Field field = {static_cast<uint16_t>(source.offset), static_cast<uint8_t>(source.index),
                       source.type, static_cast<int16_t>(linear.factor),
                       static_cast<int16_t>(linear.added)};
  int64_t imm;
  static_assert(sizeof field == sizeof imm);
  std::memcpy(&imm, &field, sizeof field);
  return imm;
}

std::optional<Step> fuse_fields(const Values& values, const Value& clause) {
  auto one = linear_of(values, clause.left);
  auto other = linear_of(values, clause.right);
  if (!one || !other) return std::nullopt;
  if (one->factor != 1) std::swap(one, other);
  other->added -= one->added;
  const auto field = pack_field(*other);
  if (one->factor != 1 || !field) return std::nullopt;
  Step step = load_step(*one->source);
  step.op = Op::require_field;
  step.imm = *field;
  return step;
}

std::optional<Step> make_fused_step(const Values& values, const Value& clause) {
  const auto alignment = find_alignment(values, clause);
  const Source* const aligned = alignment ? values.param_of(alignment->value) : nullptr;
  if (aligned != nullptr &&
      (aligned->type == ValueType::address || aligned->type == ValueType::int64)) {
    return aligned_step(Op::require_aligned, *aligned, alignment->mask);
  }
  if (clause.kind != Value::Kind::operation) return std::nullopt;
  if (clause.op == Op::feq) return fuse_float(values, clause);
  if (!is_comparison(clause.op)) return std::nullopt;
  const int64_t* const constant = values.constant_of(clause.right);
  if (constant != nullptr) return fuse_bound(values, clause.op, clause.left, *constant);
  if (values.constant_of(clause.left) != nullptr) {
    return fuse_bound(values, mirrored_comparison(clause.op), clause.right,
                      *values.constant_of(clause.left));
  }
  return clause.op == Op::eq ? fuse_fields(values, clause) : std::nullopt;
}

}  // namespace

Clause describe_clause(const Values& values, const Value& clause) {
  const auto unequal = values.with_constant(clause, Op::ne);
  if (unequal && unequal->constant == 0) {
    const Source* const pointer = values.param_of(unequal->value);
    if (pointer == nullptr || pointer->type != ValueType::address) return {};
    return {Clause::Kind::not_null, pointer->index, pointer->offset, 0};
  }
  const auto alignment = find_alignment(values, clause);
  const Source* const aligned = alignment ? values.param_of(alignment->value) : nullptr;
  if (aligned != nullptr && aligned->type == ValueType::address) {
    return {Clause::Kind::aligned, aligned->index, aligned->offset, alignment->mask};
  }
  return describe_range(values, clause);
}

bool fuse_value(const Values& values, Values::Index index, std::vector<Step>* steps) {
  const auto linear = linear_of(values, index);
  const auto field = linear ? pack_field(*linear) : std::nullopt;
  if (field) steps->push_back(make_step(Op::load_field, *field));
  return field.has_value();
}

bool fuse_clause(const Values& values, const Value& clause, std::vector<Step>* steps) {
  const auto step = make_fused_step(values, clause);
  if (step) steps->push_back(*step);
  return step.has_value();
}

std::optional<AlignedSum> find_aligned_sum(const Values& values, const Value& clause) {
  const auto alignment = find_alignment(values, clause);
  if (!alignment) return std::nullopt;
  const Value& sum = values[alignment->value];
  if (sum.kind != Value::Kind::operation || sum.op != Op::add) return std::nullopt;
  const Source* const pointer = values.param_of(sum.left);
  if (pointer == nullptr || pointer->type != ValueType::address) return std::nullopt;
  return AlignedSum{sum.right, aligned_step(Op::require_aligned_sum, *pointer, alignment->mask)};
}

bool are_sorted_clauses(const std::vector<Step>& steps) {
  return std::ranges::is_sorted(steps, {}, &Step::op) &&
         (steps.empty() || steps.front().op > Op::require);
}

std::vector<Step> sort_clauses(const std::vector<Step>& steps) {
  std::vector<Step> sorted, rest;
  for (const Step& step : steps) {
    (step.op > Op::require ? sorted : rest).push_back(step);
  }
  std::ranges::stable_sort(sorted, {}, &Step::op);
  sorted.insert(sorted.end(), rest.begin(), rest.end());
  return sorted;
}

}  // namespace fibshim
