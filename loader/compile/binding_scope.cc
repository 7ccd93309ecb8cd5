#include "loader/compile/binding_scope.h"

#include <algorithm>

namespace fibshim {

std::optional<Scope::Meaning> BindingScope::find(std::string_view name) const {
  if (name == kNextMayBegin) return Meaning{Source::constant(0)};
  const DefinitionAxis* const axis = definition_.find_axis(name);
  if (axis != nullptr && axis->is_const) return Meaning{Source::constant(axis->value)};
  return pattern_.find_meaning(name);
}

ExpressionResult<void> KnownClauses::compile(const MarkedExpression& clause,
                                             const Definition& definition,
                                             const BindingScope& scope, std::vector<Step>* steps,
                                             std::vector<Clause>* clauses) {
  const bool is_same_for_all =
      std::ranges::none_of(clause.expression.names(), [&](const std::string& name) {
        const DefinitionAxis* const axis = definition.find_axis(name);
        return axis != nullptr && axis->is_const;
      });
  if (!is_same_for_all) return compile_where(clause.expression, scope, steps, clauses);
  auto known = compiled_.find(clause.text.text);
  if (known == compiled_.end()) {
    Compiled made;
    auto compiled = compile_where(clause.expression, scope, &made.steps, &made.clauses);
    if (!compiled) return compiled;
    known = compiled_.emplace(clause.text.text, std::move(made)).first;
  }
  const Compiled& made = known->second;
  steps->insert(steps->end(), made.steps.begin(), made.steps.end());
  clauses->insert(clauses->end(), made.clauses.begin(), made.clauses.end());
  return {};
}

}  // namespace fibshim
