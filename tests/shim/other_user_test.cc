// In a folder where another user can create names, nothing of theirs makes us write elsewhere or
// lets them take our counters away. A failure costs the counters, never the host.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "tests/shim/preloaded_engine.h"
#include "tests/support/text.h"

namespace fibshim {
namespace {

namespace fs = std::filesystem;
constexpr uid_t kEve = 54321;

// A folder like /tmp, which contains a folder of ours and one of eve's.
class OtherUser : public testing::Test {
 protected:
  void SetUp() override {
    if (geteuid() != 0) GTEST_SKIP() << "needs a second user: only root can be one";
    shared_ = make_temporary_dir();
    ASSERT_EQ(chmod(shared_.c_str(), 01777), 0);
    ASSERT_EQ(mkdir(ours().c_str(), 0700), 0);
    ASSERT_EQ(mkdir(eves().c_str(), 0700), 0);
    give(eves());
  }

  std::string ours() const { return shared_ + "/ours"; }
  std::string eves() const { return shared_ + "/eves"; }
  static void give(const std::string& path) { ASSERT_EQ(lchown(path.c_str(), kEve, kEve), 0); }

  // Runs the engine with a setting that names a path. Its launch must be redirected in any case.
  static EngineRun run_with(const std::string& setting, const std::string& path) {
    const EngineRun run =
        exits(0, PreloadedEngine().run({"--hidden=128"}, pytorch_config(), {{setting, path}}));
    EXPECT_EQ(run.ran_curated(), 1) << run.process.err;
    return run;
  }
  static void expect_refusal(const EngineRun& run, const std::string& reason) {
    ASSERT_EQ(run.messages().size(), 1u) << run.process.err;
    EXPECT_CONTAINS(run.messages()[0], reason);
  }

  std::string shared_;
};

class StatsFolder : public OtherUser {};

TEST_F(StatsFolder, ThatAnotherUserHasMadeIsNotUsed) {
  expect_refusal(run_with("FIBSHIM_STATS_DIR", eves()), "it belongs to another user");
  EXPECT_TRUE(fs::is_empty(eves()));
}

TEST_F(StatsFolder, ThroughALinkOfAnotherUserIsNotUsed) {
  const std::string link = shared_ + "/link";
  fs::create_directory_symlink(ours(), link);
  for (const std::string& path : {link, link + "/"}) {
    EXPECT_TRUE(run_with("FIBSHIM_STATS_DIR", path).messages().empty());
  }
  EXPECT_FALSE(fs::is_empty(ours()));
  fs::remove_all(ours());
  ASSERT_EQ(mkdir(ours().c_str(), 0700), 0);
  give(link);
  for (const std::string& path : {link, link + "/"}) {
    expect_refusal(run_with("FIBSHIM_STATS_DIR", path), "a symbolic link of another user");
  }
  EXPECT_TRUE(fs::is_empty(ours()));
}

TEST_F(StatsFolder, ThatAnybodyCouldExchangeIsNotUsed) {
  ASSERT_EQ(chmod(shared_.c_str(), 0777), 0);
  expect_refusal(run_with("FIBSHIM_STATS_DIR", ours()), "other users may exchange it");
  EXPECT_TRUE(fs::is_empty(ours()));
}

TEST_F(StatsFolder, IsMadeForItsOwnerAlone) {
  const std::string folder = shared_ + "/new/below";
  EXPECT_TRUE(run_with("FIBSHIM_STATS_DIR", folder).messages().empty());
  struct stat status {};
  ASSERT_EQ(stat(folder.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 07777, 0700u);
  for (const auto& entry : fs::directory_iterator(folder)) {
    ASSERT_EQ(stat(entry.path().c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 07777, 0644u);
  }
}

// Eve knows the file's name before the file exists: the pid and the start time are no secrets.
TEST_F(StatsFolder, NamesThatAreTakenAreLeftAlone) {
  const std::string precious = ours() + "/precious";
  std::ofstream(precious) << "mine";
  const PreloadedEngine engine;
  Environment environment = engine.environment(pytorch_config());
  environment["FIBSHIM_STATS_DIR"] = shared_;
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    for (const auto& [name, value] : environment) setenv(name.c_str(), value.c_str(), 1);
    raise(SIGSTOP);
    const std::string program = build_dir() + "/tests/hosts/engine";
    execl(program.c_str(), "engine", "--hidden=128", nullptr);
    _exit(127);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, WUNTRACED), child);
  std::ifstream stat_file("/proc/" + std::to_string(child) + "/stat");
  std::string text{std::istreambuf_iterator<char>(stat_file), {}};
  text = text.substr(text.rfind(')') + 2);
  for (int field = 3; field < 22; ++field) text = text.substr(text.find(' ') + 1);
  const std::string name =
      shared_ + "/" + std::to_string(child) + "-" + text.substr(0, text.find(' '));
  fs::create_symlink(precious, name + ".counters");
  give(name + ".counters");
  fs::create_hard_link(precious, name + "-1.counters");
  ASSERT_EQ(kill(child, SIGCONT), 0);
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  std::string after;
  std::ifstream(precious) >> after;
  EXPECT_EQ(after, "mine");
  EXPECT_TRUE(fs::is_regular_file(fs::symlink_status(name + "-2.counters")));
}

// Runs `attack` as eve and returns its error.
int as_eve(const std::function<int()>& attack) {
  const pid_t child = fork();
  if (child == 0) {
    if (setresgid(kEve, kEve, kEve) != 0 || setresuid(kEve, kEve, kEve) != 0) _exit(255);
    errno = 0;
    _exit(attack() == 0 ? 0 : errno);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

// A file that is truncated while it is mapped would end the process. Eve cannot truncate it.
TEST_F(StatsFolder, FilesOfALiveProcessCannotBeCutTakenOrExchangedByOthers) {
  const PreloadedEngine engine;
  Environment environment = engine.environment(pytorch_config());
  environment["FIBSHIM_STATS_DIR"] = shared_;
  PausedEngine paused(environment, {"--hidden=128"});
  std::string file;
  for (const auto& entry : fs::directory_iterator(shared_)) {
    if (entry.path().extension() == ".counters") file = entry.path();
  }
  ASSERT_NE(file, "");
  const std::string mine = eves() + "/mine";
  EXPECT_EQ(as_eve([&] { return truncate(file.c_str(), 0); }), EACCES);
  EXPECT_EQ(as_eve([&] { return open(file.c_str(), O_RDWR) < 0 ? -1 : 0; }), EACCES);
  EXPECT_EQ(as_eve([&] { return unlink(file.c_str()); }), EPERM);
  EXPECT_EQ(as_eve([&] { return rename(file.c_str(), mine.c_str()); }), EPERM);
  EXPECT_EQ(as_eve([&] { return close(open(mine.c_str(), O_CREAT | O_WRONLY, 0600)); }), 0);
  EXPECT_EQ(as_eve([&] { return rename(mine.c_str(), file.c_str()); }), EPERM);
  EXPECT_EQ(as_eve([&] { return chmod(file.c_str(), 0777); }), EPERM);
  EXPECT_CONTAINS(paused.resume(), "\"ran_curated\":300");
}

TEST_F(OtherUser, RecordingsAreForTheirOwnerAlone) {
  const EngineRun run = run_with("FIBSHIM_RECORD", shared_ + "/recordings");
  int found = 0;
  for (const auto& entry : fs::directory_iterator(shared_ + "/recordings")) {
    struct stat status {};
    ASSERT_EQ(stat(entry.path().c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 07777, 0600u);
    ++found;
  }
  EXPECT_EQ(found, 1) << run.process.err;
}

class LogFile : public OtherUser {
 protected:
  // Has the shim write a message to that file.
  static EngineRun log_to(const std::string& path) {
    return PreloadedEngine().run({"--hidden=128"}, "/nonexistent/config",
                                 {{"FIBSHIM_LOG_FILE", path}});
  }
  static void expect_refusal(const std::string& path, const std::string& reason) {
    const EngineRun run = log_to(path);
    EXPECT_EQ(run.ran_original(), 1);
    ASSERT_EQ(run.messages().size(), 2u) << run.process.err;  // why, and the message itself
    EXPECT_CONTAINS(run.messages()[0], reason);
  }
};

TEST_F(LogFile, OfAnotherUserIsNotWrittenTo) {
  const std::string path = shared_ + "/log";
  std::ofstream(path) << "";
  give(path);
  ASSERT_EQ(chmod(path.c_str(), 0666), 0);
  expect_refusal(path, "it belongs to another user");
  EXPECT_EQ(fs::file_size(path), 0u);
}

TEST_F(LogFile, ThatIsAnotherNameOfOneOfOursIsNotWrittenTo) {
  const std::string precious = ours() + "/precious";
  std::ofstream(precious) << "mine";
  fs::create_symlink(precious, shared_ + "/link");
  fs::create_hard_link(precious, shared_ + "/hard");
  expect_refusal(shared_ + "/link", "Too many levels of symbolic links");
  expect_refusal(shared_ + "/hard", "it has several names");
  EXPECT_EQ(fs::file_size(precious), 4u);
}

TEST_F(LogFile, ThatIsOursIsWrittenTo) {
  const std::string path = shared_ + "/log";
  EXPECT_TRUE(log_to(path).messages().empty());
  const auto size = fs::file_size(path);
  EXPECT_GT(size, 20u);
  EXPECT_TRUE(log_to(path).messages().empty());
  EXPECT_GT(fs::file_size(path), size);
}

}  // namespace
}  // namespace fibshim
