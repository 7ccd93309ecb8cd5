// Joins expressions with the values that their names have, folds constants, checks types, and emits
// programs.
//
// Values are int64 (checked) and double. Doubles compare, nothing else; an integer compared with a
// double is promoted, and a constant compared with a float32 parameter is rounded to float32 first,
// so that `eps == 1e-6` holds for what a caller wrote as 1e-6f. Names are resolved by a Scope; one
// may stand for another expression, which is compiled in place.
// Whatever is returned as a Program runs in kMaxStackDepth values: the launch path relies on it.
#pragma once

#include <optional>

#include "loader/compile/expression.h"
#include "shim/abi/program.h"

namespace fibshim {

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
  bool is_floating() const;
};

bool is_floating(ValueType type);

// What names mean. find() returns nullopt for a name that is unknown.
class Scope {
 public:
  struct Meaning {
    Source source;
    const Expression* expression = nullptr;  // when set, instead of `source`
    const Scope* scope = nullptr;            // where that expression's own names are looked up
  };
  virtual ~Scope() = default;
  virtual std::optional<Meaning> find(std::string_view name) const = 0;
  // The names, for "did you mean".
  virtual std::vector<std::string_view> names() const = 0;
};

// min(ceil_div(source, divisor), most), as far as each is there: what the fast form can hold.
struct SimpleValue {
  Source source;
  std::optional<int64_t> divisor;
  std::optional<int64_t> most;

  bool is_source_alone() const { return !divisor && !most; }
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

struct CompiledValue {
  std::vector<Step> steps;
  std::optional<SimpleValue> simple;
  bool is_floating = false;
  std::optional<int64_t> constant;  // the value, when it is a known integer
};

// The value of an expression. `float32` constants of `value: 1.0` come out as doubles.
ExpressionResult<CompiledValue> compile_value(const Expression& expression, const Scope& scope);

// The value of a source alone.
CompiledValue compile_source(const Source& source);

// Appends a `where` clause: steps that end in require, require_aligned or require_equal. A clause
// that is known to hold appends nothing. `clauses`: gets what was appended, one entry for each clause.
ExpressionResult<void> compile_where(const Expression& expression, const Scope& scope,
                                     std::vector<Step>* steps,
                                     std::vector<Clause>* clauses = nullptr);

}  // namespace fibshim
