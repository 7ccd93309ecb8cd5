#include "loader/compile/expression.h"

#include <string.h>

#include <algorithm>
#include <charconv>
#include <cmath>

namespace fibshim {

struct OperatorInfo {
  const char* text;
  Op op;
  int precedence;  // higher binds tighter
};

namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_name_start(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool is_name_char(char c) { return is_name_start(c) || is_digit(c); }

constexpr int kComparison = 3;
constexpr OperatorInfo kBinaryOperators[] = {
    // Longer operators first: they are tried in this order.
    {"==", Op::eq, kComparison}, {"!=", Op::ne, kComparison}, {"<=", Op::le, kComparison},
    {">=", Op::ge, kComparison}, {"<", Op::lt, kComparison},  {">", Op::gt, kComparison},
    {"+", Op::add, 4},           {"-", Op::sub, 4},           {"*", Op::mul, 5},
    {"/", Op::div, 5},           {"%", Op::mod, 5},
};

struct FunctionInfo {
  const char* name;
  Op op;
};
constexpr FunctionInfo kFunctions[] = {
    {"min", Op::min}, {"max", Op::max}, {"ceil_div", Op::ceil_div}};

}  // namespace

const char* operator_text(Op op) {
  for (const OperatorInfo& info : kBinaryOperators) {
    if (info.op == op) return info.text;
  }
  for (const FunctionInfo& info : kFunctions) {
    if (info.op == op) return info.name;
  }
  return "?";
}

// Precedence climbing over || && comparisons, + -, * / %, unary, primary.
class ExpressionParser {
 public:
  explicit ExpressionParser(std::string_view text) : text_(text) {}

  ExpressionResult<Expression> parse() {
    if (text_.size() > kMaxExpressionLength) {
      return expression_error(Rule::expression_size, 0,
                              "an expression of " + std::to_string(text_.size()) +
                                  " bytes; at most " + std::to_string(kMaxExpressionLength) +
                                  " are accepted");
    }
    tree_->nodes.reserve(4);
    auto root = parse_or();
    if (!root) return tl::unexpected<ExpressionError>(root.error());
    skip_blanks();
    if (at_ < text_.size()) return unexpected_character();
    tree_->root = *root;
    tree_->note_names();
    return Expression(std::move(tree_));
  }

 private:
  using Index = ExpressionResult<uint16_t>;

  void skip_blanks() {
    while (at_ < text_.size() && strchr(" \t\r\n", text_[at_]) != nullptr && text_[at_] != '\0') {
      ++at_;
    }
  }

  bool accept(std::string_view token) {
    skip_blanks();
    if (text_.substr(at_, token.size()) != token) return false;
    at_ += token.size();
    return true;
  }

  tl::unexpected<ExpressionError> unexpected_character() const {
    if (at_ >= text_.size()) {
      return expression_error(Rule::expression_syntax, at_,
                              text_.find_first_not_of(" \t\r\n") == std::string_view::npos
                                  ? "the expression is empty"
                                  : "the expression ends where a value is expected");
    }
    const std::string_view rest = text_.substr(at_);
    struct Habit {
      const char* text;
      const char* hint;
    };
    static constexpr Habit kHabits[] = {
        {"**", "there is no power operator"},
        {"//", "write / (it truncates) or ceil_div(a, b)"},
        {"<<", "write a multiplication by a power of two"},
        {">>", "write a division by a power of two"},
        {"&", "write &&"},
        {"|", "write ||"},
        {"=", "write =="},
        {"?", "there is no conditional"},
        {"and ", "write &&"},
        {"or ", "write ||"},
        {"not ", "write !"},
    };
    std::string hint;
    for (const Habit& habit : kHabits) {
      if (rest.substr(0, strlen(habit.text)) == habit.text) {
        hint = habit.hint;
        break;
      }
    }
    size_t length = 1;
    if (is_name_char(rest[0])) {
      while (length < rest.size() && is_name_char(rest[length])) ++length;
    } else {
      while (length < rest.size() && (static_cast<uint8_t>(rest[length]) & 0xc0) == 0x80) ++length;
    }
    return expression_error(Rule::expression_syntax, at_,
                            "unexpected '" + std::string(rest.substr(0, length)) + "'", hint);
  }

  Index add(Expression::Node node) {
    if (tree_->nodes.size() >= kMaxExpressionNodes) {
      return expression_error(Rule::expression_size, node.offset,
                              "the expression has too many parts");
    }
    tree_->nodes.push_back(std::move(node));
    return static_cast<uint16_t>(tree_->nodes.size() - 1);
  }

  Index add_binary(Expression::Kind kind, Op op, size_t offset, uint16_t left, uint16_t right) {
    Expression::Node node{};
    node.kind = kind;
    node.op = op;
    node.left = left;
    node.right = right;
    node.offset = static_cast<uint32_t>(offset);
    return add(std::move(node));
  }

  Index parse_or() { return parse_logical(Expression::Kind::logical_or); }

  Index parse_logical(Expression::Kind kind) {
    const bool is_or = kind == Expression::Kind::logical_or;
    const auto parse_operand = [&] {
      return is_or ? parse_logical(Expression::Kind::logical_and) : parse_binary(kComparison);
    };
    auto left = parse_operand();
    while (left) {
      skip_blanks();
      const size_t offset = at_;
      if (!accept(is_or ? "||" : "&&")) break;
      auto right = parse_operand();
      if (!right) return right;
      left = add_binary(kind, Op::to_bool, offset, *left, *right);
    }
    return left;
  }

  // Called at each place once per precedence, so the operator found there is cached.
  const OperatorInfo* peek_operator(int precedence) {
    skip_blanks();
    if (peeked_at_ != at_) {
      peeked_at_ = at_;
      peeked_ = find_operator(text_.substr(at_));
    }
    return peeked_ != nullptr && peeked_->precedence == precedence ? peeked_ : nullptr;
  }

  static const OperatorInfo* find_operator(std::string_view rest) {
    for (const char* not_ours : {"**", "//", "<<", ">>"}) {
      if (rest.starts_with(not_ours)) return nullptr;
    }
    const auto at = std::ranges::find_if(
        kBinaryOperators, [&](const OperatorInfo& info) { return rest.starts_with(info.text); });
    return at == std::end(kBinaryOperators) ? nullptr : at;
  }

  Index parse_binary(int precedence) {
    const auto parse_operand = [&] {
      return precedence == 5 ? parse_unary() : parse_binary(precedence + 1);
    };
    auto left = parse_operand();
    bool has_compared = false;
    while (left) {
      const OperatorInfo* const info = peek_operator(precedence);
      if (info == nullptr) break;
      const size_t offset = at_;
      if (precedence == kComparison) {
        if (has_compared) {
          return expression_error(Rule::expression_syntax, offset, "comparisons do not chain",
                                  "write a < b && b < c, or use parentheses");
        }
        has_compared = true;
      }
      at_ += strlen(info->text);
      auto right = parse_operand();
      if (!right) return right;
      left = add_binary(Expression::Kind::binary, info->op, offset, *left, *right);
    }
    return left;
  }

  Index parse_unary() {
    const Nesting nesting(&depth_);
    skip_blanks();
    if (depth_ > kMaxExpressionNesting) {
      return expression_error(Rule::expression_size, at_, "the expression is nested too deeply");
    }
    const size_t offset = at_;
    if (accept("-")) {
      skip_blanks();
      if (at_ < text_.size() && (is_digit(text_[at_]) || text_[at_] == '.')) {
        return parse_number(true);
      }
      auto operand = parse_unary();
      if (!operand) return operand;
      return add_binary(Expression::Kind::negate, Op::neg, offset, *operand, 0);
    }
    if (text_.substr(at_, 2) != "!=" && accept("!")) {
      auto operand = parse_unary();
      if (!operand) return operand;
      return add_binary(Expression::Kind::logical_not, Op::logical_not, offset, *operand, 0);
    }
    return parse_primary();
  }

  Index parse_primary() {
    skip_blanks();
    if (at_ >= text_.size()) return unexpected_character();
    const size_t offset = at_;
    const char c = text_[at_];
    if (c == '(') {
      ++at_;
      auto inner = parse_or();
      if (!inner) return inner;
      if (!accept(")")) {
        if (at_ < text_.size()) return unexpected_character();
        return expression_error(Rule::expression_syntax, offset, "this '(' is not closed");
      }
      return inner;
    }
    if (is_digit(c) || c == '.') return parse_number(false);
    if (!is_name_start(c)) return unexpected_character();

    while (at_ < text_.size() && is_name_char(text_[at_])) ++at_;
    const std::string_view name = text_.substr(offset, at_ - offset);
    if (accept("(")) return parse_call(name, offset);
    for (const FunctionInfo& function : kFunctions) {
      if (name == function.name) {
        return expression_error(Rule::expression_syntax, offset,
                                std::string(name) + " is a function of two values");
      }
    }
    Expression::Node node{};
    node.kind = Expression::Kind::name;
    node.offset = static_cast<uint32_t>(offset);
    node.name = name;
    return add(std::move(node));
  }

  Index parse_call(std::string_view name, size_t offset) {
    for (const FunctionInfo& function : kFunctions) {
      if (name != function.name) continue;
      auto left = parse_or();
      if (!left) return left;
      if (!accept(",")) return call_error(name);
      auto right = parse_or();
      if (!right) return right;
      if (!accept(")")) return call_error(name);
      return add_binary(Expression::Kind::binary, function.op, offset, *left, *right);
    }
    return expression_error(Rule::expression_syntax, offset,
                            "unknown function '" + std::string(name) + "'",
                            "the functions are min, max and ceil_div");
  }

  tl::unexpected<ExpressionError> call_error(std::string_view name) const {
    return expression_error(
        Rule::expression_syntax, at_,
        std::string(name) + " takes two values: " + std::string(name) + "(a, b)");
  }

  Index parse_number(bool is_negative) {
    const size_t begin = at_;
    Expression::Node node{};
    node.offset = static_cast<uint32_t>(begin);
    const std::string_view rest = text_.substr(begin);
    const char* const first = rest.data();
    const char* const last = first + rest.size();
    const char* end = first;
    if (rest.substr(0, 2) == "0x" || rest.substr(0, 2) == "0X") {
      uint64_t value = 0;
      const auto parsed = std::from_chars(first + 2, last, value, 16);
      end = parsed.ptr;
      if (end == first + 2)
        return expression_error(Rule::expression_syntax, begin, "0x without digits");
      if (parsed.ec != std::errc() || !fits(value, is_negative, &node.integer)) {
        return too_large(begin);
      }
      node.kind = Expression::Kind::integer;
    } else {
      size_t length = rest.find_first_not_of("0123456789");
      if (length == std::string_view::npos) length = rest.size();
      const bool is_float = length < rest.size() &&
                            (rest[length] == '.' || rest[length] == 'e' || rest[length] == 'E');
      if (is_float) {
        const auto parsed = std::from_chars(first, last, node.floating);
        end = parsed.ptr;
        if (parsed.ec == std::errc::result_out_of_range || !std::isfinite(node.floating)) {
          return too_large(begin);
        }
        if (parsed.ec != std::errc()) {
          return expression_error(Rule::expression_syntax, begin, "this is not a number");
        }
        if (is_negative) node.floating = -node.floating;
        node.kind = Expression::Kind::floating;
      } else {
        uint64_t value = 0;
        const auto parsed = std::from_chars(first, last, value, 10);
        end = parsed.ptr;
        if (length > 1 && rest[0] == '0') {
          return expression_error(Rule::expression_syntax, begin,
                                  "a decimal number begins with a zero",
                                  "drop the zero, or write 0x for a hexadecimal number");
        }
        if (parsed.ec != std::errc() || !fits(value, is_negative, &node.integer)) {
          return too_large(begin);
        }
        node.kind = Expression::Kind::integer;
      }
    }
    at_ += static_cast<size_t>(end - first);
    if (at_ < text_.size() && (is_name_char(text_[at_]) || text_[at_] == '.')) {
      return unexpected_character();
    }
    return add(std::move(node));
  }

  static bool fits(uint64_t magnitude, bool is_negative, int64_t* out) {
    constexpr uint64_t kLargest = INT64_MAX;
    if (magnitude > kLargest + (is_negative ? 1 : 0)) return false;
    *out = static_cast<int64_t>(is_negative ? 0 - magnitude : magnitude);
    return true;
  }

  static tl::unexpected<ExpressionError> too_large(size_t offset) {
    return expression_error(Rule::expression_value, offset, "the number does not fit into 64 bits");
  }

  std::string_view text_;
  size_t at_ = 0;
  size_t peeked_at_ = SIZE_MAX;
  const OperatorInfo* peeked_ = nullptr;  // the operator at peeked_at_
  uint32_t depth_ = 0;
  std::shared_ptr<Expression::Tree> tree_ = std::make_shared<Expression::Tree>();
};

ExpressionResult<Expression> Expression::parse(std::string_view text) {
  return ExpressionParser(text).parse();
}

Expression Expression::constant(int64_t value) {
  auto tree = std::make_shared<Tree>();
  Node& node = tree->nodes.emplace_back();
  node.kind = Kind::integer;
  node.integer = value;
  return Expression(std::move(tree));
}

const std::shared_ptr<const Expression::Tree>& Expression::empty_tree() {
  static const auto tree = std::make_shared<const Tree>();
  return tree;
}

std::vector<int64_t> Expression::integers() const {
  std::vector<int64_t> result;
  for (const Node& node : tree_->nodes) {
    if (node.kind == Kind::integer) result.push_back(node.integer);
  }
  return result;
}

std::vector<std::string> Expression::Tree::names_below(const Node& top) const {
  std::vector<std::string> found;
  std::vector<const Node*> open{&top};
  while (!open.empty()) {
    const Node& node = *open.back();
    open.pop_back();
    if (node.kind == Kind::integer || node.kind == Kind::floating) continue;
    if (node.kind == Kind::name) {
      found.push_back(node.name);
      continue;
    }
    open.push_back(&nodes[node.left]);
    if (node.kind != Kind::negate && node.kind != Kind::logical_not) {
      open.push_back(&nodes[node.right]);
    }
  }
  return found;
}

void Expression::Tree::note_names() {
  for (const Node& node : nodes) {
    if (node.kind == Kind::name && std::ranges::find(names, node.name) == names.end()) {
      names.push_back(node.name);
    }
  }
  std::vector<std::pair<uint16_t, bool>> open{{root, true}};  // does it always hold?
  while (!open.empty()) {
    const auto [index, holds] = open.back();
    const Node& clause = nodes[index];
    open.pop_back();
    if (clause.kind == Kind::logical_and || clause.kind == Kind::logical_or) {
      const bool both_hold = holds && clause.kind == Kind::logical_and;
      open.emplace_back(clause.left, both_hold);
      open.emplace_back(clause.right, both_hold);
    } else if (clause.kind == Kind::binary && clause.op == Op::eq) {
      note_equality(nodes[clause.left], nodes[clause.right], holds);
    }
  }
}

void Expression::Tree::note_equality(const Node& left, const Node& right, bool holds) {
  const bool is_name = left.kind == Kind::name;
  if (is_name) equalities.push_back({left.name, names_below(right)});
  if (right.kind == Kind::name) equalities.push_back({right.name, names_below(left)});
  if (!holds) return;
  if (is_name && right.kind == Kind::name) equal_names.emplace_back(left.name, right.name);
  const Node& name = is_name ? left : right;
  const Node& value = is_name ? right : left;
  if (name.kind == Kind::name && value.kind == Kind::integer) {
    pins.push_back({name.name, true, value.integer});
  } else if (name.kind == Kind::name && value.kind == Kind::floating) {
    // `n == 64.0` allows one integer, as `n == 64` does.
    constexpr double kExact = 9007199254740992;  // 2^53
    const double number = value.floating;
    const bool is_integer = std::abs(number) <= kExact && number == std::trunc(number);
    pins.push_back({name.name, is_integer, is_integer ? static_cast<int64_t>(number) : 0});
  }
}

}  // namespace fibshim
