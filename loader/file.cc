#include "loader/file.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

namespace fibshim {
namespace {

class FileDescriptor {
 public:
  explicit FileDescriptor(int fd) : fd_(fd) {}
  ~FileDescriptor() {
    if (fd_ >= 0) close(fd_);
  }
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

}  // namespace

Result<std::string> read_file(const std::string& path, size_t max_bytes) {
  // O_NONBLOCK: opening a FIFO must not wait for its writer.
  const FileDescriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (file.get() < 0) {
    const bool is_missing = errno == ENOENT || errno == ENOTDIR;
    return fail(is_missing ? ErrorCode::file_not_found : ErrorCode::operating_system,
                "cannot read " + path + ": " + strerror(errno));
  }
  struct stat status {};
  if (fstat(file.get(), &status) != 0) {
    return fail(ErrorCode::operating_system, "cannot read " + path + ": " + strerror(errno));
  }
  if (!S_ISREG(status.st_mode)) {
    return fail(ErrorCode::operating_system, "cannot read " + path + ": not a regular file");
  }
  const auto too_large = [&] {
    return fail(ErrorCode::operating_system,
                "cannot read " + path + ": larger than " + std::to_string(max_bytes) + " bytes");
  };
  if (static_cast<uint64_t>(status.st_size) > max_bytes) return too_large();

  // The size may change while reading: what counts is what is there to read.
  std::string bytes;
  bytes.resize(static_cast<size_t>(status.st_size) + 1);
  size_t filled = 0;
  while (true) {
    const ssize_t got = read(file.get(), bytes.data() + filled, bytes.size() - filled);
    if (got < 0) {
      if (errno == EINTR) continue;
      return fail(ErrorCode::operating_system, "cannot read " + path + ": " + strerror(errno));
    }
    if (got == 0) break;
    filled += static_cast<size_t>(got);
    if (filled > max_bytes) return too_large();
    if (filled == bytes.size()) bytes.resize(bytes.size() * 2);
  }
  bytes.resize(filled);
  return bytes;
}

}  // namespace fibshim
