// fibshim doctor: finds no fault on the simulated driver, and names each fault that is made.
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "tests/support/text.h"
#include "tests/tools/config_folder.h"
#include "tests/tools/live_program.h"

namespace fibshim::test {
namespace {

nlohmann::json check(const nlohmann::json& document, const std::string& name) {
  for (const auto& item : document["checks"]) {
    if (item["name"] == name) return item;
  }
  ADD_FAILURE() << "no check " << name << " in " << document.dump();
  return {};
}

class Doctor : public testing::Test {
 protected:
  Doctor() {
    write_config_folder(folder_ / "config");
    environment_ = {{"LD_LIBRARY_PATH", build_path("sim")},
                    {"FIBSHIM_CONFIG", folder_ / "config"},
                    {"FIBSHIM_STATS_DIR", folder_ / "stats"}};
  }

  ProgramResult doctor(std::vector<std::string> arguments = {}) {
    arguments.insert(arguments.begin(), "doctor");
    return run_fibshim(arguments, {environment_, ""});
  }

  // The result of one check.
  nlohmann::json found(const std::string& name, int exit_code) {
    return check(parse_json(exits(exit_code, doctor({"--json"})).out), name);
  }

  // Copies the installation, so that a test can remove parts of it.
  std::string copy_installation() {
    std::filesystem::create_directories(folder_ / "copy");
    for (const char* part : {"bin", "lib"}) {
      std::filesystem::copy(build_path(part), folder_ / ("copy/" + std::string(part)),
                            std::filesystem::copy_options::recursive);
    }
    return folder_ / "copy/bin/fibshim";
  }

  std::map<std::string, std::string> environment_;
  TemporaryFolder folder_;
};

TEST_F(Doctor, FindsNothingWrongOnTheSimulatedDriver) {
  const ProgramResult result = exits(0, doctor({"--json"}));
  const auto document = parse_json(result.out);
  for (const char* name : {"driver", "shim_library", "preload", "loader_library", "record_library",
                           "settings", "config"}) {
    EXPECT_EQ(check(document, name)["status"], "ok") << check(document, name).dump();
  }
  EXPECT_CONTAINS(check(document, "driver")["detail"].get<std::string>(), build_path("sim"));
  EXPECT_CONTAINS(check(document, "driver")["detail"].get<std::string>(), "GPU 0: ");
}

TEST_F(Doctor, NamesPatternsThatFittedNoKernelOfManyThatRan) {
  copy_demo_folders(folder_.path());
  const auto patterns_after = [&](const std::string& launches) {
    LiveProgram engine({build_path("tests/hosts/engine"), "--rows=1", "--launches=10001",
                        "--pause-after=" + launches},
                       under_shim(folder_ / "a", folder_ / "stats"));
    EXPECT_TRUE(engine.read_until("paused\n")) << engine.text();
    return found("patterns", 0);
  };
  EXPECT_EQ(patterns_after("3")["status"], "ok");
  const auto patterns = patterns_after("10000");
  EXPECT_EQ(patterns["status"], "note");
  EXPECT_EQ(patterns["detail"],
            (folder_ / "a") + ": 1 pattern fitted no kernel of 1 process: torch-rms-norm-fp16");
}

TEST_F(Doctor, PrintsOneLineForEachCheck) {
  const ProgramResult result = exits(0, doctor());
  EXPECT_EQ(result.out.rfind("ok      versions: fibshim 0.1.0, glibc ", 0), 0u) << result.out;
  EXPECT_CONTAINS(result.out, "\nok      driver: ");
  EXPECT_CONTAINS(result.out, "\nok      shim_library: ");
  EXPECT_CONTAINS(result.out, " gpu_processes: ");
}

TEST_F(Doctor, SaysWhenADriverIsNoDriver) {
  std::filesystem::create_directories(folder_ / "driver");
  std::filesystem::copy_file(build_path("lib/libfibloader.so"), folder_ / "driver/libcuda.so.1");
  environment_["LD_LIBRARY_PATH"] = (folder_ / "driver") + ":" + build_path("lib");
  const auto driver = found("driver", 1);
  EXPECT_EQ(driver["status"], "error");
  EXPECT_EQ(driver["detail"], "libcuda.so.1 lacks functions that every CUDA driver has");
}

TEST_F(Doctor, SaysWhenTheDriverCannotBeLoaded) {
  write_text(folder_ / "driver/libcuda.so.1", "not a library");
  environment_["LD_LIBRARY_PATH"] = folder_ / "driver";
  const auto driver = found("driver", 1);
  EXPECT_EQ(driver["status"], "error");
  EXPECT_CONTAINS(driver["detail"].get<std::string>(), "libcuda.so.1");
  EXPECT_NE(driver["advice"], "");
}

TEST_F(Doctor, SurvivesADriverThatCrashes) {
  write_text(folder_ / "crash.c",
             "#include <stdlib.h>\n__attribute__((constructor)) void start(void) { abort(); }\n");
  std::filesystem::create_directories(folder_ / "driver");
  ASSERT_EQ(run_program({"gcc", "-shared", "-fPIC", "-o", folder_ / "driver/libcuda.so.1",
                         folder_ / "crash.c"})
                .exit_code,
            0);
  environment_["LD_LIBRARY_PATH"] = folder_ / "driver";
  EXPECT_EQ(found("driver", 1)["detail"],
            "the driver did not start: it crashed with signal 6 (Aborted)");
}

TEST_F(Doctor, SaysWhenTheShimIsMissing) {
  const std::string program = copy_installation();
  std::filesystem::remove(folder_ / "copy/lib/libfibshim.so");
  const ProgramResult result =
      exits(1, run_program({program, "doctor", "--json"}, {environment_, ""}));
  EXPECT_EQ(check(parse_json(result.out), "shim_library")["status"], "error");
  EXPECT_EQ(check(parse_json(result.out), "preload")["status"], "error");
}

TEST_F(Doctor, SaysWhenTheLoaderOrTheRecorderIsMissingOrDamaged) {
  const std::string program = copy_installation();
  for (const char* file : {"libfibloader.so", "libfibrecord.so", "libfibshadow.so"}) {
    std::filesystem::resize_file(folder_ / ("copy/lib/" + std::string(file)), 1000);
  }
  for (const bool is_missing : {false, true}) {
    const ProgramResult result =
        exits(1, run_program({program, "doctor", "--json"}, {environment_, ""}));
    for (const char* name : {"loader_library", "record_library", "shadow_library"}) {
      EXPECT_EQ(check(parse_json(result.out), name)["status"], "error") << is_missing;
    }
    std::filesystem::remove(folder_ / "copy/lib/libfibloader.so");
    std::filesystem::remove(folder_ / "copy/lib/libfibrecord.so");
    std::filesystem::remove(folder_ / "copy/lib/libfibshadow.so");
  }
}

TEST_F(Doctor, SaysWhenAPreloadedLibraryNeedsMoreThanLibc) {
  const std::string program = copy_installation();
  ASSERT_EQ(
      run_program({"patchelf", "--add-needed", "libm.so.6", folder_ / "copy/lib/libfibshim.so"})
          .exit_code,
      0);
  const ProgramResult result =
      exits(1, run_program({program, "doctor", "--json"}, {environment_, ""}));
  const auto shim = check(parse_json(result.out), "shim_library");
  EXPECT_EQ(shim["status"], "error");
  EXPECT_CONTAINS(shim["advice"].get<std::string>(), "this one needs libm.so.6") << shim.dump();
}

TEST_F(Doctor, SaysWhenTheFolderHasMistakes) {
  write_text(folder_ / "config/patterns/broken.json", "{");
  const auto config = found("config", 1);
  EXPECT_EQ(config["status"], "error");
  EXPECT_CONTAINS(config["advice"].get<std::string>(), "fibshim check");
}

TEST_F(Doctor, NotesThatNoFolderIsSet) {
  environment_.erase("FIBSHIM_CONFIG");
  EXPECT_EQ(found("config", 0)["status"], "note");
}

TEST_F(Doctor, WarnsOfSettingsThatAreNotUnderstood) {
  environment_["FIBSHIM_LOG"] = "loud";
  const auto settings = check(parse_json(doctor({"--json"}).out), "settings");
  EXPECT_EQ(settings["status"], "warning");
  EXPECT_EQ(settings["detail"], "FIBSHIM_LOG=\"loud\" is not understood");
}

TEST_F(Doctor, SaysWhenCountersCannotBeWritten) {
  write_text(folder_ / "file", "");
  environment_["FIBSHIM_STATS_DIR"] = folder_ / "file";
  EXPECT_EQ(found("stats_dir", 1)["detail"], (folder_ / "file") + " is not a folder");
}

TEST_F(Doctor, SaysThatTheShimRefusesTheStatsFolder) {
  ASSERT_EQ(mkdir((folder_ / "stats").c_str(), 0700), 0);
  EXPECT_EQ(check(parse_json(doctor({"--json"}).out), "stats_dir")["status"], "ok");
  ASSERT_EQ(chmod((folder_ / "stats").c_str(), 0777), 0);
  const auto refused = found("stats_dir", 1);
  EXPECT_EQ(refused["status"], "error");
  EXPECT_EQ(refused["detail"],
            (folder_ / "stats") +
                ": the shim keeps no counters there: other users may write there "
                "(chmod go-w, or set the sticky bit)");
  // A folder that would be created where other users could exchange it.
  environment_["FIBSHIM_STATS_DIR"] = folder_ / "stats/below";
  EXPECT_CONTAINS(found("stats_dir", 1)["detail"].get<std::string>(),
                  "other users may exchange it");
}

TEST_F(Doctor, JudgesDamagedProgramsWithoutHarm) {
  const std::string good = read_text("/bin/true");
  for (size_t i = 0; i < 40; ++i) {
    std::string bytes = i < 20 ? good.substr(0, i * 25) : good;
    // The ELF header and the program headers behind it.
    for (size_t at = 4 + i; i >= 20 && at < 600; at += 20) bytes[at] = static_cast<char>(0xff);
    write_text(folder_ / "damaged", bytes);
    ASSERT_EQ(chmod((folder_ / "damaged").c_str(), 0755), 0);
    const ProgramResult result = doctor({"--json", folder_ / "damaged"});
    EXPECT_LE(result.exit_code, 1) << i << ": " << result.err;
    check(parse_json(result.out), "program");
  }
}

TEST_F(Doctor, JudgesPrograms) {
  const auto fine = check(parse_json(doctor({"--json", "sh"}).out), "program");
  EXPECT_EQ(fine["status"], "ok");
  const ProgramResult absent = exits(1, doctor({"--json", "no-such-program-here"}));
  EXPECT_EQ(check(parse_json(absent.out), "program")["detail"], "no-such-program-here: not found");
}

// A process that has the (simulated) driver loaded and waits until its stdin ends.
TEST_F(Doctor, FindsProcessesOnTheGpuWithoutTheShim) {
  write_text(folder_ / "host.c",
             "#include <dlfcn.h>\n#include <unistd.h>\n#include <stdio.h>\n"
             "int main(void) {\n"
             "  if (!dlopen(\"libcuda.so.1\", RTLD_NOW)) { puts(dlerror()); return 1; }\n"
             "  char byte = 'x';\n"
             "  if (write(1, &byte, 1) != 1) return 1;\n"
             "  return read(0, &byte, 1) != 0;\n"
             "}\n");
  const std::string program = folder_ / "host";
  ASSERT_EQ(run_program({"gcc", "-o", program, folder_ / "host.c", "-ldl"}).exit_code, 0);
  // Each host writes a byte when it has loaded the driver. doctor runs while both wait.
  const std::string script =
      "mkfifo in out1 out2; "
      "./host <in >out1 & plain=$!; "
      "LD_PRELOAD=\"$2\" ./host <in >out2 & shimmed=$!; "
      "exec 9>in; head -c1 out1 >/dev/null; head -c1 out2 >/dev/null; "
      "\"$1\" doctor --json; code=$?; "
      "exec 9>&-; wait; echo \"$plain $shimmed\" >pids; exit $code";
  const ProgramResult result =
      exits(0, run_program({"bash", "-c", script, "-", build_path("bin/fibshim"),
                            build_path("lib/libfibshim.so")},
                           {environment_, folder_.path()}));
  const auto document = parse_json(result.out);
  std::istringstream pids(read_text(folder_ / "pids"));
  uint64_t plain = 0, shimmed = 0;
  pids >> plain >> shimmed;
  bool found_plain = false, found_shimmed = false;
  for (const auto& process : document["gpu_processes"]) {
    if (process["pid"] == plain) {
      found_plain = true;
      EXPECT_EQ(process["has_shim"], false);
      EXPECT_CONTAINS(process["reason"].get<std::string>(), "does not name the shim");
      EXPECT_EQ(process["command"], "./host");
    }
    if (process["pid"] == shimmed) {
      found_shimmed = true;
      EXPECT_EQ(process["has_shim"], true);
    }
  }
  EXPECT_TRUE(found_plain) << result.out;
  EXPECT_TRUE(found_shimmed) << result.out;
  EXPECT_EQ(check(document, "gpu_processes")["status"], "warning");
}

}  // namespace
}  // namespace fibshim::test
