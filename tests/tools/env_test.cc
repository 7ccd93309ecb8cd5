// fibshim env: the table of settings, with the value that applies and its source.
#include <unistd.h>

#include "shim/abi/settings.h"
#include "tests/support/text.h"
#include "tests/tools/config_folder.h"
#include "tests/tools/live_program.h"

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
  const ProgramResult result = exits(0, run_fibshim({"env"}));
  EXPECT_EQ(result.err, "");
  const std::string folder = "/dev/shm/fibshim-" + std::to_string(geteuid());
  EXPECT_CONTAINS(result.out, "SETTING                VALUE");
  EXPECT_CONTAINS(result.out, "FIBSHIM_MODE           apply");
  EXPECT_CONTAINS(result.out, "FIBSHIM_STATS_DIR      " + folder);
  EXPECT_CONTAINS(result.out, "off, observe or apply\n");
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
  const ProgramResult result =
      exits(0, run_program({"env", "FIBSHIM_MODE=Observe",
                            "FIBSHIM_LOG=", build_path("bin/fibshim"), "env", "--json"}));
  const auto mode = setting(parse_json(result.out), "FIBSHIM_MODE");
  EXPECT_EQ(mode["value"], "observe");
  EXPECT_EQ(mode["source"], "environment");
  EXPECT_EQ(setting(parse_json(result.out), "FIBSHIM_LOG")["source"], "default");
}

TEST(Env, SaysWhenAValueIsNotUnderstood) {
  const ProgramOptions options{{{"FIBSHIM_MODE", "on\x1b[0m"}}, ""};
  const ProgramResult result = exits(1, run_fibshim({"env", "--json"}, options));
  EXPECT_EQ(result.err,
            "fibshim env: FIBSHIM_MODE is \"on\\x1b[0m\" (environment), which is not understood; "
            "accepted: off, observe or apply; the default, apply, holds\n");
  const auto mode = setting(parse_json(result.out), "FIBSHIM_MODE");
  EXPECT_EQ(mode["value"], "apply");
  EXPECT_EQ(mode["source"], "default");
  EXPECT_EQ(mode["not_understood"], "on\x1b[0m");
}

TEST(Env, SaysWhenANumberIsNotUnderstood) {
  const ProgramOptions options{{{"FIBSHIM_SHADOW", "2"},
                                {"FIBSHIM_QUARANTINE", "-1"},
                                {"FIBSHIM_RECORD_LIMIT", "1k"},
                                {"FIBSHIM_SHADOW_MEMORY", "64X"}},
                               ""};
  const ProgramResult result = exits(1, run_fibshim({"env", "--json"}, options));
  for (const auto& [name, value] : options.environment) {
    EXPECT_EQ(setting(parse_json(result.out), name)["not_understood"], value);
    EXPECT_EQ(setting(parse_json(result.out), name)["source"], "default");
  }
  EXPECT_CONTAINS(result.err, "accepted: 64k or more, in bytes or with k, M, G; the default, 64M");
}

TEST(Env, AProcessWarnsOnceOfFoldersThatAreNoneOrTooLong) {
  const TemporaryFolder folder;
  const std::string long_path = "/" + std::string(5000, 'x');
  for (const std::string& config : {std::string(":"), long_path}) {
    const ProgramResult result = exits(
        0, run_program({build_path("tests/hosts/engine")}, under_shim(config, folder / "stats")));
    const std::string words = "FIBSHIM_CONFIG names no folder, or is too long";
    EXPECT_CONTAINS(result.err, words);
    EXPECT_EQ(result.err.find(words), result.err.rfind(words)) << result.err;
  }
  const ProgramResult result = exits(0, run_program({build_path("tests/hosts/engine")},
                                                    under_shim(folder.path(), folder / "stats",
                                                               {{"FIBSHIM_LOG_FILE", long_path}})));
  EXPECT_CONTAINS(result.err, "FIBSHIM_LOG_FILE is too long for a path; stderr holds\n");
}

TEST(Env, AProcessSaysWhyAFolderForCountersCannotBeMade) {
  TemporaryFolder folder;
  const ProgramResult result = exits(0, run_program({build_path("tests/hosts/engine")},
                                                    under_shim(folder.path(), "/sys/fibshim")));
  EXPECT_CONTAINS(result.err, "/sys/fibshim: cannot keep counters there: ");
  EXPECT_LACKS(result.err, "/sys/fibshim: cannot keep counters there: No such file");
}

TEST(Env, SaysWhenAVariableIsNoSetting) {
  const ProgramOptions options{{{"FIBSHIM_MODEE", "off"}, {"FIBSHIM_", "1"}}, ""};
  const ProgramResult result = exits(1, run_fibshim({"env", "--json"}, options));
  EXPECT_CONTAINS(result.err, "FIBSHIM_MODEE is not a setting; did you mean FIBSHIM_MODE?\n");
  EXPECT_EQ(parse_json(result.out)["unknown"], (nlohmann::json{"FIBSHIM_", "FIBSHIM_MODEE"}));
}

TEST(Env, TakesTheFoldersSettingsWhereTheEnvironmentIsSilent) {
  TemporaryFolder folder;
  write_config_folder(folder.path());
  write_text(folder / "fibshim.json", R"({"mode": "observe", "on_error": "fallback"})");
  const ProgramOptions options{{{"FIBSHIM_CONFIG", folder.path()}, {"FIBSHIM_MODE", "apply"}}, ""};
  const ProgramResult result = exits(0, run_fibshim({"env", "--json"}, options));
  const auto document = parse_json(result.out);
  EXPECT_EQ(setting(document, "FIBSHIM_MODE")["source"], "environment");
  EXPECT_EQ(setting(document, "FIBSHIM_MODE")["value"], "apply");
  EXPECT_EQ(setting(document, "FIBSHIM_ON_ERROR")["source"], "fibshim.json");
  EXPECT_EQ(setting(document, "FIBSHIM_ON_ERROR")["value"], "fallback");
}

TEST(Env, SaysWhatOfLaterFoldersIsNotUsed) {
  TemporaryFolder folder;
  write_config_folder(folder / "a");
  write_config_folder(folder / "b");
  write_text(folder / "a/fibshim.json", R"({"mode": "observe"})");
  write_text(folder / "b/fibshim.json", R"({"mode": "apply", "on_error": "fallback"})");
  const std::string list = (folder / "a") + ":" + (folder / "b");
  const ProgramOptions options{{{"FIBSHIM_CONFIG", list}}, ""};
  const std::string out = exits(0, run_fibshim({"env"}, options)).out;
  EXPECT_CONTAINS(out,
                  "FIBSHIM_CONFIG: an earlier folder has 1 pattern: engine-scale\n"
                  "FIBSHIM_CONFIG: an earlier folder has 1 setting: FIBSHIM_MODE\n"
                  "FIBSHIM_CONFIG: an earlier folder has 1 definition's solution: scale_h4096\n");
  const auto document = parse_json(exits(0, run_fibshim({"env", "--json"}, options)).out);
  EXPECT_EQ(setting(document, "FIBSHIM_CONFIG")["value"], list);
  EXPECT_EQ(setting(document, "FIBSHIM_MODE")["value"], "observe");
  EXPECT_EQ(setting(document, "FIBSHIM_ON_ERROR")["value"], "fallback");
  ASSERT_EQ(document["shadowed"].size(), 3u);
  EXPECT_EQ(document["shadowed"][2]["name"], "engine-scale");
  EXPECT_EQ(document["shadowed"][2]["file"], folder / "b/patterns/engine-scale.json");
  EXPECT_EQ(document["shadowed"][2]["by"], folder / "a/patterns/engine-scale.json");
  // `check` accepts the same list, but fixes only single folders.
  EXPECT_CONTAINS(exits(0, run_fibshim({"check", list})).out, ": no mistakes, 3 notes\n");
  EXPECT_CONTAINS(exits(2, run_fibshim({"check", "--fix", list})).err,
                  "--fix: name each folder for itself");
}

TEST(Env, SaysWhenTheFolderCannotBeLoaded) {
  const ProgramOptions options{{{"FIBSHIM_CONFIG", "/nonexistent"}}, ""};
  EXPECT_CONTAINS(exits(1, run_fibshim({"env"}, options)).err,
                  "fibshim env: FIBSHIM_CONFIG: /nonexistent is not loaded");
}

}  // namespace
}  // namespace fibshim::test
