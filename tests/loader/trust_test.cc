// Who can bring in a kernel: files that another user could write, exchange or put in the folder's
// place are refused, and the files that are read are the ones that were checked. Tests that need a
// second user run only as root.
#include <dirent.h>
#include <fcntl.h>
#include <grp.h>
#include <sched.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <sys/xattr.h>

#include <atomic>
#include <functional>
#include <thread>

#include "loader/check/check.h"
#include "tests/loader/test_folder.h"
#include "tests/support/text.h"

namespace fibshim {
namespace {

constexpr uid_t kAlice = 12345;
constexpr uid_t kEve = 54321;

std::string findings_of(const std::string& folder) {
  std::string text;
  for (const Diagnostic& diagnostic : check_folder(folder).diagnostics) {
    text += format_diagnostic(diagnostic) + "\n";
  }
  return text;
}

// Returns the result of `look` in a child that `become` has made another user.
std::string in_child(const std::function<bool()>& become,
                     const std::function<std::string()>& look) {
  int ends[2];
  if (pipe(ends) != 0) return "no pipe";
  const pid_t child = fork();
  if (child == 0) {
    const std::string said = become() ? look() : "cannot become another user";
    size_t written = 0;
    while (written < said.size()) {
      const ssize_t count = write(ends[1], said.data() + written, said.size() - written);
      if (count <= 0) _exit(1);
      written += static_cast<size_t>(count);
    }
    _exit(0);
  }
  close(ends[1]);
  std::string said;
  char buffer[4096];
  for (ssize_t got; (got = read(ends[0], buffer, sizeof buffer)) > 0;) {
    said.append(buffer, static_cast<size_t>(got));
  }
  close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0) << said;
  return said;
}

std::string findings_as(uid_t user, const std::string& folder) {
  return in_child(
      [user] { return setresgid(user, user, user) == 0 && setresuid(user, user, user) == 0; },
      [&] { return findings_of(folder); });
}

void give(const std::string& path, uid_t user, mode_t mode = 0) {
  ASSERT_EQ(lchown(path.c_str(), user, user), 0) << path;
  if (mode != 0) {
    ASSERT_EQ(chmod(path.c_str(), mode), 0) << path;
  }
}

void give_tree(const std::string& root, uid_t user) {
  give(root, user, 0755);
  for (const auto& entry : std::filesystem::recursive_directory_iterator(root)) {
    give(entry.path(), user);
  }
}

bool is_root() { return geteuid() == 0; }

#define NEEDS_ROOT() \
  if (!is_root()) GTEST_SKIP() << "needs a second user: only root can be one"

// <temporary folder>/way/config: a valid folder whose path the test controls.
class Way : public testing::Test {
 protected:
  Way() {
    std::filesystem::create_directory(top_.path("way"));
    std::filesystem::create_directory(config());
    for (const char* part : {"definitions", "solutions", "patterns"}) {
      std::filesystem::rename(top_.path(part), config() + "/" + part);
    }
    EXPECT_EQ(chmod(top_.path().c_str(), 0755), 0);
  }

  std::string way() const { return top_.path("way"); }
  std::string config() const { return way() + "/config"; }
  static std::string refusal(const std::string& place, const std::string& why,
                             const std::string& folder) {
    return place + ": error: " + why + "; " + folder + " is reached through it; " +
           (why.starts_with("writable")
                ? "take the right away (chmod go-w " + place + ")"
                : "put the config folder where nobody else can exchange it") +
           ", or say with FIBSHIM_TRUST whom to trust [untrusted]\n";
  }

  TestFolder top_;
};

TEST_F(Way, OfFoldersThatNobodyElseCanWriteIsTrusted) { EXPECT_EQ(findings_of(config()), ""); }

TEST_F(Way, ThroughAFolderThatOthersCanWriteIsRefused) {
  ASSERT_EQ(chmod(way().c_str(), 0777), 0);
  EXPECT_EQ(findings_of(config()), refusal(way(), "writable by everybody (mode 0777)", config()));
  NEEDS_ROOT();
  share(way(), 0775);
  EXPECT_EQ(findings_of(config()), refusal(way(), "writable by its group (mode 0775)", config()));
  setenv("FIBSHIM_TRUST", "group", 1);
  EXPECT_EQ(findings_of(config()), "");
  ASSERT_EQ(chmod(way().c_str(), 0777), 0);
  EXPECT_NE(findings_of(config()), "");
  setenv("FIBSHIM_TRUST", "all", 1);
  EXPECT_EQ(findings_of(config()), "");
  unsetenv("FIBSHIM_TRUST");
}

TEST_F(Way, IsLookedAtToItsEndAndMendedByOneCommand) {
  NEEDS_ROOT();
  share(top_.path(), 0775);
  share(way(), 0775);
  share(config() + "/patterns", 0775);
  EXPECT_EQ(findings_of(config()),
            top_.path() + ": error: writable by its group (mode 0775); " + config() +
                " is reached through it [untrusted]\n" + way() +
                ": error: writable by its group (mode 0775); " + config() +
                " is reached through it [untrusted]\n" + config() +
                "/patterns: error: writable by its group (mode 0775); take the right away (chmod "
                "go-w " +
                top_.path() + " " + way() + " && chmod -R go-w " + config() +
                "), or say with FIBSHIM_TRUST whom to trust [untrusted]\n");
}

// Files from a umask of 002, if every user has a group of his own.
TEST_F(Way, OfAGroupThatHasOneUserIsTrusted) {
  NEEDS_ROOT();
  const group* const own = getgrgid(0);
  if (own == nullptr || *own->gr_mem != nullptr) GTEST_SKIP() << "root's group has members";
  ASSERT_EQ(chmod(way().c_str(), 0775), 0);
  ASSERT_EQ(chmod((config() + "/patterns").c_str(), 0775), 0);
  EXPECT_EQ(findings_of(config()), "");
}

TEST(NameServices, OthersThanTheFilesMayKnowMembers) {
  for (const char* const text :
       {"passwd: files systemd\ngroup: files systemd\n", "passwd:files\n", "",
        "# passwd: ldap\ngroup: files # sss\n", "hosts: files dns\nnetgroup: nis\n",
        "group: files [SUCCESS=merge] systemd\n", "passwd\ngroup"}) {
    EXPECT_FALSE(names_other_services(text)) << text;
  }
  for (const char* const text :
       {"passwd: files sss\n", "group: files [SUCCESS=merge] ldap", "initgroups: files winbind\n",
        "  group :\tcompat\n", "passwd: files[NOTFOUND=continue]nis\n", "group: [x=y] db"}) {
    EXPECT_TRUE(names_other_services(text)) << text;
  }
}

// With a directory server, the group may have members that the files do not name.
TEST_F(Way, OfAGroupThatANameServiceMayKnowIsRefused) {
  NEEDS_ROOT();
  const group* const own = getgrgid(0);
  if (own == nullptr || *own->gr_mem != nullptr) GTEST_SKIP() << "root's group has members";
  ASSERT_EQ(chmod(way().c_str(), 0775), 0);
  const std::string services = top_.path() + "/nsswitch.conf";
  const auto findings_with = [&](const char* text) {
    std::ofstream(services) << text;
    return in_child(
        [&] {
          return unshare(CLONE_NEWNS) == 0 &&
                 mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
                 mount(services.c_str(), "/etc/nsswitch.conf", nullptr, MS_BIND, nullptr) == 0;
        },
        [&] { return findings_of(config()) + "."; });
  };
  const std::string with_files = findings_with("passwd: files\ngroup: files systemd\n");
  if (with_files != ".") GTEST_SKIP() << "mount namespaces cannot be made here";
  EXPECT_EQ(findings_with("passwd: files sss\ngroup: files sss\n"),
            refusal(way(), "writable by its group (mode 0775)", config()) + ".");
}

TEST_F(Way, IsJudgedForARelativePathToo) {
  ASSERT_EQ(chmod(way().c_str(), 0777), 0);
  const std::string before = std::filesystem::current_path();
  std::filesystem::current_path(way());
  EXPECT_CONTAINS(findings_of("config"), way() + ": error: writable by everybody");
  EXPECT_NE(findings_of("./config/../config"), "");
  std::filesystem::current_path(config());
  EXPECT_NE(findings_of("."), "");
  std::filesystem::current_path(before);
}

TEST_F(Way, ThroughAStickyFolderIsTrustedForWhatIsOursOrRoots) {
  ASSERT_EQ(chmod(way().c_str(), 01777), 0);
  EXPECT_EQ(findings_of(config()), "");
}

TEST_F(Way, ThroughAStickyFolderToAnothersFolderIsRefused) {
  NEEDS_ROOT();
  ASSERT_EQ(chmod(way().c_str(), 01777), 0);
  give_tree(config(), kAlice);
  // Whoever came first owns the name: alice, or somebody else.
  EXPECT_EQ(findings_of(config()),
            refusal(config(),
                    "owned by user 12345, who is neither root nor you, in a folder where others "
                    "can put things",
                    config()));
  EXPECT_EQ(findings_as(kAlice, config()), "");
  EXPECT_NE(findings_as(kEve, config()), "");
}

TEST_F(Way, RootTakesAUsersFolderWhereNobodyElseCouldHavePutIt) {
  NEEDS_ROOT();
  give(way(), kAlice, 0755);
  give_tree(config(), kAlice);
  EXPECT_EQ(findings_of(config()), "");
  EXPECT_EQ(findings_as(kEve, config()), "");  // she named it
}

TEST_F(Way, ThroughAnothersFolderIsRefused) {
  NEEDS_ROOT();
  give(way(), kEve, 0755);
  const std::string why =
      "owned by user 54321, who is neither root, nor the owner of what it leads to, nor you";
  EXPECT_EQ(findings_of(config()), refusal(way(), why, config()));
  EXPECT_EQ(findings_as(kEve, config()), "");
}

TEST_F(Way, ThroughALinkOfAnotherUserIsRefused) {
  NEEDS_ROOT();
  const std::string current = way() + "/current";
  std::filesystem::create_directory_symlink("config", current);
  EXPECT_EQ(findings_of(current), "");
  give(current, kEve);
  EXPECT_CONTAINS(findings_of(current), current + ": error: owned by user 54321");
  // And if a later link leads through his folder.
  give(current, 0);
  std::filesystem::create_directory(way() + "/eve");
  std::filesystem::create_directory_symlink(config(), way() + "/eve/link");
  std::filesystem::remove(current);
  std::filesystem::create_directory_symlink("eve/link", current);
  EXPECT_EQ(findings_of(current), "");
  give(way() + "/eve", kEve, 0755);
  EXPECT_CONTAINS(findings_of(current), way() + "/eve: error: owned by user 54321");
}

TEST_F(Way, IsAsLongAsTheKernelFollowsIt) {
  std::filesystem::create_directory_symlink("b", way() + "/a");
  std::filesystem::create_directory_symlink("a", way() + "/b");
  EXPECT_EQ(findings_of(way() + "/a"),
            way() + "/a: error: too many links, or one that comes back to itself [folder]\n");
  EXPECT_CONTAINS(findings_of(config() + "/none"), "No such file or directory");
  EXPECT_CONTAINS(findings_of(config() + "/patterns/engine-scale.json/x"), "Not a directory");
}

TEST_F(Way, ThroughProcLeadsToWhatTheKernelSays) {
  const int folder = open(config().c_str(), O_RDONLY | O_DIRECTORY);
  EXPECT_EQ(findings_of("/proc/self/fd/" + std::to_string(folder)), "");
  close(folder);
  EXPECT_EQ(findings_of("/proc/self/root" + config()), "");
}

// ---- files in the folder

TEST(Files, WhichAnAclLetsOthersWriteAreRefused) {
  NEEDS_ROOT();
  const TestFolder folder;
  // Version 2; user::rw-, user:54321:rw-, group::r--, mask::rw-, other::r--.
  struct Entry {
    uint16_t tag, permissions;
    uint32_t id;
  };
  struct {
    uint32_t version;
    Entry entries[5];
  } acl = {2, {{1, 6, ~0u}, {2, 6, kEve}, {4, 4, ~0u}, {16, 6, ~0u}, {32, 4, ~0u}}};
  const std::string path = folder.path(kImagePath);
  if (setxattr(path.c_str(), "system.posix_acl_access", &acl, sizeof acl, 0) != 0) {
    GTEST_SKIP() << "no ACLs here: " << strerror(errno);
  }
  EXPECT_CONTAINS(findings_of(folder.path()), path + ": error: writable by its group (mode 0664)");
}

TEST(Files, HardLinksAreAsGoodAsTheirFile) {
  const TestFolder folder;
  std::filesystem::create_directory(folder.path("blob"));
  std::filesystem::create_hard_link(folder.path(kImagePath), folder.path("blob/scale.cubin"));
  EXPECT_EQ(findings_of(folder.path()), "");
  if (!is_root()) return;
  // A link to a file of another user.
  give(folder.path("blob/scale.cubin"), kEve);
  EXPECT_CONTAINS(findings_of(folder.path()), "owned by user 54321");
}

TEST(Files, OfAnotherKindAreRefusedAndDoNotHang) {
  struct Kind {
    const char* name;
    void (*make)(const std::string& path);
  };
  const Kind kinds[] = {
      {"fifo", [](const std::string& path) { ASSERT_EQ(mkfifo(path.c_str(), 0600), 0); }},
      {"folder", [](const std::string& path) { ASSERT_EQ(mkdir(path.c_str(), 0755), 0); }},
      {"device",
       [](const std::string& path) {
         if (is_root()) (void)mknod(path.c_str(), S_IFCHR | 0600, makedev(1, 5));
       }},
      {"endless",
       [](const std::string& path) { ASSERT_EQ(symlink("/dev/zero", path.c_str()), 0); }},
  };
  for (const Kind& kind : kinds) {
    for (const char* path :
         {kPatternPath, kSolutionPath, kDefinitionPath, kImagePath, "fibshim.json"}) {
      const std::string_view name = path;
      const bool is_json = name.substr(name.size() - 5) == ".json" && name != "fibshim.json";
      if (is_json && std::string_view(kind.name) == "folder") continue;  // an ordinary folder
      const TestFolder folder;
      folder.remove(path);
      kind.make(folder.path(path));
      struct stat status {};
      if (lstat(folder.path(path).c_str(), &status) != 0) continue;  // no right to make devices
      EXPECT_NE(findings_of(folder.path()), "") << kind.name << " " << path;
    }
  }
}

TEST(Files, ThatAreHugeAndEmptyAreRefusedUnread) {
  for (const auto& [path, why] :
       {std::pair(kPatternPath, "larger than"), std::pair(kImagePath, "too large together")}) {
    const TestFolder folder;
    folder.write(path, "x");
    ASSERT_EQ(truncate(folder.path(path).c_str(), off_t{1} << 40), 0);
    EXPECT_CONTAINS(findings_of(folder.path()), why) << path;
  }
}

TEST(Files, OfJsonThatAreTooLargeTogetherAreNotReadOn) {
  const TestFolder folder;
  folder.write("patterns/0.json", "x");
  ASSERT_EQ(truncate(folder.path("patterns/0.json").c_str(), kMaxJsonBytes), 0);
  const uint64_t enough = kMaxFolderBytes / kMaxJsonBytes;
  for (uint64_t i = 1; i < enough + 10; ++i) {
    std::filesystem::create_hard_link(folder.path("patterns/0.json"),
                                      folder.path("patterns/" + std::to_string(i) + ".json"));
  }
  const CheckReport report = check_folder(folder.path());
  EXPECT_CONTAINS(
      format_diagnostic(report.diagnostics[0]) + format_diagnostic(report.diagnostics.back()),
      "too large together");
  EXPECT_LE(report.error_count, enough + 1);
}

// An image is exchanged for another one all the time, in every way that a writer has: the bytes
// that are returned are those that were hashed, or none.
TEST(Files, GivenOutAreThoseThatWereHashed) {
  const TestFolder folder;
  const LoaderApi& api = *fibloader_api(kLoaderApiVersion);
  char message[1024];
  const Snapshot* const snapshot = api.open(folder.path().c_str(), {}, message, sizeof message);
  ASSERT_NE(snapshot, nullptr) << message;
  const std::string path = folder.path(kImagePath);
  const std::string good = test_image("sm_90.cubin");
  std::string evil = good;
  evil[evil.size() / 2] ^= 1;
  folder.write("blob/evil", evil);
  folder.write("blob/good", good);
  std::atomic<bool> is_over{false};
  std::thread attacker([&] {
    for (int round = 0; !is_over; ++round) {
      const std::string content = round % 2 == 0 ? evil : good;
      switch (round % 3) {
        case 0: {  // in place
          const int file = open(path.c_str(), O_WRONLY | O_TRUNC);
          if (file >= 0) {
            (void)!write(file, content.data(), content.size());
            close(file);
          }
          break;
        }
        case 1:  // by another file
          folder.write("blob/new", content);
          (void)::rename(folder.path("blob/new").c_str(), path.c_str());
          break;
        case 2:  // by a link
          (void)unlink(path.c_str());
          (void)symlink(round % 2 == 0 ? "../../blob/evil" : "../../blob/good", path.c_str());
          break;
      }
      if (round % 3 == 2) {
        (void)unlink(path.c_str());
        folder.write(kImagePath, good);
      }
    }
  });
  uint32_t right_count = 0;
  for (int i = 0; i < 500; ++i) {
    for (uint32_t image = 0; image < 2; ++image) {
      ImageBytes bytes{};
      if (api.read_image(snapshot, 0, image, &bytes, message, sizeof message) != 0) continue;
      const std::string_view got(static_cast<const char*>(bytes.data), bytes.size);
      ASSERT_TRUE(got == good || got == test_image("sm_80.cubin"));
      right_count += got == good;
      api.release_image(&bytes);
    }
  }
  is_over = true;
  attacker.join();
  EXPECT_GT(right_count, 0u);
  api.close(snapshot);
}

// A folder below the root turns into a link that leads outside and back.
TEST(Files, AreNotReadThroughALinkThatIsSwappedIn) {
  const TestFolder folder;
  const TestFolder outside;
  outside.change(kPatternPath, "engine-scale", "outside");
  std::atomic<bool> is_over{false};
  std::thread attacker([&] {
    const std::string real = folder.path("real");
    const std::string name = folder.path("patterns");
    std::filesystem::rename(name, real);
    std::filesystem::create_directory_symlink(outside.path("patterns"), folder.path("link"));
    std::filesystem::create_directory_symlink("real", name);
    while (!is_over) {
      // Exchanges the two names atomically.
      (void)syscall(SYS_renameat2, AT_FDCWD, name.c_str(), AT_FDCWD, folder.path("link").c_str(),
                    RENAME_EXCHANGE);
    }
  });
  for (int i = 0; i < 100; ++i) {
    const CheckReport report = check_folder(folder.path());
    if (report.snapshot == nullptr) continue;
    const Snapshot& snapshot = *report.snapshot;
    for (uint32_t k = 0; k < snapshot.patterns.count; ++k) {
      ASSERT_STRNE(snapshot.text(snapshot.begin(snapshot.patterns)[k].label), "outside");
    }
  }
  is_over = true;
  attacker.join();
}

// ---- settings in a folder

TEST(FolderSettings, NeverSayWhereToWriteOrWhomToTrust) {
  for (const char* name : {"config", "stats_dir", "log_file", "record", "record_limit",
                           "record_images", "record_times", "trust", "deepbind", "FIBSHIM_TRUST"}) {
    const TestFolder folder;
    folder.write("fibshim.json", "{\"" + std::string(name) + "\": \"all\"}");
    EXPECT_CONTAINS(findings_of(folder.path()), "[unknown-setting]") << name;
    EXPECT_EQ(check_folder(folder.path()).snapshot, nullptr) << name;
  }
}

// ---- user namespaces

bool enter_user_namespace(const char* uid_map) {
  if (unshare(CLONE_NEWUSER) != 0) return false;
  const int file = open("/proc/self/uid_map", O_WRONLY);
  const bool is_written =
      file >= 0 && write(file, uid_map, strlen(uid_map)) == static_cast<ssize_t>(strlen(uid_map));
  close(file);
  return is_written;
}

TEST_F(Way, OfUsersThatTheUserNamespaceDoesNotKnowIsRefused) {
  NEEDS_ROOT();
  if (in_child([] { return enter_user_namespace("0 0 1"); }, [] { return std::string("yes"); }) !=
      "yes") {
    GTEST_SKIP() << "user namespaces cannot be made here";
  }
  // Root is mapped; alice and eve are shown with the same uid.
  const auto findings = [&] {
    return in_child([] { return enter_user_namespace("0 0 1"); },
                    [&] { return findings_of(config()); });
  };
  const std::string unknown =
      ": error: owned by a user that this user namespace does not know (shown as 65534)";
  EXPECT_EQ(findings(), "");
  give(config() + "/" + kPatternPath, kEve);
  EXPECT_EQ(findings().find(config() + "/" + kPatternPath + unknown), 0u) << findings();
  give_tree(config(), kAlice);
  EXPECT_CONTAINS(findings(), config() + unknown);
  // The namespace maps a user who is not root outside: the system's files belong to an unmapped
  // user, who is trusted, since every library is his.
  give_tree(config(), 0);
  give(way(), 0, 0755);
  EXPECT_EQ(in_child(
                [] {
                  return setresuid(kAlice, kAlice, kAlice) == 0 && prctl(PR_SET_DUMPABLE, 1) == 0 &&
                         enter_user_namespace("0 12345 1");
                },
                [&] { return findings_of(config()); }),
            "");
}

}  // namespace
}  // namespace fibshim
