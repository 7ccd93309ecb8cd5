// The expression language of `where`, `expr` and geometry: parses text into a syntax tree.
// compile_expression.h compiles the tree to programs.
#pragma once

#include <memory>

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

// A parsed expression. Immutable, and cheap to copy.
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

  Expression() : tree_(empty_tree()) {}
  static ExpressionResult<Expression> parse(std::string_view text);
  static Expression constant(int64_t value);

  const Node& node(uint16_t index) const { return tree_->nodes[index]; }
  uint16_t root() const { return tree_->root; }
  bool is_empty() const { return tree_->nodes.empty(); }  // default-constructed

  // Returns each name in the expression once.
  const std::vector<std::string>& names() const { return tree_->names; }
  // Returns every integer in the expression.
  std::vector<int64_t> integers() const;
  // A clause `name == constant` (or the other way round).
  struct Pin {
    std::string name;
    bool is_integer;
    int64_t integer;
  };
  const std::vector<Pin>& pins() const { return tree_->pins; }  // of all clauses joined by &&
  // A clause `name == other` (or the other way round), with the names that `other` uses.
  struct Equality {
    std::string name;
    std::vector<std::string> others;
  };
  // Of clauses joined by && or ||, so that it need not hold.
  const std::vector<Equality>& equalities() const { return tree_->equalities; }
  // Returns both names of each clause `name == name` of all joined by &&.
  const std::vector<std::pair<std::string, std::string>>& equal_names() const {
    return tree_->equal_names;
  }

 private:
  friend class ExpressionParser;
  struct Tree {
    std::vector<Node> nodes;
    uint16_t root = 0;
    // Found once, by parse(): each pair of a pattern and a solution asks for them.
    std::vector<std::string> names;
    std::vector<Pin> pins;
    std::vector<Equality> equalities;
    std::vector<std::pair<std::string, std::string>> equal_names;

    void note_names();  // fills in what follows `root`
    void note_equality(const Node& left, const Node& right, bool holds);
    std::vector<std::string> names_below(const Node& node) const;
  };
  static const std::shared_ptr<const Tree>& empty_tree();
  explicit Expression(std::shared_ptr<const Tree> tree) : tree_(std::move(tree)) {}

  std::shared_ptr<const Tree> tree_;
};

}  // namespace fibshim
