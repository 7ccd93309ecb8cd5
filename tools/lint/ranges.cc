#include "tools/lint/ranges.h"

#include "loader/compile/solution.h"

namespace fibshim {
namespace {

Range range_of(ValueType type) {
  switch (type) {
    case ValueType::int8: return {INT8_MIN, INT8_MAX};
    case ValueType::uint8: return {0, UINT8_MAX};
    case ValueType::int16: return {INT16_MIN, INT16_MAX};
    case ValueType::uint16: return {0, UINT16_MAX};
    case ValueType::int32: return {INT32_MIN, INT32_MAX};
    case ValueType::uint32: return {0, UINT32_MAX};
    case ValueType::uint64:
    case ValueType::address: return {0, INT64_MAX};
    default: return {};
  }
}

std::optional<int64_t> constant(const Expression& clause, uint16_t index) {
  const Expression::Node& node = clause.node(index);
  if (node.kind == Expression::Kind::integer) return node.integer;
  if (node.kind != Expression::Kind::negate) return std::nullopt;
  const Expression::Node& operand = clause.node(node.left);
  if (operand.kind != Expression::Kind::integer) return std::nullopt;
  return -operand.integer;
}

std::optional<double> floating(const Expression& clause, uint16_t index) {
  const Expression::Node& node = clause.node(index);
  if (node.kind == Expression::Kind::floating) return node.floating;
  const auto integer = constant(clause, index);
  return integer ? std::optional<double>(static_cast<double>(*integer)) : std::nullopt;
}

bool holds(int64_t a, Op op, int64_t b) {
  switch (op) {
    case Op::eq: return a == b;
    case Op::ne: return a != b;
    case Op::lt: return a < b;
    case Op::le: return a <= b;
    case Op::gt: return a > b;
    case Op::ge: return a >= b;
    default: return true;
  }
}

Op inverse(Op op) {
  switch (op) {
    case Op::eq: return Op::ne;
    case Op::ne: return Op::eq;
    case Op::lt: return Op::ge;
    case Op::le: return Op::gt;
    case Op::gt: return Op::le;
    case Op::ge: return Op::lt;
    default: return op;
  }
}

std::string only(const std::string& name, int64_t value) {
  return in_quotes(name) + " is " + std::to_string(value);
}

}  // namespace

Ranges::Ranges(const PatternSpec& pattern) {
  for (const PatternValue& value : pattern.values) {
    if (!value.expression && value.source.is_floating()) continue;
    Range& range = ranges_[value.name];
    if (value.expression) continue;  // an integer
    switch (value.source.kind) {
      case Source::Kind::param: range = range_of(value.source.type); break;
      case Source::Kind::geometry:
        range = {kGeometry[value.source.index].lowest, kGeometry[value.source.index].highest};
        break;
      case Source::Kind::integer: range = {value.source.integer, value.source.integer}; break;
      case Source::Kind::capture:
      case Source::Kind::floating: break;
    }
  }
}

Ranges::Ranges(const Definition& definition) {
  for (const DefinitionAxis& axis : definition.axes) {
    ranges_[axis.name] = axis.is_const ? Range{axis.value, axis.value} : Range{};
  }
  for (const DefinitionArgument& argument : definition.arguments) {
    if (argument.is_scalar && is_floating(kDtypes[argument.dtype].scalar)) continue;
    ranges_.emplace(argument.name, Range{});
  }
}

Range Ranges::of(const std::string& name) const {
  const auto found = ranges_.find(name);
  return found == ranges_.end() ? Range{} : found->second;
}

std::string Ranges::add(const Expression& clause, uint16_t index, bool is_negated) {
  const Expression::Node& node = clause.node(index);
  if (node.kind == Expression::Kind::logical_and) {
    const std::string left = add(clause, node.left, is_negated);
    return left.empty() ? add(clause, node.right, is_negated) : left;
  }
  if (const auto value = constant(clause, index)) {
    return (*value == 0) == is_negated ? "" : "it is " + std::to_string(*value);
  }
  if (node.kind != Expression::Kind::binary) return {};
  uint16_t subject = node.left;
  uint16_t object = node.right;
  Op op = node.op;
  if (constant(clause, subject) && !constant(clause, object)) {
    std::swap(subject, object);
    op = mirrored_comparison(op);
  }
  if (is_negated) op = inverse(op);
  const Expression::Node& left = clause.node(subject);
  const auto right = constant(clause, object);
  if (const auto value = constant(clause, subject); value && right) {
    return holds(*value, op, *right) ? "" : is_negated ? "it is true" : "it is false";
  }
  if (left.kind == Expression::Kind::name) {
    const auto pinned = floating(clause, object);
    if (ranges_.find(left.name) == ranges_.end() && pinned && op == Op::eq) {
      const auto [known, is_new] = floats_.emplace(left.name, *pinned);
      if (!is_new && known->second != *pinned) {
        return in_quotes(left.name) + " is to have another value before";
      }
      return {};
    }
    return right ? narrow(left.name, op, *right) : std::string();
  }
  // name % modulus == remainder
  if (right && op == Op::eq && left.kind == Expression::Kind::binary && left.op == Op::mod &&
      clause.node(left.left).kind == Expression::Kind::name) {
    const auto modulus = constant(clause, left.right);
    if (!modulus || *modulus == 0 || *modulus == INT64_MIN) return {};
    const std::string& name = clause.node(left.left).name;
    const int64_t limit = *modulus < 0 ? -*modulus : *modulus;
    if (*right >= limit || *right <= -limit) {
      return "a remainder of " + std::to_string(*modulus) + " is never " + std::to_string(*right);
    }
    const Range range = of(name);
    if (range.low == range.high && range.low % limit != *right) return only(name, range.low);
  }
  return {};
}

// A clause always holds if its negation cannot hold.
std::string Ranges::always_holds(const Expression& clause, uint16_t index) const {
  const Expression::Node& node = clause.node(index);
  if (node.kind == Expression::Kind::logical_and) {
    const std::string left = always_holds(clause, node.left);
    return left.empty() ? left : always_holds(clause, node.right);
  }
  Ranges otherwise(*this);
  return otherwise.add(clause, index, true);
}

std::string Ranges::narrow(const std::string& name, Op op, int64_t bound) {
  const auto found = ranges_.find(name);
  if (found == ranges_.end()) {
    if (floats_.count(name) != 0) return {};
    ranges_.emplace(name, Range{.is_integer = false});
  }
  Range& range = ranges_[name];
  const Range before = range;
  if (!range.is_integer) {
    // Between a bound and the next integer there are floats.
    if (op == Op::ne) return {};
    if (op == Op::lt) op = Op::le;
    if (op == Op::gt) op = Op::ge;
  }
  switch (op) {
    case Op::eq: range.keep(bound, bound); break;
    case Op::ne:
      if (range.low == bound && bound != INT64_MAX) ++range.low;
      if (range.high == bound && bound != INT64_MIN) --range.high;
      break;
    case Op::lt: range.keep(INT64_MIN, bound == INT64_MIN ? bound : bound - 1); break;
    case Op::le: range.keep(INT64_MIN, bound); break;
    case Op::gt: range.keep(bound == INT64_MAX ? bound : bound + 1, INT64_MAX); break;
    case Op::ge: range.keep(bound, INT64_MAX); break;
    default: return {};
  }
  if (!range.is_empty()) return {};
  range = before;
  if (before.low == before.high) return only(name, before.low);
  return in_quotes(name) + " is " + std::to_string(before.low) + " to " +
         std::to_string(before.high);
}

}  // namespace fibshim
