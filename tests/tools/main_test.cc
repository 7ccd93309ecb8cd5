// fibshim itself: dispatch, help, version, exit codes, and what holds for every subcommand.
#include <gtest/gtest.h>

#include "tests/tools/config_folder.h"
#include "tests/tools/fibshim_program.h"

namespace fibshim::test {
namespace {

const char* const kCommandNames[] = {"run", "stats", "check", "inspect", "env", "doctor"};

TEST(Main, HelpListsEveryCommand) {
  const ProgramResult result = run_fibshim({"--help"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.err, "");
  for (const char* name : kCommandNames) {
    EXPECT_NE(result.out.find("\n  " + std::string(name) + " "), std::string::npos) << name;
  }
}

TEST(Main, HelpOfACommandIsTheSameEitherWay) {
  for (const char* name : kCommandNames) {
    const ProgramResult result = run_fibshim({name, "--help"});
    EXPECT_EQ(result.exit_code, 0);
    EXPECT_EQ(result.out.rfind("Usage: fibshim " + std::string(name), 0), 0u) << result.out;
    EXPECT_NE(result.out.find("Exit codes:"), std::string::npos);
    EXPECT_EQ(run_fibshim({"help", name}).out, result.out);
  }
}

TEST(Main, PrintsItsVersion) {
  const ProgramResult result = run_fibshim({"--version"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.out, "fibshim 0.1.0\n");
}

TEST(Main, WithoutACommandSaysSo) {
  const ProgramResult result = run_fibshim({});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_EQ(result.out, "");
  EXPECT_EQ(result.err, "fibshim: no command given\nTry 'fibshim --help'.\n");
}

TEST(Main, SuggestsTheCommandThatWasMeant) {
  const ProgramResult result = run_fibshim({"stat"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_EQ(result.err,
            "fibshim: 'stat' is not a command; did you mean 'stats'?\nTry 'fibshim --help'.\n");
  EXPECT_EQ(run_fibshim({"zzz"}).err, "fibshim: 'zzz' is not a command\nTry 'fibshim --help'.\n");
  EXPECT_EQ(run_fibshim({"help", "zzz"}).exit_code, 2);
}

TEST(Main, EveryCommandRefusesUnknownOptionsWithUsage) {
  for (const char* name : kCommandNames) {
    const ProgramResult result = run_fibshim({name, "--bogus"});
    EXPECT_EQ(result.exit_code, 2) << name;
    EXPECT_EQ(result.out, "") << name;
    EXPECT_NE(result.err.find("--bogus"), std::string::npos) << result.err;
    EXPECT_NE(result.err.find("Try 'fibshim " + std::string(name) + " --help'."), std::string::npos)
        << result.err;
  }
}

TEST(Main, AFullDiskIsAnErrorOfEveryCommandThatPrints) {
  TemporaryFolder folder;
  write_config_folder(folder.path());
  const std::string image = build_path("tests/data/kernels.sm_90.cubin");
  const ProgramOptions options{
      {{"FIBSHIM_STATS_DIR", folder / "stats"}, {"FIBSHIM_CONFIG", folder.path()}},
      "",
      "/dev/full"};
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
    const ProgramResult result = run_fibshim(command, options);
    EXPECT_EQ(result.exit_code, 1) << command[0];
    EXPECT_NE(result.err.find("cannot write to stdout: No space left on device"), std::string::npos)
        << command[0] << ": " << result.err;
  }
}

}  // namespace
}  // namespace fibshim::test
