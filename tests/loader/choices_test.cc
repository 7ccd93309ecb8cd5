// Several solutions for one definition: their diagnostics, and the snapshot.
#include "loader/check/choices.h"

#include <set>

#include "tests/loader/checked_folder.h"
#include "tests/support/text.h"

namespace fibshim {
namespace {

constexpr char kOtherPath[] = "solutions/me/scale_n64_other.json";

// Adds a solution of the valid folder's definition.
void add_solution(const TestFolder& folder, const std::string& name, const std::string& path,
                  const std::string& launch) {
  folder.write_solution(
      replaced(replaced(kSolution, "my-scale", name), "\"kernel\"", launch + " \"kernel\""), path);
}

void make_two(const TestFolder& folder, const std::string& first, const std::string& second) {
  add_solution(folder, "my-scale", kSolutionPath, first);
  add_solution(folder, "other", kOtherPath, second);
}

TEST(Choices, OfTwoSolutionsForTheSameSizesAreAnErrorThatNamesBothAndASize) {
  const struct {
    const char* first;
    const char* second;
    const char* sizes;  // for which both hold; "": none
  } kRows[] = {
      {R"("when": ["rows <= 8"],)", R"("when": ["rows > 8"],)", ""},
      {R"("when": ["rows <= 8"],)", R"("when": ["rows >= 8"],)", "rows is 8"},
      {R"("when": ["rows <= 8"],)", R"("when": ["rows >= 8"], "benefit": 1,)", ""},
      {R"("when": ["rows <= 8"],)", "", "rows is 1"},
      {R"("benefit": 1,)", "", ""},
      {R"("when": ["rows * n <= 6400"],)", R"("when": ["rows * n >= 6400"],)", "rows is 100"},
      {R"("when": ["rows % 2 == 0"],)", R"("when": ["rows % 2 == 1"],)", ""},
      {R"("when": ["rows % 8 == 0"],)", R"("when": ["rows % 12 == 0"],)", "rows is 24"},
      {R"("when": ["rows % 8 == 0"],)", R"("when": ["rows > 100"],)", "rows is 104"},
      {R"("when": ["rows > 3", "rows < 9"],)", R"("when": ["rows == 8 || rows == 20"],)",
       "rows is 8"},
      {R"("when": ["rows / 100 == 3"],)", R"("when": ["rows / 10 == 35"],)", "rows is 350"},
      {R"("when": ["rows / 100 == 3"],)", R"("when": ["rows / 10 == 40"],)", ""},
      {R"("when": ["rows % 5 == 2"],)", R"("when": ["rows % 7 == 3"],)", "rows is 17"},
      {R"("when": ["rows % 16 == 8"],)", R"("when": ["rows % 5 == 0"],)", "rows is 40"},
      {R"("when": ["rows % 16 == 8"],)", R"("when": ["rows % n == 4"],)", ""},
      {R"("when": ["rows % 8 == 0", "rows > 100"],)", R"("when": ["rows <= 103"],)", ""},
      {R"("when": ["rows % 8 == 0"],)", R"("when": ["rows % 8 != 0"],)", ""},
      {R"("when": ["rows * rows == 49"],)", R"("when": ["rows * 3 == 21"],)", "rows is 7"},
      {R"("when": ["rows * rows == 484000000"],)", R"("when": ["rows % 2 == 0"],)",
       "rows is 22000"},
      {R"("when": ["rows * 3 > 1000000"],)", R"("when": ["rows * 3 < 1000010"],)",
       "rows is 333334"},
      {R"("when": ["rows > 2147483647"],)", R"("when": ["rows > 3000000000"],)",
       "rows is 3000000001"},
  };
  for (const auto& row : kRows) {
    SCOPED_TRACE(std::string(row.first) + " and " + row.second);
    const TestFolder folder;
    make_two(folder, row.first, row.second);
    const CheckReport report = check(folder);
    const bool is_sound = *row.sizes == 0;
    EXPECT_EQ(report.snapshot != nullptr, is_sound) << all_of(report);
    if (is_sound) {
      EXPECT_EQ(all_of(report), "");
    } else {
      EXPECT_CONTAINS(all_of(report), std::string("where ") + row.sizes +
                                          ", definition \"scale_n64\" is already solved by "
                                          "\"my-scale\" in " +
                                          folder.path(kSolutionPath) + ":3, of the same benefit");
    }
  }
}

TEST(Choices, OfSeveralAxesAreAnErrorToo) {
  const struct {
    const char* first;
    const char* second;
    const char* sizes;  // for which both hold; "": none
  } kRows[] = {
      {R"("a >= 1000", "b <= 32", "c <= 4096")", R"("a >= 2000", "b <= 64", "c <= 8192")",
       "a is 2000, b is 1, c is 1"},
      {R"("a >= 1000", "b <= 32", "c <= 4096")", R"("a >= 2000", "b >= 33", "c <= 8192")", ""},
      {R"("a * b > 4096", "c % 16 == 8")", R"("b == 64", "c % 12 == 8")",
       "a is 4095, b is 64, c is 8"},
      {R"("a * b > 4096")", R"("a * b <= 4096")", ""},
  };
  for (const auto& row : kRows) {
    SCOPED_TRACE(std::string(row.first) + " and " + row.second);
    const TestFolder folder(kDefinitionPath, R"("rows": {"type": "var"})",
                            R"("rows": {"type": "var"}, "a": {"type": "var"},
                               "b": {"type": "var"}, "c": {"type": "var"})");
    folder.change(kPatternPath, R"("rows": {"arg": 3, "type": "int32"})",
                  R"("rows": {"arg": 3, "type": "int32"}, "a": {"grid": "x"}, "b": {"grid": "y"},
                     "c": {"grid": "z"})");
    make_two(folder, "\"when\": [" + std::string(row.first) + "],",
             "\"when\": [" + std::string(row.second) + "],");
    const std::string said = all_of(check(folder));
    if (*row.sizes == 0) {
      EXPECT_EQ(said, "");
    } else {
      EXPECT_CONTAINS(said, std::string("where ") + row.sizes + ", definition");
    }
  }
}

TEST(Choices, SizesThatNoSolutionIsForAreANote) {
  const struct {
    const char* first;
    const char* second;
    const char* where;
  } kRows[] = {
      {R"("when": ["rows <= 8"],)", R"("when": ["rows > 8"],)", ""},
      {R"("when": ["rows <= 8"],)", R"("when": ["rows > 10"],)", "rows 9 to 10:"},
      {R"("when": ["rows <= 8"],)", R"("when": ["rows == 10"],)", "rows 9, from 11 on:"},
      {R"("when": ["rows <= 8"],)", R"("benefit": -1,)", ""},
      {R"("when": ["rows * n <= 6400"],)", R"("when": ["rows > 4000"],)", "rows 101 to 4000:"},
      {R"("when": ["rows * n <= 6400 || rows * n >= 12800"],)", R"("when": ["rows * n == 7000"],)",
       "rows 101 to 199:"},
      {R"("when": ["rows * n <= 6400 || rows * n >= 12800"],)",
       R"("when": ["rows > 4000"], "benefit": -1,)", "rows 101 to 199:"},
      {R"("when": ["rows / 100 == 3"],)", R"("when": ["rows / 10 == 40"],)",
       "rows 1 to 299, from 410 on:"},
      {R"("when": ["rows % 8 == 0"],)", R"("when": ["rows % 8 == 1"],)",
       "sizes such as rows is 2:"},
  };
  for (const auto& row : kRows) {
    SCOPED_TRACE(std::string(row.first) + " and " + row.second);
    const TestFolder folder;
    make_two(folder, row.first, row.second);
    const CheckReport report = advise(folder);
    EXPECT_EQ(report.error_count + report.warning_count, 0u) << all_of(report);
    if (*row.where == 0) {
      EXPECT_EQ(all_of(report), "");
    } else {
      EXPECT_CONTAINS(all_of(report),
                      std::string("note: no solution of definition \"scale_n64\" is "
                                  "for ") +
                          row.where + " the original runs there [unserved-range]");
    }
    // An engine does not check this.
    EXPECT_EQ(all_of(check(folder)), "");
  }
}

// All of a definition's solutions must claim it, or none: the batch of a row decides which of them
// computes it.
TEST(Choices, OneThatClaimsBatchInvarianceBesideOneThatDoesNotIsAWarning) {
  constexpr char kFew[] = R"("when": ["rows <= 8"], "batch_invariant": true,)";
  for (const char* const claim : {"", R"( "batch_invariant": false,)"}) {
    const TestFolder folder;
    make_two(folder, kFew, std::string(R"("when": ["rows > 8"],)") + claim);
    EXPECT_EQ(all_of(advise(folder)),
              folder.path(kSolutionPath) +
                  ":5:13: warning: solution \"my-scale\" claims to be batch-invariant, but "
                  "\"other\", for other sizes of definition \"scale_n64\", does not "
                  "[split-invariance]\n");
  }
  const TestFolder folder;
  make_two(folder, kFew, R"("when": ["rows > 8"], "batch_invariant": true,)");
  EXPECT_EQ(all_of(advise(folder)), "");
}

// The solution without the claim is refused, and the other serves the sizes of both.
TEST(Choices, AFolderMayRequireBatchInvariance) {
  const TestFolder folder;
  make_two(folder, R"("benefit": 1,)", R"("batch_invariant": true,)");
  folder.write("fibshim.json", R"({"require_batch_invariant": true})");
  const CheckReport report = check(folder);
  ASSERT_NE(report.snapshot, nullptr) << all_of(report);
  EXPECT_EQ(all_of(report),
            folder.path(kSolutionPath) +
                ":5:13: warning: solution \"my-scale\" is not used: it does not claim to be "
                "batch-invariant, which fibshim.json requires [not-batch-invariant]\n");
  const Snapshot& snapshot = *report.snapshot;
  const Binding* const bindings = snapshot.begin(snapshot.bindings);
  ASSERT_EQ(snapshot.bindings.count, 2u);
  EXPECT_EQ(bindings[0].state, BindingState::refused);
  EXPECT_EQ(bindings[1].state, BindingState::ready);
  EXPECT_EQ(bindings[1].tensors.count, 2u);  // the refused one before it has none
  EXPECT_STREQ(snapshot.text(bindings[0].reason),
               "it does not claim to be batch-invariant, which fibshim.json requires");
  // A claim of `false`, and a folder that requires nothing.
  folder.write("fibshim.json", R"({"require_batch_invariant": false})");
  const CheckReport both = check(folder);
  EXPECT_EQ(both.ready_binding_count, 2u);
  for (uint32_t i = 0; i < 2; ++i) {
    EXPECT_EQ(both.snapshot->begin(both.snapshot->bindings)[i].tensors.count, 2u);
  }
  folder.write("fibshim.json", R"({"require_batch_invariant": "yes"})");
  EXPECT_CONTAINS(all_of(check(folder)), "fibshim.json:1:29: error: ");
}

TEST(Choices, AWhenTakesTheAxesOfTheDefinitionAndNothingElse) {
  const struct {
    const char* when;
    const char* message;
    const char* rule;
  } kRows[] = {
      {"factor > 1", "unknown name \"factor\": \"when\" takes the axes of definition \"scale_n64\"",
       "unknown-name"},
      {"x % 16 == 0", "unknown name \"x\"", "unknown-name"},
      {"row > 1", "did you mean \"rows\"?", "unknown-name"},
      {"rows >", "", "expression-syntax"},
      {"rows / 0 > 1", "this divides by zero", "expression-value"},
      {"n == 64", "this always holds", "always-true"},
      {"rows < 4 && rows > 8", "this never holds", "impossible-pattern"},
  };
  for (const auto& row : kRows) {
    SCOPED_TRACE(row.when);
    const TestFolder folder;
    add_solution(folder, "my-scale", kSolutionPath,
                 R"("when": [")" + std::string(row.when) + R"("],)");
    const std::string said = all_of(advise(folder));
    EXPECT_CONTAINS(said, row.message);
    EXPECT_CONTAINS(said, "[" + std::string(row.rule) + "]");
  }
}

TEST(Choices, AreInTheOrderOfTrialInTheSnapshot) {
  const TestFolder folder;
  make_two(folder, R"("when": ["rows <= 8"],)", R"("when": ["rows > 4"], "benefit": 7,)");
  add_solution(folder, "last", "solutions/me/a.json", R"("benefit": -2,)");
  const CheckReport report = check(folder);
  ASSERT_NE(report.snapshot, nullptr) << all_of(report);
  const Snapshot& snapshot = *report.snapshot;
  const Pattern& pattern = snapshot.begin(snapshot.patterns)[0];
  ASSERT_EQ(pattern.routes.count, 1u);
  const Route& route = snapshot.begin(pattern.routes)[0];
  ASSERT_EQ(route.count, 3u);
  const Binding* const bindings = snapshot.begin(snapshot.bindings) + route.binding;
  std::string names;
  for (uint32_t i = 0; i < route.count; ++i) {
    const Solution& solution = snapshot.begin(snapshot.solutions)[bindings[i].solution];
    names += std::string(snapshot.text(solution.name)) + " ";
  }
  EXPECT_EQ(names, "other my-scale last ");
  EXPECT_EQ(bindings[0].range.source, FastRange::Source::param);
  EXPECT_EQ(bindings[0].range.type, ValueType::int32);
  EXPECT_EQ(bindings[0].range.at, 3);
  EXPECT_EQ(bindings[0].range.low, 5);
  EXPECT_EQ(bindings[0].range.span, static_cast<uint64_t>(INT64_MAX) - 5);
  EXPECT_EQ(bindings[1].range.low, INT64_MIN);
  EXPECT_EQ(bindings[1].range.span, uint64_t{1} << 63 | 8);
  EXPECT_EQ(bindings[2].range.source, FastRange::Source::always);
  EXPECT_EQ(bindings[2].when.count, 0u);
}

// What two bindings of a pattern and a definition have in common is found once; the rest is each one's own.
TEST(Choices, HaveWhatIsTheirOwn) {
  const struct {
    const char* from;
    const char* to;
  } kRows[] = {
      {"", ""},
      {R"("x % 16 == 0")", R"("x % 32 == 0")"},
      {R"(, "rows > 0")", ""},
      {R"(["rows", 1, 1])", R"(["rows * 2", 1, 1])"},
      {R"(["n", 1, 1])", "[128, 1, 1]"},
      {R"("x", "y", "rows")", R"("y", "x", "rows")"},
      {R"("arguments")", R"("cluster": [2, 1, 1], "arguments")"},
  };
  const auto binding_of = [](const CheckReport& report, uint32_t index) {
    const Snapshot& snapshot = *report.snapshot;
    const Binding& binding = snapshot.begin(snapshot.bindings)[index];
    std::string text;
    const auto add = [&](const Program& program) {
      text += std::to_string(program.count) + ":";
      text.append(reinterpret_cast<const char*>(snapshot.begin(program)),
                  program.count * sizeof(Step));
    };
    add(binding.where);
    for (const GeometryMap& value : binding.geometry) {
      text += std::to_string(static_cast<int>(value.kind)) + std::to_string(value.constant);
      add(value.program);
    }
    for (uint32_t i = 0; i < binding.arguments.count; ++i) {
      text += std::to_string(snapshot.begin(binding.arguments)[i].param) + ",";
    }
    text += std::to_string(binding.tensors.count) + std::to_string(binding.has_cluster);
    return text.append(reinterpret_cast<const char*>(&binding.fast), sizeof binding.fast);
  };
  for (const auto& row : kRows) {
    SCOPED_TRACE(row.to);
    const TestFolder both;
    make_two(both, "", R"("benefit": -1,)");
    const TestFolder alone;
    add_solution(alone, "my-scale", kSolutionPath, R"("benefit": -1,)");
    if (*row.from != '\0') {
      both.change(kOtherPath, row.from, row.to);
      alone.change(kSolutionPath, row.from, row.to);
    }
    const CheckReport of_both = check(both);
    const CheckReport of_one = check(alone);
    ASSERT_NE(of_both.snapshot, nullptr) << all_of(of_both);
    ASSERT_NE(of_one.snapshot, nullptr) << all_of(of_one);
    ASSERT_EQ(of_both.ready_binding_count, 2u);
    EXPECT_EQ(binding_of(of_both, 1), binding_of(of_one, 0));
    EXPECT_EQ(binding_of(of_both, 0) == binding_of(of_both, 1), *row.from == '\0');
  }
}

// An equal clause means what the definition's own axes say.
TEST(Choices, OfTwoDefinitionsMayStateEqualClauses) {
  const TestFolder folder;
  folder.change(kSolutionPath, R"("rows > 0")", R"("rows >= n", "rows != 7")");
  folder.add_size("128");
  const CheckReport report = check(folder);
  ASSERT_NE(report.snapshot, nullptr) << all_of(report);
  ASSERT_EQ(report.ready_binding_count, 2u);
  const Snapshot& snapshot = *report.snapshot;
  std::multiset<int64_t> bounds;
  for (uint32_t i = 0; i < 2; ++i) {
    const Binding& binding = snapshot.begin(snapshot.bindings)[i];
    for (uint32_t k = 0; k < binding.where.count; ++k) {
      const Step& step = snapshot.begin(binding.where)[k];
      if (step.op != Op::require_aligned) bounds.insert(step.imm);
    }
  }
  EXPECT_EQ(bounds, (std::multiset<int64_t>{7, 7, 64, 128}));
}

// A warning of each, as of the first.
TEST(Choices, AreAllWarnedOf) {
  const TestFolder folder(kPatternPath, R"(, "factor == 0.1")", "");
  folder.change(kPatternPath, R"("params": [8, 8, 4, 4, 4])", R"("params": [8, 8, 4, 4, 4, 4])");
  folder.change(kPatternPath, R"("factor": {)",
                R"("lost": {"arg": 5, "type": "int32"}, "factor": {)");
  make_two(folder, R"("when": ["rows <= 8"],)", R"("when": ["rows > 8"],)");
  const std::string said = all_of(check(folder));
  EXPECT_CONTAINS(said, "solution \"my-scale\": the original takes \"lost\"");
  EXPECT_CONTAINS(said, "solution \"other\": the original takes \"lost\"");
}

// A broken solution fails the launches that it is for, and no others.
TEST(Choices, ABrokenSolutionKeepsItsWhen) {
  const TestFolder folder;
  make_two(folder, R"("when": ["rows <= 8"],)", R"("when": ["rows > 8"],)");
  folder.change(kOtherPath, R"("kernel": "scale")", R"("kernel": "missing")");
  const CheckReport report = check(folder);
  ASSERT_NE(report.snapshot, nullptr) << all_of(report);
  const Snapshot& snapshot = *report.snapshot;
  const Binding* const bindings = snapshot.begin(snapshot.bindings);
  ASSERT_EQ(snapshot.bindings.count, 2u);
  EXPECT_EQ(bindings[1].state, BindingState::broken);
  EXPECT_EQ(bindings[1].range.low, 9);
}

TEST(Choices, APatternWithoutTheAxisDoesNotUseTheSolution) {
  const TestFolder folder;
  make_two(folder, R"("when": ["rows <= 8"],)", R"("when": ["rows > 8"],)");
  for (const char* const path : {kSolutionPath, kOtherPath}) {
    folder.change(path, R"("where": ["x % 16 == 0", "rows > 0"])", R"("where": ["x % 16 == 0"])");
    folder.change(path, R"("grid": ["rows", 1, 1])", R"("grid": [1, 1, 1])");
  }
  folder.change(kPatternPath, R"("rows": {"arg": 3, "type": "int32"})",
                R"("m": {"arg": 3, "type": "int32"})");
  for (const char* const path : {kSolutionPath, kOtherPath}) {
    folder.change(path, R"("arguments": ["x", "y", "rows", "factor"])",
                  R"("arguments": ["x", "y", "m", "factor"])");
  }
  const CheckReport report = check(folder);
  ASSERT_NE(report.snapshot, nullptr) << all_of(report);
  EXPECT_EQ(report.refused_binding_count, 2u);
  EXPECT_CONTAINS(all_of(report),
                  "unknown name \"rows\": the solution uses it, the pattern does not "
                  "supply it [refused-argument]");
}

}  // namespace
}  // namespace fibshim
