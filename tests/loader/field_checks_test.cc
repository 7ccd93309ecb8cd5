// The checks of a struct's fields: which clauses become checks, and that these hold only if the
// clauses do.
#include "loader/compile/field_checks.h"

#include <string.h>

#include <map>
#include <optional>
#include <random>

#include <gtest/gtest.h>

#include "loader/compile/compile_expression.h"
#include "shim/plan/fast_plan.h"

namespace fibshim {
namespace {

// Fields of parameter 1, a struct of 64 bytes, named by type and offset: i0, i4, ... are int32 at
// these bytes, and so on. z: an int32 of parameter 0.
class StructScope : public Scope {
 public:
  StructScope() {
    const std::pair<char, ValueType> types[] = {
        {'i', ValueType::int32},   {'u', ValueType::uint32},  {'l', ValueType::int64},
        {'q', ValueType::uint64},  {'p', ValueType::address}, {'f', ValueType::float32},
        {'d', ValueType::float64}, {'s', ValueType::int16}};
    for (const auto& [letter, type] : types) {
      for (uint32_t at = 0; at < 64; at += size_of(type)) {
        add(letter + std::to_string(at), type, 1, at);
      }
    }
    add("z", ValueType::int32, 0, 0);
  }
  std::optional<Meaning> find(std::string_view name) const override {
    const auto at = sources_.find(std::string(name));
    return at == sources_.end() ? std::nullopt
                                : std::optional(Meaning{at->second, nullptr, nullptr});
  }
  std::vector<std::string_view> names() const override { return {}; }

 private:
  void add(const std::string& name, ValueType type, uint16_t index, uint32_t offset) {
    Source source;
    source.kind = Source::Kind::param;
    source.type = type;
    source.index = index;
    source.offset = offset;
    sources_[name] = source;
  }
  std::map<std::string, Source> sources_;
};

std::vector<Step> struct_where(const std::string& text) {
  std::vector<Step> steps;
  const auto compiled = compile_where(*Expression::parse(text), StructScope(), &steps);
  EXPECT_TRUE(compiled) << text;
  return sort_clauses(steps);
}

struct Struct {
  int32_t z = 0;
  unsigned char bytes[64] = {};

  template <class T>
  Struct& set(size_t at, T value) {
    memcpy(bytes + at, &value, sizeof value);
    return *this;
  }
};

bool steps_hold(const std::vector<Step>& steps, Struct* values) {
  void* params[] = {&values->z, values->bytes};
  LaunchView view{};
  view.params = params;
  return run_program(steps.data(), static_cast<uint32_t>(steps.size()), view, nullptr);
}

bool checks_hold(const FieldCheckSpec& spec, Struct* values) {
  void* params[] = {&values->z, values->bytes};
  FieldChecks list{};
  list.checks.count = static_cast<uint32_t>(spec.checks.size());
  list.param = spec.param;
  memcpy(list.ends, spec.ends, sizeof list.ends);
  return field_checks_hold(list, spec.checks.data(), params) && steps_hold(spec.rest, values);
}

// Returns how many checks a clause becomes, besides two clauses that always become checks.
size_t checks_of(const std::string& clause) {
  const FieldCheckSpec spec =
      make_field_checks(struct_where("l56 == l48 && l32 == l40 && (" + clause + ")"));
  EXPECT_EQ(spec.rest.empty(), spec.checks.size() > 2) << clause;
  return spec.checks.size() - 2;
}

TEST(FieldChecks, AreOfClausesThatCompareFields) {
  const std::pair<const char*, size_t> clauses[] = {
      {"i4 == 7", 1},
      {"i4 == -1", 1},
      {"i4 == 2147483648", 0},  // never
      {"u4 == 4294967295", 1},
      {"u4 == -1", 0},
      {"l8 == 5", 2},
      {"l8 == -5", 2},
      {"q8 == 5", 2},
      {"p8 == 0", 1},
      {"p8 == -1", 0},
      {"f4 == 1.0", 1},
      {"d8 == 0.1", 2},
      {"i4 == i12", 1},
      {"i4 == i12 + 1", 1},
      {"i4 + 3 == i12", 1},
      {"u4 == u12", 1},
      {"u4 == u12 + 1", 0},
      {"u4 == i12", 0},
      {"i4 == i12 * 2", 0},
      {"i4 == s2", 0},
      {"l8 == l16", 1},
      {"l8 == p16", 1},
      {"l8 == i4 + 1", 1},
      {"i4 == l8", 1},
      {"p8 == i4", 0},
      {"l8 == u4", 0},
      {"p8 != 0", 1},
      {"l8 >= 1", 1},
      {"l8 > 1", 0},
      {"i4 != 0", 0},
      {"p8 % 16 == 0", 1},
      {"p8 % 4294967296 == 0", 0},
      {"z == 1", 0},
      {"i4 == z", 0},
      {"i4 < i12", 0},
      {"i4 == 1 || i4 == 2", 0},
  };
  for (const auto& [clause, count] : clauses) EXPECT_EQ(checks_of(clause), count) << clause;
  EXPECT_TRUE(
      make_field_checks(struct_where("l8 == l16")).checks.empty());  // one alone gains nothing
}

TEST(FieldChecks, LeaveTheOtherClausesToAProgram) {
  const FieldCheckSpec spec =
      make_field_checks(struct_where("i4 == 1 && i8 == i4 && i12 < i16 && z == 3 && s2 == 5"));
  EXPECT_EQ(spec.checks.size(), 2u);
  EXPECT_EQ(spec.param, 1);
  Struct values;
  values.set(4, 1).set(8, 1).set(16, 9).set<int16_t>(2, 5).z = 3;
  EXPECT_TRUE(checks_hold(spec, &values));
  values.z = 4;
  EXPECT_FALSE(checks_hold(spec, &values));
  values.set(12, 9).z = 3;
  EXPECT_FALSE(checks_hold(spec, &values));
}

// Values for which a comparison of bits or of wrapped sums differs from the clause.
TEST(FieldChecks, DoNotHoldWhereAClauseDoesNot) {
  struct Case {
    const char* clause;
    Struct values;
    bool holds;
  };
  const Case cases[] = {
      {"i4 == i12 + 1", Struct().set(4, 8).set(12, 7), true},
      {"i4 == i12 + 1", Struct().set(4, INT32_MIN).set(12, INT32_MAX), false},
      {"i4 + 1 == i12", Struct().set(4, INT32_MAX).set(12, INT32_MIN), false},
      {"l8 == i4 + 1", Struct().set(8, int64_t{0}).set(4, -1), true},
      {"l8 == i4 + 1", Struct().set(8, int64_t{INT32_MAX} + 1).set(4, INT32_MAX), true},
      {"l8 == i4 + 1", Struct().set(8, int64_t{1} << 32).set(4, -1), false},
      {"l8 == i4", Struct().set(8, int64_t{UINT32_MAX}).set(4, -1), false},
      {"i4 == l8", Struct().set(8, int64_t{UINT32_MAX}).set(4, -1), false},
      {"l8 == l16", Struct().set(8, int64_t{5}).set(16, int64_t{5}), true},
      {"l8 == l16", Struct().set(8, int64_t{5}).set(16, int64_t{5} + (int64_t{1} << 40)), false},
      {"p8 == p16", Struct().set(8, INT64_MIN).set(16, INT64_MIN), false},
      {"l8 == 5", Struct().set(8, int64_t{5}), true},
      {"l8 == 5", Struct().set(8, int64_t{5} << 32 | 5), false},
      {"l8 == 0", Struct().set(8, int64_t{0}), true},
      {"l8 == 0", Struct().set(8, int64_t{1} << 40), false},
      {"l8 == 0", Struct().set(8, int64_t{1}), false},
      {"l8 == 0", Struct().set(8, INT64_MIN), false},
      {"l8 == -1", Struct().set(8, int64_t{-1}), true},
      {"l8 == -1", Struct().set(8, int64_t{UINT32_MAX}), false},
      {"f4 == 1.0", Struct().set(4, 1.0f), true},
      {"f4 == 1.0", Struct().set(4, 1.5f), false},
      {"d8 == 0.1", Struct().set(8, 0.1), true},
      {"d8 == 0.1", Struct().set(8, 0.1f), false},
      {"p8 != 0", Struct().set(8, int64_t{1} << 40), true},
      {"p8 != 0", Struct(), false},
      {"p8 != 0", Struct().set(8, INT64_MIN), false},
      {"p8 % 16 == 0", Struct().set(8, int64_t{32}), true},
      {"p8 % 16 == 0", Struct().set(8, int64_t{40}), false},
      {"u4 == 4294967295", Struct().set(4, -1), true},
      {"u4 == 4294967295", Struct().set(4, -2), false},
  };
  for (const Case& one : cases) {
    const auto steps = struct_where(std::string("i28 == i24 && ") + one.clause);
    Struct values = one.values;
    EXPECT_EQ(checks_hold(make_field_checks(steps), &values), one.holds) << one.clause;
    EXPECT_EQ(steps_hold(steps, &values), one.holds) << one.clause;
    values.set(28, 1);
    EXPECT_FALSE(checks_hold(make_field_checks(steps), &values)) << one.clause;
  }
}

// The other zero is equal but has other bits: the check fails, and the program holds.
TEST(FieldChecks, LeaveTheOtherZeroToTheProgram) {
  const auto steps = struct_where("f4 == 0.0 && d8 == 0.0");
  Struct values;
  EXPECT_TRUE(checks_hold(make_field_checks(steps), &values));
  values.set(4, -0.0f);
  EXPECT_FALSE(checks_hold(make_field_checks(steps), &values));
  EXPECT_TRUE(steps_hold(steps, &values));
}

// Structs with few different words, small and extreme ones, so that many clauses hold.
TEST(FieldChecks, AgreeWithTheProgramOnRandomStructs) {
  const auto steps = struct_where(
      "i0 == i4 + 1 && l8 == i0 && l16 == l24 && u32 == 1 && l40 == -1 && p48 % 8 == 0 && p48 != "
      "0");
  const FieldCheckSpec spec = make_field_checks(steps);
  ASSERT_TRUE(spec.rest.empty());
  ASSERT_EQ(spec.checks.size(), 8u);
  Struct holding;
  holding.set(0, 1).set(8, int64_t{1}).set(32, 1).set(40, int64_t{-1}).set(48, int64_t{64});
  ASSERT_TRUE(steps_hold(steps, &holding));
  std::mt19937 random(7);
  const int32_t words[] = {0, 1, -1, 8, INT32_MAX, INT32_MIN};
  int held = 0;
  for (int round = 0; round < 100000; ++round) {
    Struct values = holding;
    for (uint32_t changes = random() % 4; changes > 0; --changes) {
      values.set(random() % 14 * 4, words[random() % 6]);
    }
    const bool holds = steps_hold(steps, &values);
    // The check of two longs holds only if they are not negative.
    const bool is_left = holds && values.bytes[23] >= 0x80;
    ASSERT_EQ(checks_hold(spec, &values), holds && !is_left) << round;
    held += holds;
  }
  EXPECT_GT(held, 1000);
}

}  // namespace
}  // namespace fibshim
