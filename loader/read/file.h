// Reads whole files, with a bound. Only regular files are read: a FIFO or device below a config
// folder must not hang an engine.
//
// Files below a config folder are opened through a RootFolder, which opens nothing outside:
// neither "..", nor a link, nor a link that is exchanged meanwhile leads out. The stamp of a file
// is taken from the descriptor that its bytes come from. The folder itself is reached one name at a
// time, and each step is recorded: whoever can write there decides which folder the path names.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "loader/read/limits.h"
#include "loader/read/result.h"

struct stat;

namespace fibshim {

// The owner, permissions and size of a file or folder.
struct FileStamp {
  uint64_t size_bytes;
  uint32_t mode;  // with the file's type
  uint32_t uid;
  uint32_t gid;
  bool may_have_acl;  // group-writable, and the group bits may be the mask of an ACL
};

// `fd`: descriptor of the file that `status` describes (may be O_PATH), or -1 if none is open.
FileStamp stamp_of(const struct stat& status, int fd = -1);

struct FileContent {
  std::string bytes;
  FileStamp stamp;
};

// A folder or link on the way from "/" to the file that a path names. That file is the last step.
struct WayStep {
  std::string path;
  FileStamp stamp;
  FileStamp holder;  // the folder that contains it; mode 0 for "/" itself
};

// Returns the file's bytes. Fails with file_not_found if it does not exist, and with
// operating_system if it cannot be read, is not a regular file or is larger than `max_bytes`. The
// message names the path.
Result<std::string> read_file(const std::string& path, size_t max_bytes);

// A file, and the folders and links that led to it.
struct FileOnWay {
  FileContent content;
  std::vector<WayStep> way;
};

// Fails as read_file() does.
Result<FileOnWay> read_with_way(const std::string& path, size_t max_bytes);

// True if the bytes are the placeholder that git-lfs leaves until it fetches the file.
bool is_lfs_pointer(std::string_view bytes);
inline constexpr char kLfsPointer[] =
    "a Git LFS pointer in place of the file; run \"git lfs pull\"";

// Owns a descriptor and closes it.
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

// A config folder that is held open. It stays the same folder if a link in its path is repointed.
class RootFolder {
 public:
  RootFolder() = default;  // no folder: every call fails

  // Fails with file_not_found or operating_system, with the system's message. All members describe
  // the folder that is held open, even if `path` is exchanged meanwhile.
  static Result<RootFolder> open(const std::string& path);

  const std::string& path() const { return path_; }  // absolute, links resolved
  const FileStamp& stamp() const { return stamp_; }  // as of open()
  uint64_t device() const { return device_; }        // st_dev and st_ino
  uint64_t inode() const { return inode_; }
  const std::vector<WayStep>& way() const { return way_; }

  // Opens the file or folder at `relative`. Fails with invalid_value if it lies outside the folder.
  Result<FileDescriptor> open_below(const std::string& relative, int flags) const;

  // Fails as read_file() does, and as open_below() does. `buffer`: its memory becomes that of the
  // bytes. In two steps: read_opened() takes what open_to_read() has returned for `relative`.
  Result<FileContent> read(const std::string& relative, size_t max_bytes,
                           std::string buffer = {}) const;
  Result<FileDescriptor> open_to_read(const std::string& relative) const;
  Result<FileContent> read_opened(const FileDescriptor& file, const std::string& relative,
                                  size_t max_bytes, std::string buffer = {}) const;

  // Returns the stamp of what `relative` names, or nothing if nothing is there. Links may lead
  // outside the folder, so callers get the stamp only, never contents.
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
