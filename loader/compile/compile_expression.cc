#include "loader/compile/compile_expression.h"

#include <algorithm>

#include "loader/compile/clauses.h"

namespace fibshim {
namespace {

constexpr size_t kMaxSuggestedNames = 256;  // with more names, a suggestion takes too long

Op floating_comparison(Op op) {
  return static_cast<Op>(static_cast<int>(Op::feq) + static_cast<int>(op) -
                         static_cast<int>(Op::eq));
}

// Resolves names, folds constants, checks types, and emits steps.
class Compiler {
 public:
  using Index = ExpressionResult<Values::Index>;

  // Recurses down the left side, also into the expressions of names, before it adds the first part.
  // The depth limit stops an expression that has too many parts before it overflows the stack.
  Index resolve(const Expression& expression, uint16_t at, const Scope& scope) {
    const Nesting nesting(&depth_);
    const Expression::Node& node = expression.node(at);
    if (depth_ > kMaxExpressionNodes + kMaxExpressionNesting) return too_many_parts(node.offset);
    switch (node.kind) {
      case Expression::Kind::integer: return add_integer(node.integer, node.offset);
      case Expression::Kind::floating:
        return add_source({.kind = Source::Kind::floating, .floating = node.floating}, node.offset);
      case Expression::Kind::name: return resolve_name(node, scope);
      case Expression::Kind::negate:
      case Expression::Kind::logical_not: {
        auto operand = resolve(expression, node.left, scope);
        if (!operand) return operand;
        return add_unary(node.op, *operand, node.offset);
      }
      case Expression::Kind::binary: {
        auto left = resolve(expression, node.left, scope);
        if (!left) return left;
        auto right = resolve(expression, node.right, scope);
        if (!right) return right;
        return add_binary(node.op, *left, *right, node.offset);
      }
      case Expression::Kind::logical_and:
      case Expression::Kind::logical_or: return resolve_logical(expression, node, scope);
    }
    return add_integer(0, node.offset);
  }

  const Values& values() const { return values_; }

  // Emits the value. Fails if it needs a deeper stack than the launch path has.
  ExpressionResult<void> emit(uint16_t index, std::vector<Step>* steps) const {
    if (values_[index].depth > kMaxStackDepth) {
      return expression_error(Rule::expression_size, 0,
                              "the expression keeps " + std::to_string(values_[index].depth) +
                                  " values in flight; the launch path has room for " +
                                  std::to_string(kMaxStackDepth),
                              "write the deeper part on the left");
    }
    if (steps->empty()) steps->reserve(values_.size());
    emit_value(index, steps);
    return {};
  }

  // Appends clause `index`; the operands of && become clauses of their own.
  ExpressionResult<void> emit_where(uint16_t index, std::vector<Step>* steps,
                                    std::vector<Clause>* clauses) const {
    const Value& clause = values_[index];
    if (clause.kind == Value::Kind::logical_and) {
      auto left = emit_where(clause.left, steps, clauses);
      if (!left) return left;
      return emit_where(clause.right, steps, clauses);
    }
    const int64_t* const constant = values_.constant_of(index);
    if (constant != nullptr && *constant != 0) return {};
    if (clauses != nullptr) clauses->push_back(describe_clause(values_, clause));
    if (fuse_clause(values_, clause, steps)) return {};
    const auto sum = find_aligned_sum(values_, clause);
    auto emitted = emit(sum ? sum->added : index, steps);
    if (!emitted) return emitted;
    steps->push_back(sum ? sum->step : make_step(Op::require));
    return {};
  }

  std::optional<SimpleValue> simple(uint16_t index) const {
    SimpleValue result;
    const Value* value = &values_[index];
    if (const auto limited = values_.with_constant(*value, Op::min)) {
      result.most = limited->constant;
      value = &values_[limited->value];
    }
    if (value->kind == Value::Kind::operation && value->op == Op::ceil_div) {
      const int64_t* const divisor = values_.constant_of(value->right);
      if (divisor == nullptr) return std::nullopt;
      result.divisor = *divisor;
      value = &values_[value->left];
    }
    if (value->kind != Value::Kind::source) return std::nullopt;
    result.source = value->source;
    return result;
  }

 private:
  Index add(Value value, uint32_t offset) {
    if (values_.size() >= kMaxExpressionNodes) return too_many_parts(offset);
    return values_.add(value);
  }

  static tl::unexpected<ExpressionError> too_many_parts(uint32_t offset) {
    return expression_error(Rule::expression_size, offset,
                            "the expression, with those that it uses, has too many parts");
  }

  Index add_source(const Source& source, uint32_t offset) {
    Value value{};
    value.kind = Value::Kind::source;
    value.source = source;
    value.is_floating = source.is_floating();
    value.is_boolean =
        source.kind == Source::Kind::integer && (source.integer == 0 || source.integer == 1);
    value.depth = 1;
    return add(value, offset);
  }

  Index add_integer(int64_t integer, uint32_t offset) {
    return add_source(Source::constant(integer), offset);
  }

  Index resolve_name(const Expression::Node& node, const Scope& scope) {
    const auto meaning = scope.find(node.name);
    if (!meaning) {
      auto known = scope.names();
      if (known.size() > kMaxSuggestedNames) known.clear();
      const std::string_view nearest = nearest_word(node.name, known);
      std::string hint;
      if (!nearest.empty()) {
        hint = "did you mean \"" + std::string(nearest) + "\"?";
      } else if (!known.empty() && known.size() <= 16) {
        hint = "known are " + list_words(known);
      }
      return expression_error(Rule::unknown_name, node.offset, "unknown name \"" + node.name + "\"",
                              hint);
    }
    if (meaning->expression == nullptr) return add_source(meaning->source, node.offset);
    for (const auto& [expression, name] : open_) {
      if (expression != meaning->expression) continue;
      return expression_error(Rule::expression_cycle, node.offset,
                              "\"" + std::string(node.name) + "\" depends on itself");
    }
    // A chain of names adds no nodes, so its length is bounded here.
    if (open_.size() >= kMaxExpressionNesting) {
      return expression_error(Rule::expression_size, node.offset,
                              "expressions use one another too deeply");
    }
    open_.emplace_back(meaning->expression, node.name);
    auto inner = resolve(*meaning->expression, meaning->expression->root(), *meaning->scope);
    open_.pop_back();
    if (!inner) {
      ExpressionError error = inner.error();
      // The place must be in the outermost text.
      if (error.rule != Rule::expression_cycle) {
        error.message = "in \"" + std::string(node.name) + "\": " + error.message;
      }
      error.offset = node.offset;
      return tl::unexpected<ExpressionError>(std::move(error));
    }
    if (!meaning->is_shift) return inner;
    auto source = add_source(meaning->source, node.offset);
    return source ? add_binary(Op::add, *source, *inner, node.offset) : source;
  }

  tl::unexpected<ExpressionError> floats_only_compare(Op op, uint32_t offset) const {
    const char* text = op == Op::neg           ? "-"
                       : op == Op::logical_not ? "!"
                       : op == Op::to_bool     ? "&& and ||"
                                               : operator_text(op);
    return expression_error(
        Rule::expression_type, offset,
        std::string(text) + " on a floating-point value; those can only be compared");
  }

  Index add_unary(Op op, uint16_t operand, uint32_t offset) {
    if (values_[operand].is_floating) return floats_only_compare(op, offset);
    if (const int64_t* constant = values_.constant_of(operand)) {
      if (op == Op::logical_not) return add_integer(*constant == 0, offset);
      if (*constant == INT64_MIN) return overflow(offset);
      return add_integer(-*constant, offset);
    }
    return add_operation(op, operand, operand, values_[operand].depth, op == Op::logical_not,
                         offset);
  }

  Index add_operation(Op op, uint16_t left, uint16_t right, uint32_t depth, bool is_boolean,
                      uint32_t offset) {
    Value value{};
    value.kind = Value::Kind::operation;
    value.op = op;
    value.left = left;
    value.right = right;
    value.depth = depth;
    value.is_boolean = is_boolean;
    return add(value, offset);
  }

  static tl::unexpected<ExpressionError> overflow(uint32_t offset) {
    return expression_error(Rule::expression_value, offset, "this constant overflows 64 bits");
  }

  Index add_binary(Op op, uint16_t left, uint16_t right, uint32_t offset) {
    const bool is_floating = values_[left].is_floating || values_[right].is_floating;
    if (is_floating && !is_comparison(op)) return floats_only_compare(op, offset);
    if (is_floating) return add_floating_comparison(op, left, right, offset);

    const int64_t* const a = values_.constant_of(left);
    const int64_t* const b = values_.constant_of(right);
    const bool divides = op == Op::div || op == Op::mod || op == Op::ceil_div;
    if (divides && b != nullptr && *b == 0) {
      return expression_error(Rule::expression_value, offset, "this divides by zero");
    }
    if (a != nullptr && b != nullptr) {
      // Fold with the launch path's own interpreter, so that the two cannot differ.
      const Step steps[] = {make_step(Op::push, *a), make_step(Op::push, *b), make_step(op)};
      int64_t folded = 0;
      if (!run_program(steps, 3, LaunchView{}, &folded)) return overflow(offset);
      return add_integer(folded, offset);
    }
    const uint32_t depth = std::max(values_[left].depth, values_[right].depth + 1);
    return add_operation(op, left, right, depth, is_comparison(op), offset);
  }

  Index add_floating_comparison(Op op, uint16_t left, uint16_t right, uint32_t offset) {
    const auto promoted = [&](uint16_t operand, uint16_t other) -> Index {
      Value& value = values_[operand];
      const Source& beside = values_[other].source;
      const bool is_beside_float32 = values_[other].kind == Value::Kind::source &&
                                     beside.kind == Source::Kind::param &&
                                     beside.type == ValueType::float32;
      if (value.kind == Value::Kind::source && value.source.is_constant()) {
        if (!value.is_floating) value.source.floating = static_cast<double>(value.source.integer);
        value.source.kind = Source::Kind::floating;
        if (is_beside_float32) value.source.floating = static_cast<float>(value.source.floating);
        value.is_floating = true;
        return operand;
      }
      if (value.is_floating) return operand;
      auto converted = add_operation(Op::to_float, operand, operand, value.depth, false, offset);
      if (converted) values_[*converted].is_floating = true;
      return converted;
    };
    auto a = promoted(left, right);
    if (!a) return a;
    auto b = promoted(right, left);
    if (!b) return b;
    const Op compare = floating_comparison(op);
    const Value& x = values_[*a];
    const Value& y = values_[*b];
    if (x.kind == Value::Kind::source && y.kind == Value::Kind::source && x.source.is_constant() &&
        y.source.is_constant()) {
      const Step steps[] = {load_step(x.source), load_step(y.source), make_step(compare)};
      int64_t folded = 0;
      run_program(steps, 3, LaunchView{}, &folded);
      return add_integer(folded, offset);
    }
    return add_operation(compare, *a, *b, std::max(x.depth, y.depth + 1), true, offset);
  }

  Index resolve_logical(const Expression& expression, const Expression::Node& node,
                        const Scope& scope) {
    const bool is_and = node.kind == Expression::Kind::logical_and;
    auto left = resolve(expression, node.left, scope);
    if (!left) return left;
    if (values_[*left].is_floating) return floats_only_compare(Op::to_bool, node.offset);
    if (const int64_t* constant = values_.constant_of(*left)) {
      // If a constant on the left decides, the right side is not compiled: `n == 0 || x / n > 1`.
      if ((*constant != 0) != is_and) return add_integer(is_and ? 0 : 1, node.offset);
      auto right = resolve(expression, node.right, scope);
      if (!right) return right;
      return to_boolean(*right, node.offset);
    }
    auto right = resolve(expression, node.right, scope);
    if (!right) return right;
    auto left_boolean = to_boolean(*left, node.offset);
    if (!left_boolean) return left_boolean;
    auto right_boolean = to_boolean(*right, node.offset);
    if (!right_boolean) return right_boolean;
    Value value{};
    value.kind = is_and ? Value::Kind::logical_and : Value::Kind::logical_or;
    value.left = *left_boolean;
    value.right = *right_boolean;
    value.is_boolean = true;
    value.depth = std::max(values_[*left_boolean].depth, values_[*right_boolean].depth);
    return add(value, node.offset);
  }

  Index to_boolean(uint16_t operand, uint32_t offset) {
    if (values_[operand].is_floating) return floats_only_compare(Op::to_bool, offset);
    if (values_[operand].is_boolean) return operand;
    if (const int64_t* constant = values_.constant_of(operand))
      return add_integer(*constant != 0, offset);
    return add_operation(Op::to_bool, operand, operand, values_[operand].depth, true, offset);
  }

  void emit_value(uint16_t index, std::vector<Step>* steps) const {
    const Value& value = values_[index];
    switch (value.kind) {
      case Value::Kind::source: steps->push_back(load_step(value.source)); break;
      case Value::Kind::operation:
        if (fuse_value(values_, index, steps)) break;
        emit_value(value.left, steps);
        // A unary operation stores its operand as both `left` and `right`.
        if (value.right != value.left || is_binary(value.op)) emit_value(value.right, steps);
        steps->push_back(make_step(value.op));
        break;
      case Value::Kind::logical_and:
      case Value::Kind::logical_or: {
        emit_value(value.left, steps);
        const size_t jump = steps->size();
        steps->push_back(make_step(value.kind == Value::Kind::logical_and
                                       ? Op::jump_if_zero_else_pop
                                       : Op::jump_if_nonzero_else_pop));
        emit_value(value.right, steps);
        (*steps)[jump].imm = static_cast<int64_t>(steps->size() - jump - 1);
        break;
      }
    }
  }

  static bool is_binary(Op op) {
    return op != Op::neg && op != Op::logical_not && op != Op::to_bool && op != Op::to_float;
  }

  Values values_;
  std::vector<std::pair<const Expression*, std::string_view>> open_;
  uint32_t depth_ = 0;
};

}  // namespace

static ValueFacts append_source(const Source& source, std::vector<Step>* steps) {
  ValueFacts facts{SimpleValue{source, {}, {}}, source.is_floating(), {}};
  if (source.kind == Source::Kind::integer) facts.constant = source.integer;
  steps->push_back(load_step(source));
  return facts;
}

CompiledValue compile_source(const Source& source) {
  std::vector<Step> steps;
  const ValueFacts facts = append_source(source, &steps);
  return {facts, std::move(steps)};
}

ExpressionResult<ValueFacts> append_value(const Expression& expression, const Scope& scope,
                                          std::vector<Step>* steps) {
  const Expression::Node& whole = expression.node(expression.root());
  if (whole.kind == Expression::Kind::integer) {
    return append_source(Source::constant(whole.integer), steps);
  }
  if (whole.kind == Expression::Kind::name) {
    const auto meaning = scope.find(whole.name);
    if (meaning && meaning->expression == nullptr) return append_source(meaning->source, steps);
  }
  Compiler compiler;
  const auto root = compiler.resolve(expression, expression.root(), scope);
  if (!root) return tl::unexpected<ExpressionError>(root.error());
  ValueFacts facts{compiler.simple(*root), compiler.values()[*root].is_floating, {}};
  if (const int64_t* const constant = compiler.values().constant_of(*root))
    facts.constant = *constant;
  auto emitted = compiler.emit(*root, steps);
  if (!emitted) return tl::unexpected<ExpressionError>(emitted.error());
  return facts;
}

ExpressionResult<CompiledValue> compile_value(const Expression& expression, const Scope& scope) {
  std::vector<Step> steps;
  const auto facts = append_value(expression, scope, &steps);
  if (!facts) return tl::unexpected<ExpressionError>(facts.error());
  return CompiledValue{*facts, std::move(steps)};
}

ExpressionResult<CompiledValue> compile_name(std::string_view name, const Scope& scope) {
  const auto expression = Expression::parse(name);
  if (!expression) return tl::unexpected<ExpressionError>(expression.error());
  return compile_value(*expression, scope);
}

ExpressionResult<void> compile_where(const Expression& expression, const Scope& scope,
                                     std::vector<Step>* steps, std::vector<Clause>* clauses) {
  Compiler compiler;
  const auto root = compiler.resolve(expression, expression.root(), scope);
  if (!root) return tl::unexpected<ExpressionError>(root.error());
  if (compiler.values()[*root].is_floating) {
    return expression_error(Rule::expression_type, 0, "a where clause must be a comparison");
  }
  return compiler.emit_where(*root, steps, clauses);
}

}  // namespace fibshim
