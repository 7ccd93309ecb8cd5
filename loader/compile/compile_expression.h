// Joins expressions with the values that their names have, folds constants, checks types, and emits
// programs.
//
// Values are int64 (checked) and double. Doubles compare, nothing else; an integer compared with a
// double is promoted, and a constant compared with a float32 parameter is rounded to float32 first,
// so that `eps == 1e-6` holds for what a caller wrote as 1e-6f. Names are resolved by a Scope; one
// may stand for another expression, which is compiled in place.
// Whatever is returned as a Program runs in kMaxStackDepth values: the launch path relies on it.
#pragma once

#include "loader/compile/clauses.h"

namespace fibshim {

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

// Appends a `where` clause: steps that end in one of the `require` operations. A clause
// that is known to hold appends nothing. `clauses`: gets what was appended, one entry for each clause.
ExpressionResult<void> compile_where(const Expression& expression, const Scope& scope,
                                     std::vector<Step>* steps,
                                     std::vector<Clause>* clauses = nullptr);

}  // namespace fibshim
