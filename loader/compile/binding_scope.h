// What the names in a solution mean for a pattern and a definition, and clauses compiled with that.
#pragma once

#include <unordered_map>

#include "loader/compile/pattern.h"
#include "loader/compile/solution.h"

namespace fibshim {

// The meaning of a solution's names for one pattern: the definition's constant axes first, then the
// pattern's own values.
class BindingScope : public Scope {
 public:
  BindingScope(const PatternSpec& pattern, const Definition& definition)
      : pattern_(pattern), definition_(definition) {}

  std::optional<Meaning> find(std::string_view name) const override;
  std::vector<std::string_view> names() const override { return {}; }  // refusals suggest no names

 private:
  const PatternSpec& pattern_;
  const Definition& definition_;
};

// Clauses of solutions, compiled for the bindings of one pattern: one that uses no constant axis
// means the same for all definitions. Not thread-safe. The solutions and definitions must outlive it.
class KnownClauses {
 public:
  // `texts`: of the definitions, for the bindings of all patterns.
  explicit KnownClauses(KnownTexts* texts) : texts_(texts) {}

  ExpressionResult<Expression> parse(const std::string& text) { return texts_->parse(text); }

  // As compile_where(), with the scope of the pattern and that definition.
  ExpressionResult<void> compile(const MarkedExpression& clause, const Definition& definition,
                                 const BindingScope& scope, std::vector<Step>* steps,
                                 std::vector<Clause>* clauses);

 private:
  struct Compiled {
    std::vector<Step> steps;
    std::vector<Clause> clauses;
  };

  KnownTexts* texts_;
  std::unordered_map<std::string_view, Compiled> compiled_;  // by the clauses' texts
};

}  // namespace fibshim
