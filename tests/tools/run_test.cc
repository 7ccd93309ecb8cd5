// fibshim run: the environment that a program gets, and what is refused before it starts.
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "tests/support/text.h"
#include "tests/tools/config_folder.h"

namespace fibshim::test {
namespace {

class Run : public testing::Test {
 protected:
  Run() { write_config_folder(config()); }

  std::string config() { return folder_ / "config"; }
  std::string shim() { return std::filesystem::canonical(build_path("lib/libfibshim.so")); }

  ProgramResult run(std::vector<std::string> arguments,
                    const std::map<std::string, std::string>& environment = {}) {
    arguments.insert(arguments.begin(), "run");
    return run_fibshim(arguments, {environment, folder_.path()});
  }

  // Writes an executable file.
  std::string write_program(const std::string& name, const std::string& bytes) {
    write_text(folder_ / name, bytes);
    chmod((folder_ / name).c_str(), 0755);
    return folder_ / name;
  }

  // /bin/true with one byte of its ELF header changed.
  std::string patched_program(const std::string& name, size_t at, char value) {
    std::string bytes = read_text("/bin/true");
    bytes[at] = value;
    return write_program(name, bytes);
  }

  TemporaryFolder folder_;
};

TEST_F(Run, GivesTheProgramThePreloadAndTheFolder) {
  const ProgramResult result =
      exits(0, run({"-c", config(), "--", "sh", "-c",
                    "printf '%s\\n' \"$LD_PRELOAD\" \"$FIBSHIM_CONFIG\""}));
  EXPECT_EQ(result.out, shim() + "\n" + config() + "\n");
  EXPECT_EQ(result.err, "");
}

TEST_F(Run, ReturnsTheProgramsExitCode) {
  EXPECT_EQ(run({"-c", config(), "--", "sh", "-c", "exit 42"}).exit_code, 42);
  EXPECT_EQ(run({"-c", config(), "--", "sh", "-c", "kill -9 $$"}).exit_code, 128 + 9);
}

TEST_F(Run, NeedsNoDashesBeforeTheCommand) {
  EXPECT_EQ(exits(0, run({"-c", config(), "printf", "%s|", "-c", "--", "--mode"})).out,
            "-c|--|--mode|");
}

TEST_F(Run, PassesEveryArgumentAsItIs) {
  const ProgramResult result = run({"-c", config(), "--", "printf", "%s|", "", "a b", "--", "-x"});
  EXPECT_EQ(result.out, "|a b|--|-x|");
}

TEST_F(Run, MakesTheFolderAbsoluteWithoutFollowingLinks) {
  std::filesystem::create_directory_symlink(config(), folder_ / "current");
  const ProgramResult result = run({"-c", "current/", "--", "printenv", "FIBSHIM_CONFIG"});
  EXPECT_EQ(result.out, (folder_ / "current") + "\n");
}

TEST_F(Run, TakesTheFolderFromTheEnvironment) {
  const ProgramResult result =
      run({"--", "printenv", "FIBSHIM_CONFIG"}, {{"FIBSHIM_CONFIG", "config"}});
  EXPECT_EQ(result.out, config() + "\n") << result.err;
}

TEST_F(Run, SetsTheSettingsThatAreOptions) {
  const ProgramResult result =
      exits(0, run({"-c", config(), "--mode", "observe", "--on-error", "fallback", "--stats-dir",
                    "stats", "--log", "info", "--log-file", "/tmp/%p.log", "--", "env"}));
  for (const std::string& line :
       {std::string("FIBSHIM_MODE=observe"), std::string("FIBSHIM_ON_ERROR=fallback"),
        "FIBSHIM_STATS_DIR=" + (folder_ / "stats"), std::string("FIBSHIM_LOG=info"),
        std::string("FIBSHIM_LOG_FILE=/tmp/%p.log")}) {
    EXPECT_CONTAINS(result.out, line + "\n") << line;
  }
}

TEST_F(Run, PutsTheShimBeforeOtherPreloadsAndOnlyOnce) {
  const ProgramResult result = run({"-c", config(), "--print-env"},
                                   {{"LD_PRELOAD", "/lib/other.so:" + shim() + " third.so"}});
  EXPECT_CONTAINS(result.out, "export LD_PRELOAD=" + shim() + ":/lib/other.so:third.so\n");
}

TEST_F(Run, StaysBehindSanitizersWhichWantToBeFirst) {
  const ProgramResult result =
      run({"-c", config(), "--print-env"}, {{"LD_PRELOAD", "/usr/lib/libasan.so.8:/lib/other.so"}});
  EXPECT_CONTAINS(result.out,
                  "export LD_PRELOAD=/usr/lib/libasan.so.8:" + shim() + ":/lib/other.so\n");
}

TEST_F(Run, SanitizedProgramsRun) {
  write_text(folder_ / "main.c",
             "#include <stdlib.h>\nint main(void) { free(malloc(10)); return 7; }\n");
  for (const char* runtime : {"-shared-libasan", "-static-libasan"}) {
    const std::string program = folder_ / "sanitized";
    std::vector<std::string> compile = {"gcc", "-fsanitize=address", "-o", program,
                                        folder_ / "main.c"};
    if (runtime == std::string("-static-libasan")) compile.emplace_back(runtime);
    ASSERT_EQ(run_program(compile).exit_code, 0);
    const ProgramResult result = run({"-c", config(), "--", program});
    EXPECT_EQ(result.exit_code, 7) << runtime << ": " << result.err;
    EXPECT_EQ(result.err, "") << runtime;
  }
}

TEST_F(Run, PrintsTheEnvironmentAsShellCode) {
  std::filesystem::rename(config(), folder_ / "it's mine");
  const ProgramResult result = exits(0, run({"-c", "it's mine", "--mode", "off", "--print-env"}));
  const ProgramResult evaluated = run_program(
      {"sh", "-c", "eval \"$1\"; printenv FIBSHIM_CONFIG FIBSHIM_MODE", "-", result.out});
  EXPECT_EQ(evaluated.out, (folder_ / "it's mine") + "\noff\n") << result.out;
}

TEST_F(Run, PrintsTheEnvironmentForLaunchers) {
  const std::vector<std::string> common = {"-c", config(), "--mode", "observe", "--print-env"};
  const auto print = [&](const std::string& format) {
    std::vector<std::string> arguments = common;
    arguments.insert(arguments.end(), {"--format", format});
    const ProgramResult result = exits(0, run(arguments));
    return result.out;
  };
  EXPECT_EQ(print("docker"),
            "FIBSHIM_CONFIG=" + config() + "\nFIBSHIM_MODE=observe\nLD_PRELOAD=" + shim() + "\n");
  EXPECT_EQ(print("kubernetes"), "env:\n- name: FIBSHIM_CONFIG\n  value: \"" + config() +
                                     "\"\n- name: FIBSHIM_MODE\n  value: \"observe\"\n"
                                     "- name: LD_PRELOAD\n  value: \"" +
                                     shim() + "\"\n");
  EXPECT_EQ(print("slurm"), "--export=ALL,FIBSHIM_CONFIG=" + config() +
                                ",FIBSHIM_MODE=observe,LD_PRELOAD=" + shim() + "\n");
  EXPECT_EQ(print("shell"), run(common).out);

  // A container does not inherit the settings of this environment.
  const std::map<std::string, std::string> set = {{"FIBSHIM_ON_ERROR", "fallback"}};
  EXPECT_CONTAINS(run({"-c", config(), "--print-env", "--format", "docker"}, set).out,
                  "\nFIBSHIM_ON_ERROR=fallback\n");
  EXPECT_EQ(run({"-c", config(), "--print-env", "--format", "slurm"}, set).out.find("ON_ERROR"),
            std::string::npos);
}

TEST_F(Run, RefusesValuesThatALauncherCannotPassOn) {
  std::filesystem::rename(config(), folder_ / "a, b");
  const ProgramResult result = exits(1, run({"-c", "a, b", "--print-env", "--format", "slurm"}));
  EXPECT_EQ(result.out, "");
  EXPECT_CONTAINS(result.err, "slurm cannot pass a value with such characters");
  EXPECT_EQ(run({"-c", "a, b", "--print-env", "--format", "kubernetes"}).exit_code, 0);
  EXPECT_EQ(run({"-c", "a, b", "--print-env", "--format", "xml"}).exit_code, 2);
  EXPECT_EQ(run({"-c", "a, b", "--format", "shell", "--", "true"}).exit_code, 2);

  std::filesystem::rename(folder_ / "a, b", folder_ / "b\xff");
  for (const char* format : {"docker", "kubernetes"}) {
    const ProgramResult bytes = exits(1, run({"-c", "b\xff", "--print-env", "--format", format}));
    EXPECT_EQ(bytes.out, "");
    EXPECT_CONTAINS(bytes.err, "/b\\xff: " + std::string(format) + " cannot pass a value");
  }
  for (const char* format : {"shell", "slurm"}) {
    EXPECT_CONTAINS(exits(0, run({"-c", "b\xff", "--print-env", "--format", format})).out, "b\xff");
  }
}

TEST_F(Run, KubernetesReplacesNothingInAValue) {
  std::filesystem::rename(config(), folder_ / "$(HOME)$$x");
  EXPECT_CONTAINS(exits(0, run({"-c", "$(HOME)$$x", "--print-env", "--format", "kubernetes"})).out,
                  "/$$(HOME)$$$$x\"\n");
}

// An engine accepts such mistakes; only `check` reports them.
TEST_F(Run, SaysInOneLineThatCheckFindsMistakesAndRuns) {
  const std::string pattern = folder_ / "config/patterns/engine-scale.json";
  auto json = parse_json(read_text(pattern));
  json["where"].push_back("input >= 0");
  json["where"].push_back("output >= 0");
  write_text(pattern, json.dump(1));
  const ProgramResult result = exits(0, run({"-c", config(), "--", "echo", "ran"}));
  EXPECT_EQ(result.out, "ran\n");
  EXPECT_EQ(
      result.err.find("fibshim run: " + config() + " has 2 mistakes, such as " + pattern + ":"), 0u)
      << result.err;
  EXPECT_CONTAINS(result.err, "[always-true]; 'fibshim check " + config() + "' shows them\n");
  EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1);
  EXPECT_EQ(exits(0, run({"--no-check", "-c", config(), "--", "echo", "ran"})).err, "");
}

TEST_F(Run, RunsNothingWhenTheFolderHasMistakes) {
  write_text(folder_ / "config/patterns/broken.json", "{\n  \"label\": \n}\n");
  const ProgramResult result = exits(1, run({"-c", config(), "--", "echo", "ran"}));
  EXPECT_EQ(result.out, "");
  EXPECT_CONTAINS(result.err, "patterns/broken.json:3:1: error: ");
  EXPECT_CONTAINS(result.err, "[json-syntax]");
  EXPECT_CONTAINS(result.err, "--no-check");
  EXPECT_EQ(run({"-c", config(), "--no-check", "--", "echo", "ran"}).out, "ran\n");
}

TEST_F(Run, RunsNothingWhenTheFolderIsMissing) {
  const ProgramResult result = exits(1, run({"-c", "nowhere", "--", "echo", "ran"}));
  EXPECT_EQ(result.out, "");
  EXPECT_CONTAINS(result.err, (folder_ / "nowhere") + ": error: ");
}

TEST_F(Run, AnswersLikeEnvWhenThereIsNoSuchProgram) {
  EXPECT_EQ(exits(127, run({"-c", config(), "--", "no-such-program-here"})).err,
            "fibshim run: no-such-program-here: command not found\n");
  EXPECT_EQ(run({"-c", config(), "--", "./absent"}).exit_code, 127);
}

TEST_F(Run, AnswersLikeEnvWhenTheProgramCannotBeRun) {
  write_text(folder_ / "data", "not a program");
  EXPECT_EQ(exits(126, run({"-c", config(), "--", "./data"})).err,
            "fibshim run: ./data: Permission denied\n");
  EXPECT_EQ(run({"-c", config(), "--", "./config"}).exit_code, 126);
}

TEST_F(Run, RefusesWrongUsage) {
  EXPECT_EQ(run({"-c", config()}).exit_code, 2);
  EXPECT_EQ(run({"-c", config(), "--"}).exit_code, 2);
  EXPECT_EQ(run({"--", "true"}).exit_code, 2);
  EXPECT_EQ(run({"-c", config(), "--mode", "sideways", "--", "true"}).exit_code, 2);
  EXPECT_EQ(run({"-c", config(), "--moed", "off", "true"}).exit_code, 2);
  EXPECT_EQ(run({"-c"}).exit_code, 2);
}

TEST_F(Run, ExplainsStaticPrograms) {
  write_text(folder_ / "main.c", "int main(void) { return 7; }\n");
  const std::string program = folder_ / "static_program";
  ASSERT_EQ(run_program({"gcc", "-static", "-o", program, folder_ / "main.c"}).exit_code, 0);
  EXPECT_CONTAINS(exits(126, run({"-c", config(), "--", program})).err,
                  program + " is statically linked");
  EXPECT_EQ(run({"-c", config(), "--force", "--", program}).exit_code, 7);
}

TEST_F(Run, ExplainsProgramsOf32Bits) {
  EXPECT_CONTAINS(
      exits(126, run({"-c", config(), "--", patched_program("program32", 4 /* EI_CLASS */, 1)}))
          .err,
      "is a 32-bit program");
}

TEST_F(Run, ExplainsProgramsForOtherMachines) {
  EXPECT_CONTAINS(exits(126, run({"-c", config(), "--",
                                  patched_program("foreign", 18 /* e_machine */, 8 /* MIPS */)}))
                      .err,
                  "is a program for another machine");
}

TEST_F(Run, ExplainsMuslPrograms) {
  std::string bytes = read_text("/bin/true");
  const size_t at = bytes.find("/lib64/ld-linux-x86-64.so.2");
  if (at == std::string::npos) GTEST_SKIP() << "/bin/true is not an x86-64 glibc program";
  bytes.replace(at, 27, std::string("/lib/ld-musl-x86_64.so.1\0\0\0", 27));
  EXPECT_CONTAINS(exits(126, run({"-c", config(), "--", write_program("musl", bytes)})).err,
                  "does not run on glibc");
}

TEST_F(Run, ExplainsSetuidPrograms) {
  if (getuid() != 0) GTEST_SKIP() << "only root can give a file away";
  const std::string program = patched_program("other_user", 0, 0x7f);
  ASSERT_EQ(chown(program.c_str(), 12345, 12345), 0);
  ASSERT_EQ(chmod(program.c_str(), 04755), 0);
  EXPECT_CONTAINS(exits(126, run({"-c", config(), "--", program})).err,
                  "is setuid, setgid or has file capabilities");
}

TEST_F(Run, FollowsScriptsToTheirInterpreter) {
  const std::string foreign = patched_program("interpreter", 4, 1);
  const std::string script = write_program("script", "#!" + foreign + " -x\n");
  EXPECT_CONTAINS(exits(126, run({"-c", config(), "--", script})).err,
                  foreign + " is a 32-bit program");

  const std::string by_env = write_program("by_env", "#!/usr/bin/env -S A=1 interpreter\n");
  const std::map<std::string, std::string> path = {{"PATH", folder_.path() + ":/usr/bin:/bin"}};
  EXPECT_CONTAINS(run({"-c", config(), "--", by_env}, path).err, "is a 32-bit program");

  const std::string fine = write_program("fine", "#!/bin/sh\nexit 5\n");
  EXPECT_EQ(run({"-c", config(), "--", fine}).exit_code, 5);
}

TEST_F(Run, ScriptsThatNameThemselvesEndTheSearch) {
  const std::string script = write_program("loop", "");
  write_program("loop", "#!" + script + "\n");
  EXPECT_EQ(run({"-c", config(), "--", script}).exit_code, 126);
}

TEST_F(Run, SaysWhenTheShimIsNotThere) {
  std::filesystem::create_directories(folder_ / "lonely/bin");
  std::filesystem::copy_file(build_path("bin/fibshim"), folder_ / "lonely/bin/fibshim");
  const ProgramOptions options{{{"LD_LIBRARY_PATH", build_path("lib")}}, ""};
  const ProgramResult result = exits(
      1, run_program({folder_ / "lonely/bin/fibshim", "run", "-c", config(), "--", "echo", "ran"},
                     options));
  EXPECT_EQ(result.out, "");
  EXPECT_EQ(result.err, "fibshim run: " + (folder_ / "lonely/lib/libfibshim.so") +
                            ": No such file or directory; it belongs beside this program, as "
                            "../lib/libfibshim.so\n");
}

TEST_F(Run, SaysWhenThePathCannotBePreloaded) {
  std::filesystem::create_directories(folder_ / "with blank/bin");
  std::filesystem::copy_file(build_path("bin/fibshim"), folder_ / "with blank/bin/fibshim");
  const ProgramOptions options{{{"LD_LIBRARY_PATH", build_path("lib")}}, ""};
  EXPECT_CONTAINS(exits(1, run_program({folder_ / "with blank/bin/fibshim", "run", "-c", config(),
                                        "--", "true"},
                                       options))
                      .err,
                  "LD_PRELOAD cannot name a path with blanks or colons");
}

}  // namespace
}  // namespace fibshim::test
