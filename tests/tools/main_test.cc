// fibshim itself: dispatch, help, version, exit codes, and rules that hold for every subcommand.

#include "tests/support/text.h"
#include "tests/tools/config_folder.h"

namespace fibshim::test {
namespace {

const char* const kCommandNames[] = {"run", "stats", "check", "inspect", "env", "doctor"};

TEST(Main, HelpListsEveryCommand) {
  const ProgramResult result = exits(0, run_fibshim({"--help"}));
  EXPECT_EQ(result.err, "");
  for (const char* name : kCommandNames) {
    EXPECT_CONTAINS(result.out, "\n  " + std::string(name) + " ") << name;
  }
}

TEST(Main, HelpOfACommandIsTheSameEitherWay) {
  for (const char* name : kCommandNames) {
    const ProgramResult result = exits(0, run_fibshim({name, "--help"}));
    EXPECT_EQ(result.out.rfind("Usage: fibshim " + std::string(name), 0), 0u) << result.out;
    EXPECT_CONTAINS(result.out, "Exit codes:");
    EXPECT_EQ(run_fibshim({"help", name}).out, result.out);
  }
}

TEST(Main, PrintsItsVersion) {
  EXPECT_EQ(exits(0, run_fibshim({"--version"})).out, "fibshim 0.1.0\n");
}

TEST(Main, WithoutACommandSaysSo) {
  const ProgramResult result = exits(2, run_fibshim({}));
  EXPECT_EQ(result.out, "");
  EXPECT_EQ(result.err, "fibshim: no command given\nTry 'fibshim --help'.\n");
}

TEST(Main, SuggestsTheCommandThatWasMeant) {
  const ProgramResult result = exits(2, run_fibshim({"stat"}));
  EXPECT_EQ(result.err,
            "fibshim: 'stat' is not a command; did you mean 'stats'?\nTry 'fibshim --help'.\n");
  EXPECT_EQ(run_fibshim({"zzz"}).err, "fibshim: 'zzz' is not a command\nTry 'fibshim --help'.\n");
  EXPECT_EQ(run_fibshim({"help", "zzz"}).exit_code, 2);
}

TEST(Main, SaysWhatIsWrongWithAnOptionInPlainWords) {
  const struct {
    std::vector<std::string> command;
    const char* words;
  } rows[] = {
      {{"stats", "--jsno"}, "fibshim stats: unknown option --jsno; did you mean --json?"},
      {{"record", "--sumary", "x"},
       "fibshim record: unknown option --sumary; did you mean --summary?"},
      {{"stats", "extra"}, "fibshim stats: unexpected argument 'extra'"},
      {{"stats", "--pid"}, "fibshim stats: --pid: needs a value"},
      {{"stats", "--pid", "-1"}, "fibshim stats: --pid: takes a whole number from 1 on, not '-1'"},
      {{"top", "--interval", "abc"}, "--interval: takes a number from 0.1 to 3600, not 'abc'"},
      {{"verify", "x", "--device", "foo"}, "--device: takes a whole number from 0 on, not 'foo'"},
      {{"stats", "--pid", "99999999999999999999"},
       "--pid: takes a whole number from 1 on, not '99999999999999999999'"},
      {{"stats", "--dir", "x", "--dir", "y"}, "--dir: is given more than once"},
      {{"top", "--by", "patern"},
       "--by: takes definition|solution|pattern|process|device|config|outcome, not 'patern'; did "
       "you mean pattern?"},
      {{"record", "-o", "x", "--limit", "-5", "--", "true"},
       "--limit: takes a number of bytes, or one with kb, mb or gb, not '-5'"},
      {{"record", "-o", "x", "--limit", "64x", "--", "true"}, "or gb, not '64x'"},
      {{"record", "-o", "x", "--limit", "9223372036gb", "--", "true"}, "not '9223372036gb'"},
      {{"swap", "--on", "--off"}, "DIR, --off, --on and --rollback exclude each other"},
      {{"rollout", "--nonsense"}, "fibshim rollout: unknown option --nonsense\n"},
      {{"suggest", "--nonsense", "x"}, "fibshim suggest: unknown option --nonsense\n"},
      {{"verify", "--jsno"}, "fibshim verify: unknown option --jsno; did you mean --json?"},
      {{"rollout", "--json"}, "fibshim rollout: DIR is required"},
      {{"record", "--compare", "--json", "a", "b"}, "--compare: takes 2 values, not '--json'"},
  };
  for (const auto& row : rows) EXPECT_CONTAINS(exits(2, run_fibshim(row.command)).err, row.words);
  for (const char* name : kCommandNames) {
    const std::string help = run_fibshim({name, "--help"}).out;
    for (const char* odd :
         {":UINT", ":POSITIVE", ":NONNEGATIVE", ":FLOAT", " REQUIRED", "{30}", "[]"}) {
      EXPECT_LACKS(help, odd) << name;
    }
  }
}

TEST(Main, RefusesEmptyNamesOfFilesAndFolders) {
  const std::vector<std::vector<std::string>> commands = {{"init", ""},
                                                          {"check", ""},
                                                          {"swap", ""},
                                                          {"inspect", ""},
                                                          {"report", ""},
                                                          {"verify", ""},
                                                          {"stats", "--dir", ""},
                                                          {"stats", "--output", ""},
                                                          {"run", "--log-file", "", "--", "true"},
                                                          {"suggest", "", "1", "-o", "x"},
                                                          {"explain", "", "1"},
                                                          {"record", "--summary", ""},
                                                          {"check", "--against", "", "x"}};
  for (const auto& command : commands) {
    EXPECT_CONTAINS(exits(2, run_fibshim(command)).err, ": needs the name of a f") << command[0];
  }
}

TEST(Main, WrongUsageIsToldAsJsonToo) {
  const std::vector<std::vector<std::string>> commands = {
      {"verify", "--json"}, {"suggest", "--json", "x"}, {"stats", "--json", "--by", "what"}};
  for (const auto& command : commands) {
    const ProgramResult result = exits(2, run_fibshim(command));
    const nlohmann::json json = parse_json(result.out);
    EXPECT_EQ(json["version"], 1);
    EXPECT_CONTAINS(result.err, json["error"].get<std::string>());
  }
}

TEST(Main, EveryCommandRefusesUnknownOptionsWithUsage) {
  for (const char* name : kCommandNames) {
    const ProgramResult result = run_fibshim({name, "--bogus"});
    EXPECT_EQ(result.exit_code, 2) << name;
    EXPECT_EQ(result.out, "") << name;
    EXPECT_CONTAINS(result.err, "--bogus");
    EXPECT_CONTAINS(result.err, "Try 'fibshim " + std::string(name) + " --help'.");
  }
}

TEST(Main, AFullDiskIsAnErrorOfEveryCommandThatPrints) {
  TemporaryFolder folder;
  write_config_folder(folder.path());
  const std::string image = build_path("tests/data/kernels.sm_90.cubin");
  const ProgramOptions options{
      {{"FIBSHIM_STATS_DIR", folder / "stats"}, {"FIBSHIM_CONFIG", folder.path()}}};
  const std::vector<std::vector<std::string>> commands = {{"--help"},
                                                          {"--version"},
                                                          {"run", "--print-env"},
                                                          {"stats", "--json"},
                                                          {"stats", "--prometheus"},
                                                          {"check", folder.path()},
                                                          {"check", "--json", folder.path()},
                                                          {"inspect", image},
                                                          {"env"},
                                                          {"doctor"}};
  for (const auto& command : commands) {
    std::vector<std::string> words{"/bin/sh", "-c", "exec \"$@\" >/dev/full", "sh",
                                   build_path("bin/fibshim")};
    words.insert(words.end(), command.begin(), command.end());
    const ProgramResult result = run_program(words, options);
    EXPECT_EQ(result.exit_code, 1) << command[0];
    EXPECT_CONTAINS(result.err, "cannot write to stdout: No space left on device")
        << command[0] << ": ";
  }
}

TEST(Main, WhatIsOpenedTakesNoClosedDescriptorsPlace) {
  TemporaryFolder folder;
  write_config_folder(folder.path());
  const ProgramOptions options{
      {{"FIBSHIM_STATS_DIR", folder.path()}, {"FIBSHIM_CONFIG", folder.path()}}};
  const auto without_stdout = [&](const std::string& words) {
    return run_program({"/bin/sh", "-c", "exec " + build_path("bin/fibshim") + words + " >&-"},
                       options);
  };
  for (const char* words : {" top --count 1", " --version"}) {
    EXPECT_CONTAINS(exits(1, without_stdout(words)).err,
                    "cannot write to stdout: Bad file descriptor\n");
  }
  // A program gets what it would get otherwise.
  exits(0, without_stdout(" run -- sh -c 'exec test ! -e /proc/$$/fd/1'"));
}

}  // namespace
}  // namespace fibshim::test
