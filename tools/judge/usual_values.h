// What a case's numbers are where nothing states them: by their names, and from the axes.
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

// The value of a name by what it usually means; nothing when it means nothing.
std::optional<double> usual_value(const std::string& name, const Subject& subject,
                                  const AxisValues& axes, int run);

// Whether a number of this name is a floating-point one.
bool is_floating_name(std::string_view name);

// Null for none.
const DefinitionArgument* first_tensor(const Definition& definition, bool is_output);

// Whether the axes meet those of the definition's constraints that are integer expressions.
bool meets_constraints(const Definition& definition, const AxisValues& axes);

// Of all tensors, for axes const and var; INT64_MAX for more than that.
int64_t bytes_of(const Definition& definition, const AxisValues& axes);

// An expression of axes alone; of names that the scope knows to be constants.
Result<int64_t> evaluate(const Expression& expression, const AxisValues& axes);
Result<int64_t> evaluate(const Expression& expression, const Scope& scope);

}  // namespace fibshim::judge
