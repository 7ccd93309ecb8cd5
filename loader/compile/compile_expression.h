// Resolves the names of expressions, folds constants, checks types, and emits programs.
//
// Values are int64 (checked) and double. Doubles can only be compared; an integer compared with a
// double is promoted, and a constant compared with a float32 parameter is rounded to float32 first,
// so that `eps == 1e-6` holds if the caller wrote 1e-6f. A Scope resolves names; a name may stand
// for another expression, which is compiled in place. Every program needs at most kMaxStackDepth
// stack slots: the launch path relies on it.
#pragma once

#include "loader/compile/clauses.h"

namespace fibshim {

// The meaning of names. find() returns nullopt for an unknown name.
class Scope {
 public:
  struct Meaning {
    Source source;
    const Expression* expression = nullptr;  // if set, instead of `source`
    const Scope* scope = nullptr;            // where that expression's own names are looked up
    bool is_shift = false;                   // `expression` is added to `source`
  };
  virtual ~Scope() = default;
  virtual std::optional<Meaning> find(std::string_view name) const = 0;
  // Returns the names, for "did you mean".
  virtual std::vector<std::string_view> names() const = 0;
};

// min(ceil_div(source, divisor), most), where each part is optional: what the fast form can
// express.
struct SimpleValue {
  Source source;
  std::optional<int64_t> divisor;
  std::optional<int64_t> most;

  bool is_source_alone() const { return !divisor && !most; }
};

struct ValueFacts {
  std::optional<SimpleValue> simple;
  bool is_floating = false;
  std::optional<int64_t> constant;  // the value, if it is a constant integer
};

struct CompiledValue : ValueFacts {
  std::vector<Step> steps;
};

// Compiles an expression to a value. A constant such as `value: 1.0` is a double, whatever its
// type.
ExpressionResult<CompiledValue> compile_value(const Expression& expression, const Scope& scope);

// The same, but appends the steps to others.
ExpressionResult<ValueFacts> append_value(const Expression& expression, const Scope& scope,
                                          std::vector<Step>* steps);

// Compiles what a name stands for.
ExpressionResult<CompiledValue> compile_name(std::string_view name, const Scope& scope);

// Compiles a source alone.
CompiledValue compile_source(const Source& source);

// Appends the steps of a `where` clause, which end in one of the `require` operations. A clause
// that always holds appends nothing. `clauses` receives a description of each appended clause.
ExpressionResult<void> compile_where(const Expression& expression, const Scope& scope,
                                     std::vector<Step>* steps,
                                     std::vector<Clause>* clauses = nullptr);

}  // namespace fibshim
