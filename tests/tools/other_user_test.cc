// Files that another user puts into a counters folder cannot make a reader, above all root,
// remove, repoint or believe anything that does not belong to that user.
#include <fcntl.h>
#include <linux/futex.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <functional>

#include "tests/support/text.h"
#include "tests/tools/counters_file_builder.h"
#include "tests/tools/live_program.h"

namespace fibshim::test {
namespace {

namespace fs = std::filesystem;
constexpr uid_t kEve = 54321;
constexpr uid_t kBob = 54322;

void give(const std::string& path, uid_t user) {
  ASSERT_EQ(lchown(path.c_str(), user, user), 0) << path;
}

uid_t owner_of(const std::string& path) {
  struct stat status {};
  EXPECT_EQ(lstat(path.c_str(), &status), 0) << path;
  return status.st_uid;
}

// Pretends to be a process under the shim: has a counters file, and answers requests.
class Answering {
 public:
  using Act = std::function<void(int file, ControlBlock* block, uint32_t ask)>;

  static void say_moved(int, ControlBlock* block, uint32_t ask) {
    __atomic_store_n(&block->answer, control_word(control_number(ask), AnswerState::moved),
                     __ATOMIC_RELEASE);
  }

  Answering(const std::string& folder, const std::string& configured, uid_t user,
            const Act& act = say_moved) {
    int go[2];
    EXPECT_EQ(pipe(go), 0);
    pid_ = fork();
    if (pid_ == 0) {
      if (user != 0 && (setresgid(user, user, user) != 0 || setresuid(user, user, user) != 0)) {
        _exit(1);
      }
      char byte;
      if (read(go[0], &byte, 1) != 1) _exit(1);
      const int file = open(path(folder, getpid()).c_str(), O_RDWR);
      void* const at = mmap(nullptr, sizeof(ControlBlock), PROT_READ | PROT_WRITE, MAP_SHARED, file,
                            CountersFileBuilder::kControlAt);
      if (at == MAP_FAILED) _exit(1);
      auto* const block = static_cast<ControlBlock*>(at);
      for (;;) {
        const uint32_t ask = __atomic_load_n(&block->ask, __ATOMIC_ACQUIRE);
        if (control_state<AskVerb>(ask) == AskVerb::none) {
          syscall(SYS_futex, &block->ask, FUTEX_WAIT, ask, nullptr, nullptr, 0);
          continue;
        }
        act(file, block, ask);
        for (;;) pause();
      }
    }
    CountersFileBuilder builder(static_cast<uint64_t>(pid_), start_time_of(pid_));
    builder.control.status.version = 2;
    builder.control.status.has_watcher = 1;
    CountersFileBuilder::copy(builder.control.status.configured, configured);
    file_ = path(folder, pid_);
    write_text(file_, builder.bytes());
    if (user != 0) give(file_, user);
    EXPECT_EQ(::write(go[1], "x", 1), 1);
    close(go[0]);
    close(go[1]);
  }
  ~Answering() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  Answering(const Answering&) = delete;
  Answering& operator=(const Answering&) = delete;

  pid_t pid() const { return pid_; }
  const std::string& file() const { return file_; }

 private:
  static std::string path(const std::string& folder, pid_t pid) {
    return folder + "/" + std::to_string(pid) + "-" + std::to_string(start_time_of(pid)) +
           ".counters";
  }

  pid_t pid_;
  std::string file_;
};

// A folder like /tmp, in which root has counters, too.
class OtherUsersCounters : public testing::Test {
 protected:
  void SetUp() override {
    if (geteuid() != 0) GTEST_SKIP() << "needs a second user: only root can be one";
    ASSERT_EQ(chmod(top_.path().c_str(), 0755), 0);
    ASSERT_EQ(mkdir(shared().c_str(), 0700), 0);
    ASSERT_EQ(chmod(shared().c_str(), 01777), 0);
    for (const char* name : {"a", "b"}) {
      fs::copy(build_path("config/demo"), top_ / name, fs::copy_options::recursive);
    }
  }

  std::string shared() const { return top_ / "shared"; }

  // Adds the counters file of a process that has ended, with this many hits.
  static std::string add(const std::string& folder, uint64_t start_time, uint64_t hits,
                         uid_t user) {
    CountersFileBuilder builder(kNoSuchPid, start_time);
    builder.count(builder.add_series("p", "d"), Outcome::hit, hits);
    std::string path = folder + "/" + builder.file_name();
    write_text(path, builder.bytes());
    give(path, user);
    return path;
  }

  static ProgramResult stats(const std::string& folder, std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {"stats", "--dir", folder});
    return run_fibshim(arguments);
  }

  // Runs fibshim as that user. Returns nothing if the user has no access to this build.
  static std::optional<ProgramResult> fibshim_as(uid_t user, std::vector<std::string> arguments) {
    const std::string id = std::to_string(user);
    const std::vector<std::string> as_user = {
        "setpriv", "--reuid", id, "--regid", id, "--clear-groups", "--", "/usr/bin/test", "-x"};
    std::vector<std::string> look = as_user;
    look.push_back(build_path("bin/fibshim"));
    if (run_program(look).exit_code != 0) return std::nullopt;
    std::vector<std::string> command(as_user.begin(), as_user.end() - 2);
    command.push_back(build_path("bin/fibshim"));
    command.insert(command.end(), arguments.begin(), arguments.end());
    return run_program(command);
  }

  ProgramResult swap(std::vector<std::string> arguments) const {
    arguments.insert(arguments.begin(), {"swap", top_ / "b", "--wait=20", "--dir", shared()});
    return run_fibshim(arguments);
  }

  // Makes a link in a folder that only `folder_owner` can write to. Returns its path.
  std::string link(const std::string& name, uid_t folder_owner, uid_t link_owner) const {
    const std::string folder = top_ / name;
    EXPECT_EQ(mkdir(folder.c_str(), 0755), 0);
    fs::create_directory_symlink(top_ / "a", folder + "/link");
    give(folder + "/link", link_owner);
    give(folder, folder_owner);
    return folder + "/link";
  }

  TemporaryFolder top_;
};

// ---- reading and deleting

TEST_F(OtherUsersCounters, AFolderOfAnotherUserIsReadAndLeftAsItIs) {
  const std::string folder = top_ / "eves";
  ASSERT_EQ(mkdir(folder.c_str(), 0755), 0);
  const std::string counters = add(folder, 1, 5, kEve);
  give(folder, kEve);
  const ProgramResult reading = exits(0, stats(folder, {"--json"}));
  EXPECT_EQ(parse_json(reading.out)["totals"]["hit"], 5);
  for (const std::vector<std::string>& arguments :
       {std::vector<std::string>{"stats", "--clear", "--dir", folder},
        std::vector<std::string>{"swap", "--off", "--dir", folder}}) {
    EXPECT_CONTAINS(exits(1, run_fibshim(arguments)).err, ": it belongs to another user\n");
  }
  EXPECT_TRUE(fs::exists(counters));
}

TEST_F(OtherUsersCounters, AFolderThatOthersCanWriteInIsReadAndLeftAsItIs) {
  ASSERT_EQ(chmod(shared().c_str(), 0777), 0);
  const std::string counters = add(shared(), 1, 5, 0);
  EXPECT_EQ(parse_json(stats(shared(), {"--json"}).out)["totals"]["hit"], 5);
  EXPECT_CONTAINS(exits(1, stats(shared(), {"--clear"})).err, "other users may write there");
  EXPECT_TRUE(fs::exists(counters));
}

TEST_F(OtherUsersCounters, TheDefaultFolderOfAnotherUserIsNotRead) {
  const std::string folder = "/dev/shm/fibshim-" + std::to_string(kEve);
  if (fs::exists(folder) || mkdir(folder.c_str(), 0755) != 0) {
    GTEST_SKIP() << "cannot make " << folder;
  }
  const std::string counters = add(folder, 1, 5, kBob);
  give(folder, kBob);
  const auto result = fibshim_as(kEve, {"stats"});
  const auto owner = fibshim_as(kBob, {"stats", "--dir", folder, "--json"});
  fs::remove_all(folder);
  if (!result) GTEST_SKIP() << "another user cannot reach this build";
  EXPECT_EQ(result->exit_code, 1);
  EXPECT_EQ(result->err, "fibshim stats: " + folder + ": it belongs to another user\n");
  EXPECT_EQ(parse_json(owner->out)["totals"]["hit"], 5);
}

TEST_F(OtherUsersCounters, InASharedFolderEachUsesHisOwn) {
  const std::string roots = add(shared(), 1, 1, 0);
  const std::string eves = add(shared(), 2, 10, kEve);
  const std::string bobs = add(shared(), 3, 100, kBob);
  const auto reading = fibshim_as(kEve, {"stats", "--dir", shared(), "--json"});
  if (!reading) GTEST_SKIP() << "another user cannot reach this build";
  EXPECT_EQ(reading->exit_code, 0) << reading->err;
  EXPECT_EQ(reading->err, "fibshim stats: 1 file of other users is left out\n");
  EXPECT_EQ(parse_json(reading->out)["totals"]["hit"], 11);
  EXPECT_EQ(fibshim_as(kEve, {"stats", "--dir", shared(), "--clear"})->exit_code, 0);
  EXPECT_TRUE(fs::exists(roots));
  EXPECT_FALSE(fs::exists(eves));
  EXPECT_TRUE(fs::exists(bobs));
  EXPECT_EQ(parse_json(stats(shared(), {"--json"}).out)["totals"]["hit"], 101);
  // When the files are a day old, each user deletes only their own, root too.
  for (const std::string& path : {roots, bobs}) {
    ASSERT_EQ(chmod(path.c_str(), 0444), 0);
    const timespec times[2] = {{1, 0}, {1, 0}};
    ASSERT_EQ(utimensat(AT_FDCWD, path.c_str(), times, 0), 0);
  }
  EXPECT_EQ(stats(shared(), {}).exit_code, 0);
  EXPECT_FALSE(fs::exists(roots));
  EXPECT_TRUE(fs::exists(bobs));
  EXPECT_EQ(fibshim_as(kBob, {"stats", "--dir", shared()})->exit_code, 0);
  EXPECT_FALSE(fs::exists(bobs));
}

TEST_F(OtherUsersCounters, AFileThatClaimsAProcessOfAnotherUserIsRefused) {
  CountersFileBuilder builder(static_cast<uint64_t>(getpid()), start_time_of(getpid()));
  const std::string path = shared() + "/" + builder.file_name();
  write_text(path, builder.bytes());
  give(path, kEve);
  EXPECT_CONTAINS(
      exits(1, stats(shared(), {})).err,
      "it says that it is of process " + std::to_string(getpid()) + ", which is another user's");
}

// ---- swapping

TEST_F(OtherUsersCounters, RootRepointsALinkForItsOwnerWhoKeepsIt) {
  const std::string path = link("home", kEve, kEve);
  const Answering process(shared(), path, kEve);
  (void)exits(0, swap({"--link"}));
  EXPECT_EQ(fs::read_symlink(path), top_ / "b");
  EXPECT_EQ(owner_of(path), kEve);
}

TEST_F(OtherUsersCounters, RootRepointsNoLinkOfOneUserForAnother) {
  const std::string path = link("home", kBob, kBob);
  const Answering process(shared(), path, kEve);
  const ProgramResult result = exits(1, swap({"--link"}));
  EXPECT_EQ(result.out, "");  // no process was asked
  EXPECT_CONTAINS(result.err,
                  "cannot repoint it: a process of another user than the link's owner "
                  "names it");
  EXPECT_EQ(fs::read_symlink(path), top_ / "a");
}

TEST_F(OtherUsersCounters, RootRepointsNoLinkInAFolderThatOthersWrite) {
  const std::string of_other = link("one", kBob, kEve);
  const std::string open_to_all = link("two", kEve, kEve);
  ASSERT_EQ(chmod(fs::path(open_to_all).parent_path().c_str(), 01777), 0);
  for (const std::string& path : {of_other, open_to_all}) {
    const Answering process(shared(), path, kEve);
    EXPECT_CONTAINS(exits(1, swap({"--link", "--pid", std::to_string(process.pid())})).err,
                    "cannot repoint it: others than its owner can write in the folder");
    EXPECT_EQ(fs::read_symlink(path), top_ / "a");
  }
}

TEST_F(OtherUsersCounters, ACountersFileThatOthersCanWriteIsNotAskedThrough) {
  const Answering process(shared(), "", 0);
  ASSERT_EQ(chmod(process.file().c_str(), 0666), 0);
  EXPECT_EQ(exits(1, swap({})).out, "pid " + std::to_string(process.pid()) +
                                        ": no_access: other users can write its counters file\n");
}

// The file is truncated while the asking process has it mapped. That once ended it with SIGBUS.
TEST_F(OtherUsersCounters, AFileThatIsCutWhileItIsAskedCostsItsOwnAnswerOnly) {
  const Answering cut(shared(), "", kEve,
                      [](int file, ControlBlock*, uint32_t) { (void)ftruncate(file, 0); });
  const Answering whole(shared(), "", kBob);
  const ProgramResult result = exits(1, swap({}));
  EXPECT_CONTAINS(result.out, "pid " + std::to_string(cut.pid()) +
                                  ": no_access: its counters file was cut short meanwhile\n");
  EXPECT_CONTAINS(result.out, "pid " + std::to_string(whole.pid()) + ": moved from no folder to ");
}

}  // namespace
}  // namespace fibshim::test
