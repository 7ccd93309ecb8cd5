// Reads whole files, with a bound. Only regular files are read: a FIFO or device below a config
// folder must not hang an engine.
//
// What lies below a config folder is reached through a RootFolder, which opens nothing outside:
// neither "..", nor a link, nor a link that is exchanged in between leads out. The stamp of a file
// is taken from the descriptor that its bytes come from. The folder itself is reached step by step,
// and what was stepped on is kept: who can write there decides which folder the path names.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "loader/read/limits.h"
#include "loader/read/result.h"

struct stat;

namespace fibshim {

// Who may change a file or folder, and how large it is.
struct FileStamp {
  uint64_t size_bytes;
  uint32_t mode;  // with the file's type
  uint32_t uid;
  uint32_t gid;
  bool may_have_acl;  // of a file that its group can write: the group's right may be others'
};

// `fd`: the file that the status is of, O_PATH or not; -1: not at hand.
FileStamp stamp_of(const struct stat& status, int fd = -1);

struct FileContent {
  std::string bytes;
  FileStamp stamp;
};

// A folder or link on the way from "/" to what a path names, which comes last.
struct WayStep {
  std::string path;
  FileStamp stamp;
  FileStamp holder;  // the folder that it was found in; of "/" itself mode 0
};

// The file's bytes. Fails with file_not_found when it does not exist, with operating_system when
// it cannot be read, is not a regular file or is larger than `max_bytes`; the message names the
// path.
Result<std::string> read_file(const std::string& path, size_t max_bytes);

// A file, and the folders and links that led to it.
struct FileOnWay {
  FileContent content;
  std::vector<WayStep> way;
};

// As read_file().
Result<FileOnWay> read_with_way(const std::string& path, size_t max_bytes);

// What stands in a file's place until git-lfs gets it.
bool is_lfs_pointer(std::string_view bytes);
inline constexpr char kLfsPointer[] =
    "a Git LFS pointer in place of the file; run \"git lfs pull\"";

// Closes a descriptor.
class FileDescriptor {
 public:
  explicit FileDescriptor(int fd = -1) : fd_(fd) {}
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(other.release()) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept;
  ~FileDescriptor();

  explicit operator bool() const { return fd_ >= 0; }
  int get() const { return fd_; }
  int release() {
    const int fd = fd_;
    fd_ = -1;
    return fd;
  }

 private:
  int fd_;
};

// A config folder that is held open: it stays this one when the link that led here is repointed.
class RootFolder {
 public:
  RootFolder() = default;  // none: everything fails

  // Fails with file_not_found or operating_system; the message is the system's. What it tells of the
  // folder is the folder's that is held, whatever becomes of `path` meanwhile.
  static Result<RootFolder> open(const std::string& path);

  const std::string& path() const { return path_; }  // absolute, links resolved
  const FileStamp& stamp() const { return stamp_; }  // as of open()
  uint64_t device() const { return device_; }        // st_dev and st_ino
  uint64_t inode() const { return inode_; }
  const std::vector<WayStep>& way() const { return way_; }

  // Opens what lies at `relative`. invalid_value: it would lie outside the folder.
  Result<FileDescriptor> open_below(const std::string& relative, int flags) const;

  // As read_file().
  Result<FileContent> read(const std::string& relative, size_t max_bytes) const;

  // The stamp of what `relative` names, and nothing of what it holds: links may lead outside.
  // Nothing when there is none.
  enum class Links : uint8_t { followed, kept };  // kept: the stamp of a link itself
  std::optional<FileStamp> stamp_below(const char* relative, Links links = Links::followed) const;

 private:
  FileDescriptor fd_;
  std::string path_;
  FileStamp stamp_{};
  uint64_t device_ = 0;
  uint64_t inode_ = 0;
  std::vector<WayStep> way_;
};

}  // namespace fibshim
