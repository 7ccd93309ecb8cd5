// The expression language: values, errors, and places of errors.
#include "loader/compile/compile_expression.h"

#include <string.h>

#include <map>
#include <memory>
#include <random>

#include <gtest/gtest.h>

namespace fibshim {
namespace {

// A launch with a few named parameters of every kind.
class TestScope : public Scope {
 public:
  TestScope() {
    add("i", ValueType::int32, &i);
    add("n", ValueType::int64, &n);
    add("u", ValueType::uint64, &u);
    add("s", ValueType::int16, &s);
    add("b", ValueType::uint8, &b);
    add("f", ValueType::float32, &f);
    add("d", ValueType::float64, &d);
    add("p", ValueType::address, &p);
    add("int8", ValueType::int8, &int8);
    add("uint16", ValueType::uint16, &uint16);
    add("uint32", ValueType::uint32, &uint32);
    launch_.params = params_.data();
    launch_.captures = captures_;
    for (uint32_t& value : launch_.geometry) value = 1;
    launch_.geometry[kGridX] = 96;
    Source grid;
    grid.kind = Source::Kind::geometry;
    grid.index = kGridX;
    sources_["grid_x"] = {grid, nullptr, nullptr};
    Source capture;
    capture.kind = Source::Kind::capture;
    capture.index = 1;
    sources_["c"] = {capture, nullptr, nullptr};
    Source constant;
    constant.integer = 64;
    sources_["k"] = {constant, nullptr, nullptr};
  }

  int32_t i = 7;
  int64_t n = 4096;
  uint64_t u = 5;
  int16_t s = -3;
  uint8_t b = 200;
  float f = 1e-6f;
  double d = 0.5;
  uint64_t p = 0x7f0000000010;
  int8_t int8 = -128;
  uint16_t uint16 = 65535;
  uint32_t uint32 = 4294967295;

  void alias(const std::string& name, const std::string& text) {
    expressions_[name] = std::make_unique<Expression>(*Expression::parse(text));
    sources_[name] = {{}, expressions_[name].get(), this};
  }

  std::optional<Meaning> find(std::string_view name) const override {
    const auto at = sources_.find(std::string(name));
    return at == sources_.end() ? std::nullopt : std::optional<Meaning>(at->second);
  }
  std::vector<std::string_view> names() const override {
    std::vector<std::string_view> names;
    for (const auto& [name, meaning] : sources_) names.push_back(name);
    return names;
  }
  const LaunchView& launch() const { return launch_; }

 private:
  void add(const std::string& name, ValueType type, void* at) {
    Source source;
    source.kind = Source::Kind::param;
    source.type = type;
    source.index = static_cast<uint16_t>(params_.size());
    params_.push_back(at);
    sources_[name] = {source, nullptr, nullptr};
  }

  std::vector<void*> params_;
  int64_t captures_[2] = {11, 128};
  std::map<std::string, Meaning> sources_;
  std::map<std::string, std::unique_ptr<Expression>> expressions_;
  LaunchView launch_{};
};

// Returns the value as text, "fails" if it cannot be computed, or the error's rule and offset.
std::string value_of(const std::string& text, const TestScope& scope = {}) {
  const auto expression = Expression::parse(text);
  if (!expression) {
    return std::string(rule_info(expression.error().rule).name) + "@" +
           std::to_string(expression.error().offset);
  }
  const auto compiled = compile_value(*expression, scope);
  if (!compiled) {
    return std::string(rule_info(compiled.error().rule).name) + "@" +
           std::to_string(compiled.error().offset);
  }
  int64_t result = 0;
  const auto count = static_cast<uint32_t>(compiled->steps.size());
  if (!run_program(compiled->steps.data(), count, scope.launch(), &result)) return "fails";
  EXPECT_EQ(compiled->constant.value_or(result), result) << text;
  return std::to_string(result);
}

TEST(Expression, FollowsThePrecedenceOfC) {
  EXPECT_EQ(value_of("1 + 2 * 3"), "7");
  EXPECT_EQ(value_of("(1 + 2) * 3"), "9");
  EXPECT_EQ(value_of("10 - 4 - 3"), "3");
  EXPECT_EQ(value_of("100 / 10 / 5"), "2");
  EXPECT_EQ(value_of("-2 * -3"), "6");
  EXPECT_EQ(value_of("- - 5"), "5");
  EXPECT_EQ(value_of("!0 + 1"), "2");
  EXPECT_EQ(value_of("1 + 1 == 2 && 3 > 2"), "1");
  EXPECT_EQ(value_of("0 && 0 || 1"), "1");
  EXPECT_EQ(value_of("1 || 0 && 0"), "1");
  EXPECT_EQ(value_of("i + n * 2"), "8199");
  EXPECT_EQ(value_of("!(i == 7)"), "0");
}

TEST(Expression, ReadsEverySourceOfALaunch) {
  EXPECT_EQ(value_of("i"), "7");
  EXPECT_EQ(value_of("s"), "-3");
  EXPECT_EQ(value_of("b"), "200");
  EXPECT_EQ(value_of("u"), "5");
  EXPECT_EQ(value_of("grid_x / 2"), "48");
  EXPECT_EQ(value_of("c"), "128");
  EXPECT_EQ(value_of("k * 2"), "128");
}

TEST(Expression, HasMinMaxAndCeilDiv) {
  EXPECT_EQ(value_of("min(i, 3)"), "3");
  EXPECT_EQ(value_of("max(i, 3)"), "7");
  EXPECT_EQ(value_of("ceil_div(i, 2)"), "4");
  EXPECT_EQ(value_of("ceil_div(-7, 2)"), "-3");
  EXPECT_EQ(value_of("ceil_div(8, 2)"), "4");
  EXPECT_EQ(value_of("min(max(i, 1), ceil_div(n, 1024))"), "4");
}

TEST(Expression, DividesAsCDoes) {
  EXPECT_EQ(value_of("-7 / 2"), "-3");
  EXPECT_EQ(value_of("-7 % 2"), "-1");
  EXPECT_EQ(value_of("s / 2"), "-1");
  EXPECT_EQ(value_of("s % 2"), "-1");
}

TEST(Expression, FailsWhereTheValueCannotBeComputed) {
  TestScope scope;
  scope.n = INT64_MAX;
  EXPECT_EQ(value_of("n + 1", scope), "fails");
  EXPECT_EQ(value_of("n * 2", scope), "fails");
  EXPECT_EQ(value_of("-2 - n", scope), "fails");
  scope.n = INT64_MIN;
  EXPECT_EQ(value_of("-n", scope), "fails");
  EXPECT_EQ(value_of("n / -1", scope), "fails");
  EXPECT_EQ(value_of("n % -1", scope), "fails");
  scope.n = 0;
  EXPECT_EQ(value_of("i / n", scope), "fails");
  EXPECT_EQ(value_of("i % n", scope), "fails");
  EXPECT_EQ(value_of("ceil_div(i, n)", scope), "fails");
  scope.u = UINT64_MAX;
  EXPECT_EQ(value_of("u > 0", scope), "fails");
}

TEST(Expression, RefusesConstantsThatCannotBeComputed) {
  EXPECT_EQ(value_of("9223372036854775807 + 1"), "expression-value@20");
  EXPECT_EQ(value_of("i / 0"), "expression-value@2");
  EXPECT_EQ(value_of("i % (k - 64)"), "expression-value@2");
  EXPECT_EQ(value_of("9223372036854775808"), "expression-value@0");
  EXPECT_EQ(value_of("-9223372036854775808"), "-9223372036854775808");
  EXPECT_EQ(value_of("-(-9223372036854775808)"), "expression-value@0");
  EXPECT_EQ(value_of("1e999 > 0.0"), "expression-value@0");
}

TEST(Expression, ShortCircuits) {
  TestScope scope;
  scope.n = 0;
  EXPECT_EQ(value_of("n != 0 && i / n > 1", scope), "0");
  EXPECT_EQ(value_of("n == 0 || i / n > 1", scope), "1");
  EXPECT_EQ(value_of("n == 1 || i / n > 1", scope), "fails");
  EXPECT_EQ(value_of("i && n", scope), "0");
  EXPECT_EQ(value_of("n || i", scope), "1");
  // An operand that a constant makes irrelevant is not even folded.
  EXPECT_EQ(value_of("k == 64 || i / (k - 64) > 1"), "1");
}

TEST(Expression, ComparesFloats) {
  EXPECT_EQ(value_of("f > 0.0"), "1");
  EXPECT_EQ(value_of("d == 0.5"), "1");
  EXPECT_EQ(value_of("d < i"), "1");
  EXPECT_EQ(value_of("i < d"), "0");
  EXPECT_EQ(value_of("0.5 == d"), "1");
  EXPECT_EQ(value_of("1 < 1.5"), "1");
  EXPECT_EQ(value_of("-1.5 < d"), "1");
  EXPECT_EQ(value_of("f > 0 && d >= .5"), "1");
  EXPECT_EQ(value_of("d != 5e-1"), "0");
}

TEST(Expression, ComparesAFloat32WithTheConstantAsFloat32) {
  EXPECT_EQ(value_of("f == 1e-6"), "1");  // 1e-6f is not 1e-6
  EXPECT_EQ(value_of("1e-6 == f"), "1");
  TestScope scope;
  scope.d = 0.1;
  EXPECT_EQ(value_of("d == 0.1", scope), "1");
}

TEST(Expression, NeverEqualsNaN) {
  TestScope scope;
  scope.f = __builtin_nanf("");
  EXPECT_EQ(value_of("f == f", scope), "0");
  EXPECT_EQ(value_of("f < 1.0 || f >= 1.0", scope), "0");
}

TEST(Expression, LetsFloatsOnlyCompare) {
  EXPECT_EQ(value_of("f + 1"), "expression-type@2");
  EXPECT_EQ(value_of("i * d"), "expression-type@2");
  EXPECT_EQ(value_of("-f > 0"), "expression-type@0");
  EXPECT_EQ(value_of("!f"), "expression-type@0");
  EXPECT_EQ(value_of("i && f"), "expression-type@2");
  EXPECT_EQ(value_of("min(f, d) > 0.0"), "expression-type@0");
}

TEST(Expression, ReadsDecimalAndHexadecimal) {
  EXPECT_EQ(value_of("0x1F"), "31");
  EXPECT_EQ(value_of("0X7fffffffffffffff"), "9223372036854775807");
  EXPECT_EQ(value_of("-0x10"), "-16");
  EXPECT_EQ(value_of("0"), "0");
  EXPECT_EQ(value_of("017"), "expression-syntax@0");
  EXPECT_EQ(value_of("0x"), "expression-syntax@0");
  EXPECT_EQ(value_of("12ab"), "expression-syntax@2");
  EXPECT_EQ(value_of("1.2.3 > d"), "expression-syntax@3");
}

TEST(Expression, PointsAtTheFault) {
  EXPECT_EQ(value_of(""), "expression-syntax@0");
  EXPECT_EQ(value_of("  "), "expression-syntax@2");
  EXPECT_EQ(value_of("i +"), "expression-syntax@3");
  EXPECT_EQ(value_of("(i + 1"), "expression-syntax@0");
  EXPECT_EQ(value_of("i + 1)"), "expression-syntax@5");
  EXPECT_EQ(value_of("i $ 1"), "expression-syntax@2");
  EXPECT_EQ(value_of("i = 1"), "expression-syntax@2");
  EXPECT_EQ(value_of("i & 1"), "expression-syntax@2");
  EXPECT_EQ(value_of("i ** 2"), "expression-syntax@2");
  EXPECT_EQ(value_of("i // 2"), "expression-syntax@2");
  EXPECT_EQ(value_of("i << 2"), "expression-syntax@2");
  EXPECT_EQ(value_of("0 < i < 9"), "expression-syntax@6");
  EXPECT_EQ(value_of("i == 7 == 1"), "expression-syntax@7");
  EXPECT_EQ(value_of("foo(1)"), "expression-syntax@0");
  EXPECT_EQ(value_of("min(1)"), "expression-syntax@5");
  EXPECT_EQ(value_of("min"), "expression-syntax@0");
  EXPECT_EQ(value_of("1 + j"), "unknown-name@4");
  EXPECT_EQ(value_of("i and 1"), "expression-syntax@2");
}

TEST(Expression, SuggestsWhatWasMeant) {
  EXPECT_EQ(Expression::parse("i & 1").error().hint, "write &&");
  EXPECT_EQ(Expression::parse("i = 1").error().hint, "write ==");
  EXPECT_EQ(Expression::parse("i and 1").error().hint, "write &&");
  const TestScope scope;
  EXPECT_EQ(compile_value(*Expression::parse("grid_y"), scope).error().hint,
            "did you mean \"grid_x\"?");
}

TEST(Expression, InlinesNamedExpressions) {
  TestScope scope;
  scope.alias("half", "n / 2");
  scope.alias("quarter", "half / 2");
  EXPECT_EQ(value_of("quarter + 1", scope), "1025");
}

TEST(Expression, FindsCycles) {
  TestScope scope;
  scope.alias("a", "z + 1");
  scope.alias("z", "a + 1");
  EXPECT_EQ(value_of("1 + a", scope), "expression-cycle@4");
}

TEST(Expression, BoundsNestingInTheParser) {
  EXPECT_EQ(value_of(std::string(500, '(') + "1" + std::string(500, ')')).substr(0, 15),
            "expression-size");
  EXPECT_EQ(value_of(std::string(500, '!') + "1").substr(0, 15), "expression-size");
  EXPECT_EQ(value_of(std::string(2000, ' ') + "1"), "expression-size@0");
}

TEST(Expression, BoundsNestingThroughNames) {
  TestScope scope;
  // Each is within its own limits, but nested they would take 12 MB of the caller's stack.
  std::string sum;
  for (int i = 0; i < 255; ++i) sum += "+1";
  for (int i = 0; i < 60; ++i)
    scope.alias("e" + std::to_string(i), "e" + std::to_string(i + 1) + sum);
  scope.alias("e60", "n");
  EXPECT_EQ(value_of("e0", scope), "expression-size@0");
  EXPECT_EQ(value_of("e59", scope), "4351");
}

TEST(Expression, UsesNoMoreStackThanTheLaunchPathHas) {
  std::string right = "i";
  for (int depth = 1; depth < 16; ++depth) right = "n - (" + right + ")";
  EXPECT_NE(value_of(right).substr(0, 10), "expression");
  EXPECT_EQ(value_of("n - (" + right + ")"), "expression-size@0");
  // The same nested on the left needs only two values.
  std::string left = "i";
  for (int depth = 1; depth < 40; ++depth) left = "(" + left + ") - n";
  EXPECT_NE(value_of(left).substr(0, 10), "expression");
}

std::vector<Step> where_of(const std::string& text) {
  std::vector<Step> steps;
  const auto compiled = compile_where(*Expression::parse(text), TestScope(), &steps);
  EXPECT_TRUE(compiled) << text;
  return steps;
}

bool holds(const std::string& text, const TestScope& scope = {}) {
  std::vector<Step> steps;
  EXPECT_TRUE(compile_where(*Expression::parse(text), scope, &steps)) << text;
  return run_program(steps.data(), static_cast<uint32_t>(steps.size()), scope.launch(), nullptr);
}

TEST(Expression, ReadsEachTypeWithItsSign) {
  TestScope scope;
  scope.i = -2147483647;
  scope.n = INT64_MIN;
  EXPECT_EQ(value_of("i", scope), "-2147483647");
  EXPECT_EQ(value_of("n", scope), "-9223372036854775808");
  EXPECT_EQ(value_of("s", scope), "-3");
  EXPECT_EQ(value_of("b", scope), "200");
  EXPECT_EQ(value_of("int8", scope), "-128");
  EXPECT_EQ(value_of("uint16", scope), "65535");
  EXPECT_EQ(value_of("uint32", scope), "4294967295");
}

TEST(Where, HoldsOrDoesNot) {
  EXPECT_TRUE(holds("i == 7 && n % 8 == 0"));
  EXPECT_FALSE(holds("i == 8"));
  EXPECT_TRUE(holds("p != 0"));
  EXPECT_TRUE(holds("p % 16 == 0"));
  EXPECT_FALSE(holds("p % 32 == 0"));
  EXPECT_TRUE(holds("i"));
  EXPECT_FALSE(holds("k == 65"));
  EXPECT_FALSE(holds("i / 2 == 3 && n == 1"));
  EXPECT_TRUE(holds("i == 1 || n == 4096"));
  EXPECT_TRUE(holds("uint32 > 0"));
}

TEST(Where, TakesOneStepForAnAlignment) {
  const auto steps = where_of("p % 16 == 0");
  ASSERT_EQ(steps.size(), 1u);
  EXPECT_EQ(steps[0].op, Op::require_aligned);
  EXPECT_EQ(steps[0].imm, 15);
  EXPECT_EQ(where_of("0 == p % 16").size(), 1u);
  EXPECT_EQ(where_of("n % 16 == 0").size(), 1u);
  EXPECT_GT(where_of("p % 24 == 0").size(), 1u);
  EXPECT_GT(where_of("i % 16 == 0").size(), 1u);  // i has only 4 bytes
}

// Of an address and what is added to it, all 64 bits count.
TEST(Where, AlignsASum) {
  const auto steps = where_of("(p + i * n) % 16 == 0");
  ASSERT_GT(steps.size(), 1u);
  EXPECT_EQ(steps.back().op, Op::require_aligned_sum);
  EXPECT_EQ(steps.back().imm, 15);
  EXPECT_EQ(where_of("(p + 8) % 24 == 0").back().op, Op::require);
  EXPECT_EQ(where_of("(8 + p) % 16 == 0").back().op, Op::require);
  EXPECT_EQ(where_of("(n + 8) % 16 == 0").back().op, Op::require);
  EXPECT_TRUE(holds("(p + 16) % 16 == 0"));
  EXPECT_FALSE(holds("(p + 8) % 16 == 0"));
  EXPECT_FALSE(holds("(p + 1) % 16 == 0"));
  EXPECT_TRUE(holds("(p + (i - 23)) % 16 == 0"));
  EXPECT_FALSE(holds("(p + (i - 24)) % 16 == 0"));
}

TEST(Where, TakesOneStepForAnEquality) {
  const auto steps = where_of("i == k && 4096 == n");
  ASSERT_EQ(steps.size(), 2u);
  for (const Step& step : steps) EXPECT_EQ(step.op, Op::require_equal);
}

TEST(Where, TakesOneStepForAComparison) {
  const std::pair<const char*, Op> cases[] = {
      {"i != 3", Op::require_unequal},       {"i > 3", Op::require_least},
      {"3 > i", Op::require_most},           {"i + 1 <= 4", Op::require_most},
      {"4 - s >= i", Op::require},  // of two parameters, only an equality is one step
      {"n + 1 == 4", Op::require},  // may overflow
      {"i * 2 == 4", Op::require},           {"i == s + 3", Op::require_field},
      {"7 - s == i", Op::require_field},     {"n == s * 128", Op::require_field},
      {"s * 2 - 1 == n", Op::require_field}, {"i * 2 == s * 2", Op::require},
      {"i == s * 40000", Op::require},  // too large for a field
      {"i + 40000 == s", Op::require},       {"f == 0.25", Op::require_float},
      {"0.5 == d", Op::require_float},       {"f < 0.25", Op::require},
  };
  for (const auto& [text, op] : cases) {
    const auto steps = where_of(text);
    EXPECT_EQ(steps.back().op, op) << text;
    EXPECT_EQ(steps.size() == 1, op != Op::require) << text;
  }
}

// With values at the limits of their types, a `where` holds if and only if the comparison's value
// is 1.
TEST(Where, AgreesWithTheValueOfTheComparison) {
  const char* const sides[] = {
      "i",     "n",          "s",          "uint32", "int8",          "p",
      "i + 1", "uint32 - 1", "s * 32767",  "5 - i",  "-32768 - int8", "0",
      "-1",    "32768",      "2147483648", "i - 3",  "(s + 1) * 2",   "n + 0"};
  const char* const ops[] = {"==", "!=", "<", "<=", ">", ">="};
  TestScope scope;
  int held = 0, failed = 0;
  for (const int64_t value :
       {INT64_MIN, int64_t{INT32_MIN}, int64_t{-32769}, int64_t{-1}, int64_t{0}, int64_t{1},
        int64_t{32768}, int64_t{INT32_MAX}, INT64_MAX}) {
    scope.i = static_cast<int32_t>(value);
    scope.n = value;
    scope.s = static_cast<int16_t>(value);
    scope.uint32 = static_cast<uint32_t>(value);
    scope.int8 = static_cast<int8_t>(value);
    scope.p = static_cast<uint64_t>(value);
    for (const char* const a : sides) {
      for (const char* const b : sides) {
        for (const char* const op : ops) {
          const std::string text = std::string(a) + " " + op + " " + b;
          const bool is_held = holds(text, scope);
          EXPECT_EQ(value_of(text, scope) == "1", is_held) << text << " for " << value;
          ++(is_held ? held : failed);
        }
      }
    }
  }
  EXPECT_GT(held, 1000);
  EXPECT_GT(failed, 1000);
}

TEST(Where, HoldsAFloatAgainstAConstant) {
  TestScope scope;
  scope.d = -0.0;
  EXPECT_TRUE(holds("d == 0.0", scope));
  scope.d = std::nan("");
  EXPECT_FALSE(holds("d == 0.0", scope));
  EXPECT_TRUE(holds("f == 1e-6", scope));
  EXPECT_FALSE(holds("f == 1e-5", scope));
}

TEST(Where, DropsWhatIsKnownToHold) {
  EXPECT_TRUE(where_of("k == 64").empty());
  EXPECT_TRUE(where_of("1 < 2.5").empty());
  EXPECT_EQ(where_of("k == 64 && i == 7").size(), 1u);
}

TEST(Where, RefusesAFloatAsACondition) {
  std::vector<Step> steps;
  const auto compiled = compile_where(*Expression::parse("f"), TestScope(), &steps);
  ASSERT_FALSE(compiled);
  EXPECT_EQ(compiled.error().rule, Rule::expression_type);
}

TEST(Expression, KnowsWhatAClausePins) {
  const auto pins =
      Expression::parse("a == 1 && (2 == b && c > 3) && d == 0.5 && e == 64.0")->pins();
  std::map<std::string, std::pair<bool, int64_t>> values;
  for (const Expression::Pin& pin : pins) values[pin.name] = {pin.is_integer, pin.integer};
  const decltype(values) expected = {
      {"a", {true, 1}}, {"b", {true, 2}}, {"d", {false, 0}}, {"e", {true, 64}}};
  EXPECT_EQ(values, expected);
  EXPECT_TRUE(Expression::parse("a == 1 || b == 2")->pins().empty());
}

// Random trees: the compiled form must agree with a direct evaluation of the same tree.
struct Oracle {
  std::mt19937 random{20240607};
  const TestScope& scope;

  // Returns text and value; no value if it cannot be computed.
  std::pair<std::string, std::optional<int64_t>> make(int depth) {
    const auto pick = [&](uint32_t n) { return random() % n; };
    if (depth == 0 || pick(5) == 0) {
      switch (pick(4)) {
        case 0: return {"i", scope.i};
        case 1: return {"n", scope.n};
        case 2: return {"s", scope.s};
        default: {
          const int64_t value = static_cast<int64_t>(pick(7)) - 3;
          return {value < 0 ? "(" + std::to_string(value) + ")" : std::to_string(value), value};
        }
      }
    }
    const auto [left, a] = make(depth - 1);
    const auto [right, b] = make(depth - 1);
    const char* const ops[] = {"+", "-", "*", "/", "%", "<", ">=", "==", "&&", "||"};
    const std::string op = ops[pick(10)];
    const std::string text = "(" + left + " " + op + " " + right + ")";
    if (op == "&&" && a && *a == 0) return {text, 0};
    if (op == "||" && a && *a != 0) return {text, 1};
    if (!a || !b) return {text, std::nullopt};
    int64_t out = 0;
    if (op == "+" && !__builtin_add_overflow(*a, *b, &out)) return {text, out};
    if (op == "-" && !__builtin_sub_overflow(*a, *b, &out)) return {text, out};
    if (op == "*" && !__builtin_mul_overflow(*a, *b, &out)) return {text, out};
    if ((op == "/" || op == "%") && *b != 0 && !(*a == INT64_MIN && *b == -1)) {
      return {text, op == "/" ? *a / *b : *a % *b};
    }
    if (op == "<") return {text, *a < *b};
    if (op == ">=") return {text, *a >= *b};
    if (op == "==") return {text, *a == *b};
    if (op == "&&" || op == "||") return {text, *b != 0};
    return {text, std::nullopt};
  }
};

TEST(Expression, AgreesWithADirectEvaluation) {
  const TestScope scope;
  Oracle oracle{.scope = scope};
  int compared = 0;
  for (int round = 0; round < 3000; ++round) {
    const auto [text, expected] = oracle.make(4);
    const std::string found = value_of(text, scope);
    // A constant part that cannot be computed is refused anywhere.
    if (found.substr(0, 16) == "expression-value") continue;
    ++compared;
    EXPECT_EQ(found, expected ? std::to_string(*expected) : "fails") << text;
  }
  EXPECT_GT(compared, 2000);
}

}  // namespace
}  // namespace fibshim
