// Expressions with their names resolved, and the clauses of a `where` among them: what the fast form can hold of one, and the
// single step that it takes, if one does.
#pragma once

#include <optional>

#include "loader/compile/expression.h"
#include "shim/abi/program.h"

namespace fibshim {

inline bool is_floating(ValueType type) {
  return type == ValueType::float32 || type == ValueType::float64;
}

// Where a name's value comes from at launch.
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

// One clause of a `where`, told apart as far as the fast form does.
struct Clause {
  enum class Kind : uint8_t {
    aligned,   // pointer % (mask + 1) == 0
    not_null,  // pointer != 0
    range,     // low <= source <= high, of an integer
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

// A part of the tree with its names resolved.
struct Value {
  enum class Kind : uint8_t { source, operation, logical_and, logical_or } kind;
  Op op;
  bool is_floating;
  bool is_boolean;  // 0 or 1
  uint16_t left, right;
  uint32_t depth;  // stack that it takes
  Source source;
};

// The parts of one expression, and of those that it uses.
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

  // The two sides of `op`, one of them a known integer, where the order of the two does not matter.
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

// Appends the step that a value takes: of a parameter's integer, times a constant, plus another. False: it takes more than one.
bool fuse_value(const Values& values, Values::Index index, std::vector<Step>* steps);

// Appends the step that a clause takes: an alignment, a comparison of an integer with a constant, an equality of two integers
// or of a float with a constant, each of them a parameter's. False: it takes more than one.
bool fuse_clause(const Values& values, const Value& clause, std::vector<Step>* steps);

// The steps of clauses, those that are one step first and alike ones together: in which order clauses are looked at makes no
// difference, and the launch path is quickest so.
std::vector<Step> sort_clauses(const std::vector<Step>& steps);

}  // namespace fibshim
