// fibshim env: the table of settings, with the value in force and its source.
#include <gtest/gtest.h>
#include <unistd.h>

#include "shim/abi/settings.h"
#include "tests/tools/config_folder.h"
#include "tests/tools/fibshim_program.h"

namespace fibshim::test {
namespace {

nlohmann::json setting(const nlohmann::json& document, const std::string& name) {
  for (const auto& row : document["settings"]) {
    if (row["name"] == name) return row;
  }
  ADD_FAILURE() << "no " << name;
  return {};
}

TEST(Env, PrintsTheDefaultsAsATable) {
  const ProgramResult result = run_fibshim({"env"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.err, "");
  const std::string folder = "/dev/shm/fibshim-" + std::to_string(geteuid());
  EXPECT_NE(result.out.find("SETTING               VALUE"), std::string::npos) << result.out;
  EXPECT_NE(result.out.find("FIBSHIM_MODE          apply"), std::string::npos) << result.out;
  EXPECT_NE(result.out.find("FIBSHIM_STATS_DIR     " + folder), std::string::npos) << result.out;
  EXPECT_NE(result.out.find("off, observe or apply\n"), std::string::npos) << result.out;
}

TEST(Env, ListsEverySettingOfTheTable) {
  const auto document = parse_json(run_fibshim({"env", "--json"}).out);
  ASSERT_EQ(document["settings"].size(), kSettingCount);
  for (const SettingInfo& info : kSettings) {
    const auto row = setting(document, info.name);
    EXPECT_EQ(row["source"], "default");
    EXPECT_EQ(row["default"], info.default_words);
    EXPECT_EQ(row["accepted"], info.value_words);
    EXPECT_EQ(row["meaning"], info.meaning);
  }
}

TEST(Env, TakesValuesFromTheEnvironmentInAnyCase) {
  const ProgramOptions options{{{"FIBSHIM_MODE", "Observe"}, {"FIBSHIM_LOG", ""}}, "", ""};
  const ProgramResult result = run_fibshim({"env", "--json"}, options);
  EXPECT_EQ(result.exit_code, 0);
  const auto mode = setting(parse_json(result.out), "FIBSHIM_MODE");
  EXPECT_EQ(mode["value"], "observe");
  EXPECT_EQ(mode["source"], "environment");
  EXPECT_EQ(setting(parse_json(result.out), "FIBSHIM_LOG")["source"], "default");
}

TEST(Env, SaysWhenAValueIsNotUnderstood) {
  const ProgramOptions options{{{"FIBSHIM_MODE", "on\x1b[0m"}}, "", ""};
  const ProgramResult result = run_fibshim({"env", "--json"}, options);
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_EQ(result.err,
            "fibshim env: FIBSHIM_MODE is \"on\\x1b[0m\" (environment), which is not understood; "
            "accepted: off, observe or apply; the default, apply, holds\n");
  const auto mode = setting(parse_json(result.out), "FIBSHIM_MODE");
  EXPECT_EQ(mode["value"], "apply");
  EXPECT_EQ(mode["source"], "default");
  EXPECT_EQ(mode["not_understood"], "on\x1b[0m");
}

TEST(Env, SaysWhenAVariableIsNoSetting) {
  const ProgramOptions options{{{"FIBSHIM_MODEE", "off"}, {"FIBSHIM_", "1"}}, "", ""};
  const ProgramResult result = run_fibshim({"env", "--json"}, options);
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_NE(result.err.find("FIBSHIM_MODEE is not a setting; did you mean FIBSHIM_MODE?\n"),
            std::string::npos)
      << result.err;
  EXPECT_EQ(parse_json(result.out)["unknown"], (nlohmann::json{"FIBSHIM_", "FIBSHIM_MODEE"}));
}

TEST(Env, TakesTheFoldersSettingsWhereTheEnvironmentIsSilent) {
  TemporaryFolder folder;
  write_config_folder(folder.path());
  write_text(folder / "fibshim.json", R"({"mode": "observe", "on_error": "fallback"})");
  const ProgramOptions options{
      {{"FIBSHIM_CONFIG", folder.path()}, {"FIBSHIM_MODE", "apply"}}, "", ""};
  const ProgramResult result = run_fibshim({"env", "--json"}, options);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  const auto document = parse_json(result.out);
  EXPECT_EQ(setting(document, "FIBSHIM_MODE")["source"], "environment");
  EXPECT_EQ(setting(document, "FIBSHIM_MODE")["value"], "apply");
  EXPECT_EQ(setting(document, "FIBSHIM_ON_ERROR")["source"], "fibshim.json");
  EXPECT_EQ(setting(document, "FIBSHIM_ON_ERROR")["value"], "fallback");
}

TEST(Env, SaysWhenTheFolderCannotBeLoaded) {
  const ProgramOptions options{{{"FIBSHIM_CONFIG", "/nonexistent"}}, "", ""};
  const ProgramResult result = run_fibshim({"env"}, options);
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_NE(result.err.find("fibshim env: FIBSHIM_CONFIG: /nonexistent is not loaded"),
            std::string::npos)
      << result.err;
}

}  // namespace
}  // namespace fibshim::test
