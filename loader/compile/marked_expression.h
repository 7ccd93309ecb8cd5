// Expressions in a folder's JSON, with their places.
#pragma once

#include <mutex>
#include <unordered_map>

#include "loader/compile/expression.h"
#include "loader/read/fields.h"

namespace fibshim {

// An expression and the text that it came from.
struct MarkedExpression {
  Expression expression;
  MarkedText text;  // for a number, only its mark is valid
  bool is_number = false;

  // As it is written.
  std::string words() const {
    return is_number ? std::to_string(expression.node(expression.root()).integer) : text.text;
  }
  Mark at(size_t offset) const { return is_number ? text.mark : text.at(offset); }
};

// Expressions that have been parsed: the solutions of a folder repeat the same few. Thread-safe.
class KnownExpressions {
 public:
  ExpressionResult<Expression> parse(const std::string& text);
  Expression constant(int64_t value);

 private:
  static constexpr size_t kMost = 1024;  // of either kind

  std::mutex mutex_;
  std::unordered_map<std::string, Expression> parsed_;
  std::unordered_map<int64_t, Expression> constants_;
};

// Reads a string that contains an expression or, if `accepts_numbers`, an integer. `known`: null if
// none are known.
std::optional<MarkedExpression> read_expression(JsonValue value, bool accepts_numbers,
                                                const std::string& what, Diagnostics* diagnostics,
                                                KnownExpressions* known = nullptr);

// Reads the array of clauses under `key`, such as "where"; empty if `value` is missing.
std::vector<MarkedExpression> read_clauses(JsonValue value, const char* key,
                                           Diagnostics* diagnostics,
                                           KnownExpressions* known = nullptr);

void report(const ExpressionError& error, const MarkedExpression& expression,
            Diagnostics* diagnostics);

}  // namespace fibshim
