// Compares the JSON Schemas for editors with the loader: they have the same keys, types and dtypes,
// and every shipped file is valid.
#include <gtest/gtest.h>

#include "tests/tools/config_folder.h"

namespace fibshim::test {
namespace {

using Json = nlohmann::json;

constexpr char kPatternFile[] = "patterns/engine-scale.json";
constexpr char kSolutionFile[] = "solutions/scale_by_hand.json";

struct Level {
  const char* name;
  const char* schema;
  const char* file;
  const char* object;     // in the file: gets an unknown key or value
  const char* in_schema;  // where the schema lists the known ones: "properties" or "enum"
  const char* key;        // its value becomes unknown; "": an unknown key is added
};

std::set<std::string> words_behind(const std::string& message, const std::string& mark) {
  std::set<std::string> words;
  size_t at = message.find(mark);
  if (at == std::string::npos) return words;
  while ((at = message.find('"', at)) != std::string::npos) {
    const size_t end = message.find('"', at + 1);
    words.insert(message.substr(at + 1, end - at - 1));
    at = end + 1;
  }
  return words;
}

class Schema : public testing::TestWithParam<Level> {};

TEST_P(Schema, KnowsWhatTheLoaderKnows) {
  const Level& level = GetParam();
  const TemporaryFolder folder;
  write_config_folder(folder.path());
  Json file = parse_json(read_text(folder / level.file));
  Json& object = file.at(Json::json_pointer(level.object));
  object[*level.key == 0 ? "zzzzzzzzzz" : level.key] = "zzzzzzzzzz";
  write_text(folder / level.file, file.dump());
  const Json report = parse_json(run_fibshim({"check", "--json", folder.path()}).out);
  // `check` uses the schema, too, and reports nothing twice.
  EXPECT_EQ(report["folders"][0]["errors"], 1) << report.dump(1);
  std::set<std::string> accepted;
  for (const Json& one : report["folders"][0]["diagnostics"]) {
    const auto words = words_behind(one["message"], "accepted are");
    accepted.insert(words.begin(), words.end());
  }
  const Json schema =
      parse_json(read_text(source_path(std::string("tools/schema/") + level.schema)));
  std::set<std::string> known;
  for (const auto& [key, value] : schema.at(Json::json_pointer(level.in_schema)).items()) {
    known.insert(value.is_string() ? value.get<std::string>() : key);
  }
  EXPECT_EQ(known, accepted);
}

INSTANTIATE_TEST_SUITE_P(
    Every, Schema,
    testing::Values(Level{"Pattern", "pattern.schema.json", kPatternFile, "", "/properties", ""},
                    Level{"Match", "pattern.schema.json", kPatternFile, "/match",
                          "/properties/match/properties", ""},
                    Level{"Axis", "pattern.schema.json", kPatternFile, "/axes/hidden_size",
                          "/definitions/axis/properties", ""},
                    Level{"AxisType", "pattern.schema.json", kPatternFile, "/axes/hidden_size",
                          "/definitions/axis/properties/type/enum", "type"},
                    Level{"Argument", "pattern.schema.json", kPatternFile, "/arguments/count",
                          "/definitions/argument/properties", ""},
                    Level{"ArgumentType", "pattern.schema.json", kPatternFile, "/arguments/count",
                          "/definitions/argument/properties/type/enum", "type"},
                    Level{"Dtype", "pattern.schema.json", kPatternFile, "/arguments/input",
                          "/definitions/argument/properties/dtype/enum", "dtype"},
                    Level{"Dimension", "pattern.schema.json", kPatternFile, "/axes/rows",
                          "/definitions/axis/properties/grid/enum", "grid"},
                    Level{"Launch", "solution.schema.json", kSolutionFile, "/launch",
                          "/properties/launch/properties", ""},
                    Level{"Image", "solution.schema.json", kSolutionFile, "/launch/images/0",
                          "/properties/launch/properties/images/items/properties", ""}),
    [](const auto& row) { return row.param.name; });

TEST(SchemaOfText, MayBeLong) {
  const TemporaryFolder folder;
  write_config_folder(folder.path());
  Json solution = parse_json(read_text(folder / kSolutionFile));
  solution["launch"]["images"][0]["path"] = std::string(1 << 20, 'a') + ".cubin";
  write_text(folder / kSolutionFile, solution.dump());
  EXPECT_EQ(run_fibshim({"check", folder.path()}).exit_code, 1);
}

struct Mismatch {
  const char* name;
  const char* file;
  const char* from;
  const char* to;
  const char* place;  // line:column, of the value
};

class SchemaAlone : public testing::TestWithParam<Mismatch> {};

// Serving ignores these members, so `check` finds faults in them only through the schema.
TEST_P(SchemaAlone, IsAskedByCheck) {
  const Mismatch& mismatch = GetParam();
  const TemporaryFolder folder;
  write_config_folder(folder.path());
  std::string text = read_text(folder / mismatch.file);
  ASSERT_NE(text.find(mismatch.from), std::string::npos);
  write_text(folder / mismatch.file, text.replace(text.find(mismatch.from),
                                                  std::string(mismatch.from).size(), mismatch.to));
  const ProgramResult result = run_fibshim({"check", folder.path()});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_NE(result.out.find((folder / mismatch.file) + ":" + mismatch.place + ": error: "),
            std::string::npos)
      << result.out;
  EXPECT_NE(result.out.find(" [schema]\n"), std::string::npos) << result.out;
  EXPECT_NE(result.out.find("1 error, 0 warnings"), std::string::npos) << result.out;
}

INSTANTIATE_TEST_SUITE_P(
    Every, SchemaAlone,
    testing::Values(
        Mismatch{"Author", kSolutionFile, "\"tests\"", "7", "4:13"},
        Mismatch{"Hardware", kSolutionFile, "[\"NVIDIA H200\"]", "\"NVIDIA H200\"", "7:24"},
        Mismatch{"SourceText", kSolutionFile, "\"content\": \"scale\"", "\"content\": [1]",
                 "12:49"},
        Mismatch{"SourceWithoutPath", kSolutionFile, "{\"path\": \"kernels.cu\", ", "{", "12:15"}),
    [](const auto& row) { return row.param.name; });

}  // namespace
}  // namespace fibshim::test
