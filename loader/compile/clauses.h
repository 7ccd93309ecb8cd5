// Expressions with their names resolved, and clauses of a `where`: describes clauses for the fast
// form, and fuses a clause or value into a single step if possible.
#pragma once

#include <optional>

#include "loader/compile/expression.h"
#include "shim/abi/program.h"

namespace fibshim {

inline bool is_floating(ValueType type) {
  return type == ValueType::float32 || type == ValueType::float64;
}

// The source of a name's value at launch.
struct Source {
  enum class Kind : uint8_t { param, geometry, capture, integer, floating };
  Kind kind = Kind::integer;
  ValueType type = ValueType::int64;  // param
  uint16_t index = 0;                 // param, geometry, capture
  uint32_t offset = 0;                // param: bytes
  int64_t integer = 0;
  double floating = 0;

  static Source constant(int64_t value) { return {.integer = value}; }
  bool is_constant() const { return kind == Kind::integer || kind == Kind::floating; }
  bool is_floating() const {
    return kind == Kind::floating || (kind == Kind::param && fibshim::is_floating(type));
  }
};

// One clause of a `where`, classified as the fast form needs it.
struct Clause {
  enum class Kind : uint8_t {
    aligned,   // pointer % (mask + 1) == 0
    not_null,  // pointer != 0
    range,     // low <= source <= high, for an integer
    other,
  };
  Kind kind = Kind::other;
  uint16_t param = 0;
  uint32_t offset = 0;
  int64_t mask = 0;
  Source source;
  int64_t low = INT64_MIN, high = INT64_MAX;
};

inline bool is_comparison(Op op) { return op >= Op::eq && op <= Op::ge; }

inline Step make_step(Op op, int64_t imm = 0) {
  Step step{};
  step.op = op;
  step.imm = imm;
  return step;
}

inline Step load_step(const Source& source) {
  Step step{};
  step.index = source.index;
  switch (source.kind) {
    case Source::Kind::param:
      step.op = Op::load_param;
      step.type = source.type;
      step.offset = source.offset;
      break;
    case Source::Kind::geometry: step.op = Op::load_geometry; break;
    case Source::Kind::capture: step.op = Op::load_capture; break;
    case Source::Kind::integer: return make_step(Op::push, source.integer);
    case Source::Kind::floating:
      return make_step(Op::push, program_detail::double_bits(source.floating));
  }
  return step;
}

// A node of an expression's tree with its names resolved.
struct Value {
  enum class Kind : uint8_t { source, operation, logical_and, logical_or } kind;
  Op op;
  bool is_floating;
  bool is_boolean;  // 0 or 1
  uint16_t left, right;
  uint32_t depth;  // stack slots that it needs
  Source source;
};

// The values of one expression, and of the expressions that it uses.
class Values {
 public:
  using Index = uint16_t;

  Values() { values_.reserve(8); }

  size_t size() const { return values_.size(); }
  Index add(const Value& value) {
    values_.push_back(value);
    return static_cast<Index>(values_.size() - 1);
  }
  Value& operator[](Index index) { return values_[index]; }
  const Value& operator[](Index index) const { return values_[index]; }

  const int64_t* constant_of(uint16_t index) const {
    const Value& value = values_[index];
    return value.kind == Value::Kind::source && value.source.kind == Source::Kind::integer
               ? &value.source.integer
               : nullptr;
  }

  const Source* param_of(uint16_t index) const {
    const Value& value = values_[index];
    return value.kind == Value::Kind::source && value.source.kind == Source::Kind::param
               ? &value.source
               : nullptr;
  }

  struct WithConstant {
    uint16_t value;
    int64_t constant;
  };

  // If `value` applies `op` and one side is a constant integer, returns the other side and the
  // constant. Requires an `op` whose operands commute.
  std::optional<WithConstant> with_constant(const Value& value, Op op) const {
    if (value.kind != Value::Kind::operation || value.op != op) return std::nullopt;
    if (const int64_t* constant = constant_of(value.right)) {
      return WithConstant{value.left, *constant};
    }
    if (const int64_t* constant = constant_of(value.left)) {
      return WithConstant{value.right, *constant};
    }
    return std::nullopt;
  }

 private:
  std::vector<Value> values_;  // the constructor makes room for most expressions
};

Clause describe_clause(const Values& values, const Value& clause);

// Appends a single step for `param * constant + constant` with an integer parameter. Returns false
// if the value needs more than one step.
bool fuse_value(const Values& values, Values::Index index, std::vector<Step>* steps);

// Appends a single step for a clause on parameters: an alignment, a comparison of an integer with a
// constant, an equality of two integers, or of a float with a constant. Returns false if the clause
// needs more than one step.
bool fuse_clause(const Values& values, const Value& clause, std::vector<Step>* steps);

// A clause `(pointer + added) % 2^k == 0`: the step that follows those of `added`.
struct AlignedSum {
  Values::Index added;
  Step step;
};
std::optional<AlignedSum> find_aligned_sum(const Values& values, const Value& clause);

// Returns the steps with single-step clauses first, sorted by operation. The order of clauses does
// not change the result, and the launch path is fastest with this one.
std::vector<Step> sort_clauses(const std::vector<Step>& steps);
bool are_sorted_clauses(const std::vector<Step>& steps);  // as those that it returns

}  // namespace fibshim
