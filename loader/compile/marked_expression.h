// Expressions in a folder's JSON, with their places.
#pragma once

#include <mutex>
#include <unordered_map>

#include "loader/compile/expression.h"
#include "loader/compile/symbol_match.h"
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

// One that is mostly missing, and takes little room then.
using BoxedExpression = std::shared_ptr<const MarkedExpression>;
inline BoxedExpression boxed(std::optional<MarkedExpression> read) {
  return read ? std::make_shared<const MarkedExpression>(std::move(*read)) : nullptr;
}

// Expressions and symbols that have been parsed: the files of a folder repeat the same few.
// Thread-safe.
class KnownTexts {
 public:
  using Symbol = std::shared_ptr<const SymbolPattern>;
  ExpressionResult<Expression> parse(const std::string& text);
  Expression constant(int64_t value);
  tl::expected<Symbol, SymbolError> symbol(const std::string& text);

 private:
  static constexpr size_t kMost = 1024;  // of each kind

  std::mutex mutex_;
  std::unordered_map<std::string, Expression> parsed_;
  std::unordered_map<int64_t, Expression> constants_;
  std::unordered_map<std::string, Symbol> symbols_;
};

// Reads a string that contains an expression or, if `accepts_numbers`, an integer. `known`: null if
// none are known.
std::optional<MarkedExpression> read_expression(JsonValue value, bool accepts_numbers,
                                                const What& what, Diagnostics* diagnostics,
                                                KnownTexts* known = nullptr);

// Reads the array of clauses under `key`, such as "where"; empty if `value` is missing.
std::vector<MarkedExpression> read_clauses(JsonValue value, const char* key,
                                           Diagnostics* diagnostics, KnownTexts* known = nullptr);

void report(const ExpressionError& error, const MarkedExpression& expression,
            Diagnostics* diagnostics);

}  // namespace fibshim
