#include "loader/compile/fast_form.h"

#include <string.h>

#include <algorithm>

namespace fibshim {
namespace {

bool contains(const uint8_t* params, uint8_t count, uint16_t param) {
  return std::find(params, params + count, param) != params + count;
}

bool add_aligned(const Clause& clause, FastChecks* checks) {
  uint8_t count = checks->aligned_count;
  if (clause.mask > UINT8_MAX || (count != 0 && checks->alignment_mask != clause.mask))
    return false;
  if (contains(checks->aligned, count, clause.param)) return true;
  // An odd number of entries is padded with a copy of the last one.
  if (count != 0 && checks->aligned[count - 1] == checks->aligned[count - 2]) --count;
  if (count == sizeof checks->aligned) return false;
  checks->alignment_mask = static_cast<uint8_t>(clause.mask);
  checks->aligned[count++] = static_cast<uint8_t>(clause.param);
  if (count % 2 != 0) checks->aligned[count++] = static_cast<uint8_t>(clause.param);
  checks->aligned_count = count;
  return true;
}

bool add_not_null(const Clause& clause, FastChecks* checks) {
  if (contains(checks->not_null, checks->not_null_count, clause.param)) return true;
  if (checks->not_null_count == sizeof checks->not_null) return false;
  checks->not_null[checks->not_null_count++] = static_cast<uint8_t>(clause.param);
  return true;
}

bool add_check(const Clause& clause, FastChecks* checks) {
  if (clause.offset != 0 || clause.param > UINT8_MAX) return false;
  switch (clause.kind) {
    case Clause::Kind::aligned: return add_aligned(clause, checks);
    case Clause::Kind::not_null: return add_not_null(clause, checks);
    case Clause::Kind::range:
    case Clause::Kind::other: break;
  }
  return false;
}

// cuLaunchKernel's order has the same indexes, except that shared memory follows the block.
uint32_t plain_index(uint32_t index) { return index == kSharedMem ? kPlainSharedMem : index; }

bool is_cluster(uint32_t index) { return index >= kClusterX && index <= kClusterZ; }

bool set_source(const Source& source, FastDimension* dimension) {
  if (source.kind == Source::Kind::geometry && source.index <= kBlockZ) {
    dimension->source = FastDimension::Source::geometry;
  } else if (source.kind == Source::Kind::param && source.offset == 0 &&
             source.index <= UINT8_MAX &&
             (source.type == ValueType::int32 || source.type == ValueType::uint32)) {
    dimension->source = FastDimension::Source::param;
  } else {
    return false;
  }
  dimension->at = static_cast<uint8_t>(source.index);
  return true;
}

bool is_same(const Source& a, const Source& b) {
  return a.kind == b.kind && a.type == b.type && a.index == b.index && a.offset == b.offset;
}

bool is_count(int64_t value) { return value >= 1 && value <= INT32_MAX; }

bool make_dimension(const SimpleValue& value, FastDimension* dimension) {
  if (!set_source(value.source, dimension) || (value.divisor && !is_count(*value.divisor)) ||
      (value.most && !is_count(*value.most))) {
    return false;
  }
  const auto divisor = static_cast<uint32_t>(value.divisor.value_or(1));
  const bool is_power_of_two = (divisor & (divisor - 1)) == 0;
  dimension->most = static_cast<uint32_t>(value.most.value_or(INT32_MAX));
  dimension->divisor = is_power_of_two ? 0 : divisor;
  dimension->shift = value.is_source_alone() ? FastDimension::kNotComputed
                     : is_power_of_two       ? static_cast<uint8_t>(__builtin_ctz(divisor))
                                             : 0;
  return true;
}

// Adds the constant values and the dimensions. Returns false if the launch supplies a value that
// FastDimension cannot express, such as shared memory, which may be 0.
bool add_geometry(const BindingSpec& binding, FastForm* form) {
  bool is_whole = true;
  for (uint32_t i = 0; i < kGeometryCount; ++i) {
    if (is_cluster(i)) continue;  // 1 x 1 x 1
    const GeometrySpec& spec = binding.geometry[i];
    if (spec.kind == GeometryMap::Kind::constant) {
      form->geometry[plain_index(i)] = spec.constant;
      continue;
    }
    form->has_dynamic = static_cast<uint16_t>(form->has_dynamic | 1u << i);
    FastDimension dimension{};
    if (i == kSharedMem || form->dimension_count == kMaxFastDimensions || !spec.value->simple ||
        !make_dimension(*spec.value->simple, &dimension)) {
      is_whole = false;
      continue;
    }
    dimension.target = static_cast<uint8_t>(plain_index(i));
    form->dimensions[form->dimension_count++] = dimension;
  }
  return is_whole;
}

// Adds the arguments. Returns false if one is not a whole parameter of the original.
bool add_arguments(const BindingSpec& binding, FastForm* form) {
  if (binding.is_identity) return true;
  const std::vector<ArgumentSpec>& arguments = binding.arguments.items();
  for (size_t i = 0; i < arguments.size(); ++i) {
    const ArgumentSpec& argument = arguments[i];
    if (argument.kind != ArgumentMap::Kind::pass || argument.offset != 0 ||
        argument.param > UINT8_MAX) {
      return false;
    }
    form->arguments[i] = static_cast<uint8_t>(argument.param);
  }
  form->argument_count = static_cast<uint8_t>((arguments.size() + 7) / 8 * 8);
  return true;
}

}  // namespace

FastKey make_fast_key(const PatternSpec& pattern) {
  FastKey key;
  memset(&key, 0, sizeof key);
  if (pattern.keys.empty()) return key;
  key.kind = KeyKind::computed;
  const auto& simple = pattern.keys[0].simple;
  if (pattern.keys.size() != 1 || !simple || !simple->is_source_alone() ||
      simple->source.kind != Source::Kind::param) {
    return key;
  }
  const Source& source = simple->source;
  if (source.type == ValueType::int32 || source.type == ValueType::uint32) {
    key.kind = KeyKind::int32;
  } else if (source.type == ValueType::int64) {
    key.kind = KeyKind::int64;
  } else {
    return key;
  }
  key.param = source.index;
  key.offset = source.offset;
  return key;
}

bool add_fast_checks(const std::vector<Clause>& clauses, FastChecks* checks) {
  bool is_whole = true;
  for (const Clause& clause : clauses) is_whole = add_check(clause, checks) && is_whole;
  return is_whole;
}

FastRange make_fast_range(const BindingSpec& binding) {
  FastRange range;
  memset(&range, 0, sizeof range);
  if (binding.when.empty()) return range;  // always
  range.source = FastRange::Source::computed;
  int64_t low = INT64_MIN;
  int64_t high = INT64_MAX;
  for (const Clause& clause : binding.when_clauses) {
    if (clause.kind != Clause::Kind::range ||
        !is_same(clause.source, binding.when_clauses[0].source)) {
      return range;
    }
    low = std::max(low, clause.low);
    high = std::min(high, clause.high);
  }
  const Source& source = binding.when_clauses[0].source;
  const bool is_geometry = source.kind == Source::Kind::geometry && source.index <= kBlockZ;
  const bool is_param = source.kind == Source::Kind::param && source.index <= UINT8_MAX &&
                        (source.type == ValueType::int32 || source.type == ValueType::uint32 ||
                         source.type == ValueType::int64);
  if (low > high || (!is_geometry && !is_param)) return range;
  range.source = is_param ? FastRange::Source::param : FastRange::Source::geometry;
  range.type = source.type;
  range.at = static_cast<uint8_t>(source.index);
  range.offset = source.offset;
  range.low = low;
  range.span = static_cast<uint64_t>(high) - static_cast<uint64_t>(low);
  return range;
}

FastForm make_fast_form(const BindingSpec& binding, const PatternSpec& pattern,
                        const SolutionSpec& solution) {
  FastForm form;
  memset(&form, 0, sizeof form);
  form.way = FastWay::slow;
  if (binding.state != BindingState::ready ||
      binding.arguments.items().size() > kMaxFastArguments || solution.workspace_argument != 0) {
    return form;
  }
  form.may_begin_early = solution.waits_for_previous && solution.early_params == 0;
  if (binding.has_cluster) {
    form.way = FastWay::clustered;
    return form;
  }
  const bool has_whole_geometry = add_geometry(binding, &form);
  const bool has_whole_checks = add_fast_checks(pattern.where_clauses, &form.checks);
  const bool is_direct = add_fast_checks(binding.where_clauses.items(), &form.checks) &&
                         has_whole_checks && has_whole_geometry && add_arguments(binding, &form);
  form.way = is_direct ? FastWay::direct : FastWay::computed;
  if (!is_direct) form.dimension_count = form.argument_count = 0;
  return form;
}

}  // namespace fibshim
