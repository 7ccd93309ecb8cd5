// Expressions: what is compiled and run must say what a plain walk over the tree says, with 128-bit
// arithmetic that cannot overflow.
//
// Input: the expression on the first line; lines of "name expression" that it may use; after a NUL
// the bytes of the launch's parameters.
#include <math.h>
#include <string.h>

#include <map>
#include <optional>
#include <string>

#include "loader/compile/compile_expression.h"
#include "tests/fuzz/fuzz.h"

namespace fibshim::fuzz {
namespace {

constexpr char kTypeLetters[] = "cCsSiIlLfdp";  // in ValueType's order: names of parameters
constexpr size_t kTypeCount = sizeof kTypeLetters - 1;
constexpr int64_t kNumbers[] = {0, 1, -1, 2, 7, 4096, INT64_MAX, INT64_MIN};

// The launch: every name of one letter means something.
//   cCsSiIlLfdp   parameters of the types int8, uint8, ... float64, address
//   x y z         a grid's size; u v: captures; 0..7 as k0 .. k7: constants; h: a constant double
//   others        expressions of the input, else unknown
class Names : public Scope {
 public:
  std::map<std::string, Expression, std::less<>> expressions;

  std::optional<Meaning> find(std::string_view name) const override {
    const auto own = expressions.find(name);
    if (own != expressions.end()) return Meaning{{}, &own->second, this};
    Source source;
    if (name.size() == 2 && name[0] == 'k' && name[1] >= '0' && name[1] <= '7') {
      source.integer = kNumbers[name[1] - '0'];
      return Meaning{source, nullptr, nullptr};
    }
    if (name.size() != 1) return std::nullopt;
    if (const char* const at = strchr(kTypeLetters, name[0])) {
      source.kind = Source::Kind::param;
      source.index = static_cast<uint16_t>(at - kTypeLetters);
      source.type = static_cast<ValueType>(source.index);
      source.offset = source.index % 3;  // a field of a larger parameter
    } else if (name[0] >= 'x' && name[0] <= 'z') {
      source.kind = Source::Kind::geometry;
      source.index = static_cast<uint16_t>(name[0] - 'x');
    } else if (name[0] == 'u' || name[0] == 'v') {
      source.kind = Source::Kind::capture;
      source.index = name[0] == 'v';
    } else if (name[0] == 'h') {
      source.kind = Source::Kind::floating;
      source.floating = 0.1;
    } else {
      return std::nullopt;
    }
    return Meaning{source, nullptr, nullptr};
  }
  std::vector<std::string_view> names() const override { return {"x", "y", "rows"}; }
};

// What no operation on two values exceeds.
__extension__ typedef __int128 Wide;

// A value as the language's page says it. `failed`: it cannot be computed.
struct Value {
  bool failed = false;
  bool is_floating = false;
  Wide integer = 0;
  double floating = 0;
};

Value failure() {
  Value value;
  value.failed = true;
  return value;
}
Value integer(Wide number) {
  Value value;
  if (number < INT64_MIN || number > INT64_MAX) return failure();
  value.integer = number;
  return value;
}
Value floating(double number) {
  Value value;
  value.is_floating = true;
  value.floating = number;
  return value;
}

class Walk {
 public:
  Walk(const LaunchView& launch) : launch_(launch) {}

  Value of(const Expression& expression, uint16_t at, const Scope& scope) const {
    const Expression::Node& node = expression.node(at);
    switch (node.kind) {
      case Expression::Kind::integer: return integer(node.integer);
      case Expression::Kind::floating: return floating(node.floating);
      case Expression::Kind::name: {
        const auto meaning = *scope.find(node.name);
        if (meaning.expression == nullptr) return of(meaning.source);
        return of(*meaning.expression, meaning.expression->root(), *meaning.scope);
      }
      case Expression::Kind::negate: {
        const Value operand = of(expression, node.left, scope);
        return operand.failed ? operand : integer(-operand.integer);
      }
      case Expression::Kind::logical_not: {
        const Value operand = of(expression, node.left, scope);
        return operand.failed ? operand : integer(operand.integer == 0);
      }
      case Expression::Kind::logical_and:
      case Expression::Kind::logical_or: {
        const Value left = of(expression, node.left, scope);
        if (left.failed) return left;
        const bool is_and = node.kind == Expression::Kind::logical_and;
        if ((left.integer != 0) != is_and) return integer(!is_and);
        const Value right = of(expression, node.right, scope);
        return right.failed ? right : integer(right.integer != 0);
      }
      case Expression::Kind::binary: return binary(expression, node, scope);
    }
    return failure();
  }

 private:
  // The parameter that the node is, through names that stand for it.
  static const Source* find_param(const Expression& expression, uint16_t at, const Scope& scope,
                                  std::optional<Scope::Meaning>* meaning) {
    const Expression::Node& node = expression.node(at);
    if (node.kind != Expression::Kind::name) return nullptr;
    *meaning = scope.find(node.name);
    if ((*meaning)->expression == nullptr) return &(*meaning)->source;
    const Expression* const inner = (*meaning)->expression;
    return find_param(*inner, inner->root(), *(*meaning)->scope, meaning);
  }
  static bool is_float32(const Expression& expression, uint16_t at, const Scope& scope) {
    std::optional<Scope::Meaning> meaning;
    const Source* const source = find_param(expression, at, scope, &meaning);
    return source != nullptr && source->kind == Source::Kind::param &&
           source->type == ValueType::float32;
  }

  // Known when the folder is read.
  static bool is_constant(const Expression& expression, uint16_t at, const Scope& scope) {
    const Expression::Node& node = expression.node(at);
    switch (node.kind) {
      case Expression::Kind::integer:
      case Expression::Kind::floating: return true;
      case Expression::Kind::name: {
        const auto meaning = *scope.find(node.name);
        if (meaning.expression == nullptr) return meaning.source.is_constant();
        return is_constant(*meaning.expression, meaning.expression->root(), *meaning.scope);
      }
      case Expression::Kind::negate:
      case Expression::Kind::logical_not: return is_constant(expression, node.left, scope);
      case Expression::Kind::binary:
        return is_constant(expression, node.left, scope) &&
               is_constant(expression, node.right, scope);
      case Expression::Kind::logical_and:
      case Expression::Kind::logical_or: {
        if (!is_constant(expression, node.left, scope)) return false;
        const bool is_and = node.kind == Expression::Kind::logical_and;
        const Value left = Walk({}).of(expression, node.left, scope);
        if (!left.failed && (left.integer != 0) != is_and) return true;
        return is_constant(expression, node.right, scope);
      }
    }
    return false;
  }

  Value binary(const Expression& expression, const Expression::Node& node,
               const Scope& scope) const {
    Value a = of(expression, node.left, scope);
    if (a.failed) return a;
    Value b = of(expression, node.right, scope);
    if (b.failed) return b;
    if (a.is_floating || b.is_floating) {
      const auto as_double = [&](const Value& value, uint16_t own, uint16_t other) {
        const double number =
            value.is_floating ? value.floating : static_cast<double>(value.integer);
        // `eps == 1e-6` holds for what a caller wrote as 1e-6f.
        return is_constant(expression, own, scope) && is_float32(expression, other, scope)
                   ? static_cast<double>(static_cast<float>(number))
                   : number;
      };
      const double x = as_double(a, node.left, node.right);
      const double y = as_double(b, node.right, node.left);
      return comparison(node.op, x, y);
    }
    const Wide x = a.integer;
    const Wide y = b.integer;
    switch (node.op) {
      case Op::add: return integer(x + y);
      case Op::sub: return integer(x - y);
      case Op::mul: return integer(x * y);
      case Op::div: return y == 0 ? failure() : integer(x / y);
      // The remainder of a quotient that cannot be computed cannot be either.
      case Op::mod: return y == 0 || integer(x / y).failed ? failure() : integer(x % y);
      case Op::ceil_div: {
        if (y == 0 || integer(x / y).failed) return failure();
        const Wide floor = x / y - ((x % y != 0 && (x < 0) != (y < 0)) ? 1 : 0);
        return integer(x % y == 0 ? floor : floor + 1);
      }
      case Op::min: return integer(std::min(x, y));
      case Op::max: return integer(std::max(x, y));
      default: return comparison(node.op, x, y);
    }
  }

  template <class T>
  static Value comparison(Op op, T x, T y) {
    switch (op) {
      case Op::eq: return integer(x == y);
      case Op::ne: return integer(x != y);
      case Op::lt: return integer(x < y);
      case Op::le: return integer(x <= y);
      case Op::gt: return integer(x > y);
      case Op::ge: return integer(x >= y);
      default: break;
    }
    require(false, "an operator that binary nodes have");
    return failure();
  }

  template <class T>
  Value read(const void* from) const {
    T value;
    memcpy(&value, from, sizeof value);
    if constexpr (std::is_floating_point_v<T>) return floating(value);
    return integer(value);
  }

  Value of(const Source& source) const {
    switch (source.kind) {
      case Source::Kind::integer: return integer(source.integer);
      case Source::Kind::floating: return floating(source.floating);
      case Source::Kind::geometry: return integer(launch_.geometry[source.index]);
      case Source::Kind::capture: return integer(launch_.captures[source.index]);
      case Source::Kind::param: break;
    }
    const char* const at = static_cast<const char*>(launch_.params[source.index]) + source.offset;
    switch (source.type) {
      case ValueType::int8: return read<int8_t>(at);
      case ValueType::uint8: return read<uint8_t>(at);
      case ValueType::int16: return read<int16_t>(at);
      case ValueType::uint16: return read<uint16_t>(at);
      case ValueType::int32: return read<int32_t>(at);
      case ValueType::uint32: return read<uint32_t>(at);
      case ValueType::int64: return read<int64_t>(at);
      case ValueType::uint64:
      case ValueType::address: return read<uint64_t>(at);
      case ValueType::float32: return read<float>(at);
      case ValueType::float64: return read<double>(at);
    }
    return failure();
  }

  const LaunchView& launch_;
};

int64_t read_address(void* const* params) {
  constexpr size_t kAddress = static_cast<size_t>(ValueType::address);
  int64_t value;
  memcpy(&value, static_cast<const char*>(params[kAddress]) + kAddress % 3, sizeof value);
  return value;
}

bool is_same(const Value& expected, bool is_floating, bool has_run, int64_t result) {
  if (expected.failed || !has_run) return expected.failed == !has_run;
  if (expected.is_floating != is_floating) return false;
  if (!is_floating) return expected.integer == result;
  const double number = program_detail::bits_double(result);
  return number == expected.floating || (isnan(number) && isnan(expected.floating));
}

}  // namespace

FUZZ_TARGET(expressions) {
  std::string_view rest = as_text(data, size);
  std::string_view text = take_until(&rest, '\0');

  const auto expression = Expression::parse(take_until(&text, '\n'));
  if (!expression) return 0;
  Names names;
  while (!text.empty() && names.expressions.size() < 100) {
    std::string_view line = take_until(&text, '\n');
    const std::string name(take_until(&line, ' '));
    auto parsed = Expression::parse(line);
    if (parsed) names.expressions.emplace(name, std::move(*parsed));
  }

  char bytes[kTypeCount][16] = {};
  memcpy(bytes, rest.data(), std::min(rest.size(), sizeof bytes));
  void* params[kTypeCount];
  for (size_t i = 0; i < kTypeCount; ++i) params[i] = bytes[i];
  // What is left of the bytes, or numbers at the edge of the types.
  int64_t captures[2] = {INT64_MIN, INT64_MAX};
  LaunchView launch{params, captures, {}};
  if (rest.size() > sizeof bytes) {
    memcpy(captures, rest.data() + sizeof bytes,
           std::min(rest.size() - sizeof bytes, sizeof captures));
  }
  for (uint32_t i = 0; i < kGeometryCount; ++i) launch.geometry[i] = i == 0 ? UINT32_MAX : i;

  const Walk walk(launch);
  const auto compiled = compile_value(*expression, names);
  if (compiled) {
    const Value expected = walk.of(*expression, expression->root(), names);
    int64_t result = 0;
    const bool has_run = run_program(
        compiled->steps.data(), static_cast<uint32_t>(compiled->steps.size()), launch, &result);
    require(is_same(expected, compiled->is_floating, has_run, result),
            "a compiled expression has the value of its tree");
    if (compiled->constant) {
      require(!expected.failed && expected.integer == *compiled->constant,
              "a constant is what its expression says");
    }
  }

  std::vector<Step> steps;
  if (compile_where(*expression, names, &steps)) {
    const Value expected = walk.of(*expression, expression->root(), names);
    const bool holds =
        run_program(steps.data(), static_cast<uint32_t>(steps.size()), launch, nullptr);
    // An address from 2^63 on has no value, but bits that can be aligned.
    const bool is_aligned_without_value = expected.failed && read_address(params) < 0;
    require(is_aligned_without_value || holds == (!expected.failed && expected.integer != 0),
            "a clause holds where its tree is true");
    for (const Expression::Pin& pin : expression->pins()) {
      const auto meaning = names.find(pin.name);
      if (!holds || !pin.is_integer || !meaning) continue;
      const Expression name = *Expression::parse(pin.name);
      const Value value = walk.of(name, name.root(), names);
      require(value.is_floating ? value.floating == static_cast<double>(pin.integer)
                                : value.integer == pin.integer,
              "a name has the value that the clause pins it to");
    }
  }
  return 0;
}

}  // namespace fibshim::fuzz
