// The counters files of processes that ended are kept for a day, and then deleted by the next
// `stats` or `serve` of their owner. A file that a process still writes is never deleted.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <filesystem>

#include "tests/support/text.h"
#include "tests/tools/counters_file_builder.h"
#include "tests/tools/live_program.h"

namespace fibshim::test {
namespace {

class EndedCounters : public testing::Test {
 protected:
  // Adds the file of an ended process with this many hits. Returns the file's name.
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

  // Changes the file as if the first sweep had been so many seconds ago.
  void age(const std::string& name, int seconds) {
    timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    const timespec times[2] = {{now.tv_sec - seconds, 0}, {now.tv_sec - seconds, 0}};
    ASSERT_EQ(utimensat(AT_FDCWD, (folder_ / name).c_str(), times, 0), 0);
  }

  // Marks the file by a first call, and then makes it more than a day old.
  void mark_and_age(const std::string& name) {
    (void)stats({});
    age(name, 25 * 3600);
  }

  TemporaryFolder folder_;
};

TEST_F(EndedCounters, StayADayFromWhenTheirEndIsFirstSeen) {
  const std::string name = add(1, 5);
  age(name, 100 * 3600);  // made long ago, which does not tell when the process ended
  EXPECT_EQ(stats({}).exit_code, 0);
  ASSERT_TRUE(exists(name));
  age(name, 23 * 3600);
  EXPECT_EQ(stats({}).exit_code, 0);
  ASSERT_TRUE(exists(name));
  age(name, 25 * 3600);
  EXPECT_EQ(parse_json(stats({"--json"}).out)["totals"]["hit"], 0);
  EXPECT_FALSE(exists(name));
}

TEST_F(EndedCounters, HaveTheLabelsOfTheirProcessInPrometheus) {
  add(1, 5);
  add(2, 6);
  const std::string text = stats({"--prometheus"}).out;
  for (const char* expected :
       {"pid=\"4194399\",start_time=\"1\"} 5\n", "pid=\"4194399\",start_time=\"2\"} 6\n"}) {
    EXPECT_CONTAINS(text, expected);
  }
}

TEST_F(EndedCounters, TheOldOptionsSayWhatToUseInstead) {
  for (const char* option : {"--keep=12h", "--no-sweep"}) {
    for (const char* command : {"stats", "serve", "top"}) {
      EXPECT_CONTAINS(exits(2, run_fibshim({command, option})).err, " was removed: ");
    }
  }
}

// A file that any process has mapped is in use: for example by a process in another container,
// whose pid means nothing here.
TEST_F(EndedCounters, StayWhileTheyAreMapped) {
  const std::string name = add(1, 5);
  const int fd = open((folder_ / name).c_str(), O_RDWR | O_CLOEXEC);
  void* const mapped = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  close(fd);
  ASSERT_NE(mapped, MAP_FAILED);
  mark_and_age(name);
  EXPECT_EQ(stats({}).exit_code, 0);
  EXPECT_TRUE(exists(name));
  EXPECT_EQ(stats({"--clear"}).exit_code, 0);
  EXPECT_TRUE(exists(name));
  EXPECT_EQ(parse_json(stats({"--json"}).out)["processes"][0]["alive"], true);
  munmap(mapped, 4096);
  EXPECT_EQ(stats({"--clear"}).exit_code, 0);
  EXPECT_FALSE(exists(name));
}

// The pid belongs to a running process with another start time: the file is of an earlier process.
TEST_F(EndedCounters, GoByStartTimeToo) {
  CountersFileBuilder earlier(static_cast<uint64_t>(getpid()), 1);
  write_text(folder_ / earlier.file_name(), earlier.bytes());
  mark_and_age(earlier.file_name());
  EXPECT_EQ(stats({}).exit_code, 0);
  EXPECT_FALSE(exists(earlier.file_name()));
}

// Only regular counters files are marked or deleted, and no link is followed.
TEST_F(EndedCounters, NothingElseIsDeletedOrMarked) {
  TemporaryFolder elsewhere;
  const std::string bytes = CountersFileBuilder(kNoSuchPid, 9).bytes();
  write_text(elsewhere / "link", bytes);
  write_text(elsewhere / "hard", bytes);
  std::filesystem::create_symlink(elsewhere / "link", folder_ / "4194399-2.counters");
  std::filesystem::create_hard_link(elsewhere / "hard", folder_ / "4194399-3.counters");
  ASSERT_EQ(mkfifo((folder_ / "4194399-4.counters").c_str(), 0666), 0);
  std::filesystem::create_directory(folder_ / "4194399-5.counters");
  write_text(folder_ / "4194399-6.counters", std::string(20000, 'x'));
  write_text(folder_ / "4194399-7-x.counters", bytes);
  write_text(folder_ / "precious", bytes);
  const std::string alive =
      std::to_string(getpid()) + "-" + std::to_string(start_time_of(getpid())) + ".counters";
  write_text(folder_ / alive, CountersFileBuilder(1, 1).bytes());
  const auto age_all = [&] {
    for (const auto& entry : std::filesystem::directory_iterator(folder_.path())) {
      if (!entry.is_symlink() && entry.is_regular_file()) age(entry.path().filename(), 25 * 3600);
    }
  };
  age_all();
  const ProgramResult result = exits(1, stats({}));
  EXPECT_CONTAINS(result.err, "4194399-2.counters: it is a symbolic link");
  EXPECT_CONTAINS(result.err, "4194399-3.counters: it has several names");
  age_all();
  EXPECT_EQ(stats({}).exit_code, 1);
  for (const std::string& name :
       {std::string("4194399-2.counters"), std::string("4194399-3.counters"),
        std::string("4194399-4.counters"), std::string("4194399-5.counters"),
        std::string("4194399-6.counters"), std::string("4194399-7-x.counters"),
        std::string("precious"), alive}) {
    EXPECT_TRUE(exists(name)) << name;
  }
  for (const char* name : {"link", "hard"}) {
    struct stat status;
    ASSERT_EQ(stat((elsewhere / name).c_str(), &status), 0);
    EXPECT_NE(status.st_mode & 0200, 0u) << name;
    EXPECT_EQ(read_text(elsewhere / name), bytes);
  }
}

TEST_F(EndedCounters, AreNotReachedThroughALinkOfAnotherUser) {
  if (geteuid() != 0) GTEST_SKIP() << "needs a second user: only root can be one";
  TemporaryFolder shared;
  const std::string name = add(9, 5);
  std::filesystem::create_directory_symlink(folder_.path(), shared / "link");
  const std::vector<std::string> command = {"stats", "--dir", shared / "link", "--clear"};
  ASSERT_EQ(lchown((shared / "link").c_str(), 54321, 54321), 0);
  EXPECT_CONTAINS(exits(1, run_fibshim(command)).err, "it is a symbolic link of another user");
  EXPECT_TRUE(exists(name));
  ASSERT_EQ(lchown((shared / "link").c_str(), 0, 0), 0);
  EXPECT_EQ(run_fibshim(command).exit_code, 0);
  EXPECT_FALSE(exists(name));
}

// Root clears a folder of another user. Whatever is there, root touches nothing elsewhere.
TEST_F(EndedCounters, OfAHostileFolderAreClearedByRootWithinIt) {
  if (geteuid() != 0) GTEST_SKIP() << "needs a second user: only root can be one";
  TemporaryFolder elsewhere;
  const std::string precious = elsewhere / "precious";
  write_text(precious, "mine");
  add(1, 5);
  std::filesystem::create_symlink(precious, folder_ / "4194399-2.counters");
  std::filesystem::create_hard_link(precious, folder_ / "4194399-3.counters");
  ASSERT_EQ(mkfifo((folder_ / "4194399-5.counters").c_str(), 0666), 0);
  for (const auto& entry : std::filesystem::directory_iterator(folder_.path())) {
    ASSERT_EQ(lchown(entry.path().c_str(), 54321, 54321), 0);
  }
  ASSERT_EQ(lchown(precious.c_str(), 0, 0), 0);  // the loop changed its owner through the hard link
  ASSERT_EQ(lchown(folder_.path().c_str(), 54321, 54321), 0);
  EXPECT_EQ(stats({}).exit_code, 1);
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

}  // namespace
}  // namespace fibshim::test
