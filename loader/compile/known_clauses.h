// Clauses of solutions, compiled for the bindings of one pattern: one that uses no constant axis means the same for all
// definitions.
#pragma once

#include <unordered_map>

#include "loader/compile/bind.h"

namespace fibshim {

// Not thread-safe. The solutions and definitions must outlive it.
class KnownClauses {
 public:
  // As compile_where(), with the scope of the pattern and that definition.
  ExpressionResult<void> compile(const MarkedExpression& clause, const Definition& definition,
                                 const BindingScope& scope, std::vector<Step>* steps,
                                 std::vector<Clause>* clauses);

 private:
  struct Compiled {
    std::vector<Step> steps;
    std::vector<Clause> clauses;
  };

  std::unordered_map<std::string_view, Compiled> compiled_;  // by the clauses' texts
};

}  // namespace fibshim
