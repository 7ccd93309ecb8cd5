#include "loader/read/file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/magic.h>
#include <linux/openat2.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>

namespace fibshim {
namespace {

// O_NONBLOCK: opening a FIFO must not wait for its writer.
constexpr int kReadFlags = O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY;

ErrorCode code_of(int error) {
  return error == ENOENT || error == ENOTDIR ? ErrorCode::file_not_found
                                             : ErrorCode::operating_system;
}

std::string error_words(int error) {
  return error == ELOOP ? "too many links, or one that comes back to itself" : strerror(error);
}

tl::unexpected<Error> cannot_read(const std::string& path, const std::string& why,
                                  ErrorCode code = ErrorCode::operating_system) {
  return fail(code, "cannot read " + path + ": " + why);
}

// Error messages do not name the file; the caller adds its name.
Result<FileContent> read_all(const FileDescriptor& file, size_t max_bytes,
                             std::string buffer = {}) {
  const auto failed = [](const std::string& why) { return fail(ErrorCode::operating_system, why); };
  struct stat status {};
  if (fstat(file.get(), &status) != 0) return failed(strerror(errno));
  if (!S_ISREG(status.st_mode)) return failed("not a regular file");
  const auto too_large = [&] {
    return failed("larger than " + std::to_string(max_bytes) + " bytes");
  };
  if (static_cast<uint64_t>(status.st_size) > max_bytes) return too_large();

  // The size may change meanwhile, so the bytes actually read count. One byte more than the size is
  // asked for: a read that returns exactly the size has reached the end.
  FileContent content{std::move(buffer), stamp_of(status, file.get())};
  std::string& bytes = content.bytes;
  const auto size = static_cast<size_t>(status.st_size);
  if (bytes.capacity() <= size) bytes.clear();  // rather than copy what is overwritten
  bytes.resize(size + 1);
  size_t filled = 0;
  while (true) {
    const ssize_t got = read(file.get(), bytes.data() + filled, bytes.size() - filled);
    if (got < 0) {
      if (errno == EINTR) continue;
      return failed(strerror(errno));
    }
    if (got == 0) break;
    filled += static_cast<size_t>(got);
    if (filled == size) break;
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

// Returns the current path of the descriptor's file, or "" without /proc.
std::string path_of(int fd) {
  const std::string link = "/proc/self/fd/" + std::to_string(fd);
  std::string path(4096, '\0');
  const ssize_t length = readlink(link.c_str(), path.data(), path.size());
  if (length <= 0 || static_cast<size_t>(length) == path.size()) return {};
  path.resize(static_cast<size_t>(length));
  return path;
}

// Follows a path as the kernel does, but one name at a time: each name is looked up in the very
// folder whose stamp was recorded in the step before.
class Walk {
 public:
  // Returns an errno or 0. A relative path starts at the working directory.
  int follow(const std::string& path) {
    std::string rest = path;
    if (path.empty()) return ENOENT;
    if (path[0] != '/') {
      char* const folder = getcwd(nullptr, 0);
      if (folder == nullptr) return errno;
      rest = folder;
      rest.append("/").append(path);
      free(folder);
      if (rest[0] != '/') return ENOENT;  // "(unreachable)...": outside of this root
    }
    if (const int error = start()) return error;
    int links = 0;
    while (!rest.empty()) {
      const size_t begin = rest.find_first_not_of('/');
      if (begin == std::string::npos) break;
      const size_t end = std::min(rest.find('/', begin), rest.size());
      const std::string name = rest.substr(begin, end - begin);
      rest.erase(0, end);
      if (name == ".") continue;
      std::string target;
      if (const int error = step(name, &target)) return error;
      if (target.empty()) continue;
      if (++links > kMaxLinks) return ELOOP;
      rest.insert(0, target.append("/"));
      if (target[0] == '/') {
        if (const int error = start()) return error;
      }
    }
    return 0;
  }

  std::vector<WayStep> move_steps_out() { return std::move(steps_); }

  // The path of the file, with links resolved: the names that the walk followed. After a link of
  // /proc there are no such names, and the kernel is asked.
  std::string path() const {
    if (has_left_names_) return path_of(at_.get());
    return path_.empty() ? "/" : path_;
  }

  // Opens the file that the path names again, with `flags`.
  FileDescriptor open_last(int flags) const {
    struct stat status {};
    struct stat opened {};
    if (fstat(at_.get(), &status) != 0) return FileDescriptor();
    if (S_ISDIR(status.st_mode)) return FileDescriptor(openat(at_.get(), ".", flags | O_CLOEXEC));
    FileDescriptor fd(openat(holder_.get(), last_name_.c_str(), flags | O_NOFOLLOW | O_CLOEXEC));
    if (!fd || fstat(fd.get(), &opened) != 0) return FileDescriptor();
    if (opened.st_dev == status.st_dev && opened.st_ino == status.st_ino) return fd;
    errno = EAGAIN;  // the file was exchanged meanwhile
    return FileDescriptor();
  }

 private:
  static constexpr int kMaxLinks = 40;  // as in the kernel
  static constexpr int kFlags = O_PATH | O_CLOEXEC;

  int start() {
    at_ = FileDescriptor(open("/", kFlags | O_DIRECTORY));
    struct stat status {};
    if (!at_ || fstat(at_.get(), &status) != 0) return errno;
    path_.clear();
    has_left_names_ = false;
    stamp_ = stamp_of(status, at_.get());
    if (steps_.empty()) steps_.push_back({"/", stamp_, {}});
    return 0;
  }

  // If `name` is a link, sets `target` to its text and stays in the link's folder.
  int step(const std::string& name, std::string* target) {
    FileDescriptor next(openat(at_.get(), name.c_str(), kFlags | O_NOFOLLOW));
    struct stat status {};
    if (!next || fstat(next.get(), &status) != 0) return errno;
    std::string path = path_;
    if (name == "..") {
      path.erase(path.empty() ? 0 : path.rfind('/'));
    } else {
      path.append("/").append(name);
    }
    if (S_ISLNK(status.st_mode)) {
      struct statfs system {};
      // Only the kernel can follow a link of /proc: its text is not a path to the target.
      if (fstatfs(at_.get(), &system) == 0 && system.f_type == PROC_SUPER_MAGIC) {
        next = FileDescriptor(openat(at_.get(), name.c_str(), kFlags));
        has_left_names_ = true;
        if (!next || fstat(next.get(), &status) != 0) return errno;
      } else {
        steps_.push_back({path, stamp_of(status), stamp_});
        char text[PATH_MAX];
        const ssize_t length = readlinkat(next.get(), "", text, sizeof text);
        if (length <= 0 || static_cast<size_t>(length) == sizeof text) return ELOOP;
        target->assign(text, static_cast<size_t>(length));
        return 0;
      }
    }
    steps_.push_back({path, stamp_of(status, next.get()), stamp_});
    path_ = std::move(path);
    stamp_ = steps_.back().stamp;
    holder_ = std::move(at_);
    last_name_ = name;
    at_ = std::move(next);
    return 0;
  }

  FileDescriptor at_;
  FileDescriptor holder_;
  std::string last_name_;
  std::string path_;
  bool has_left_names_ = false;
  FileStamp stamp_{};  // of at_
  std::vector<WayStep> steps_;
};

}  // namespace

FileStamp stamp_of(const struct stat& status, int fd) {
  FileStamp stamp{static_cast<uint64_t>(status.st_size), status.st_mode, status.st_uid,
                  status.st_gid, (status.st_mode & S_IWGRP) != 0};
  if (!stamp.may_have_acl || fd < 0) return stamp;
  const std::string path = "/proc/self/fd/" + std::to_string(fd);  // works for O_PATH, too
  const bool has_none = getxattr(path.c_str(), "system.posix_acl_access", nullptr, 0) < 0 &&
                        (errno == ENODATA || errno == EOPNOTSUPP);
  stamp.may_have_acl = !has_none;
  return stamp;
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
  if (!file) return cannot_read(path, error_words(errno), code_of(errno));
  auto content = read_all(file, max_bytes);
  if (!content) return cannot_read(path, content.error().message);
  return std::move(content->bytes);
}

Result<FileOnWay> read_with_way(const std::string& path, size_t max_bytes) {
  Walk walk;
  if (const int error = walk.follow(path)) {
    return cannot_read(path, error_words(error), code_of(error));
  }
  const FileDescriptor file = walk.open_last(kReadFlags);
  if (!file) return cannot_read(path, error_words(errno), code_of(errno));
  auto content = read_all(file, max_bytes);
  if (!content) return cannot_read(path, content.error().message);
  return FileOnWay{std::move(*content), walk.move_steps_out()};
}

bool is_lfs_pointer(std::string_view bytes) {
  return bytes.starts_with("version https://git-lfs.github.com/spec/");
}

Result<RootFolder> RootFolder::open(const std::string& path) {
  const auto failed = [](int error) { return fail(code_of(error), error_words(error)); };
  Walk walk;
  if (const int error = walk.follow(path)) return failed(error);
  RootFolder root;
  root.fd_ = walk.open_last(O_RDONLY | O_DIRECTORY);
  struct stat status {};
  if (!root.fd_ && errno == ENOTDIR) return fail(ErrorCode::operating_system, "not a folder");
  if (!root.fd_ || fstat(root.fd_.get(), &status) != 0) return failed(errno);
  root.path_ = walk.path();
  root.stamp_ = stamp_of(status, root.fd_.get());
  root.device_ = status.st_dev;
  root.inode_ = status.st_ino;
  root.way_ = walk.move_steps_out();
  return root;
}

Result<FileDescriptor> RootFolder::open_below(const std::string& relative, int flags) const {
  open_how how{};
  how.flags = static_cast<uint64_t>(flags) | O_CLOEXEC;
  how.resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS;
  FileDescriptor fd;
  // EAGAIN: something was renamed meanwhile, and the kernel cannot tell whether the path is inside.
  for (int attempt = 0; attempt < 8; ++attempt) {
    fd = FileDescriptor(
        static_cast<int>(syscall(SYS_openat2, fd_.get(), relative.c_str(), &how, sizeof how)));
    if (fd || errno != EAGAIN) break;
  }
  if (fd) return fd;
  // Kernels before 5.6 and some sandboxes lack the call, and it refuses every absolute link, even
  // one that leads back inside. In these cases the path of the opened file decides.
  const bool is_undecided =
      errno == EXDEV || errno == ENOSYS || errno == EPERM || errno == E2BIG || errno == EAGAIN;
  if (is_undecided) {
    fd = FileDescriptor(openat(fd_.get(), relative.c_str(), flags | O_CLOEXEC));
    if (fd) {
      const std::string real = path_of(fd.get());
      const std::string root = path_of(fd_.get());
      if (!real.empty() && !root.empty() && is_within(real, root)) return fd;
      return fail(ErrorCode::invalid_value,
                  path_ + "/" + relative + " lies outside the config folder");
    }
  }
  const int error = errno;
  return cannot_read(path_ + "/" + relative, error_words(error), code_of(error));
}

Result<FileContent> RootFolder::read(const std::string& relative, size_t max_bytes,
                                     std::string buffer) const {
  auto file = open_to_read(relative);
  if (!file) return tl::unexpected<Error>(std::move(file.error()));
  return read_opened(*file, relative, max_bytes, std::move(buffer));
}

Result<FileDescriptor> RootFolder::open_to_read(const std::string& relative) const {
  return open_below(relative, kReadFlags);
}

Result<FileContent> RootFolder::read_opened(const FileDescriptor& file, const std::string& relative,
                                            size_t max_bytes, std::string buffer) const {
  auto content = read_all(file, max_bytes, std::move(buffer));
  if (!content) return cannot_read(path_ + "/" + relative, content.error().message);
  return content;
}

std::optional<FileStamp> RootFolder::stamp_below(const char* relative, Links links) const {
  struct stat status {};
  const int flags = links == Links::followed ? 0 : AT_SYMLINK_NOFOLLOW;
  if (fstatat(fd_.get(), relative, &status, flags) != 0) return std::nullopt;
  return stamp_of(status);
}

}  // namespace fibshim
