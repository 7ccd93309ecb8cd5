// The expression language of `where`, `expr` and geometry: parses text into a syntax tree.
// compile_expression.h compiles the tree to programs.
#pragma once

#include "loader/read/diagnostics.h"
#include "loader/read/limits.h"

namespace fibshim {

struct ExpressionError {
  Rule rule;
  size_t offset;  // byte of the expression's text where the error is
  std::string message;
  std::string hint;
};

template <class T>
using ExpressionResult = tl::expected<T, ExpressionError>;

inline tl::unexpected<ExpressionError> expression_error(Rule rule, size_t offset,
                                                        std::string message,
                                                        std::string hint = {}) {
  return tl::unexpected<ExpressionError>(
      ExpressionError{rule, offset, std::move(message), std::move(hint)});
}

// Counts the recursion depth of a function.
struct Nesting {
  explicit Nesting(uint32_t* depth_in) : depth(depth_in) { ++*depth; }
  ~Nesting() { --*depth; }
  uint32_t* depth;
};

// Returns the operator as written in an expression: "==", "min".
const char* operator_text(Op op);

// Returns the comparison that is equivalent after its operands are swapped; any other operation
// unchanged.
constexpr Op mirrored_comparison(Op op) {
  switch (op) {
    case Op::lt: return Op::gt;
    case Op::le: return Op::ge;
    case Op::gt: return Op::lt;
    case Op::ge: return Op::le;
    default: return op;
  }
}

// A parsed expression. Immutable.
class Expression {
 public:
  enum class Kind : uint8_t {
    integer,
    floating,
    name,
    negate,
    logical_not,
    binary,  // `op` of add..mod, min, max, ceil_div, eq..ge
    logical_and,
    logical_or,
  };
  struct Node {
    Kind kind;
    Op op;
    uint16_t left, right;  // indices of nodes
    uint32_t offset;       // byte of the operator, name or number in the text
    int64_t integer;
    double floating;
    std::string name;
  };

  static ExpressionResult<Expression> parse(std::string_view text);
  static Expression constant(int64_t value);

  const Node& node(uint16_t index) const { return nodes_[index]; }
  uint16_t root() const { return root_; }
  bool is_empty() const { return nodes_.empty(); }  // default-constructed

  // Returns each name in the expression once.
  const std::vector<std::string>& names() const { return names_; }
  // Returns every integer in the expression.
  std::vector<int64_t> integers() const;
  // A clause `name == constant` (or the other way round).
  struct Pin {
    std::string name;
    bool is_integer;
    int64_t integer;
  };
  const std::vector<Pin>& pins() const { return pins_; }  // of all clauses joined by &&
  // A clause `name == other` (or the other way round), with the names that `other` uses.
  struct Equality {
    std::string name;
    std::vector<std::string> others;
  };
  const std::vector<Equality>& equalities() const { return equalities_; }  // the same
  // Returns both names of each clause `name == name`.
  const std::vector<std::pair<std::string, std::string>>& equal_names() const {
    return equal_names_;
  }

 private:
  void note_names();  // fills in what follows `root_`
  void note_equality(const Node& left, const Node& right);
  std::vector<std::string> names_below(const Node& node) const;
  friend class ExpressionParser;
  std::vector<Node> nodes_;
  uint16_t root_ = 0;
  // Found once, by parse(): each pair of a pattern and a solution asks for them.
  std::vector<std::string> names_;
  std::vector<Pin> pins_;
  std::vector<Equality> equalities_;
  std::vector<std::pair<std::string, std::string>> equal_names_;
};

}  // namespace fibshim
