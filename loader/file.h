// Reads whole files, with a bound. Only regular files are read: a FIFO or device below a config
// folder must not hang an engine.
//
// What lies below a config folder is reached through a RootFolder, which opens nothing outside:
// neither "..", nor a link, nor a link that is exchanged in between leads out. The stamp of a file
// is taken from the descriptor that its bytes come from.
#ifndef FIBSHIM_LOADER_FILE_H_
#define FIBSHIM_LOADER_FILE_H_

#include <stddef.h>
#include <stdint.h>

#include <optional>
#include <string>
#include <utility>

#include "loader/result.h"

struct stat;

namespace fibshim {

inline constexpr size_t kMaxJsonBytes = size_t{16} << 20;    // one JSON file
inline constexpr size_t kMaxImageBytes = size_t{512} << 20;  // one cubin, fatbin or PTX file

// What tells that a file or folder has changed, and who may change it. A plain struct without
// padding: the index stores it as it is.
struct FileStamp {
  uint64_t inode;
  uint64_t size_bytes;
  int64_t mtime_ns;
  int64_t ctime_ns;
  uint32_t mode;  // with the file's type
  uint32_t uid;

  bool operator==(const FileStamp&) const = default;
};

FileStamp stamp_of(const struct stat& status);

struct FileContent {
  std::string bytes;
  FileStamp stamp;
};

// The file's bytes. Fails with file_not_found when it does not exist, with operating_system when
// it cannot be read, is not a regular file or is larger than `max_bytes`; the message names the
// path.
Result<std::string> read_file(const std::string& path, size_t max_bytes);

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

  // Fails with file_not_found or operating_system; the message is the system's.
  static Result<RootFolder> open(const std::string& path);

  const std::string& path() const { return path_; }  // absolute, links resolved
  const FileStamp& stamp() const { return stamp_; }  // as of open()

  // Opens what lies at `relative`. invalid_value: it would lie outside the folder.
  Result<FileDescriptor> open_below(const std::string& relative, int flags) const;

  // As read_file().
  Result<FileContent> read(const std::string& relative, size_t max_bytes) const;

  // The stamp of what `relative` names, through links, and nothing of what it holds: may look
  // outside. Nothing when there is none.
  std::optional<FileStamp> stamp_below(const char* relative) const;

 private:
  RootFolder(FileDescriptor fd, std::string path, const FileStamp& stamp)
      : fd_(std::move(fd)), path_(std::move(path)), stamp_(stamp) {}

  FileDescriptor fd_;
  std::string path_;
  FileStamp stamp_{};
};

// Who may be able to write a file that is trusted: FIBSHIM_TRUST.
enum class Trust : uint8_t {
  owner,  // root, the folder's owner and this process' user
  group,  // and the files' groups
  all,    // anybody
};

// FIBSHIM_TRUST; `owner` when it is not set or not understood.
Trust trust_in_force();

// Why the file or folder is not trusted, such as "writable by its group (mode 0664)"; empty when it
// is. `root`: the config folder itself, whose owner is trusted.
std::string distrust_of(const FileStamp& stamp, const FileStamp& root, Trust trust);

}  // namespace fibshim

#endif  // FIBSHIM_LOADER_FILE_H_
