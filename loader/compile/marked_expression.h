// Expressions as they stand in a folder's JSON.
#pragma once

#include "loader/compile/expression.h"
#include "loader/read/fields.h"

namespace fibshim {

// An expression and the text that it came from.
struct MarkedExpression {
  Expression expression;
  MarkedText text;  // of a number: only its mark is meaningful
  bool is_number = false;

  Mark at(size_t offset) const { return is_number ? text.mark : text.at(offset); }
};

// A string holding an expression or, where `accepts_numbers`, an integer.
std::optional<MarkedExpression> read_expression(JsonValue value, bool accepts_numbers,
                                                const std::string& what, Diagnostics* diagnostics);

// The array of clauses that `key` has, such as "where"; empty when `value` is missing.
std::vector<MarkedExpression> read_clauses(JsonValue value, const char* key,
                                           Diagnostics* diagnostics);

void report(const ExpressionError& error, const MarkedExpression& expression,
            Diagnostics* diagnostics);

}  // namespace fibshim
