// The "verify" block of a solution: its valid contents, and that mistakes in it are found.
#include "tools/lint/verify_block.h"

#include "tests/loader/test_folder.h"
#include "tests/support/text.h"

namespace fibshim {
namespace {

std::string with_block(const std::string& block) {
  return replaced(kSolution, "\"launch\"", "\"verify\": " + block + ",\n  \"launch\"");
}

CheckReport check_block(const std::string& block, FolderModel* model, VerifyBlocks* lint) {
  const TestFolder folder;
  folder.write_solution(with_block(block));
  CheckOptions options;
  options.model = model;
  options.lint = lint;
  return check_folder(folder.path(), options);
}

std::string first_of(const CheckReport& report) {
  return report.diagnostics.empty() ? "" : format_diagnostic(report.diagnostics[0]);
}

TEST(VerifyBlock, IsReadWhole) {
  FolderModel model;
  VerifyBlocks blocks;
  const CheckReport report = check_block(
      R"({"op": "rmsnorm", "axes": {"rows": [1, 7]}, "atol": 0.5, "required_matched_ratio": 0.95,
      "arguments": {"factor": {"value": 0.25, "type": "float32"}, "stride": {"expr": "2 * n"},
      "scratch": {"shape": ["rows", "n + 1"], "dtype": "float16"},
      "first": {"shape": [7], "dtype": "int32", "elements": "index"}, "order": {"elements": "n - index"}, "ids": {"low": 0, "high": "n"}}})",
      &model, &blocks);
  ASSERT_EQ(first_of(report), "");
  const VerifyBlock& block = blocks.of(model.solutions[0]);
  EXPECT_EQ(block.op, "rmsnorm");
  ASSERT_EQ(block.axes.size(), 1u);
  EXPECT_EQ(block.axes[0].second, (std::vector<int64_t>{1, 7}));
  EXPECT_EQ(block.atol, 0.5);
  EXPECT_EQ(block.rtol, std::nullopt);
  EXPECT_EQ(block.required_matched_ratio, 0.95);
  EXPECT_EQ(block.find_argument("factor")->value, 0.25);
  EXPECT_EQ(block.find_argument("factor")->type, ValueType::float32);
  EXPECT_EQ(block.find_argument("stride")->kind, VerifyArgument::Kind::expression);
  const VerifyArgument& scratch = *block.find_argument("scratch");
  ASSERT_EQ(scratch.shape.size(), 2u);
  EXPECT_EQ(scratch.shape[1].text.text, "n + 1");
  EXPECT_FALSE(scratch.elements);
  EXPECT_EQ(block.find_argument("first")->kind, VerifyArgument::Kind::tensor);
  EXPECT_EQ(block.find_argument("first")->elements->text.text, "index");
  EXPECT_EQ(block.find_argument("order")->kind, VerifyArgument::Kind::elements);
  EXPECT_EQ(block.find_argument("ids")->kind, VerifyArgument::Kind::range);
}

TEST(VerifyBlock, MistakesAreFound) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"axis": {}})", "[unknown-key]"},
      {R"({"arguments": {"eps": {}}})", "[value-source]"},
      {R"({"arguments": {"eps": {"value": 1, "expr": "n"}}})", "[value-source]"},
      {R"({"arguments": {"eps": {"value": "1"}}})", "[wrong-type]"},
      {R"({"arguments": {"eps": {"value": 1, "type": "float"}}})", "[bad-value]"},
      {R"({"arguments": {"x2": {"shape": ["n"], "dtype": "float3"}}})", "[unknown-dtype]"},
      {R"({"arguments": {"x2": {"shape": ["n +"], "dtype": "int8"}}})", "[expression-syntax]"},
      {R"({"arguments": {"x2": {"elements": "index", "high": "n"}}})", "[value-source]"},
      {R"({"arguments": {"x2": {"elements": "index +"}}})", "[expression-syntax]"},
      {R"({"arguments": {"ids": {"high": "n"}}})", "[missing-key]"},
      {R"({"arguments": {"s": {"expr": "2 *"}}})", "[expression-syntax]"},
      {R"({"required_matched_ratio": 1.5})", "[bad-value]"},
      {R"({"axes": {"rows": []}})", "[bad-value]"},
      {R"([])", "[wrong-type]"},
  };
  for (const auto& [block, rule] : cases) {
    FolderModel model;
    VerifyBlocks blocks;
    const CheckReport report = check_block(block, &model, &blocks);
    EXPECT_CONTAINS(first_of(report), rule) << block << ": ";
    EXPECT_EQ(report.snapshot, nullptr) << block;
    // Serving does not need the block.
    EXPECT_NE(check_block(block, &model, nullptr).snapshot, nullptr) << block;
  }
}

// A baseline folder: the engine's own kernel, without any pattern.
TEST(VerifyBlock, SuppliesArgumentsWhereNoPatternDoes) {
  const TestFolder folder;
  folder.remove("patterns");
  const CheckReport without = check_folder(folder.path());
  EXPECT_CONTAINS(first_of(without), "[unknown-argument]");
  folder.write_solution(with_block(R"({"arguments": {"factor": {"value": 2}}})"));
  const CheckReport with = check_folder(folder.path());
  EXPECT_EQ(with.error_count, 0u) << first_of(with);
  EXPECT_NE(with.snapshot, nullptr);
}

TEST(VerifyBlock, DefinitionsKeepWhatJudgingNeeds) {
  const TestFolder folder;
  FolderModel model;
  CheckOptions options;
  options.model = &model;
  ASSERT_EQ(check_folder(folder.path(), options).error_count, 0u);
  const Definition& definition = model.definitions[0];
  EXPECT_EQ(definition.op_type, "scale");
  EXPECT_EQ(definition.reference, "def run(x):\n    return x * 2");
  EXPECT_FALSE(definition.find_argument("x")->is_output);
  EXPECT_TRUE(definition.find_argument("y")->is_output);
  EXPECT_EQ(definition.find_argument("y")->shape, (std::vector<std::string>{"rows", "n"}));
}

}  // namespace
}  // namespace fibshim
