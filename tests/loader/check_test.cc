// Diagnostics of a config folder: every rule, with its place.

#include <algorithm>
#include <random>
#include <set>
#include <tuple>

#include "loader/read/cubin.h"
#include "loader/read/fatbin.h"
#include "tests/loader/checked_folder.h"
#include "tests/loader/rewrite_folder.h"
#include "tests/support/text.h"

namespace fibshim {
namespace {

TEST(Check, ASoundFolderDrawsNoWord) {
  const TestFolder folder;
  const CheckReport report = check(folder);
  EXPECT_EQ(all_of(report), "");
  EXPECT_EQ(report.error_count, 0u);
  EXPECT_EQ(report.definition_count, 1u);
  EXPECT_EQ(report.solution_count, 1u);
  EXPECT_EQ(report.pattern_count, 1u);
  EXPECT_EQ(report.ready_binding_count, 1u);
  EXPECT_NE(report.snapshot, nullptr);
}

// One change to the valid folder, and the diagnostic that it must cause.
struct Fault {
  const char* name;
  const char* file;
  const char* from;
  const char* to;
  const char* place;  // "line:col" in that file, or "file:line:col" with a file below the root
  const char* rule;

  std::string place_in(const TestFolder& folder) const {
    const bool has_file = std::string_view(place).find('/') != std::string_view::npos;
    return has_file ? folder.path(place) : folder.path(file) + ":" + place;
  }
  friend void PrintTo(const Fault& fault, std::ostream* out) { *out << fault.name; }
};

// Positions count from the texts in test_folder.h.
const Fault kFaults[] = {
    {"TrailingComma", kPatternPath, "scale_n{n}\"\n", "scale_n{n}\",\n", "20:1", "json-syntax"},
    {"DuplicateKey", kPatternPath, R"("benefit": 3,)", R"("benefit": 3, "benefit": 4,)", "3:17",
     "duplicate-key"},
    {"DuplicateKeyOfUpstream", kDefinitionPath, R"("op_type")", R"("name": "x", "op_type")", "3:3",
     "duplicate-key"},
    {"MisspeltKey", kPatternPath, R"("where")", R"("wher")", "18:3", "unknown-key"},
    {"MisspeltKeyInMatch", kPatternPath, R"("params")", R"("param")", "6:5", "unknown-key"},
    {"MisspeltKeyInAxis", kPatternPath, R"({"arg": 2, "type")", R"({"arg": 2, "note": 1, "type")",
     "9:21", "unknown-key"},
    {"MisspeltKeyInLaunch", kSolutionPath, R"("where")", R"("were")", "14:5", "unknown-key"},
    {"MisspeltKeyInImage", kSolutionPath, R"({"path": "scale.sm_90.cubin", )",
     R"({"path": "scale.sm_90.cubin", "sm": 90, )", "9:37", "unknown-key"},
    {"NoLabel", kPatternPath, R"("label": "engine-scale",)", "", "1:1", "missing-key"},
    {"NoWrites", kPatternPath, "  \"writes\": [\"y\"],\n", "", "1:1", "missing-key"},
    {"NoLaunch", kSolutionPath, R"("launch")", R"("lunch")", "1:1", "missing-key"},
    {"NoGrid", kSolutionPath, "    \"grid\": [\"rows\", 1, 1],\n", "", "5:13", "missing-key"},
    {"NoInputs", kDefinitionPath, R"("inputs")", R"("imports")", "1:1", "missing-key"},
    {"NoTypeOfAnAxis", kPatternPath, R"({"arg": 2, "type": "int32"})", R"({"arg": 2})", "9:10",
     "missing-key"},
    {"NoTypeOfAnArgument", kPatternPath, R"({"arg": 4, "type": "float32"})", R"({"arg": 4})",
     "15:15", "missing-key"},
    {"NumberForAString", kPatternPath, R"("engine-scale")", "7", "2:12", "wrong-type"},
    {"StringForANumber", kPatternPath, R"("benefit": 3)", R"("benefit": "3")", "3:14",
     "wrong-type"},
    {"FractionForAnInteger", kPatternPath, R"("benefit": 3)", R"("benefit": 3.5)", "3:14",
     "wrong-type"},
    {"ObjectForAnArray", kSolutionPath, R"("arguments": ["x", "y", "rows", "factor"])",
     R"("arguments": {})", "13:18", "wrong-type"},
    {"FractionalGrid", kSolutionPath, R"(["rows", 1, 1])", R"(["rows", 1.5, 1])", "11:22",
     "wrong-type"},
    {"AxisOfAnotherKind", kDefinitionPath, R"("var")", R"("dynamic")", "6:22", "bad-value"},
    {"NegativeAxis", kDefinitionPath, R"("value": 64)", R"("value": -64)", "5:37", "bad-value"},
    {"NumberForABatchInvariance", kSolutionPath, R"("grid")", R"("batch_invariant": 1, "grid")",
     "11:24", "wrong-type"},
    {"ReadsBeforeAWaitThatItLacks", kSolutionPath, R"("grid")",
     R"("reads_before_wait": ["x"], "grid")", "11:26", "bad-value"},
    {"ReadsBeforeTheWaitWhatItIsNotGiven", kSolutionPath, R"("grid")",
     R"("pdl": true, "reads_before_wait": ["z"], "grid")", "11:40", "bad-value"},
    {"LetsTheNextBeginWithoutAWait", kSolutionPath, R"("factor"])", R"("next_may_begin"])", "13:37",
     "bad-value"},
    {"WorkspaceThatIsNotTaken", kSolutionPath, R"("grid")", R"("workspace": 64, "grid")", "11:18",
     "bad-value"},
    {"FractionalWorkspace", kSolutionPath, R"("grid")", R"("workspace": 6.5, "grid")", "11:18",
     "wrong-type"},
    {"TwoGridEntries", kSolutionPath, R"(["rows", 1, 1])", R"(["rows", 1])", "11:13", "bad-value"},
    {"ShortSha", kSolutionPath, R"({"path": "scale.sm_80.cubin", "sha256": ")",
     R"({"path": "scale.sm_80.cubin", "sha256": "0)", "8:47", "bad-value"},
    {"UnknownType", kPatternPath, R"({"arg": 2, "type": "int32"})", R"({"arg": 2, "type": "int"})",
     "9:29", "bad-value"},
    {"FloatAxis", kPatternPath, R"({"arg": 2, "type": "int32"})",
     R"({"arg": 2, "type": "float32"})", "9:29", "bad-value"},
    {"UnknownDimension", kPatternPath, R"({"arg": 3, "type": "int32"})", R"({"grid": "w"})",
     "10:22", "bad-value"},
    {"WrittenScalar", kPatternPath, R"(["y"])", R"(["y", "factor"])", "17:19", "bad-value"},
    {"EmptyName", kSolutionPath, R"("my-scale")", R"("")", "2:11", "bad-name"},
    {"ControlCharacterInName", kDefinitionPath, R"("scale_n64")", "\"scale\\nn64\"", "2:11",
     "bad-name"},
    {"ArgumentIsNoIdentifier", kPatternPath, R"("factor": {)", R"("the factor": {)", "15:5",
     "bad-name"},
    {"ArgumentIsAFunction", kPatternPath, R"("factor": {)", R"("min": {)", "15:5", "bad-name"},
    {"UnknownDtype", kDefinitionPath, R"("x": {"shape": ["rows", "n"], "dtype": "float32"})",
     R"("x": {"shape": ["rows", "n"], "dtype": "fp32"})", "9:44", "unknown-dtype"},
    {"UnknownDtypeOfAPattern", kPatternPath, R"({"arg": 0, "dtype": "float32"})",
     R"({"arg": 0, "dtype": "float"})", "13:30", "unknown-dtype"},
    {"UndeclaredAxis", kDefinitionPath, R"("x": {"shape": ["rows", "n"])",
     R"("x": {"shape": ["row", "n"])", "9:21", "unknown-axis"},
    {"UnknownDefinition", kSolutionPath, R"("scale_n64")", R"("scale_n46")", "3:17",
     "unknown-definition"},
    {"UnknownArgument", kSolutionPath, R"("rows", "factor"])", R"("rows", "fctor"])", "13:37",
     "unknown-argument"},
    {"AxisAndArgument", kPatternPath, R"("factor": {)", R"("n": {)", "15:5", "duplicate-name"},
    {"WrittenTwice", kPatternPath, R"(["y"])", R"(["y", "y"])", "17:19", "duplicate-name"},
    {"ImageTwice", kSolutionPath, R"("scale.sm_80.cubin")", R"("scale.sm_90.cubin")", "9:16",
     "duplicate-image"},
    {"AbsoluteImage", kSolutionPath, R"("scale.sm_80.cubin")", R"("/tmp/scale.sm_80.cubin")",
     "8:16", "image-path"},
    {"ImageAbove", kSolutionPath, R"("scale.sm_80.cubin")", R"("../me/scale.sm_80.cubin")", "8:17",
     "image-path"},
    {"ImageOfUnknownKind", kSolutionPath, R"("scale.sm_80.cubin")", R"("scale.so")", "8:16",
     "image-path"},
    {"BadRegex", kPatternPath, "[a-z])Ev", "[a-z]Ev", "5:58", "bad-symbol"},
    {"BadGlob", kPatternPath, "re:_Z12engine_scaleI(?<T>[a-z])EvPT_PKT_iif", "glob:a[b", "5:22",
     "bad-symbol"},
    {"PatternWithoutPrefix", kPatternPath, "re:_Z12", "_Z12", "5:33", "bad-symbol"},
    {"BadImageHash", kPatternPath, R"("params":)", R"("image": ["xxh128:12"], "params":)", "6:15",
     "bad-image-hash"},
    {"TwoSources", kPatternPath, R"({"arg": 2,)", R"({"arg": 2, "value": 1,)", "9:10",
     "value-source"},
    {"NoSource", kPatternPath, R"({"arg": 2, "type": "int32"})", "{}", "9:10", "value-source"},
    {"TypeOfAGridSize", kPatternPath, R"({"arg": 2, "type": "int32"})",
     R"({"grid": "y", "type": "int32"})", "9:32", "value-source"},
    {"ArgPastTheEnd", kPatternPath, R"({"arg": 4,)", R"({"arg": 5,)", "15:23", "param-range"},
    {"OffsetPastTheEnd", kPatternPath, R"({"arg": 0,)", R"({"arg": 0, "offset": 4,)", "13:31",
     "param-range"},
    {"TypeOfAnotherSize", kPatternPath, R"({"arg": 2, "type": "int32"})",
     R"({"arg": 2, "type": "int64"})", "9:29", "param-size"},
    {"UnclosedBrace", kPatternPath, "scale_n{n}", "scale_n{n", "19:25", "bad-template"},
    {"StrayBrace", kPatternPath, "scale_n{n}", "scale_n}", "19:25", "bad-template"},
    {"UnknownNameInTemplate", kPatternPath, "scale_n{n}", "scale_n{m}", "19:26", "bad-template"},
    {"PointerInTemplate", kPatternPath, "scale_n{n}", "scale_n{x}", "19:26", "bad-template"},
    {"FloatInTemplate", kPatternPath, "scale_n{n}", "scale_n{factor}", "19:26", "bad-template"},
    {"ZeroBlock", kSolutionPath, R"(["n", 1, 1])", "[0, 1, 1]", "12:15", "geometry-range"},
    {"LargeBlock", kSolutionPath, R"(["n", 1, 1])", R"(["n", 32, 1])", "12:15", "geometry-range"},
    {"ComputedGridIsZero", kSolutionPath, R"(["rows", 1, 1])", R"(["rows", "n / 65", 1])", "11:22",
     "geometry-range"},
    {"LargeCluster", kSolutionPath, R"("block")", R"("cluster": [4, 4, 2], "block")", "12:17",
     "geometry-range"},
    {"ClusterThatDividesNoGrid", kSolutionPath, R"("grid": ["rows", 1, 1])",
     R"("cluster": [1, 2, 1], "grid": ["rows", 3, 1])", "11:20", "geometry-range"},
    {"LargeSharedMemory", kSolutionPath, R"("block")", R"("shared_mem": 232449, "block")", "12:19",
     "geometry-range"},
    {"BadExpression", kSolutionPath, R"("rows > 0")", R"("rows > ")", "14:38", "expression-syntax"},
    {"ChainedComparison", kPatternPath, R"("x != 0")", R"("0 < n < 8")", "18:20",
     "expression-syntax"},
    {"FloatArithmetic", kPatternPath, "factor == 0.1", "factor * 2 == 0.2", "18:31",
     "expression-type"},
    {"DivisionByZero", kSolutionPath, R"("rows > 0")", R"("rows % (n - 64) == 0")", "14:36",
     "expression-value"},
    {"Cycle", kPatternPath, R"({"arg": 2, "type": "int32"})", R"({"expr": "n + 1"})", "9:20",
     "expression-cycle"},
    {"UnknownNameInWhere", kPatternPath, R"("x != 0")", R"("xx != 0")", "18:14", "unknown-name"},
    {"UnknownNameInSolution", kSolutionPath, R"("rows > 0")", R"("row > 0")", "14:31",
     "unknown-name"},
    {"UnknownCapture", kPatternPath, R"({"arg": 2, "type": "int32"})", R"({"capture": "U"})",
     "9:22", "unknown-name"},
    {"UnknownWrite", kPatternPath, R"(["y"])", R"(["z"])", "17:14", "unknown-name"},
    {"MissingImage", kSolutionPath, R"("scale.sm_80.cubin")", R"("scale.sm_86.cubin")", "8:16",
     "image-missing"},
    {"MissingKernel", kSolutionPath, R"("kernel": "scale")", R"("kernel": "scala")", "6:15",
     "kernel-missing"},
    {"TooFewArguments", kSolutionPath, R"("rows", "factor"])", R"("rows"])", "13:18",
     "kernel-params"},
    {"TensorForAnInteger", kSolutionPath, R"("y", "rows", "factor"])", R"("y", "y", "factor"])",
     "13:29", "kernel-params"},
    {"WideFloat", kSolutionPath, R"(["x", "y", "rows", "factor"])",
     R"(["factor", "y", "rows", "factor"])", "13:19", "kernel-params"},
    {"BlockBeyondLaunchBounds", kSolutionPath, R"(["n", 1, 1])", R"(["n", 8, 1])", "12:15",
     "kernel-geometry"},
    {"OtherDtype", kPatternPath, R"({"arg": 0, "dtype": "float32"})",
     R"({"arg": 0, "dtype": "float16"})", "13:30", "refused-dtype"},
    {"ScalarForATensor", kPatternPath, R"({"arg": 1, "dtype": "float32"})",
     R"({"arg": 1, "type": "int64"})", "14:10", "refused-dtype"},
    {"MissingArgument", kPatternPath, R"("rows": {)", R"("lines": {)",
     "solutions/me/scale_n64.json:13:29", "refused-argument"},
    {"OtherConstantAxis", kDefinitionPath, R"("value": 64)", R"("value": 32)",
     "patterns/engine-scale.json:19:17", "refused-axis"},
    {"OtherConstantAxisAsAFloat", kPatternPath, R"("factor == 0.1"],
  "definition": "scale_n{n}")",
     R"("factor == 0.1", "n == 32.0"],
  "definition": "scale_n64")",
     "9:10", "refused-axis"},
    {"UnpinnedAxis", kPatternPath, "scale_n{n}", "scale_n64", "9:10", "unpinned-axis"},
    {"UnreachableSolution", kPatternPath, "scale_n{n}", "scale_m{n}",
     "solutions/me/scale_n64.json:3:17", "unreachable-solution"},
};

class CheckFault : public testing::TestWithParam<Fault> {};

TEST_P(CheckFault, IsReportedAtItsPlace) {
  const Fault& fault = GetParam();
  const TestFolder folder(fault.file, fault.from, fault.to);
  const CheckReport report = check(folder);
  const RuleInfo* const rule = find_rule(fault.rule);
  ASSERT_NE(rule, nullptr) << fault.rule;
  const std::string place = fault.place_in(folder) + ":";
  const bool is_reported = std::any_of(
      report.diagnostics.begin(), report.diagnostics.end(), [&](const Diagnostic& diagnostic) {
        const std::string line = format_diagnostic(diagnostic);
        return line.substr(0, place.size()) == place && diagnostic.rule == rule->rule;
      });
  EXPECT_TRUE(is_reported) << "expected " << place << " ... [" << fault.rule << "], found\n"
                           << all_of(report);
  EXPECT_EQ(report.snapshot == nullptr, rule->effect == Effect::invalid_folder);
  // There are no diagnostics that merely follow from the fault. Two images may share the fault, so
  // there may be two of its rule.
  for (const Diagnostic& diagnostic : report.diagnostics) {
    EXPECT_EQ(diagnostic.rule, rule->rule) << format_diagnostic(diagnostic);
  }
}

INSTANTIATE_TEST_SUITE_P(Every, CheckFault, testing::ValuesIn(kFaults), kByName);

// Positions count from kRewrite in rewrite_folder.h.
const Fault kRewriteFaults[] = {
    {"OneKernel", kRewritePath,
     R"([8, 8, 4]},
    {"symbol": "engine_copy", "params": [8, 8, 4, 4]})",
     "[8, 8, 4]}", "3:12", "bad-rewrite"},
    {"KernelWithoutParams", kRewritePath, R"(, "params": [8, 8, 4]})", "}", "4:5", "bad-rewrite"},
    {"MisspeltKeyInAKernel", kRewritePath, R"("engine_copy", "params")",
     R"("engine_copy", "image_": 1, "params")", "5:31", "unknown-key"},
    {"KernelBeyondTheList", kRewritePath, R"({"kernel": 1, "grid")", R"({"kernel": 2, "grid")",
     "9:24", "bad-value"},
    {"ArgumentOfTheOtherKernel", kRewritePath, R"({"kernel": 1, "arg": 3)", R"({"arg": 3)", "16:23",
     "param-range"},
    {"NoBytes", kRewritePath, R"({"arg": 0, "dtype": "float32", "bytes": "4 * n * rows"})",
     R"({"arg": 0, "dtype": "float32"})", "12:10", "bad-rewrite"},
    {"BytesOfAScalar", kRewritePath, R"("type": "float32")", R"("type": "float32", "bytes": 4)",
     "16:15", "bad-rewrite"},
    {"TheRestOfAScalar", kRewritePath, R"("type": "float32")", R"("type": "float32", "bytes": "*")",
     "16:15", "bad-rewrite"},
    {"BytesOfWhatIsUnknown", kRewritePath,
     R"("arg": 1, "dtype": "float32", "bytes": "4 * n * rows"},
    "copied")",
     R"("arg": 1, "dtype": "float32", "bytes": "4 * m"},
    "copied")",
     "13:59", "unknown-name"},
    {"DeadIsNotWritten", kRewritePath, R"("dead": ["twice"])", R"("dead": ["copied"])", "19:12",
     "bad-rewrite"},
    {"WrittenFirstIsNotWritten", kRewritePath, R"("dead")",
     R"("written_first": ["copied"], "dead")", "19:21", "bad-rewrite"},
    {"WrittenFirstOfAnotherPattern", kPatternPath, R"("writes")",
     R"("written_first": ["y"], "writes")", "17:20", "bad-rewrite"},
    {"DeadOfAnotherPattern", kPatternPath, R"("writes")", R"("dead": ["y"], "writes")", "17:11",
     "bad-rewrite"},
    {"KernelOfAnotherPattern", kPatternPath, R"({"arg": 3)", R"({"kernel": 0, "arg": 3)", "10:24",
     "bad-rewrite"},
    {"Capture", kRewritePath, R"({"kernel": 1, "grid": "x"})", R"({"capture": "T"})", "9:25",
     "bad-rewrite"},
};

class CheckRewrite : public testing::TestWithParam<Fault> {};

TEST_P(CheckRewrite, IsReportedAtItsPlaceAndVoidsTheFolder) {
  const Fault& fault = GetParam();
  const TestFolder folder;
  folder.write(kRewritePath, kRewrite);
  EXPECT_EQ(all_of(check(folder)), "");
  folder.change(fault.file, fault.from, fault.to);
  const CheckReport report = check(folder);
  const std::string place = fault.place_in(folder) + ":";
  ASSERT_FALSE(report.diagnostics.empty());
  const std::string first = format_diagnostic(report.diagnostics.front());
  EXPECT_EQ(first.substr(0, place.size()), place) << all_of(report);
  EXPECT_EQ(rule_info(report.diagnostics.front().rule).name, std::string(fault.rule)) << first;
  EXPECT_EQ(report.snapshot, nullptr);
}

INSTANTIATE_TEST_SUITE_P(Every, CheckRewrite, testing::ValuesIn(kRewriteFaults), kByName);

// Diagnostics of folders that load.
const Fault kOddities[] = {
    {"ContradictingRanges", kPatternPath, R"("x != 0")", R"("n > 7", "n < 8")", "18:22",
     "impossible-pattern"},
    {"ContradictingPins", kPatternPath, R"("factor == 0.1"])",
     R"("factor == 0.1", "factor == 0.2"])", "18:40", "impossible-pattern"},
    {"BeyondTheType", kPatternPath, R"("x != 0")", R"("rows == 3000000000")", "18:13",
     "impossible-pattern"},
    {"ContradictsALiteral", kPatternPath, R"("x != 0")", R"("k % 8 == 0")", "18:13",
     "impossible-pattern"},
    {"ImpossibleRemainder", kPatternPath, R"("x != 0")", R"("n % 8 == 8")", "18:13",
     "impossible-pattern"},
    {"WithinOneClause", kPatternPath, R"("x != 0")", R"("x != 0 && 5 <= n && n <= 4")", "18:13",
     "impossible-pattern"},
    {"AlwaysTrue", kPatternPath, R"("x != 0")", R"("x >= 0")", "18:13", "always-true"},
    {"AlwaysTrueOfALiteral", kPatternPath, R"("x != 0")", R"("k > 3 && x >= 0")", "18:13",
     "always-true"},
    {"NeverTrueInASolution", kSolutionPath, R"("rows > 0")", R"("n == 65")", "14:30",
     "impossible-pattern"},
    {"AlwaysTrueInASolution", kSolutionPath, R"("rows > 0")", R"("n == 64")", "14:30",
     "always-true"},
    {"WritesNothing", kPatternPath, R"(["y"])", "[]", "17:13", "unwritten-output"},
    {"WritesNoOutput", kPatternPath, R"(["y"])", R"(["x"])", "17:13", "unwritten-output"},
    {"TwoOnOneArg", kPatternPath, R"("x": {"arg": 1,)", R"("x": {"arg": 0,)", "14:10",
     "shared-arg"},
    {"AnyKernel", kPatternPath,
     R"("re:_Z12engine_scaleI(?<T>[a-z])EvPT_PKT_iif",
    "params": [8, 8, 4, 4, 4])",
     R"("glob:*")", "2:12", "any-kernel"},
    {"AnyKernelOfARegex", kPatternPath,
     R"("re:_Z12engine_scaleI(?<T>[a-z])EvPT_PKT_iif",
    "params": [8, 8, 4, 4, 4])",
     R"("re:.*")", "2:12", "any-kernel"},
    {"WaitsWithoutAWait", kSolutionPath, R"("grid")", R"("pdl": true, "grid")", "11:12",
     "missing-wait"},
    {"OtherNameThanItsFile", kDefinitionPath, "", "", "2:11", "definition-file-name"},
    {"GridBeyondCuda", kSolutionPath, R"(["rows", 1, 1])", R"([1, "rows", 1])", "11:17",
     "geometry-overflow"},
    {"GridOfZero", kSolutionPath, R"(["rows", 1, 1])", R"(["rows / 16", 1, 1])", "11:14",
     "geometry-overflow"},
    {"GridBeyond64Bits", kSolutionPath, R"(["rows", 1, 1])",
     "[\"min(rows * rows * rows * rows, 9)\", 1, 1]", "11:14", "geometry-overflow"},
    {"BlockBeyondLaunchBounds", kSolutionPath, R"(["n", 1, 1])", R"(["n", "rows", 1])", "12:15",
     "geometry-overflow"},
    {"SharedMemoryBeyondCuda", kSolutionPath, R"("block")", R"("shared_mem": "rows * 4", "block")",
     "12:19", "geometry-overflow"},
};

class CheckOddity : public testing::TestWithParam<Fault> {};

TEST_P(CheckOddity, IsPointedOut) {
  const Fault& fault = GetParam();
  const TestFolder folder;
  // A literal for the clauses to contradict.
  folder.change(kPatternPath, "\"axes\": {", "\"axes\": {\"k\": {\"value\": 12},");
  EXPECT_EQ(all_of(advise(folder)), "");
  if (fault.rule == std::string("definition-file-name")) {
    std::filesystem::rename(folder.path(kDefinitionPath), folder.path("definitions/other.json"));
  } else {
    folder.change(fault.file, fault.from, fault.to);
  }
  const CheckReport report = advise(folder);
  ASSERT_EQ(report.diagnostics.size(), 1u) << all_of(report);
  const Diagnostic& diagnostic = report.diagnostics[0];
  EXPECT_EQ(diagnostic.rule, find_rule(fault.rule)->rule) << all_of(report);
  const bool is_moved = diagnostic.rule == Rule::definition_file_name;
  const std::string place =
      is_moved ? folder.path("definitions/other.json") + ":2:11" : fault.place_in(folder);
  EXPECT_EQ(format_diagnostic(diagnostic).rfind(place + ":", 0), 0u) << all_of(report);
  EXPECT_NE(report.snapshot, nullptr);
  const bool is_mistake = rule_info(diagnostic.rule).effect == Effect::mistake;
  EXPECT_EQ(is_mistake ? report.error_count : report.warning_count, 1u);
  // An engine that loads the folder gets no diagnostic.
  EXPECT_EQ(all_of(check(folder)), "");
}

INSTANTIATE_TEST_SUITE_P(Every, CheckOddity, testing::ValuesIn(kOddities), kByName);

TEST(Check, MissesNoTensorOfTheDefinition) {
  const TestFolder folder(kSolutionPath, R"(["x", "y", "rows")", R"(["y", "y", "rows")");
  EXPECT_EQ(all_of(advise(folder)),
            folder.path(kSolutionPath) +
                ":13:18: error: input \"x\" of definition \"scale_n64\" is never passed to kernel "
                "\"scale\" [kernel-tensors]\n" +
                folder.path(kSolutionPath) +
                ":13:24: error: \"y\" is passed to kernel \"scale\" twice [kernel-tensors]\n");
}

// A solution may do without an optional input that no launch has.
TEST(Check, AnOptionalTensorNeedsNotBePassed) {
  const TestFolder folder(kDefinitionPath, R"("x": {)",
                          R"("bias": {"shape": ["n"], "dtype": "float32", "optional": true},
    "x": {)");
  EXPECT_EQ(all_of(advise(folder)), "");
  folder.change(kPatternPath, R"("x": {"arg": 1,)",
                R"("bias": {"arg": 1, "dtype": "float32"}, "x": {"arg": 1,)");
  EXPECT_CONTAINS(lines_of(advise(folder), Rule::kernel_tensors),
                  ":13:18: error: input \"bias\" of definition \"scale_n64\" is never passed to "
                  "kernel \"scale\"; pattern \"engine-scale\" has it, and no \"where\" says "
                  "\"bias == 0\"");
  folder.change(kPatternPath, R"("x != 0")", R"("bias == 0")");
  EXPECT_EQ(lines_of(advise(folder), Rule::kernel_tensors), "");
  folder.change(kDefinitionPath, R"("optional": true)", R"("optional": false)");
  EXPECT_CONTAINS(lines_of(advise(folder), Rule::kernel_tensors), "input \"bias\" of definition");
}

TEST(Check, SaysThatTheModeIsOff) {
  const TestFolder folder;
  folder.write("fibshim.json", R"({"mode": "off"})");
  EXPECT_CONTAINS(all_of(advise(folder)), "fibshim.json: error: \"mode\" is \"off\"");
}

TEST(Check, SaysThatAFolderIsMadeForANewerFibshim) {
  const TestFolder folder;
  folder.write("fibshim.json", R"({"format": 1})");
  EXPECT_EQ(all_of(advise(folder)), "");
  // There are no other diagnostics, since the meaning of its keys is unknown.
  folder.write("fibshim.json", R"({"format": 2, "unheard_of": 1})");
  folder.change(kPatternPath, R"("benefit")", R"("worth")");
  EXPECT_EQ(all_of(advise(folder)),
            folder.path("fibshim.json") +
                ":1:12: error: the folder was made for a newer fibshim: it has format 2, this "
                "fibshim reads up to 1 [folder-format]\n");
}

struct MovedPath {
  const char* from;  // "": no file is moved
  const char* to;
  const char* said;  // after the path `to`
};

TEST(Check, NamesFilesThatWouldNotBeRead) {
  for (const MovedPath& row :
       {MovedPath{"solutions", "solution", "did you mean \"solutions\"?"},
        {"patterns", "Patterns", "did you mean \"patterns\"?"},
        {kPatternPath, "patterns/engine-scale.JSON", "let it end in \".json\""}}) {
    const TestFolder folder;
    std::filesystem::rename(folder.path(row.from), folder.path(row.to));
    const CheckReport report = check(folder);
    EXPECT_CONTAINS(all_of(report), folder.path(row.to) + ": error: not read: ");
    EXPECT_CONTAINS(all_of(report), row.said);
    EXPECT_EQ(report.snapshot, nullptr);
  }
  const TestFolder folder;
  folder.remove("solutions");
  folder.write("solutions", "");
  std::filesystem::create_symlink("loop", folder.path("patterns/loop"));
  std::filesystem::create_symlink("..", folder.path("definitions/up"));
  EXPECT_EQ(
      all_of(check(folder)),
      folder.path("definitions/up") + ": error: a link to a folder that it lies in [folder]\n" +
          folder.path("patterns/loop") + ": error: a link that comes back to itself [folder]\n" +
          folder.path("solutions") + ": error: not a folder [folder]\n");
}

TEST(Check, KnowsAGitLfsPointer) {
  const TestFolder folder;
  for (const char* const path : {kPatternPath, kImagePath}) {
    folder.write(path, "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n");
  }
  const CheckReport report = check(folder);
  EXPECT_EQ(report.error_count, 2u) << all_of(report);
  EXPECT_CONTAINS(lines_of(report, Rule::file_read), "run \"git lfs pull\"");
  EXPECT_CONTAINS(lines_of(report, Rule::image_missing), "run \"git lfs pull\"");
}

TEST(Check, KnowsWhatOthersCallATypeAndAKey) {
  const TestFolder folder(kPatternPath, R"({"arg": 2, "type": "int32"})",
                          R"({"arg": 2, "type": "int"})");
  folder.change(kDefinitionPath, R"("inputs")", R"("input")");
  const std::string said = all_of(check(folder));
  EXPECT_CONTAINS(said, "did you mean \"int32\"?");
  EXPECT_CONTAINS(said, "the definition has no \"inputs\"; is \"input\" meant to be that?");
}

TEST(Check, NamesEveryKnownNameOnce) {
  const TestFolder folder(kSolutionPath, R"("rows > 0")", R"("qqq > 0")");
  EXPECT_CONTAINS(all_of(check(folder)), "known are \"n\", \"rows\", \"x\", \"y\" and \"factor\"");
}

TEST(Check, NamesTheFirstSizeThatAGridCannotHave) {
  const TestFolder folder(kSolutionPath, "[\"rows\", 1, 1]", "[1, \"ceil_div(rows, 2)\", 1]");
  EXPECT_EQ(all_of(advise(folder)),
            folder.path(kSolutionPath) +
                ":11:17: warning: when \"rows\" is 131071, grid y is 65536; CUDA takes 1 to 65535; "
                "the launch would fail; add \"rows < 131071\" to \"where\", so that it falls back "
                "[geometry-overflow]\n");
  // A bound as the warning asks for silences it, in either `where`.
  folder.change(kSolutionPath, "\"rows > 0\"", "\"rows < 131071\"");
  EXPECT_EQ(all_of(advise(folder)), "");
  folder.change(kSolutionPath, "\"rows < 131071\"", "\"rows > 0\"");
  folder.change(kPatternPath, "\"x != 0\"", "\"rows * 2 < 200000\"");
  EXPECT_EQ(all_of(advise(folder)), "");
}

TEST(Check, SaysThatALaunchWithoutAGridFallsBack) {
  const TestFolder folder(kSolutionPath, "[\"rows\", 1, 1]", "[\"rows - 8\", 1, 1]");
  EXPECT_CONTAINS(all_of(advise(folder)),
                  ":11:14: warning: when \"rows\" is 1, grid x is -7; CUDA takes 1 to 2147483647; "
                  "the launch falls back; let a \"where\" exclude it, if that is meant "
                  "[geometry-overflow]\n");
}

TEST(Check, SaysNothingOfSizesThatAConditionMayExclude) {
  const TestFolder folder(kSolutionPath, "[\"rows\", 1, 1]", "[1, \"rows\", 1]");
  folder.change(kSolutionPath, "\"rows > 0\"", "\"rows * (x % 16) < 9\"");
  EXPECT_EQ(all_of(advise(folder)), "");
}

struct ShadowCase {
  const char* name;
  const char* from;  // in the second pattern, which is otherwise the first without a `where`
  const char* to;
  const char* first_from;  // in the first pattern
  const char* first_to;
  bool is_shadowed;
};

TEST(Check, FindsPatternsThatAnotherOneShadows) {
  const char* const kSymbol = "re:_Z12engine_scaleI(?<T>[a-z])EvPT_PKT_iif";
  for (const ShadowCase& row : {
           ShadowCase{"twins", "", "", "", "", true},
           ShadowCase{"other parameters", "[8, 8, 4, 4, 4]", "[8, 8, 4, 4, 4, 4]", "", "", false},
           ShadowCase{"the first takes fewer", "", "", "\"where\": []", "\"where\": [\"x != 0\"]",
                      false},
           ShadowCase{"both take few", "\"where\": []", "\"where\": [\"x != 0\"]", "\"where\": []",
                      "\"where\": [\"x != 0\"]", true},
           ShadowCase{"the second takes fewer", "\"where\": []", "\"where\": [\"x != 0\"]", "", "",
                      true},
           ShadowCase{"one image of the first", "", "", "\"params\"",
                      "\"image\": [\"xxh128:00000000000000000000000000000001\"], \"params\"",
                      false},
           ShadowCase{"another name", "scale_n{n}", "other_n{n}", "", "", false},
           ShadowCase{"another axis in the name", "\"arg\": 2", "\"arg\": 3", "", "", false},
           ShadowCase{"a wider symbol, but the name is the launch's", kSymbol, "my_kernel", kSymbol,
                      "glob:*", false},
       }) {
    const TestFolder folder;
    std::string first = replaced(kPattern, R"(["x != 0", "factor == 0.1"])", "[]");
    std::string second = replaced(first, "\"engine-scale\"", "\"zzz\"");
    if (row.from[0] != 0) second = replaced(second, row.from, row.to);
    if (row.first_from[0] != 0) first = replaced(first, row.first_from, row.first_to);
    folder.write(kPatternPath, first);
    folder.write("patterns/zzz.json", second);
    const std::string found = lines_of(advise(folder), Rule::shadowed_pattern);
    EXPECT_EQ(!found.empty(), row.is_shadowed) << row.name << "\n" << found;
    if (!found.empty()) {
      EXPECT_CONTAINS(found, "patterns/zzz.json:2:12: warning: pattern \"engine-scale\" in " +
                                 folder.path(kPatternPath) + " is tried first");
    }
    // In the other order nothing is hidden.
    folder.change("patterns/zzz.json", "\"benefit\": 3", "\"benefit\": 9");
    EXPECT_LACKS(lines_of(advise(folder), Rule::shadowed_pattern), "zzz.json:");
  }
}

TEST(Check, AWiderSymbolWithAConstantNameShadowsAnExactOne) {
  const TestFolder folder;
  const std::string plain =
      replaced(replaced(kPattern, R"(["x != 0", "factor == 0.1"])", "[\"n == 64\"]"), "scale_n{n}",
               "scale_n64");
  folder.write(kPatternPath, replaced(replaced(plain, "re:_Z12engine_scaleI(?<T>[a-z])EvPT_PKT_iif",
                                               "glob:_Z12engine_scale*"),
                                      "[\"n == 64\"]", "[]"));
  folder.write("patterns/zzz.json",
               replaced(replaced(plain, "re:_Z12engine_scaleI(?<T>[a-z])EvPT_PKT_iif",
                                 "_Z12engine_scaleIfEvPT_PKT_iif"),
                        "\"engine-scale\"", "\"zzz\""));
  EXPECT_NE(lines_of(advise(folder), Rule::shadowed_pattern), "");
  // A pattern that fits other symbols hides nothing.
  folder.change(kPatternPath, "glob:_Z12engine_scale*", "glob:_Z12engine_scaleId*");
  EXPECT_EQ(lines_of(advise(folder), Rule::shadowed_pattern), "");
}

// A float between two integers passes clauses that no integer does.
TEST(Check, AFloatMayBeBetweenIntegers) {
  const char* const kBounds[] = {R"("factor > 0", "factor < 1")", R"("factor > 0 && factor < 1")",
                                 R"("factor < 1", "factor > -1", "factor != 0")"};
  for (const char* const bounds : kBounds) {
    SCOPED_TRACE(bounds);
    const TestFolder folder(kPatternPath, R"("factor == 0.1")", bounds);
    EXPECT_EQ(all_of(advise(folder)), "");
    folder.change(kPatternPath, bounds, R"("factor >= 0")");
    folder.change(kSolutionPath, R"("rows > 0")", bounds);
    EXPECT_EQ(all_of(advise(folder)), "");
  }
  const TestFolder folder(kPatternPath, R"("factor == 0.1")", R"("factor > 1", "factor < 0")");
  EXPECT_CONTAINS(all_of(advise(folder)), "this never holds: \"factor\" is 1 to ");
  folder.change(kPatternPath, R"("factor > 1", "factor < 0")", R"("factor >= 0")");
  folder.change(kSolutionPath, R"("rows > 0")", R"("rows > 0", "rows < 1")");
  EXPECT_CONTAINS(all_of(advise(folder)), "this never holds: \"rows\" is 1 to ");
}

TEST(Check, NotesWhatNothingSolves) {
  const TestFolder folder;
  folder.write("definitions/scale_n9.json", replaced(kDefinition, "\"scale_n64\"", "\"scale_n9\""));
  folder.write("patterns/b.json", replaced(replaced(kPattern, "\"engine-scale\"", "\"b\""),
                                           "scale_n{n}", "gauge_n{n}"));
  const CheckReport report = advise(folder);
  EXPECT_EQ(all_of(report),
            folder.path("definitions/scale_n9.json") +
                ":2:11: note: no solution solves definition \"scale_n9\" [unsolved-definition]\n" +
                folder.path("patterns/b.json") +
                ":19:17: note: no definition of the folder has a name like \"gauge_n{n}\" "
                "[unrouted-pattern]\n");
  EXPECT_EQ(report.note_count, 2u);
  EXPECT_EQ(report.warning_count, 0u);
  EXPECT_EQ(report.error_count, 0u);
}

TEST(Check, NotesGpusThatASolutionHasNoImageFor) {
  const TestFolder folder;  // sm_80 and sm_90
  CheckLint lint({80, 86, 90, 120});
  CheckOptions options;
  options.lint = &lint;
  EXPECT_EQ(all_of(check_folder(folder.path(), options)),
            folder.path(kSolutionPath) +
                ":5:13: note: solution \"my-scale\" has no image for sm_120: its launches there "
                "fall back [no-image-for-gpu]\n");
  CheckLint lint_of_old_gpus({70});
  options.lint = &lint_of_old_gpus;
  EXPECT_NE(all_of(check_folder(folder.path(), options)), "");
}

TEST(Check, ComparesComputedBlocksWithLaunchBounds) {
  const TestFolder folder;  // the kernel takes 256 threads
  folder.change(kSolutionPath, "[\"n\", 1, 1]", "[\"n * 8\", 1, 1]");
  EXPECT_CONTAINS(lines_of(check(folder), Rule::kernel_geometry), "scale_n64.json:12:15: error")
      << all_of(check(folder));
}

std::vector<std::string> words(const char* text) {
  std::istringstream stream(text);
  return {std::istream_iterator<std::string>(stream), {}};
}

// Rules that one change of a text cannot break have tests of their own, below.
TEST(Check, EveryRuleHasATest) {
  const auto others = words(R"(
      folder file-read untrusted signature internal json-limits limit expression-size
      duplicate-definition duplicate-solution duplicate-label unknown-setting
      setting-value image-invalid image-sha256 image-sm refused-writes
      refused-expression dropped-scalar shadowed-pattern unrouted-pattern
      unsolved-definition no-image-for-gpu mode-off folder-format kernel-tensors
      unserved-range shadowed shadowed-definition shadowed-solution
      unreadable-entry
      schema measured-slower unmeasured not-batch-invariant split-invariance)");
  std::set<std::string> tested(others.begin(), others.end());
  for (const Fault& fault : kFaults) tested.insert(fault.rule);
  for (const Fault& fault : kOddities) tested.insert(fault.rule);
  for (const Fault& fault : kRewriteFaults) tested.insert(fault.rule);
  for (const RuleInfo& rule : kRules) EXPECT_EQ(tested.count(rule.name), 1u) << rule.name;
  EXPECT_EQ(tested.size(), kRuleCount);
}

TEST(Check, KeepsAllFindingsOfAllFiles) {
  const TestFolder folder(kPatternPath, "\"where\"", "\"wher\"");
  folder.change(kPatternPath, "\"benefit\": 3", "\"benefit\": true");
  folder.change(kDefinitionPath, "\"var\"", "\"dynamic\"");
  folder.change(kSolutionPath, "\"my-scale\"", "\"\"");
  const CheckReport report = check(folder);
  EXPECT_EQ(report.error_count, 4u) << all_of(report);
  EXPECT_TRUE(std::is_sorted(report.diagnostics.begin(), report.diagnostics.end(),
                             [](const Diagnostic& a, const Diagnostic& b) {
                               return std::tie(a.place.file, a.place.line, a.place.column) <
                                      std::tie(b.place.file, b.place.line, b.place.column);
                             }));
}

// So many that other threads read them, too: each twentieth has a mistake, and has it once, in its place.
TEST(Check, ReadsManyPatterns) {
  const TestFolder folder;
  const std::string text = folder.read(kPatternPath);
  std::string places;
  for (int i = 100; i < 300; ++i) {
    const std::string name = "patterns/" + std::to_string(i) + ".json";
    const bool is_wrong = i % 20 == 7;
    folder.write(name,
                 replaced(replaced(text, "engine-scale\",", "engine-" + std::to_string(i) + "\","),
                          "\"where\"", is_wrong ? "\"wher\"" : "\"where\""));
    if (is_wrong) places += folder.path(name) + "\n";
  }
  const CheckReport report = check(folder);
  EXPECT_EQ(report.error_count, 10u) << all_of(report);
  std::string told;
  for (const Diagnostic& one : report.diagnostics) {
    if (one.rule == Rule::unknown_key) told += one.place.file + "\n";
  }
  EXPECT_EQ(told, places);
}

TEST(Check, SaysWhyAPathIsNoConfigFolder) {
  const TestFolder folder;
  EXPECT_EQ(all_of(check_folder(folder.path("nowhere"))),
            folder.path("nowhere") + ": error: No such file or directory [folder]\n");
  EXPECT_EQ(all_of(check_folder(folder.path(kPatternPath))),
            folder.path(kPatternPath) + ": error: not a folder [folder]\n");
  std::filesystem::create_directories(folder.path("empty"));
  EXPECT_EQ(all_of(check_folder(folder.path("empty"))),
            folder.path("empty") +
                ": error: not a config folder: it has none of definitions/, "
                "solutions/ and patterns/ [folder]\n");
  EXPECT_NE(lines_of(check_folder(""), Rule::folder), "");
}

TEST(Check, FollowsLinksThatStayInsideTheFolder) {
  // As Kubernetes mounts a ConfigMap.
  const TestFolder folder;
  for (const char* name : {"definitions", "solutions", "patterns"}) {
    std::filesystem::create_directories(folder.path("..2024_01_01"));
    std::filesystem::rename(folder.path(name), folder.path(std::string("..2024_01_01/") + name));
    std::filesystem::create_symlink(std::string("..data/") + name, folder.path(name));
  }
  std::filesystem::create_symlink("..2024_01_01", folder.path("..data"));
  folder.write("..2024_01_01/fibshim.json", R"({"mode": "observe"})");
  std::filesystem::create_symlink("..data/fibshim.json", folder.path("fibshim.json"));
  const CheckReport report = check(folder);
  EXPECT_EQ(all_of(report), "");
  ASSERT_NE(report.snapshot, nullptr);
  EXPECT_EQ(report.ready_binding_count, 1u);
  EXPECT_EQ(report.snapshot->settings.count, 1u);
  // An absolute link works, too.
  std::filesystem::remove(folder.path("..data"));
  std::filesystem::create_symlink(folder.path("..2024_01_01"), folder.path("..data"));
  EXPECT_EQ(all_of(check(folder)), "");
}

TEST(Check, RefusesLinksThatLeaveTheFolder) {
  const TestFolder folder;
  const TestFolder outside;
  std::filesystem::create_directory_symlink(outside.path("patterns"), folder.path("patterns/more"));
  EXPECT_EQ(all_of(check(folder)),
            folder.path("patterns/more") +
                ": error: a link that leaves the config folder; put the folder itself here, or "
                "point FIBSHIM_CONFIG at a link to the whole [folder]\n");
  for (const std::string& target :
       {outside.path(kPatternPath),
        std::filesystem::relative(outside.path(kPatternPath), folder.path("patterns")).string(),
        std::string("/proc/self/root") + outside.path(kPatternPath)}) {
    std::filesystem::remove(folder.path("patterns/more"));
    std::filesystem::remove(folder.path("patterns/more.json"));
    std::filesystem::create_symlink(target, folder.path("patterns/more.json"));
    const CheckReport report = check(folder);
    EXPECT_EQ(lines_of(report, Rule::file_read),
              folder.path("patterns/more.json") + ": error: " + folder.path("patterns/more.json") +
                  " lies outside the config folder [file-read]\n")
        << target;
    EXPECT_EQ(report.snapshot, nullptr);
  }
}

TEST(Check, RefusesLinksThatComeBack) {
  const TestFolder folder;
  std::filesystem::create_directory_symlink("..", folder.path("patterns/up"));
  std::filesystem::create_directory_symlink("me", folder.path("solutions/me/self"));
  EXPECT_CONTAINS(lines_of(check(folder), Rule::folder),
                  "patterns/up: error: a link to a folder that it lies in")
      << all_of(check(folder));
}

TEST(Check, BoundsTheDepthOfFolders) {
  const TestFolder folder;
  std::string deep = "patterns";
  for (int i = 0; i < 40; ++i) deep += "/d";
  std::filesystem::create_directories(folder.path(deep));
  EXPECT_CONTAINS(lines_of(check(folder), Rule::folder),
                  "folders are nested too deeply; at most 32 are accepted");
}

// Sets FIBSHIM_TRUST for as long as it lives.
class TrustSetting {
 public:
  explicit TrustSetting(const char* value) { setenv("FIBSHIM_TRUST", value, 1); }
  ~TrustSetting() { unsetenv("FIBSHIM_TRUST"); }
};

struct RightsCase {
  const char* path;  // below the root
  mode_t mode;
  bool is_accepted[3];  // with FIBSHIM_TRUST=owner, group, all
};

TEST(Check, RefusesWhatOthersCanWriteUnlessTheyAreTrusted) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can give a file to another group";
  for (const RightsCase& row : {RightsCase{kPatternPath, 0644, {true, true, true}},
                                RightsCase{kPatternPath, 0664, {false, true, true}},
                                RightsCase{kPatternPath, 0666, {false, false, true}},
                                RightsCase{kImagePath, 0646, {false, false, true}},
                                RightsCase{"solutions/me", 0775, {false, true, true}},
                                RightsCase{"solutions/me", 01777, {false, false, true}},
                                RightsCase{"", 0775, {false, true, true}}}) {
    const TestFolder folder;
    const std::string path = row.path[0] == 0 ? folder.path() : folder.path(row.path);
    share(path, row.mode);
    const char* const words[] = {"owner", "Group", "all"};
    for (int i = 0; i < 3; ++i) {
      const TrustSetting trust(words[i]);
      const CheckReport report = check(folder);
      EXPECT_EQ(report.snapshot != nullptr, row.is_accepted[i])
          << row.path << " " << std::oct << row.mode << " " << words[i] << "\n"
          << all_of(report);
      if (!row.is_accepted[i]) {
        EXPECT_CONTAINS(lines_of(report, Rule::untrusted), path + ": error: writable by ")
            << all_of(report);
      }
    }
  }
}

TEST(Check, SaysWhatToDoAboutRights) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can give a file to another group";
  const TestFolder folder;
  share(folder.path(kPatternPath), 0664);
  EXPECT_EQ(all_of(check(folder)),
            folder.path(kPatternPath) +
                ": error: writable by its group (mode 0664); take the right away (chmod -R go-w " +
                folder.path() + "), or say with FIBSHIM_TRUST whom to trust [untrusted]\n");
}

TEST(Check, RefusesFilesOfAnotherUser) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can give a file away";
  const TestFolder folder;
  ASSERT_EQ(chown(folder.path(kPatternPath).c_str(), 12345, 0), 0);
  EXPECT_CONTAINS(lines_of(check(folder), Rule::untrusted), "owned by user 12345");
  const TrustSetting trust("all");
  ASSERT_EQ(chown(folder.path(kImagePath).c_str(), 54321, 0), 0);
  EXPECT_EQ(all_of(check(folder)), "");
}

TEST(Check, NamesAFewOfManyThatOthersCanWrite) {
  const TestFolder folder;
  for (int i = 0; i < 30; ++i) {
    const std::string path = "patterns/p" + std::to_string(i) + ".json";
    folder.write(path, replaced(kPattern, "engine-scale", "p" + std::to_string(i)));
    ASSERT_EQ(chmod(folder.path(path).c_str(), 0666), 0);
  }
  const CheckReport report = check(folder);
  EXPECT_EQ(report.error_count, 9u) << all_of(report);
  EXPECT_CONTAINS(lines_of(report, Rule::untrusted),
                  folder.path() + ": error: 22 more files and folders that others can write")
      << all_of(report);
}

TEST(Check, ReadsAFolderThroughALinkAndKeepsItsRealPath) {
  const TestFolder folder;
  const TestFolder other;
  std::filesystem::create_directory_symlink(folder.path(), other.path("current"));
  const CheckReport report = check_folder(other.path("current"));
  ASSERT_NE(report.snapshot, nullptr) << all_of(report);
  EXPECT_EQ(std::string(report.snapshot->text(report.snapshot->root)),
            std::filesystem::canonical(folder.path()).string());
}

TEST(Check, DoesNotWaitForAFifo) {
  const TestFolder folder;
  ASSERT_EQ(mkfifo(folder.path("patterns/fifo.json").c_str(), 0600), 0);
  EXPECT_CONTAINS(lines_of(check(folder), Rule::file_read), "not a regular file");
}

TEST(Check, BoundsTheSizeOfAFile) {
  const TestFolder folder;
  folder.write("patterns/large.json", std::string((16 << 20) + 1, ' '));
  EXPECT_CONTAINS(lines_of(check(folder), Rule::file_read), "larger than 16777216");
}

TEST(Check, BoundsTheDepthOfJson) {
  const TestFolder folder;
  folder.write("definitions/deep.json", std::string(100000, '['));
  EXPECT_EQ(lines_of(check(folder), Rule::json_limits),
            folder.path("definitions/deep.json") +
                ":1:65: error: more than 64 objects and arrays inside one another [json-limits]\n");
}

TEST(Check, BoundsTheNumberOfJsonValues) {
  const TestFolder folder;
  std::string text = "[0";
  for (int i = 0; i < (1 << 20); ++i) text += ",0";
  folder.write("definitions/wide.json", text + "]");
  EXPECT_NE(lines_of(check(folder), Rule::json_limits), "");
}

TEST(Check, IgnoresHiddenAndForeignFiles) {
  const TestFolder folder;
  folder.write("patterns/.engine-scale.json", "not json");
  folder.write("patterns/README.md", "not json");
  folder.write("traces/a.json", "not json");
  EXPECT_EQ(all_of(check(folder)), "");
}

TEST(Check, IsLenientTowardsKeysOfUpstream) {
  const TestFolder folder(kDefinitionPath, "\"op_type\"", "\"novelty\": {\"a\": [1]}, \"op_type\"");
  folder.change(kSolutionPath, "\"author\"", "\"spec\": null, \"author\"");
  EXPECT_EQ(all_of(check(folder)), "");
}

TEST(Check, NamesBothFilesOfADuplicate) {
  const TestFolder folder;
  folder.write("definitions/again.json", kDefinition);
  folder.write_solution(replaced(kSolution, "my-scale", "other"), "solutions/me/zzz.json");
  folder.write("patterns/zzz.json", kPattern);
  EXPECT_EQ(all_of(check(folder)),
            // "definitions/again.json" is read first.
            folder.path(kDefinitionPath) + ":2:11: error: definition \"scale_n64\" is already in " +
                folder.path("definitions/again.json") + ":2 [duplicate-definition]\n" +
                folder.path("patterns/zzz.json") +
                ":2:12: error: pattern \"engine-scale\" is already in " +
                folder.path(kPatternPath) + ":2 [duplicate-label]\n" +
                folder.path("solutions/me/zzz.json") +
                ":3:17: error: definition \"scale_n64\" is already solved by \"my-scale\" in " +
                folder.path(kSolutionPath) + ":3 [duplicate-solution]\n");
}

TEST(Check, ReadsSettings) {
  const TestFolder folder;
  folder.write("fibshim.json", R"({"mode": "observe", "On_Error": "fallback"})");
  const CheckReport report = check(folder);
  ASSERT_NE(report.snapshot, nullptr) << all_of(report);
  const Snapshot& snapshot = *report.snapshot;
  ASSERT_EQ(snapshot.settings.count, 2u);
  const Setting* const settings = snapshot.begin(snapshot.settings);
  EXPECT_STREQ(snapshot.text(settings[0].name), "FIBSHIM_MODE");
  EXPECT_STREQ(snapshot.text(settings[0].value), "observe");
  EXPECT_STREQ(snapshot.text(settings[1].name), "FIBSHIM_ON_ERROR");
}

TEST(Check, TakesSettingsInAnyLetterCase) {
  const TestFolder folder;
  folder.write("fibshim.json", R"({"mode": "Observe", "shadow": "OFF",
      "definitions": {"scale_n64": {"on_error": "FALLBACK"}}})");
  const CheckReport report = check(folder);
  ASSERT_NE(report.snapshot, nullptr) << all_of(report);
  const Snapshot& snapshot = *report.snapshot;
  EXPECT_STREQ(snapshot.text(snapshot.begin(snapshot.settings)[0].value), "observe");
  EXPECT_EQ(snapshot.begin(snapshot.solutions)->on_error, SolutionOnError::fallback);
}

TEST(Check, SaysOnceThatASettingIsThereTwice) {
  const TestFolder folder;
  for (const char* const again : {"mode", "Mode"}) {
    folder.write("fibshim.json", std::string(R"({"mode": "off", ")") + again + R"(": "apply"})");
    const CheckReport report = check(folder);
    EXPECT_EQ(report.error_count, 1u) << all_of(report);
    EXPECT_NE(lines_of(report, Rule::duplicate_key), "");
  }
}

TEST(Check, RejectsSettingsThatItDoesNotKnow) {
  const TestFolder folder;
  folder.write("fibshim.json", R"({"mod": "off", "config": "x", "mode": "maybe"})");
  const CheckReport report = check(folder);
  const std::string unknown = lines_of(report, Rule::unknown_setting);
  EXPECT_CONTAINS(unknown, "fibshim.json:1:2: error: unknown setting \"mod\"");
  EXPECT_CONTAINS(unknown, "did you mean \"mode\"?");
  EXPECT_CONTAINS(unknown, "fibshim.json:1:16: error: \"config\" cannot be set in a folder");
  EXPECT_CONTAINS(lines_of(report, Rule::setting_value),
                  "fibshim.json:1:39: error: \"mode\" is \"maybe\"; accepted are off, observe "
                  "or apply");
  EXPECT_EQ(report.snapshot, nullptr);
  folder.write("fibshim.json", R"({"quarantine": 3})");
  EXPECT_EQ(all_of(check(folder)), "");
  for (const char* value : {"-1", "\"some\"", "1000000001"}) {
    folder.write("fibshim.json", std::string("{\"quarantine\": ") + value + "}");
    EXPECT_CONTAINS(lines_of(check(folder), Rule::setting_value),
                    "fibshim.json:1:16: error: \"quarantine\" is ")
        << value;
  }
}

SolutionOnError on_error_of(const CheckReport& report) {
  return report.snapshot->begin(report.snapshot->solutions)->on_error;
}

TEST(Check, ReadsADefinitionsOwnOnError) {
  const TestFolder folder;
  EXPECT_EQ(on_error_of(check(folder)), SolutionOnError::unset);
  struct {
    const char* definitions;
    SolutionOnError on_error;
  } const cases[] = {
      {R"({"scale_n64": {"on_error": "fallback"}})", SolutionOnError::fallback},
      {R"({"scale_n64": {"On_Error": "fail"}})", SolutionOnError::fail},
      {R"({"scale_n64": {}})", SolutionOnError::unset},
      {R"({"scale_*": {"on_error": "fallback"}})", SolutionOnError::fallback},
      // The first glob that fits, unless the name itself is there.
      {R"({"scale_*": {"on_error": "fallback"}, "*": {"on_error": "fail"}})",
       SolutionOnError::fallback},
      {R"({"*": {"on_error": "fail"}, "scale_n64": {"on_error": "fallback"}})",
       SolutionOnError::fallback},
  };
  for (const auto& one : cases) {
    folder.write("fibshim.json",
                 std::string(R"({"on_error": "fail", "definitions": )") + one.definitions + "}");
    const CheckReport report = check(folder);
    ASSERT_NE(report.snapshot, nullptr) << all_of(report);
    EXPECT_EQ(on_error_of(report), one.on_error) << one.definitions;
    EXPECT_EQ(report.snapshot->settings.count, 1u);
  }
}

TEST(Check, RejectsALayoutThatIsNone) {
  const TestFolder folder;
  struct {
    const char* layout;
    Rule rule;
    const char* line;
  } const cases[] = {
      {R"("rows")", Rule::wrong_type, "\"layout\" of argument \"y\""},
      {R"([["rows"]])", Rule::bad_value, "is its length and its stride in elements"},
      {R"([["rows", "n"], [1, 1], [1, 1], [1, 1], [1, 1]])", Rule::limit, "has more than 4 axes"},
      {R"([["rowz", 1]])", Rule::unknown_name, "unknown name \"rowz\""},
      {R"([["factor", 1]])", Rule::expression_type,
       "\"layout\" of \"y\" has a floating-point value"},
  };
  for (const auto& one : cases) {
    folder.write(kPatternPath,
                 replaced(kPattern, R"("y": {"arg": 0, "dtype": "float32"})",
                          std::string(R"("y": {"arg": 0, "dtype": "float32", "layout": )") +
                              one.layout + "}"));
    EXPECT_CONTAINS(lines_of(check(folder), one.rule), one.line) << all_of(check(folder));
  }
  folder.write(kPatternPath, replaced(kPattern, R"("factor": {"arg": 4, "type": "float32"})",
                                      R"("factor": {"arg": 4, "type": "float32", "layout": []})"));
  EXPECT_CONTAINS(lines_of(check(folder), Rule::value_source), "\"layout\" goes with a pointer");
}

TEST(Check, RejectsAShiftThatIsNone) {
  const TestFolder folder;
  const auto lines = [&](const char* from, const std::string& to, Rule rule) {
    folder.write(kPatternPath, replaced(kPattern, from, to));
    return lines_of(check(folder), rule);
  };
  struct {
    const char* shift;
    Rule rule;
    const char* line;
  } const cases[] = {
      {"0.5", Rule::wrong_type, "\"shift\" of argument \"y\" must be an integer or an expression"},
      {R"("4 * (n")", Rule::expression_syntax,
       "engine-scale.json:13:55: error: this '(' is not closed"},
      {R"("4 * rowz")", Rule::unknown_name, "unknown name \"rowz\""},
      {R"("factor")", Rule::expression_type, "\"shift\" of \"y\" has a floating-point value"},
      {R"("n / 0")", Rule::expression_value, "this divides by zero"},
      {R"("y + 1")", Rule::expression_cycle, "\"y\" depends on itself"},
  };
  constexpr char kY[] = R"("y": {"arg": 0, "dtype": "float32"})";
  for (const auto& one : cases) {
    const std::string shift = std::string(R"("shift": )") + one.shift + "}";
    EXPECT_CONTAINS(lines(kY, R"("y": {"arg": 0, "dtype": "float32", )" + shift, one.rule),
                    one.line)
        << all_of(check(folder));
  }
  EXPECT_CONTAINS(
      lines(R"("factor": {"arg": 4, "type": "float32"})",
            R"("factor": {"arg": 4, "type": "float32", "shift": 0})", Rule::value_source),
      "\"factor\": \"shift\" goes with a pointer");
  EXPECT_CONTAINS(
      lines(kY, R"("z": {"expr": "n", "shift": 4}, )" + std::string(kY), Rule::value_source),
      "argument \"z\": \"shift\" goes with \"arg\" only");
  EXPECT_CONTAINS(lines(R"("n": {"arg": 2, "type": "int32"})",
                        R"("n": {"arg": 2, "type": "int32", "shift": 4})", Rule::unknown_key),
                  "\"shift\"");
}

// What a shift is computed from has its effect.
TEST(Check, WarnsOfNoScalarThatAShiftTakes) {
  const TestFolder folder;
  const auto is_dropped = [&](const char* shift) {
    folder.write(kPatternPath, replaced(kPattern, R"("y": {"arg": 0, "dtype": "float32"})",
                                        R"("y": {"arg": 0, "dtype": "float32", "shift": ")" +
                                            std::string(shift) + R"("},
    "more": {"arg": 3, "type": "int32"})"));
    return !lines_of(check(folder), Rule::dropped_scalar).empty();
  };
  EXPECT_FALSE(is_dropped("4 * more")) << all_of(check(folder));
  EXPECT_TRUE(is_dropped("4 * n"));
}

TEST(Check, RejectsWhatADefinitionCannotSet) {
  const TestFolder folder;
  struct {
    const char* definitions;
    Rule rule;
    const char* line;
  } const cases[] = {
      {R"({"scale_n46": {"on_error": "fail"}})", Rule::unknown_definition,
       "fibshim.json:1:18: error: no file below definitions/ has the definition \"scale_n46\"; did "
       "you mean \"scale_n64\"?"},
      {R"({"norm_*": {}})", Rule::unknown_definition,
       "fibshim.json:1:18: error: no file below definitions/ has the definition \"norm_*\""},
      {R"({"scale_n64": {"on_error": "ignore"}})", Rule::setting_value,
       "fibshim.json:1:44: error: \"on_error\" is \"ignore\"; accepted are fail or fallback"},
      {R"({"scale_n64": {"on_eror": "fail"}})", Rule::unknown_setting,
       "fibshim.json:1:32: error: unknown setting \"on_eror\"; accepted are \"on_error\", "
       "\"shadow\" and \"on_mismatch\"; did you mean \"on_error\"?"},
      {R"({"scale_n64": {"shadow": "1/0"}})", Rule::setting_value,
       "fibshim.json:1:42: error: \"shadow\" is \"1/0\"; accepted are off or 1/N"},
      {R"({"scale_n64": {"on_mismatch": "stop"}})", Rule::setting_value,
       "fibshim.json:1:47: error: \"on_mismatch\" is \"stop\"; accepted are warn, quarantine or "
       "quarantine_job"},
      {R"({"scale_n64": {"mode": "off"}})", Rule::unknown_setting,
       "fibshim.json:1:32: error: \"mode\" cannot be set for one definition"},
      {R"({"scale_n64": "fail"})", Rule::wrong_type, "fibshim.json:1:31: error: \"scale_n64\""},
      {R"(["scale_n64"])", Rule::wrong_type, "fibshim.json:1:17: error: \"definitions\""},
      {R"({"scale_n64": {}, "scale_n64": {}})", Rule::duplicate_key, "fibshim.json:1:35: error: "},
  };
  for (const auto& one : cases) {
    folder.write("fibshim.json", std::string(R"({"definitions": )") + one.definitions + "}");
    const CheckReport report = check(folder);
    EXPECT_CONTAINS(lines_of(report, one.rule), one.line) << all_of(report);
    EXPECT_EQ(report.error_count, 1u) << all_of(report);
    EXPECT_EQ(report.snapshot, nullptr);
  }
}

TEST(Check, ATruncatedCubinBreaksItsSolutionOnly) {
  const TestFolder folder;
  folder.write(kImagePath, test_image("sm_90.cubin").substr(0, 5000));
  const CheckReport report = check(folder);
  EXPECT_CONTAINS(lines_of(report, Rule::image_sha256), "scale_n64.json:9:47: error")
      << all_of(report);
  EXPECT_CONTAINS(lines_of(report, Rule::image_invalid), "scale_n64.json:9:16: error");
  EXPECT_EQ(report.broken_solution_count, 1u);
  ASSERT_NE(report.snapshot, nullptr);
  const Snapshot& snapshot = *report.snapshot;
  const Solution& solution = *snapshot.begin(snapshot.solutions);
  EXPECT_EQ(solution.error_code, 200);
  EXPECT_CONTAINS(std::string(snapshot.text(solution.error_message)), "scale.sm_90.cubin");
  EXPECT_EQ(snapshot.begin(snapshot.bindings)->state, BindingState::broken);
}

// Checks the valid solution with only this fatbin.
CheckReport check_with_fatbin(const std::string& bytes) {
  const TestFolder folder;
  folder.write("solutions/me/scale.fatbin", bytes);
  std::string solution = kSolution;
  const size_t begin = solution.find("      {\"path\"");
  const size_t end = solution.find("    ],");
  solution.replace(begin, end - begin,
                   R"({"path": "scale.fatbin", "sha256": ")" + sha256_hex(sha256(bytes)) + "\"}\n");
  folder.write_solution(solution);
  return check(folder);
}

// With a fatbin of a cubin and PTX, whose entries of these kinds are damaged.
CheckReport check_with_damaged_entries(const std::string& image,
                                       const std::set<FatbinEntryKind>& kinds) {
  std::string bytes = test_image(image);
  const auto fatbin = read_fatbin(bytes);
  EXPECT_TRUE(fatbin);
  std::vector<size_t> places;
  for (const FatbinEntry& entry : fatbin->entries) {
    if (kinds.contains(entry.kind)) {
      places.push_back(static_cast<size_t>(entry.payload.data() - bytes.data()));
    }
  }
  for (const size_t place : places) bytes.replace(place, 16, 16, '#');
  return check_with_fatbin(bytes);
}

TEST(Check, ABadEntryOfAFatbinIsToldAndTheOthersServe) {
  const auto solution_of = [](const CheckReport& report) {
    return *report.snapshot->begin(report.snapshot->solutions);
  };
  for (const char* image : {"plain.fatbin", "compressed.fatbin"}) {
    const CheckReport sound = check_with_damaged_entries(image, {});
    ASSERT_NE(sound.snapshot, nullptr) << all_of(sound);
    EXPECT_EQ(all_of(sound), "");
    for (const FatbinEntryKind kind : {FatbinEntryKind::elf, FatbinEntryKind::ptx}) {
      const CheckReport report = check_with_damaged_entries(image, {kind});
      ASSERT_NE(report.snapshot, nullptr) << all_of(report);
      EXPECT_EQ(report.error_count, 0u) << all_of(report);
      EXPECT_EQ(report.warning_count, 1u);
      const std::string said = lines_of(report, Rule::unreadable_entry);
      EXPECT_CONTAINS(said, ": warning: image \"scale.fatbin\": entry ");
      EXPECT_CONTAINS(said, " (sm_90) cannot be read: ");
      const Snapshot& snapshot = *report.snapshot;
      EXPECT_EQ(solution_of(report).error_code, 0);
      EXPECT_EQ(solution_of(report).images.count, 1u);
      // The readable entry is still used.
      EXPECT_EQ(solution_of(report).param_sizes.count, kind == FatbinEntryKind::ptx ? 4u : 0u);
      EXPECT_EQ(snapshot.begin(snapshot.bindings)->state, BindingState::ready);
    }
    const CheckReport none =
        check_with_damaged_entries(image, {FatbinEntryKind::elf, FatbinEntryKind::ptx});
    EXPECT_EQ(none.broken_solution_count, 1u) << all_of(none);
    EXPECT_CONTAINS(lines_of(none, Rule::image_invalid), "entry 0 (sm_90) cannot be read: ");
    EXPECT_CONTAINS(lines_of(none, Rule::image_invalid), "; entry 1 (sm_90) cannot be read: ");
    EXPECT_EQ(lines_of(none, Rule::unreadable_entry), "");
  }
}

TEST(Check, TheEntriesOfAFatbinShareOneLimit) {
  std::string bytes = test_image("compressed.fatbin");
  const auto fatbin = read_fatbin(bytes);
  ASSERT_TRUE(fatbin);
  ASSERT_EQ(fatbin->entries.size(), 2u);
  // The last entry alone is as large as an image may be. Its header ends with its size.
  const auto header_end = static_cast<size_t>(fatbin->entries[1].payload.data() - bytes.data());
  const uint64_t size = kMaxImageBytes;
  memcpy(bytes.data() + header_end - sizeof size, &size, sizeof size);
  const CheckReport report = check_with_fatbin(bytes);
  EXPECT_CONTAINS(lines_of(report, Rule::unreadable_entry),
                  "entry 1 (sm_90) cannot be read: the entries unpack to too many bytes")
      << all_of(report);
  EXPECT_EQ(report.ready_binding_count, 1u);
}

TEST(Check, AnotherImageThanTheHashStatesIsBroken) {
  const TestFolder folder;
  folder.write(kImagePath, test_image("sm_90a.cubin"));
  const CheckReport report = check(folder);
  EXPECT_EQ(report.error_count, 1u) << all_of(report);
  EXPECT_NE(lines_of(report, Rule::image_sha256), "");
}

// The kernel has __cluster_dims__(2, 1, 1): a launch with any other cluster, or with a grid that
// clusters do not divide, fails.
TEST(Check, AKernelThatRequiresAClusterTakesNoOther) {
  const auto check_clusters = [](const std::string& geometry) {
    const TestFolder folder;
    std::string solution = replaced(kSolution, R"("kernel": "scale")", R"("kernel": "clustered")");
    solution = replaced(solution, R"(["x", "y", "rows", "factor"])", R"(["y"])");
    solution =
        replaced(solution, "      {\"path\": \"scale.sm_80.cubin\", \"sha256\": \"@80@\"},\n", "");
    folder.write_solution(replaced(solution, R"("grid": ["rows", 1, 1])", geometry));
    return lines_of(check(folder), Rule::kernel_geometry);
  };
  EXPECT_EQ(check_clusters(R"("grid": [8, 1, 1], "cluster": [2, 1, 1])"), "");
  EXPECT_CONTAINS(check_clusters(R"("grid": [8, 1, 1], "cluster": [4, 1, 1])"),
                  "takes clusters of 2 x 1 x 1, not 4 x 1 x 1");
  EXPECT_CONTAINS(check_clusters(R"("grid": [8, 2, 1], "cluster": [2, 2, 1])"),
                  "takes clusters of 2 x 1 x 1, not 2 x 2 x 1");
  EXPECT_EQ(check_clusters(R"("grid": [8, 1, 1])"), "");
  EXPECT_CONTAINS(check_clusters(R"("grid": [3, 1, 1])"), "takes clusters of 2 x 1 x 1: ");
}

TEST(Check, ACubinOfAnotherSmThanItsNameSaysIsBroken) {
  const TestFolder folder;
  folder.write(kImagePath, test_image("sm_100.cubin"));
  folder.write_solution(kSolution);
  const CheckReport report = check(folder);
  EXPECT_EQ(lines_of(report, Rule::image_sm),
            folder.path(kSolutionPath) +
                ":9:16: error: image \"scale.sm_90.cubin\" is for sm_100, not for sm_90 as its "
                "name says [image-sm]\n");
  ASSERT_NE(report.snapshot, nullptr);
  EXPECT_EQ(report.snapshot->begin(report.snapshot->solutions)->error_code, 209);
}

TEST(Check, ALiteralsTypeSaysWhetherItIsAFloat) {
  const auto check_factor = [](const std::string& factor) {
    const TestFolder folder;
    folder.write(kPatternPath, replaced(kPattern, "{\"arg\": 4, \"type\": \"float32\"}", factor));
    return all_of(check(folder));
  };
  EXPECT_EQ(check_factor("{\"value\": 1, \"type\": \"float32\"}"), "");
  EXPECT_EQ(check_factor("{\"value\": 1.5}"), "");
  EXPECT_CONTAINS(check_factor("{\"value\": 1.5, \"type\": \"int32\"}"), "[wrong-type]");
  EXPECT_CONTAINS(check_factor("{\"value\": 1, \"offset\": 4}"), "[value-source]");
}

TEST(Check, AMislabelledImageBreaksItsSolutionOnly) {
  // Its SM is that of another image, which is right; the folder stays valid.
  const TestFolder folder;
  folder.write("solutions/me/scale.sm_80.cubin", test_image("sm_90.cubin"));
  folder.write_solution(replaced(kSolution, "@80@", "@90@"));
  const CheckReport report = check(folder);
  EXPECT_EQ(lines_of(report, Rule::duplicate_image), "") << all_of(report);
  EXPECT_NE(lines_of(report, Rule::image_sm), "") << all_of(report);
  ASSERT_NE(report.snapshot, nullptr);
  EXPECT_EQ(report.snapshot->begin(report.snapshot->solutions)->error_code, 209);
}

TEST(Check, TwoCubinsOfOneSmAreAnError) {
  const TestFolder folder;
  folder.write("solutions/me/scale.cubin", test_image("sm_90.cubin"));
  folder.write_solution(replaced(kSolution, "scale.sm_80.cubin\", \"sha256\": \"@80@",
                                 "scale.cubin\", \"sha256\": \"@90@"));
  const CheckReport report = check(folder);
  EXPECT_CONTAINS(lines_of(report, Rule::duplicate_image), "two images for sm_90")
      << all_of(report);
}

TEST(Check, AnImageMayNotLeaveTheFolderThroughALink) {
  const TestFolder folder;
  const TestFolder outside;
  folder.remove(kImagePath);
  std::filesystem::create_symlink(outside.path(kImagePath), folder.path(kImagePath));
  const CheckReport report = check(folder);
  EXPECT_CONTAINS(lines_of(report, Rule::image_path), "leaves the config folder") << all_of(report);
  EXPECT_EQ(report.snapshot, nullptr);
}

TEST(Check, AnImageMayBeALinkWithinTheFolder) {
  const TestFolder folder;
  folder.write("blob/scale.cubin", test_image("sm_90.cubin"));
  folder.remove(kImagePath);
  std::filesystem::create_symlink("../../blob/scale.cubin", folder.path(kImagePath));
  EXPECT_EQ(all_of(check(folder)), "");
}

// A file is read once for all of its hard links; each is judged by itself.
TEST(Check, HardLinksToAnImageAreJudgedApart) {
  const char* const another = "solutions/me/scale.sm_80.cubin";
  {
    const TestFolder folder;  // the same file under a name for another SM, and a hash of its own
    folder.remove(another);
    std::filesystem::create_hard_link(folder.path(kImagePath), folder.path(another));
    const CheckReport report = check(folder);
    EXPECT_EQ(report.error_count, 2u) << all_of(report);
    EXPECT_CONTAINS(lines_of(report, Rule::image_sha256), "\"scale.sm_80.cubin\" has the SHA-256");
    EXPECT_CONTAINS(lines_of(report, Rule::image_sm), "\"scale.sm_80.cubin\" is for sm_90");
  }
  {
    const TestFolder folder;  // under a name for another kind
    std::filesystem::create_hard_link(folder.path(kImagePath),
                                      folder.path("solutions/me/scale.fatbin"));
    folder.write_solution(replaced(kSolution, "scale.sm_80.cubin\", \"sha256\": \"@80@",
                                   "scale.fatbin\", \"sha256\": \"@90@"));
    EXPECT_CONTAINS(lines_of(check(folder), Rule::image_invalid), "image \"scale.fatbin\": ");
  }
  {
    const TestFolder folder;  // through a link that leaves the folder
    const TestFolder outside;
    outside.remove(another);
    std::filesystem::create_hard_link(folder.path(kImagePath), outside.path(another));
    folder.remove(another);
    std::filesystem::create_symlink(outside.path(another), folder.path(another));
    const CheckReport report = check(folder);
    EXPECT_CONTAINS(lines_of(report, Rule::image_path), "\"scale.sm_80.cubin\" leaves the config");
    EXPECT_EQ(report.snapshot, nullptr);
  }
}

TEST(Check, RefusesASolutionThatDoesNotTakeAllThatIsWritten) {
  const TestFolder folder(kPatternPath, "\"factor\": {",
                          "\"scratch\": {\"grid\": \"x\"},\n\"factor\": {");
  folder.change(kPatternPath, "[\"y\"]", "[\"y\", \"scratch\"]");
  const CheckReport report = check(folder);
  EXPECT_CONTAINS(lines_of(report, Rule::refused_writes),
                  "engine-scale.json:18:19: warning: pattern \"engine-scale\", solution "
                  "\"my-scale\": the original writes \"scratch\"")
      << all_of(report);
  ASSERT_NE(report.snapshot, nullptr);
  EXPECT_EQ(report.snapshot->begin(report.snapshot->bindings)->state, BindingState::refused);
  EXPECT_EQ(report.refused_binding_count, 1u);
}

// "d40961" is the name of 409 and 61, and of 4096 and 1.
TEST(Check, RefusesADefinitionWhoseNameSaysSeveralThings) {
  const struct {
    const char* name;     // of the definition
    const char* pattern;  // its name in the pattern
    const char* where;    // a further clause
    bool is_refused;
  } kRows[] = {
      {"d40961", "d{a}{b}", "", true},           {"d409_61", "d{a}_{b}", "", false},
      {"d409661", "d{a}6{b}", "", true},         {"d409-61", "d{a}-{b}", "", false},
      {"d40961", "d{a}{b}", "a == 409", false},  {"da_h409_h61", "d{T}_h{a}_h{b}", "", false},
      {"da40961", "d{T}{a}61", "b == 61", true},
  };
  for (const auto& row : kRows) {
    SCOPED_TRACE(row.pattern);
    const TestFolder folder(kDefinitionPath, R"("rows": {"type": "var"})",
                            R"("rows": {"type": "var"}, "a": {"type": "const", "value": 409},
                               "b": {"type": "const", "value": 61})");
    folder.change(kDefinitionPath, "scale_n64", row.name);
    folder.change(kSolutionPath, "scale_n64", row.name);
    folder.change(kPatternPath, "scale_n{n}", row.pattern);
    folder.change(kPatternPath, R"("rows": {"arg")",
                  R"("a": {"grid": "x"}, "b": {"grid": "y"}, "rows": {"arg")");
    const std::string added = *row.where == 0 ? "" : ", \"" + std::string(row.where) + "\"";
    folder.change(kPatternPath, R"("factor == 0.1"])",
                  R"("factor == 0.1", "n == 64")" + added + "]");
    const CheckReport report = check(folder);
    ASSERT_NE(report.snapshot, nullptr) << all_of(report);
    EXPECT_EQ(report.refused_binding_count, row.is_refused ? 1u : 0u) << all_of(report);
    const std::string said = lines_of(report, Rule::refused_axis);
    if (row.is_refused) {
      EXPECT_CONTAINS(said, "launches of other axes, too; put a text between its values");
    } else {
      EXPECT_EQ(all_of(report), "");
    }
  }
}

TEST(Check, RefusesAGeometryThatThePatternMakesImpossible) {
  const TestFolder folder(kPatternPath, "\"rows\": {\"arg\": 3, \"type\": \"int32\"}",
                          "\"rows\": {\"value\": 0}");
  const CheckReport report = check(folder);
  EXPECT_CONTAINS(lines_of(report, Rule::refused_expression), "grid x is 0") << all_of(report);
  EXPECT_NE(report.snapshot, nullptr);
}

TEST(Check, RefusesAWorkspaceThatCannotBeHad) {
  const char* const kFactor = "\"rows\", \"factor\"]";
  for (const auto& [bytes, rule, words] :
       {std::tuple{"0", Rule::refused_expression, "the workspace has 0 bytes; 1 to"},
        {"67108865", Rule::refused_expression, "the workspace has 67108865 bytes"},
        {"\"factor\"", Rule::refused_expression, "is a floating-point value"},
        {"\"cols\"", Rule::refused_argument, "unknown name \"cols\""},
        {"64", Rule::kernel_params,
         "takes 4 bytes for \"workspace\", but it is an address of 8 bytes"}}) {
    const TestFolder folder(kSolutionPath, "\"grid\"",
                            std::string("\"workspace\": ") + bytes + ", \"grid\"");
    folder.change(kSolutionPath, kFactor, "\"rows\", \"workspace\"]");
    const CheckReport report = check(folder);
    EXPECT_CONTAINS(lines_of(report, rule), words) << all_of(report);
  }
}

TEST(Check, ComparesAConstantAxisThatThePatternReadsAsAnArgument) {
  const TestFolder folder(kPatternPath, "\"n\": {\"arg\": 2, \"type\": \"int32\"},\n", "");
  folder.change(kPatternPath, "\"factor\": {",
                "\"n\": {\"arg\": 2, \"type\": \"int32\"},\n    \"factor\": {");
  folder.change(kPatternPath, "scale_n{n}", "scale_n64");
  const std::string place = folder.path(kPatternPath) + ":14:10: warning: ";
  EXPECT_CONTAINS(lines_of(check(folder), Rule::unpinned_axis), place);
  folder.change(kPatternPath, "\"x != 0\"", "\"x != 0\", \"n == 64 || x == 0\"");
  EXPECT_CONTAINS(lines_of(check(folder), Rule::unpinned_axis), place);
  folder.change(kPatternPath, "\"n == 64 || x == 0\"", "\"n == 32\"");
  const CheckReport report = check(folder);
  EXPECT_CONTAINS(lines_of(report, Rule::refused_axis), place) << all_of(report);
  EXPECT_EQ(report.refused_binding_count, 1u);
  folder.change(kPatternPath, "\"n == 32\"", "\"n == 64\"");
  EXPECT_EQ(all_of(check(folder)), "");
}

TEST(Check, WarnsOfADroppedScalarUnlessItIsPinned) {
  const TestFolder folder(kPatternPath, "[8, 8, 4, 4, 4]", "[8, 8, 4, 4, 4, 4]");
  folder.change(kPatternPath, "\"factor\": {",
                "\"bias\": {\"arg\": 5, \"type\": \"float32\"},\n    \"factor\": {");
  EXPECT_EQ(all_of(check(folder)),
            folder.path(kPatternPath) +
                ":15:13: warning: pattern \"engine-scale\", solution \"my-scale\": the original "
                "takes \"bias\", which the solution drops; take it as an argument, or pin its "
                "value with \"where\" [dropped-scalar]\n");
  folder.change(kPatternPath, "\"x != 0\"", "\"x != 0 && bias == 0\"");
  EXPECT_EQ(all_of(check(folder)), "");
}

TEST(Check, AScalarThatFollowsFromOthersIsNotDropped) {
  const TestFolder folder(kPatternPath, "[8, 8, 4, 4, 4]", "[8, 8, 4, 4, 4, 4, 4]");
  folder.change(kPatternPath, "\"rows\": {\"arg\": 3, \"type\": \"int32\"}",
                "\"rows\": {\"expr\": \"last_row + 1\"}");
  folder.change(kPatternPath, "\"factor\": {",
                "\"last_row\": {\"arg\": 3, \"type\": \"int32\"},\n"
                "    \"pitch\": {\"arg\": 5, \"type\": \"int32\"},\n"
                "    \"other\": {\"arg\": 6, \"type\": \"int32\"},\n    \"factor\": {");
  const auto dropped = [&](const std::string& from, const std::string& to) {
    folder.change(kPatternPath, from, to);
    return lines_of(check(folder), Rule::dropped_scalar);
  };
  // If the two are only equal to each other, nothing determines their values.
  const std::string both = dropped("\"x != 0\"", "\"x != 0\", \"pitch == other\"");
  EXPECT_CONTAINS(both, "takes \"pitch\"");
  EXPECT_CONTAINS(both, "takes \"other\"");
  EXPECT_EQ(both.find("last_row"), std::string::npos) << both;
  EXPECT_EQ(dropped("\"pitch == other\"", "\"pitch == other\", \"2 * n == pitch\""), "");
  // Of a single row, say, a pitch does not matter.
  EXPECT_EQ(dropped("\"2 * n == pitch\"", "\"2 * n == pitch || rows == 1\""), "");
}

TEST(Check, BoundsWhatTheLaunchPathHasRoomFor) {
  const TestFolder folder;
  std::string params = "[4";
  for (int i = 0; i < 128; ++i) params += ", 4";
  folder.change(kPatternPath, "[8, 8, 4, 4, 4]", params + "]");
  EXPECT_CONTAINS(lines_of(check(folder), Rule::limit), "at most 128");
}

TEST(Check, BoundsTheSizeOfExpressions) {
  const TestFolder folder;
  std::string deep = "n";
  for (int i = 0; i < 20; ++i) deep = "(n + 1) * (rows - " + deep + ")";
  folder.change(kPatternPath, "x != 0", deep + " > 0");
  EXPECT_CONTAINS(lines_of(check(folder), Rule::expression_size), "in flight");
}

// Each axis uses the one before twice: 2^40 parts without a limit.
TEST(Check, BoundsExpressionsThatUseOneAnother) {
  const TestFolder folder;
  std::string axes = "\"a0\": {\"arg\": 2, \"type\": \"int32\"}";
  for (int i = 1; i <= 40; ++i) {
    const std::string before = "a" + std::to_string(i - 1);
    axes += ", \"a" + std::to_string(i) + "\": {\"expr\": \"" + before + " + " + before + "\"}";
  }
  folder.change(kPatternPath, "\"axes\": {", "\"axes\": {" + axes + ",");
  EXPECT_NE(lines_of(check(folder), Rule::expression_size), "");
}

TEST(Check, ReportsALackOfMemoryAsADiagnostic) {
  EXPECT_EQ(rule_info(Rule::internal).effect, Effect::invalid_folder);
  Diagnostics diagnostics;
  diagnostics.add(Rule::internal, {"config", 0, 0}, "std::bad_alloc");
  EXPECT_EQ(format_diagnostic(diagnostics.all()[0]), "config: error: std::bad_alloc [internal]");
  EXPECT_EQ(diagnostics.invalid_count(), 1u);
}

// Damaged files may cause any diagnostic, but must not crash the process, and a folder with an
// error that makes it invalid must never become a snapshot.
TEST(Check, SurvivesDamagedFiles) {
  const TestFolder folder;
  std::mt19937 random(99);
  const char* const files[] = {kPatternPath, kSolutionPath, kDefinitionPath};
  // Pieces of syntax reach deeper than random bytes do.
  const auto pieces = words(R"_(" { } [ ] , : 0 -1 1e9 null true \ \u0000 {} [] * ( ) % && ==
                                9223372036854775807 n expr)_");
  uint32_t rejected = 0;
  for (int round = 0; round < 1500; ++round) {
    const char* const file = files[random() % 3];
    const std::string sound = folder.read(file);
    std::string text = sound;
    const int changes = 1 + static_cast<int>(random() % 3);
    for (int i = 0; i < changes; ++i) {
      const size_t at = random() % text.size();
      switch (random() % 4) {
        case 0: text[at] = static_cast<char>(random()); break;
        case 1: text.erase(at, 1 + random() % 8); break;
        case 2: text.insert(at, pieces[random() % pieces.size()]); break;
        default: text.insert(at, text.substr(random() % text.size(), random() % 24)); break;
      }
      if (text.empty()) text = " ";
    }
    folder.write(file, text);
    const CheckReport report = check(folder);
    EXPECT_EQ(report.snapshot == nullptr, report.invalid_count > 0) << text;
    EXPECT_EQ(lines_of(report, Rule::internal), "") << text;
    rejected += report.invalid_count > 0;
    folder.write(file, sound);
  }
  EXPECT_GT(rejected, 500u);
}

}  // namespace
}  // namespace fibshim
