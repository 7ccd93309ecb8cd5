// What happens to the counters of processes that ended: kept, swept, counted once, and never taken
// from a process that still writes them.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <thread>

#include "tests/tools/counters_file_builder.h"
#include "tests/tools/fibshim_program.h"
#include "tests/tools/live_program.h"

namespace fibshim::test {
namespace {

constexpr uint64_t kNoSuchPid = 4194399;  // beyond the largest pid_max (2^22)

class Sweep : public testing::Test {
 protected:
  // An ended process with this many hits. Returns the file's name.
  std::string add(uint64_t start_time, uint64_t hits, const std::string& definition = "d") {
    CountersFileBuilder builder(kNoSuchPid, start_time);
    builder.add_config("/config", 1);
    builder.count(builder.add_series("p", definition), Outcome::hit, hits);
    write_text(folder_ / builder.file_name(), builder.bytes());
    return builder.file_name();
  }

  ProgramResult stats(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {"stats", "--dir", folder_.path()});
    return run_fibshim(arguments);
  }

  bool exists(const std::string& name) {
    return std::filesystem::exists(std::filesystem::symlink_status(folder_ / name));
  }

  // As if the first sweep had been so long ago.
  void age(const std::string& name, int seconds) {
    timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    const timespec times[2] = {{now.tv_sec - seconds, 0}, {now.tv_sec - seconds, 0}};
    ASSERT_EQ(utimensat(AT_FDCWD, (folder_ / name).c_str(), times, 0), 0);
  }

  static std::string series(uint64_t count) {
    return "fibshim_launches_total{definition=\"d\",pattern=\"p\",outcome=\"hit\",config=\"/"
           "config\","
           "device=\"\"} " +
           std::to_string(count) + "\n";
  }

  TemporaryFolder folder_;
};

TEST_F(Sweep, KeepsAFileFromWhenItsProcessIsFirstSeenToHaveEnded) {
  const std::string name = add(1, 5);
  age(name, 100 * 3600);  // it ran that long, which says nothing of when it ended
  EXPECT_EQ(stats({}).exit_code, 0);
  ASSERT_TRUE(exists(name));
  age(name, 23 * 3600);
  EXPECT_EQ(stats({}).exit_code, 0);
  ASSERT_TRUE(exists(name));
  age(name, 25 * 3600);
  EXPECT_EQ(stats({"--no-sweep"}).exit_code, 0);
  ASSERT_TRUE(exists(name));
  EXPECT_EQ(stats({}).exit_code, 0);
  EXPECT_FALSE(exists(name));
}

TEST_F(Sweep, TheKeepTimeIsAnOption) {
  const std::string name = add(1, 5);
  EXPECT_EQ(stats({"--keep", "120m"}).exit_code, 0);
  age(name, 3600);
  EXPECT_EQ(stats({"--keep", "120m"}).exit_code, 0);
  ASSERT_TRUE(exists(name));
  age(name, 3 * 3600);
  EXPECT_EQ(stats({"--keep", "120m"}).exit_code, 0);
  EXPECT_FALSE(exists(name));
  for (const char* nonsense : {"soon", "-1", "5w", ""}) {
    EXPECT_EQ(stats({"--keep", nonsense}).exit_code, 2) << nonsense;
  }
}

TEST_F(Sweep, PrometheusGoesOnCountingWhatWasSwept) {
  add(1, 5);
  add(2, 6);
  EXPECT_NE(stats({"--prometheus", "--no-sweep"}).out.find(series(11)), std::string::npos);
  const ProgramResult swept = stats({"--prometheus", "--keep", "0"});
  EXPECT_NE(swept.out.find(series(11)), std::string::npos) << swept.out;
  EXPECT_NE(swept.out.find("\nfibshim_swept_processes_total 2\n"), std::string::npos) << swept.out;
  EXPECT_FALSE(exists("4194399-1.counters"));
  EXPECT_FALSE(exists("4194399-2.counters"));
  add(3, 7);
  EXPECT_NE(stats({"--prometheus", "--keep", "0"}).out.find(series(18)), std::string::npos);
  const auto json = parse_json(stats({"--json"}).out);
  EXPECT_EQ(json["swept"], nlohmann::json({{"processes", 3}, {"launches", 18}}));
  EXPECT_EQ(json["totals"]["hit"], 0);
}

// A file that somebody has mapped is in use, whoever it is: a process of another container, whose
// pid means nothing here.
TEST_F(Sweep, LeavesAFileThatIsStillMapped) {
  const std::string name = add(1, 5);
  const int fd = open((folder_ / name).c_str(), O_RDWR | O_CLOEXEC);
  void* const mapped = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  close(fd);
  ASSERT_NE(mapped, MAP_FAILED);
  EXPECT_EQ(stats({"--keep", "0"}).exit_code, 0);
  EXPECT_TRUE(exists(name));
  EXPECT_EQ(stats({"--clear"}).exit_code, 0);
  EXPECT_TRUE(exists(name));
  EXPECT_EQ(parse_json(stats({"--json"}).out)["processes"][0]["alive"], true);
  munmap(mapped, 4096);
  EXPECT_EQ(stats({"--keep", "0"}).exit_code, 0);
  EXPECT_FALSE(exists(name));
}

// The pid of a process that runs, with another start time: an earlier bearer.
TEST_F(Sweep, GoesByStartTimeToo) {
  CountersFileBuilder earlier(static_cast<uint64_t>(getpid()), 1);
  write_text(folder_ / earlier.file_name(), earlier.bytes());
  EXPECT_EQ(stats({"--keep", "0"}).exit_code, 0);
  EXPECT_FALSE(exists(earlier.file_name()));
}

TEST_F(Sweep, FollowsNoLinks) {
  TemporaryFolder elsewhere;
  const std::string target = elsewhere / "4194399-9.counters";
  write_text(target, CountersFileBuilder(kNoSuchPid, 9).bytes());
  std::filesystem::create_symlink(target, folder_ / "4194399-9.counters");
  std::filesystem::create_symlink(target, folder_ / "swept.json");
  EXPECT_EQ(stats({"--keep", "0"}).exit_code, 1);  // both are named as what they are
  EXPECT_TRUE(exists("4194399-9.counters"));
  struct stat status;
  ASSERT_EQ(stat(target.c_str(), &status), 0);
  EXPECT_NE(status.st_mode & 0200, 0u);  // not even marked
  EXPECT_EQ(read_text(target), CountersFileBuilder(kNoSuchPid, 9).bytes());
}

// Whoever may make names in the folder can make one for any file of that disk.
TEST_F(Sweep, TakesNoRightsFromAFileWithAnotherName) {
  TemporaryFolder elsewhere;
  const std::string target = elsewhere / "precious";
  write_text(target, CountersFileBuilder(kNoSuchPid, 9).bytes());
  std::filesystem::create_hard_link(target, folder_ / "4194399-9.counters");
  const ProgramResult result = stats({"--keep", "0"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_NE(result.err.find("4194399-9.counters: it has several names"), std::string::npos)
      << result.err;
  struct stat status;
  ASSERT_EQ(stat(target.c_str(), &status), 0);
  EXPECT_NE(status.st_mode & 0200, 0u);
  EXPECT_TRUE(exists("4194399-9.counters"));
}

TEST_F(Sweep, DoesNotGoThroughALinkOfAnotherUser) {
  if (geteuid() != 0) GTEST_SKIP() << "needs a second user: only root can be one";
  TemporaryFolder shared;
  const std::string name = add(9, 5);
  std::filesystem::create_directory_symlink(folder_.path(), shared / "link");
  const std::vector<std::string> command = {"stats", "--dir", shared / "link", "--keep", "0"};
  ASSERT_EQ(lchown((shared / "link").c_str(), 54321, 54321), 0);
  const ProgramResult result = run_fibshim(command);
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_NE(result.err.find("it is a symbolic link of another user"), std::string::npos)
      << result.err;
  EXPECT_TRUE(exists(name));
  ASSERT_EQ(lchown((shared / "link").c_str(), 0, 0), 0);
  EXPECT_EQ(run_fibshim(command).exit_code, 0);
  EXPECT_FALSE(exists(name));
}

// Root looks at what a user has made: whatever it holds, root writes nowhere else.
TEST_F(Sweep, OfAHostileFolderByRootStaysInIt) {
  if (geteuid() != 0) GTEST_SKIP() << "needs a second user: only root can be one";
  TemporaryFolder elsewhere;
  const std::string precious = elsewhere / "precious";
  write_text(precious, "mine");
  add(1, 5);
  std::filesystem::create_symlink(precious, folder_ / "4194399-2.counters");
  std::filesystem::create_hard_link(precious, folder_ / "4194399-3.counters");
  std::filesystem::create_symlink(precious, folder_ / "swept.json");
  std::filesystem::create_hard_link(precious, folder_ / "4194399-4.counters");
  ASSERT_EQ(mkfifo((folder_ / "4194399-5.counters").c_str(), 0666), 0);
  for (const auto& entry : std::filesystem::directory_iterator(folder_.path())) {
    ASSERT_EQ(lchown(entry.path().c_str(), 54321, 54321), 0);
  }
  ASSERT_EQ(lchown(precious.c_str(), 0, 0), 0);  // the hard links gave it away, too
  ASSERT_EQ(lchown(folder_.path().c_str(), 54321, 54321), 0);
  EXPECT_EQ(stats({"--keep", "0"}).exit_code, 1);
  EXPECT_EQ(stats({"--clear"}).exit_code, 1);
  EXPECT_TRUE(exists("4194399-1.counters"));
  ASSERT_EQ(lchown(folder_.path().c_str(), 0, 0), 0);
  EXPECT_EQ(stats({"--clear"}).exit_code, 0);
  EXPECT_FALSE(exists("4194399-1.counters"));
  EXPECT_EQ(read_text(precious), "mine");
  struct stat status;
  ASSERT_EQ(stat(precious.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0644u);
  EXPECT_EQ(status.st_uid, 0u);
}

TEST_F(Sweep, LeavesDamagedFilesToBeSeen) {
  write_text(folder_ / "4194399-1.counters", std::string(20000, 'x'));
  EXPECT_EQ(stats({"--keep", "0"}).exit_code, 1);
  EXPECT_TRUE(exists("4194399-1.counters"));
}

// Killed after it had written down what it was about to remove, and before it removed it.
TEST_F(Sweep, GoesOnAfterACrashWithoutCountingTwice) {
  const std::string name = add(1, 5);
  const std::string bytes = read_text(folder_ / name);
  EXPECT_EQ(stats({"--keep", "0"}).exit_code, 0);
  ASSERT_FALSE(exists(name));
  write_text(folder_ / name, bytes);
  const ProgramResult reading = stats({"--prometheus", "--no-sweep"});
  EXPECT_NE(reading.out.find(series(5)), std::string::npos) << reading.out;
  EXPECT_NE(stats({"--prometheus", "--keep", "0"}).out.find(series(5)), std::string::npos);
  EXPECT_FALSE(exists(name));
}

// Its names lead out of the folder, to what is no counters file, or to a process that runs.
TEST_F(Sweep, RemovesNoOtherFilesThanCountersOfEndedProcesses) {
  const std::string alive =
      std::to_string(getpid()) + "-" + std::to_string(start_time_of(getpid())) + ".counters";
  TemporaryFolder elsewhere;
  write_text(elsewhere / "4194399-1.counters", "mine");
  write_text(elsewhere / "precious", "mine");
  write_text(folder_ / "precious", "mine");
  write_text(folder_ / "4194399-1-x.counters", "");
  const std::string up = "../" + std::filesystem::path(elsewhere.path()).filename().string();
  std::filesystem::create_directory(folder_ / "4194399-1-");
  const auto names = [](const std::string& name) {
    return nlohmann::json({{"version", 1},
                           {"generation", 1},
                           {"processes", 0},
                           {"counts", nlohmann::json::array()},
                           {"last_files", {name}}})
        .dump();
  };
  for (const std::string& name :
       {up + "/precious", up + "/4194399-1.counters", elsewhere / "precious",
        "4194399-1-/../" + up + "/4194399-1.counters", std::string("precious"),
        std::string("4194399-1-x.counters"), std::string("swept.json")}) {
    write_text(folder_ / "swept.json", names(name));
    const ProgramResult result = stats({});
    EXPECT_EQ(result.exit_code, 1) << name;
    EXPECT_NE(result.err.find("swept.json: damaged: last_files names what is no counters file"),
              std::string::npos)
        << result.err;
  }
  write_text(folder_ / alive, CountersFileBuilder(1, 1).bytes());
  write_text(folder_ / "swept.json", names(alive));
  EXPECT_EQ(stats({}).exit_code, 0);
  EXPECT_EQ(read_text(elsewhere / "precious"), "mine");
  EXPECT_EQ(read_text(elsewhere / "4194399-1.counters"), "mine");
  EXPECT_TRUE(exists("precious"));
  EXPECT_TRUE(exists("4194399-1-x.counters"));
  EXPECT_TRUE(exists(alive));
}

TEST_F(Sweep, ASweptFileWithMoreCountsThanAreEverKeptIsRefused) {
  nlohmann::json json = {{"version", 1}, {"generation", 1}, {"processes", 0}};
  json["last_files"] = nlohmann::json::array();
  for (int i = 0; i < 20017; ++i) {
    json["counts"].push_back({{"config", ""},
                              {"device", 0},
                              {"pattern", "p"},
                              {"definition", std::to_string(i)},
                              {"outcome", 0},
                              {"count", 1}});
  }
  write_text(folder_ / "swept.json", json.dump());
  const ProgramResult result = stats({});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_NE(result.err.find("swept.json: damaged: too many counts"), std::string::npos)
      << result.err;
}

TEST_F(Sweep, ADamagedSweptFileIsNamedAndStopsSweepsUntilItIsCleared) {
  const std::string name = add(1, 5);
  for (const char* damage :
       {"{", "[]", "{\"version\": 2}", "{\"version\": 1, \"generation\": -1}"}) {
    write_text(folder_ / "swept.json", damage);
    const ProgramResult result = stats({"--keep", "0"});
    EXPECT_EQ(result.exit_code, 1);
    EXPECT_NE(result.err.find("/swept.json: "), std::string::npos) << result.err;
    EXPECT_NE(result.out.find("5 hit"), std::string::npos) << result.out;
    EXPECT_TRUE(exists(name));
  }
  EXPECT_EQ(stats({"--clear"}).exit_code, 0);
  EXPECT_FALSE(exists("swept.json"));
  EXPECT_EQ(stats({"--keep", "0"}).exit_code, 0);
}

// Readers and sweepers at once: every reading has every count exactly once.
TEST_F(Sweep, EveryReadingIsWholeWhileOthersSweep) {
  constexpr int kFiles = 40;
  for (int i = 1; i <= kFiles; ++i) add(static_cast<uint64_t>(i), 1);
  std::atomic<int> wrong{0}, readings{0};
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&, thread] {
      for (int i = 0; i < 8; ++i) {
        const std::string sweeps = thread % 2 == 0 ? "--keep" : "--max-series";
        const ProgramResult result =
            stats({"--prometheus", sweeps, thread % 2 == 0 ? "0" : "1000"});
        wrong += result.out.find(series(kFiles)) == std::string::npos ? 1 : 0;
        ++readings;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(readings, 32);
  EXPECT_FALSE(exists("4194399-1.counters"));
}

}  // namespace
}  // namespace fibshim::test
