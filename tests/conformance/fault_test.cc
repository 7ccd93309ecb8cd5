// What the shim lacks costs the substitution and no more: libc that fails at each of its calls,
// memory and descriptors that run out, full disks, a folder that changes while it is read, clocks
// that jump, signals that rain, and kills at any point. See hosts/fault_cases.cc for what the host
// makes sure of.
//
// CONFORMANCE_FAULTS=all  every single call fails once, and once for good; without it a sample does
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <thread>

#include "tests/conformance/conform_run.h"
#include "tests/support/text.h"

namespace fibshim::conformance {
namespace {

namespace fs = std::filesystem;

constexpr char kNotForARealDriver[] = "not for a real driver: it asks the simulated one what ran";

bool does_all() {
  const char* value = getenv("CONFORMANCE_FAULTS");
  return value != nullptr && strcmp(value, "all") == 0;
}

// The host's launches did what they should. Counted is either every launch, or none, where there
// could be no counters, and that was said.
void expect_walked(const HostRun& run, bool is_strict) {
  ASSERT_FALSE(run.process().timed_out) << run.process().out << run.process().err;
  ASSERT_EQ(run.process().exit_code, 0) << run.process().out << run.process().err;
  ASSERT_EQ(run.stated().size(), 1u) << run.process().out;
  SCOPED_TRACE(run.process().out + run.process().err);
  Tally stated = run.stated().begin()->second;
  Tally counts = run.counted_without_nodes();
  long launches = 0;
  for (const auto& [outcome, count] : counts) launches += count;
  if (launches == 0) {
    EXPECT_FALSE(run.messages().empty());
  } else {
    EXPECT_EQ(launches, stated["launches"]);
    EXPECT_EQ(counts["hit"], stated["hit"]);
    EXPECT_TRUE(!is_strict || counts["error"] == stated["least_errors"]) << counts["error"];
  }
  EXPECT_TRUE(stated["least_errors"] == 0 ||
              run.process().err.find("error: ") != std::string::npos);
  // One message for each thing that went wrong, however often it does.
  EXPECT_LE(run.messages().size(), 8u);
}

Environment errors_are(bool is_strict) {
  return is_strict ? Environment{} : Environment{{"FIBSHIM_ON_ERROR", "fallback"}};
}

void walk_with(const std::vector<std::string>& words, Environment environment, bool is_strict,
               const std::string& preload = shim_path()) {
  std::vector<std::string> command = {"conform"};
  command.insert(command.end(), words.begin(), words.end());
  environment.merge(errors_are(is_strict));
  expect_walked(HostRun(command, environment, preload), is_strict);
}

std::string preload_of_libc_faults() {
  return conform_path("libconform_libc_faults.so") + ":" + shim_path();
}

// ---- libc

const char* const kFunctions[] = {
#define FUNCTION(name, code) #name,
#include "tests/conformance/hosts/libc_faults.def"
#undef FUNCTION
};

class Libc : public testing::TestWithParam<const char*> {};

TEST_P(Libc, FailsAtAnyCall) {
  if (is_real_driver()) GTEST_SKIP() << kNotForARealDriver;
  const std::string function = GetParam();
  const std::string counts = make_temporary_dir() + "/counts";
  walk_with({"walk"}, {{"CONFORM_LIBC_COUNTS", counts}}, true, preload_of_libc_faults());
  long calls = -1;
  std::ifstream in(counts);
  long number = 0;
  for (std::string name; in >> name >> number;) {
    if (name == function) calls = std::max(calls, number);
  }
  ASSERT_GE(calls, 0) << "the host has not said how often it is called";
  const long step = does_all() ? 1 : std::max(1L, calls / 6);
  for (long first = 1; first <= calls + 1 && !HasFailure(); first += step) {
    for (const char* how : {"", "+"}) {
      const std::string fault = function + ":" + std::to_string(first) + how;
      SCOPED_TRACE("CONFORM_LIBC=" + fault);
      walk_with({"walk"}, {{"CONFORM_LIBC", fault}}, first % 2 == 1, preload_of_libc_faults());
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Conformance, Libc, testing::ValuesIn(kFunctions), kByItself);

TEST(Clocks, MayJump) {
  if (is_real_driver()) GTEST_SKIP() << kNotForARealDriver;
  for (const char* clock : {"clock:wall", "clock:all"}) {
    SCOPED_TRACE(clock);
    HostRun({"conform", "walk", "3"}, {{"CONFORM_LIBC", clock}}, preload_of_libc_faults())
        .expect_holds_with_faults();
  }
}

// ---- limits

TEST(Limits, NoMemoryLeft) {
  if (is_real_driver()) GTEST_SKIP() << kNotForARealDriver;
  for (int kib = 0; kib <= 8000 && !HasFailure(); kib += does_all() ? 20 : 800) {
    SCOPED_TRACE(kib);
    walk_with({"walk_limited", "memory", std::to_string(kib)}, {}, kib % 40 == 0);
  }
}

TEST(Limits, AnExecWithoutMemoryForItsNodesIsChanged) {
  if (is_real_driver()) GTEST_SKIP() << kNotForARealDriver;
  for (const char* change : {"set", "switch"}) {
    SCOPED_TRACE(change);
    HostRun({"conform", "exec_without_memory", change}).expect_holds_with_faults();
  }
}

TEST(Limits, NoDescriptorsLeft) {
  if (is_real_driver()) GTEST_SKIP() << kNotForARealDriver;
  for (int count = 0; count <= 5; ++count) {
    SCOPED_TRACE(count);
    walk_with({"walk_limited", "descriptors", std::to_string(count)}, {}, count % 2 == 0);
  }
}

// A disk of its own, in a mount namespace of its own: so small that it is full before, while or
// after the counters' file is made; or one that cannot be written.
TEST(Disks, FullOrReadOnly) {
  if (is_real_driver()) GTEST_SKIP() << kNotForARealDriver;
  if (run_shell("unshare -m mount -t tmpfs -o size=64k none /mnt").exit_code != 0) {
    GTEST_SKIP() << "mounting is not permitted here";
  }
  for (const char* options : {"size=4k", "size=8k", "size=12k", "size=16k", "size=24k", "size=64k",
                              "size=256k", "size=8m", "ro"}) {
    SCOPED_TRACE(options);
    const std::string folder = make_temporary_dir();
    Environment environment = host_environment("", folder);
    environment["PRELOADED"] = shim_path();
    const ProcessResult result = exits(
        0, run_shell("exec unshare -m sh -ec 'mount -t tmpfs -o " + std::string(options) +
                         " none " + folder + "; LD_PRELOAD=$PRELOADED " + conform_path("conform") +
                         " walk 2; " + build_dir() + "/bin/fibshim stats --json >&2'",
                     environment));
    EXPECT_CONTAINS(result.out, " hit=48 launches=96");
    // Where the counters have found room, they are whole.
    const bool was_said = result.err.find("cannot keep counters there") != std::string::npos;
    EXPECT_EQ(result.err.find("\"hit\": 56") == std::string::npos, was_said) << result.err;
  }
}

// ---- where messages go

// A pipe that nobody reads, and a file that may not grow: writing there would end the process.
TEST(Messages, ThatCannotBeWrittenEndNothing) {
  if (is_real_driver()) GTEST_SKIP() << kNotForARealDriver;
  walk_with({"without_reader", "walk"}, {{"FIBSHIM_LOG", "debug"}}, true);
  const std::string log = make_temporary_dir() + "/log";
  constexpr size_t kMost = size_t{2} << 20;  // more than the image that the host writes
  const std::string limit = "prlimit --fsize=" + std::to_string(kMost) + " ";
  std::ofstream(log) << std::string(kMost - 20, '\n');
  Environment environment = host_environment(shim_path(), make_temporary_dir());
  environment["FIBSHIM_LOG"] = "debug";
  environment["FIBSHIM_LOG_FILE"] = log;
  (void)exits(0, run_shell(limit + conform_path("conform") + " walk", environment));
  EXPECT_EQ(fs::file_size(log), kMost);
}

// ---- the config folder

// Files are written again and again while processes begin: in place, in pieces, broken ones too.
TEST(Folder, ChangesWhileItIsRead) {
  if (is_real_driver()) GTEST_SKIP() << kNotForARealDriver;
  const std::string folder = make_temporary_dir() + "/config";
  fs::copy(conform_path("config"), folder, fs::copy_options::recursive);
  std::vector<fs::path> files;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file()) files.push_back(entry.path());
  }
  ASSERT_GT(files.size(), 5u);
  std::atomic<bool> is_over{false};
  std::thread writer([&] {
    std::vector<std::string> contents;
    for (const fs::path& file : files) {
      std::ifstream in(file, std::ios::binary);
      contents.emplace_back(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
    }
    for (size_t i = 0; !is_over.load(); ++i) {
      const size_t at = i * 7 % files.size();
      const std::string& text = contents[at];
      if (i % 3 == 0) {
        std::error_code ignored;
        fs::remove(files[at], ignored);
      }
      std::ofstream out(files[at], std::ios::binary | std::ios::trunc);
      out << text.substr(0, text.size() / 2) << std::flush << text.substr(text.size() / 2);
    }
  });
  for (int i = 0; i < (does_all() ? 400 : 30) && !HasFailure(); ++i) {
    walk_with({"walk"}, {{"FIBSHIM_CONFIG", folder}}, i % 2 == 0);
  }
  is_over.store(true);
  writer.join();
  // Left alone it is good again.
  walk_with({"walk"}, {{"FIBSHIM_CONFIG", folder}}, true);
}

// ---- signals

TEST(Signals, Rain) {
  if (is_real_driver()) GTEST_SKIP() << kNotForARealDriver;
  for (const char* how : {"restart", "interrupt"}) {
    SCOPED_TRACE(how);
    HostRun({"conform", "signal_storm", how}).expect_holds_with_faults();
  }
}

// Promised for kernels that are known and launched before: the driver must allow as much.
TEST(Signals, HandlersMayLaunch) {
  if (is_real_driver()) GTEST_SKIP() << "not for a real driver: it may not be called from handlers";
  const HostRun run({"conform", "launches_from_signal_handlers"}, {{"SIMCUDA_FAST", "1"}});
  ASSERT_EQ(run.process().exit_code, 0) << run.process().out << run.process().err;
  const size_t at = run.process().out.find("launched ");
  ASSERT_NE(at, std::string::npos) << run.process().out;
  EXPECT_EQ(run.counted(), (Tally{{"hit", atol(run.process().out.c_str() + at + 9)}}));
}

// At the n-th driver call, whoever makes it. The launch in progress may have been counted and not
// made.
TEST(Kills, AtAnyPointLeaveCountsThatAreRight) {
  if (is_real_driver()) GTEST_SKIP() << kNotForARealDriver;
  for (int call = 1; call <= 700 && !HasFailure(); call += does_all() ? 1 : 37) {
    SCOPED_TRACE("call " + std::to_string(call));
    const HostRun run({"conform", "walk_until_killed"},
                      {{"SIMCUDA_CHAOS", "kill=" + std::to_string(call)}});
    ASSERT_EQ(run.process().exit_code, 137) << run.process().err;
    long launched = 0;
    long redirected = 0;
    for (const auto& [kernel, count] : run.logged()) {
      launched += count;
      if (kernel.starts_with("ran:curated")) redirected += count;
    }
    Tally counts = run.counted_without_nodes();
    long counted = 0;
    for (const auto& [outcome, count] : counts) counted += count;
    EXPECT_TRUE(counted == launched || counted == launched + 1) << counted << ", " << launched;
    EXPECT_TRUE(counts["hit"] == redirected || counts["hit"] == redirected + 1);
  }
}

// ---- the driver

TEST(Nodes, WithoutClusterAreTheHostsOwn) {
  if (is_real_driver()) GTEST_SKIP() << "not for a real driver: it makes driver calls fail";
  for (const bool is_strict : {true, false}) {
    Environment environment = errors_are(is_strict);
    environment["SIMCUDA_FAIL"] = "cuGraphKernelNodeSetAttribute=801";
    HostRun({"conform", "node_without_cluster"}, environment).expect_holds();
  }
}

}  // namespace
}  // namespace fibshim::conformance
