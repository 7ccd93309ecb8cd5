#include "loader/file.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <iterator>
#include <memory>
#include <string_view>

#include "shim/settings.h"

namespace fibshim {
namespace {

// O_NONBLOCK: opening a FIFO must not wait for its writer.
constexpr int kReadFlags = O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY;

ErrorCode code_of(int error) {
  return error == ENOENT || error == ENOTDIR ? ErrorCode::file_not_found
                                             : ErrorCode::operating_system;
}

tl::unexpected<Error> cannot_read(const std::string& path, const std::string& why,
                                  ErrorCode code = ErrorCode::operating_system) {
  return fail(code, "cannot read " + path + ": " + why);
}

Result<FileContent> read_all(const FileDescriptor& file, const std::string& path,
                             size_t max_bytes) {
  struct stat status {};
  if (fstat(file.get(), &status) != 0) return cannot_read(path, strerror(errno));
  if (!S_ISREG(status.st_mode)) return cannot_read(path, "not a regular file");
  const auto too_large = [&] {
    return cannot_read(path, "larger than " + std::to_string(max_bytes) + " bytes");
  };
  if (static_cast<uint64_t>(status.st_size) > max_bytes) return too_large();

  // The size may change while reading: what counts is what is there to read.
  FileContent content{{}, stamp_of(status)};
  std::string& bytes = content.bytes;
  bytes.resize(static_cast<size_t>(status.st_size) + 1);
  size_t filled = 0;
  while (true) {
    const ssize_t got = read(file.get(), bytes.data() + filled, bytes.size() - filled);
    if (got < 0) {
      if (errno == EINTR) continue;
      return cannot_read(path, strerror(errno));
    }
    if (got == 0) break;
    filled += static_cast<size_t>(got);
    if (filled > max_bytes) return too_large();
    if (filled == bytes.size()) bytes.resize(bytes.size() * 2);
  }
  bytes.resize(filled);
  return content;
}

bool is_within(std::string_view path, std::string_view folder) {
  if (folder == "/") return true;
  return path.substr(0, folder.size()) == folder &&
         (path.size() == folder.size() || path[folder.size()] == '/');
}

// Where the descriptor's file lies by now; empty without /proc.
std::string path_of(int fd) {
  const std::string link = "/proc/self/fd/" + std::to_string(fd);
  std::string path(4096, '\0');
  const ssize_t length = readlink(link.c_str(), path.data(), path.size());
  if (length <= 0 || static_cast<size_t>(length) == path.size()) return {};
  path.resize(static_cast<size_t>(length));
  return path;
}

}  // namespace

FileStamp stamp_of(const struct stat& status) {
  const auto nanoseconds = [](const timespec& time) {
    return int64_t{time.tv_sec} * 1000000000 + time.tv_nsec;
  };
  return {status.st_ino,
          static_cast<uint64_t>(status.st_size),
          nanoseconds(status.st_mtim),
          nanoseconds(status.st_ctim),
          status.st_mode,
          status.st_uid};
}

FileDescriptor& FileDescriptor::operator=(FileDescriptor&& other) noexcept {
  if (this != &other) {
    if (fd_ >= 0) close(fd_);
    fd_ = other.release();
  }
  return *this;
}

FileDescriptor::~FileDescriptor() {
  if (fd_ >= 0) close(fd_);
}

Result<std::string> read_file(const std::string& path, size_t max_bytes) {
  const FileDescriptor file(open(path.c_str(), kReadFlags));
  if (!file) return cannot_read(path, strerror(errno), code_of(errno));
  auto content = read_all(file, path, max_bytes);
  if (!content) return tl::unexpected<Error>(std::move(content.error()));
  return std::move(content->bytes);
}

Result<RootFolder> RootFolder::open(const std::string& path) {
  const auto failed = [](int error) { return fail(code_of(error), strerror(error)); };
  FileDescriptor fd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd) return failed(errno);
  struct stat status {};
  if (fstat(fd.get(), &status) != 0) return failed(errno);
  std::string real = path_of(fd.get());
  if (real.empty()) {
    const std::unique_ptr<char, decltype(&free)> resolved(realpath(path.c_str(), nullptr), &free);
    if (resolved == nullptr) return failed(errno);
    real = resolved.get();
  }
  return RootFolder(std::move(fd), std::move(real), stamp_of(status));
}

Result<FileDescriptor> RootFolder::open_below(const std::string& relative, int flags) const {
  const std::string path = path_ + "/" + relative;
  open_how how{};
  how.flags = static_cast<uint64_t>(flags) | O_CLOEXEC;
  how.resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS;
  FileDescriptor fd;
  // EAGAIN: something was renamed meanwhile, and the kernel cannot tell.
  for (int attempt = 0; attempt < 8; ++attempt) {
    fd = FileDescriptor(
        static_cast<int>(syscall(SYS_openat2, fd_.get(), relative.c_str(), &how, sizeof how)));
    if (fd || errno != EAGAIN) break;
  }
  if (fd) return fd;
  // Kernels before 5.6 and some sandboxes lack the call, and it refuses every absolute link, one
  // that ends up inside too: there, where the opened file lies decides.
  const bool is_undecided =
      errno == EXDEV || errno == ENOSYS || errno == EPERM || errno == E2BIG || errno == EAGAIN;
  if (is_undecided) {
    fd = FileDescriptor(openat(fd_.get(), relative.c_str(), flags | O_CLOEXEC));
    if (fd) {
      const std::string real = path_of(fd.get());
      const std::string root = path_of(fd_.get());
      if (!real.empty() && !root.empty() && is_within(real, root)) return fd;
      return fail(ErrorCode::invalid_value, path + " lies outside the config folder");
    }
  }
  return cannot_read(path, strerror(errno), code_of(errno));
}

Result<FileContent> RootFolder::read(const std::string& relative, size_t max_bytes) const {
  auto file = open_below(relative, kReadFlags);
  if (!file) return tl::unexpected<Error>(std::move(file.error()));
  return read_all(*file, path_ + "/" + relative, max_bytes);
}

std::optional<FileStamp> RootFolder::stamp_below(const char* relative) const {
  struct stat status {};
  if (fstatat(fd_.get(), relative, &status, 0) != 0) return std::nullopt;
  return stamp_of(status);
}

Trust trust_in_force() {
  const SettingInfo& setting = kSettings[static_cast<size_t>(SettingId::trust)];
  const char* const value = secure_getenv(setting.name);
  for (size_t i = 0; value != nullptr && i < std::size(setting.choices); ++i) {
    if (setting.choices[i] != nullptr && strcasecmp(value, setting.choices[i]) == 0) {
      return static_cast<Trust>(i);
    }
  }
  return Trust::owner;
}

std::string distrust_of(const FileStamp& stamp, const FileStamp& root, Trust trust) {
  if (trust == Trust::all) return {};
  const auto mode = [&] {
    static constexpr char kDigits[] = "01234567";
    std::string digits = " (mode 0";
    for (const int shift : {6, 3, 0}) digits += kDigits[stamp.mode >> shift & 7];
    return digits + ")";
  };
  if (stamp.uid != 0 && stamp.uid != root.uid && stamp.uid != geteuid()) {
    return "owned by user " + std::to_string(stamp.uid) +
           ", who is neither root, nor the owner of the config folder, nor you";
  }
  // Everybody may put files into a folder with the sticky bit, too.
  if ((stamp.mode & S_IWOTH) != 0) return "writable by everybody" + mode();
  if ((stamp.mode & S_IWGRP) != 0 && trust == Trust::owner) return "writable by its group" + mode();
  return {};
}

}  // namespace fibshim
