// Who may write: the one rule that the shim, the loader and the command ask (shim/abi/writers.h).
#include "shim/abi/writers.h"

#include <stdlib.h>

#include <filesystem>
#include <string>

#include <gtest/gtest.h>

namespace fibshim {
namespace {

struct stat status_of(mode_t mode, uid_t owner, nlink_t names = 1) {
  struct stat out {};
  out.st_mode = mode;
  out.st_uid = owner;
  out.st_nlink = names;
  return out;
}

std::string text(const char* fault) { return fault == nullptr ? "" : fault; }

class WritersOfFolders : public testing::Test {
 protected:
  WritersOfFolders() {
    std::string name = testing::TempDir() + "writers-XXXXXX";
    EXPECT_NE(mkdtemp(name.data()), nullptr);
    top_ = name;
  }
  ~WritersOfFolders() override { std::filesystem::remove_all(top_); }

  std::string top_;
};

TEST(Writers, AreReadFromTheMode) {
  EXPECT_EQ(writers_of(0755), Writers::owner);
  EXPECT_EQ(writers_of(0775), Writers::group);
  EXPECT_EQ(writers_of(0757), Writers::everybody);
  EXPECT_EQ(writers_of(0777), Writers::everybody);
}

TEST(Writers, OfAFolderOfOursAreItsOwnerUnlessItKeepsNames) {
  const uid_t us = geteuid();
  EXPECT_EQ(text(folder_fault(status_of(S_IFDIR | 0755, us))), "");
  EXPECT_EQ(text(folder_fault(status_of(S_IFDIR | 0755, 0))), "");
  EXPECT_EQ(text(folder_fault(status_of(S_IFDIR | 0755, us + 1))), "it belongs to another user");
  for (const mode_t mode : {0775, 0757, 0777}) {
    EXPECT_EQ(text(folder_fault(status_of(S_IFDIR | mode, us))),
              "other users may write there (chmod go-w, or set the sticky bit)");
    EXPECT_EQ(text(folder_fault(status_of(S_IFDIR | S_ISVTX | mode, us))), "");
  }
}

TEST(Writers, OfAFileAreKnownWhereItIsRegularAndHasOneName) {
  const uid_t us = geteuid();
  EXPECT_EQ(text(file_fault(status_of(S_IFREG | 0644, us), true)), "");
  EXPECT_EQ(text(file_fault(status_of(S_IFREG | 0644, us), false)), "it belongs to another user");
  EXPECT_EQ(text(file_fault(status_of(S_IFIFO | 0644, us), true)), "it is not a regular file");
  for (const nlink_t names : {0, 2}) {
    EXPECT_EQ(text(file_fault(status_of(S_IFREG | 0644, us, names), true)),
              "it has several names (hard links), or none");
  }
}

TEST_F(WritersOfFolders, AboveCouldExchangeOne) {
  const std::string above = top_ + "/above";
  ASSERT_EQ(mkdir(above.c_str(), 0755), 0);
  const std::string fault =
      "other users may exchange it: everybody may write in the folder that it lies in";
  for (const std::string& folder : {above + "/folder", above + "/folder//"}) {
    ASSERT_EQ(chmod(above.c_str(), 0777), 0);
    EXPECT_EQ(text(exchange_fault(folder.c_str())), fault) << folder;
    ASSERT_EQ(chmod(above.c_str(), 01777), 0);
    EXPECT_EQ(text(exchange_fault(folder.c_str())), "") << folder;
    ASSERT_EQ(chmod(above.c_str(), 0775), 0);
    EXPECT_EQ(text(exchange_fault(folder.c_str())), "") << folder;
  }
  ASSERT_EQ(chmod(above.c_str(), 0777), 0);
  ASSERT_EQ(chdir(above.c_str()), 0);
  EXPECT_EQ(text(exchange_fault("folder")), fault);
  EXPECT_EQ(text(exchange_fault("/")), "");
  ASSERT_EQ(chdir("/"), 0);
}

TEST_F(WritersOfFolders, OpenOneThroughALinkOfTheirOwn) {
  const std::string folder = top_ + "/folder";
  const std::string link = top_ + "/link";
  ASSERT_EQ(mkdir(folder.c_str(), 0755), 0);
  ASSERT_EQ(symlink(folder.c_str(), link.c_str()), 0);
  const auto opens = [](const std::string& path, const char** fault) {
    const int opened = open_folder(path.c_str(), fault);
    const int failure = errno;
    if (opened >= 0) close(opened);
    errno = failure;
    return opened >= 0;
  };
  const char* fault = nullptr;
  EXPECT_TRUE(opens(folder, &fault));
  EXPECT_TRUE(opens(link, &fault));
  EXPECT_FALSE(opens(top_ + "/none", &fault));
  EXPECT_EQ(text(fault), "");
  EXPECT_EQ(errno, ENOENT);
  if (geteuid() != 0) GTEST_SKIP() << "only root gives files away";
  ASSERT_EQ(lchown(link.c_str(), 1, 1), 0);
  EXPECT_FALSE(opens(link, &fault));
  EXPECT_EQ(text(fault), "it is a symbolic link of another user");
}

}  // namespace
}  // namespace fibshim
