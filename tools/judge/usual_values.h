// Guesses those numbers of a case that nothing states, from their names and the axes.
#pragma once

#include "tools/judge/case_data.h"
#include "tools/lint/verify_block.h"

namespace fibshim::judge {

// A solution of a folder, with what belongs to it.
struct Subject {
  const Definition* definition;
  const SolutionSpec* solution;
  const VerifyBlock* verify;  // the solution's
  std::string op;             // find_op
};

// The value that a name usually means; nothing if it has no usual meaning.
std::optional<double> usual_value(const std::string& name, const Subject& subject,
                                  const AxisValues& axes, int run);

// True if numbers of this name are usually floating-point.
bool is_floating_name(std::string_view name);

// The first tensor among the inputs or outputs; null if there is none.
const DefinitionArgument* first_tensor(const Definition& definition, bool is_output);

// What a constraint "axis == expression" says the size of a variable axis is.
std::optional<Expression> implied_size(const Definition& definition, std::string_view axis);
// True if the axes meet those of the definition's constraints that are integer expressions.
bool meets_constraints(const Definition& definition, const AxisValues& axes);

// The bytes of all tensors, for constant and variable axes; INT64_MAX on overflow.
int64_t bytes_of(const Definition& definition, const AxisValues& axes);

// Evaluates an expression of axes only, or of names that are constants in `scope`.
Result<int64_t> evaluate(const Expression& expression, const AxisValues& axes);
Result<int64_t> evaluate(const Expression& expression, const Scope& scope);

}  // namespace fibshim::judge
