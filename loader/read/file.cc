#include "loader/read/file.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <limits.h>
#include <linux/magic.h>
#include <linux/openat2.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <memory>
#include <set>

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

// Errors are those of the file at hand: who calls this names it.
Result<FileContent> read_all(const FileDescriptor& file, size_t max_bytes) {
  const auto failed = [](const std::string& why) { return fail(ErrorCode::operating_system, why); };
  struct stat status {};
  if (fstat(file.get(), &status) != 0) return failed(strerror(errno));
  if (!S_ISREG(status.st_mode)) return failed("not a regular file");
  const auto too_large = [&] {
    return failed("larger than " + std::to_string(max_bytes) + " bytes");
  };
  if (static_cast<uint64_t>(status.st_size) > max_bytes) return too_large();

  // The size may change while reading: what counts is what is there to read. One byte more is asked for
  // than there should be: what comes short of that has reached the end.
  FileContent content{{}, stamp_of(status, file.get())};
  std::string& bytes = content.bytes;
  bytes.resize(static_cast<size_t>(status.st_size) + 1);
  size_t filled = 0;
  while (true) {
    const ssize_t got = read(file.get(), bytes.data() + filled, bytes.size() - filled);
    if (got < 0) {
      if (errno == EINTR) continue;
      return failed(strerror(errno));
    }
    if (got == 0) break;
    filled += static_cast<size_t>(got);
    if (filled == static_cast<size_t>(status.st_size)) break;
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

bool is_link(const FileStamp& stamp) { return S_ISLNK(stamp.mode); }

// Follows a path as the kernel does, but one name at a time: what each name stood for when it was
// stepped on is what the next one was looked up in.
class Walk {
 public:
  // Errno, or 0. A relative path is meant from the working directory.
  int go(const std::string& path) {
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

  std::vector<WayStep> take_steps() { return std::move(steps_); }

  // Of what the path names, links resolved: the names that the walk went by. Where a link of /proc
  // leads, that has no names.
  std::string path() const {
    if (has_left_names_) return path_of(at_.get());
    return path_.empty() ? "/" : path_;
  }

  // What the path names, opened anew with `flags`.
  FileDescriptor open_last(int flags) const {
    struct stat status {};
    struct stat opened {};
    if (fstat(at_.get(), &status) != 0) return FileDescriptor();
    if (S_ISDIR(status.st_mode)) return FileDescriptor(openat(at_.get(), ".", flags | O_CLOEXEC));
    FileDescriptor fd(openat(holder_.get(), last_name_.c_str(), flags | O_NOFOLLOW | O_CLOEXEC));
    if (!fd || fstat(fd.get(), &opened) != 0) return FileDescriptor();
    if (opened.st_dev == status.st_dev && opened.st_ino == status.st_ino) return fd;
    errno = EAGAIN;  // exchanged in between
    return FileDescriptor();
  }

 private:
  static constexpr int kMaxLinks = 40;  // the kernel's
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

  // `target`: where a link leads to; the walk stays in the link's folder then.
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
      // Links of /proc lead where no text says: the kernel alone can follow them.
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

// How the users look that this user namespace does not map.
uint32_t unknown_uid() {
  FILE* const map = fopen("/proc/self/uid_map", "re");
  if (map == nullptr) return UINT32_MAX;
  unsigned overflow = 65534;
  if (FILE* const file = fopen("/proc/sys/kernel/overflowuid", "re")) {
    if (fscanf(file, "%u", &overflow) != 1) overflow = 65534;
    fclose(file);
  }
  bool is_mapped = false;
  unsigned long long first = 0;
  unsigned long long outside = 0;
  unsigned long long count = 0;
  while (fscanf(map, "%llu %llu %llu", &first, &outside, &count) == 3) {
    is_mapped = is_mapped || (overflow >= first && overflow - first < count);
  }
  fclose(map);
  return is_mapped ? UINT32_MAX : overflow;
}

// Groups that are the first group of one user, and have no other member. Read without the name service,
// which would load libraries into the host; where there is another than these files, it may know members that
// they do not, and no group is private.
std::vector<PrivateGroup> private_groups() {
  const auto services = read_file("/etc/nsswitch.conf", 1 << 16);
  if (services ? names_other_services(*services) : access("/etc/nsswitch.conf", F_OK) == 0) {
    return {};
  }
  using File = std::unique_ptr<FILE, int (*)(FILE*)>;
  char buffer[16384];  // a longer line is an error, and ends the reading
  struct Group {
    std::set<uint32_t> users;
    std::set<std::string> names;
    bool is_listed = false;
    bool has_others = false;
  };
  std::map<uint32_t, Group> groups;
  const File users(fopen("/etc/passwd", "re"), fclose);
  passwd user{};
  passwd* got_user = nullptr;
  while (users != nullptr &&
         fgetpwent_r(users.get(), &user, buffer, sizeof buffer, &got_user) == 0) {
    Group& group = groups[user.pw_gid];
    group.users.insert(user.pw_uid);
    group.names.insert(user.pw_name);
  }
  const File listed(fopen("/etc/group", "re"), fclose);
  struct group entry {};
  struct group* got = nullptr;
  while (listed != nullptr && fgetgrent_r(listed.get(), &entry, buffer, sizeof buffer, &got) == 0) {
    Group& group = groups[entry.gr_gid];
    group.is_listed = true;
    for (char** member = entry.gr_mem; *member != nullptr; ++member) {
      group.has_others = group.has_others || group.names.count(*member) == 0;
    }
  }
  // What was not read to its end may hold anybody.
  if (users == nullptr || listed == nullptr || !feof(users.get()) || !feof(listed.get())) return {};
  std::vector<PrivateGroup> found;
  for (const auto& [gid, group] : groups) {
    if (!group.is_listed || group.has_others || group.users.size() != 1) continue;
    found.push_back({gid, *group.users.begin()});
  }
  return found;
}

// Whoever is of the file's group is its owner, or this process' user.
bool is_private_group(const FileStamp& stamp, const TrustRule& rule) {
  if (stamp.may_have_acl) return false;
  return std::ranges::any_of(rule.private_groups, [&](const PrivateGroup& group) {
    return group.gid == stamp.gid && group.uid != rule.unknown_uid &&
           (group.uid == stamp.uid || group.uid == geteuid());
  });
}

bool is_system(uint32_t uid, const TrustRule& rule) { return uid == 0 || uid == rule.system_uid; }

// "owned by user 1000, who is neither root nor ...".
std::string strange_owner(uint32_t uid, const char* neither, const TrustRule& rule) {
  if (uid == rule.unknown_uid) {
    return "owned by a user that this user namespace does not know (shown as " +
           std::to_string(uid) + ")";
  }
  return "owned by user " + std::to_string(uid) + ", who is neither root" + neither;
}

// Empty when only those may write who are trusted.
std::string strange_writers(const FileStamp& stamp, const TrustRule& rule) {
  const auto mode = [&] {
    static constexpr char kDigits[] = "01234567";
    std::string digits = " (mode 0";
    for (const int shift : {6, 3, 0}) digits += kDigits[stamp.mode >> shift & 7];
    return digits + ")";
  };
  if ((stamp.mode & S_IWOTH) != 0) return "writable by everybody" + mode();
  // Of a file with an ACL these bits are the most that anybody named there has.
  if ((stamp.mode & S_IWGRP) != 0 && rule.trust == Trust::owner && !is_private_group(stamp, rule)) {
    return "writable by its group" + mode();
  }
  return {};
}

// Nothing to be said: empty.
Distrust distrust_of_step(const WayStep& step, uint32_t owner, bool is_last,
                          const TrustRule& rule) {
  const uint32_t uid = step.stamp.uid;
  const bool is_unknown = uid == rule.unknown_uid;
  const bool is_ours = is_system(uid, rule) || (uid == geteuid() && !is_unknown);
  if (!is_ours && step.holder.mode != 0 && !strange_writers(step.holder, rule).empty()) {
    return {step.path,
            strange_owner(uid, " nor you, in a folder where others can put things", rule)};
  }
  if (is_last) return {};
  if (!is_ours && (is_unknown || uid != owner)) {
    return {step.path, strange_owner(uid, ", nor the owner of what it leads to, nor you", rule)};
  }
  // With the sticky bit others can add names, but not exchange those that are there.
  if (is_link(step.stamp) || (step.stamp.mode & S_ISVTX) != 0) return {};
  return {step.path, strange_writers(step.stamp, rule), true};
}

std::vector<Distrust> distrust_of_steps(const std::vector<WayStep>& steps, const TrustRule& rule) {
  std::vector<Distrust> found;
  if (rule.trust == Trust::all) return found;
  for (const WayStep& step : steps) {
    const bool is_last = &step == &steps.back();
    Distrust distrust = distrust_of_step(step, steps.back().stamp.uid, is_last, rule);
    const bool is_known = std::ranges::any_of(
        found, [&](const Distrust& other) { return other.path == distrust.path; });
    if (!distrust.why.empty() && !is_known) found.push_back(std::move(distrust));
  }
  return found;
}

}  // namespace

FileStamp stamp_of(const struct stat& status, int fd) {
  FileStamp stamp{static_cast<uint64_t>(status.st_size), status.st_mode, status.st_uid,
                  status.st_gid, (status.st_mode & S_IWGRP) != 0};
  if (!stamp.may_have_acl || fd < 0) return stamp;
  const std::string path = "/proc/self/fd/" + std::to_string(fd);  // for O_PATH, too
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

bool is_lfs_pointer(std::string_view bytes) {
  return bytes.starts_with("version https://git-lfs.github.com/spec/");
}

Result<RootFolder> RootFolder::open(const std::string& path) {
  const auto failed = [](int error) { return fail(code_of(error), error_words(error)); };
  Walk walk;
  if (const int error = walk.go(path)) return failed(error);
  RootFolder root;
  root.fd_ = walk.open_last(O_RDONLY | O_DIRECTORY);
  struct stat status {};
  if (!root.fd_ && errno == ENOTDIR) return fail(ErrorCode::operating_system, "not a folder");
  if (!root.fd_ || fstat(root.fd_.get(), &status) != 0) return failed(errno);
  root.path_ = walk.path();
  root.stamp_ = stamp_of(status, root.fd_.get());
  root.device_ = status.st_dev;
  root.inode_ = status.st_ino;
  root.way_ = walk.take_steps();
  return root;
}

Result<FileDescriptor> RootFolder::open_below(const std::string& relative, int flags) const {
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
      return fail(ErrorCode::invalid_value,
                  path_ + "/" + relative + " lies outside the config folder");
    }
  }
  const int error = errno;
  return cannot_read(path_ + "/" + relative, error_words(error), code_of(error));
}

Result<FileContent> RootFolder::read(const std::string& relative, size_t max_bytes) const {
  auto file = open_below(relative, kReadFlags);
  if (!file) return tl::unexpected<Error>(std::move(file.error()));
  auto content = read_all(*file, max_bytes);
  if (!content) return cannot_read(path_ + "/" + relative, content.error().message);
  return content;
}

std::optional<FileStamp> RootFolder::stamp_below(const char* relative, Links links) const {
  struct stat status {};
  const int flags = links == Links::followed ? 0 : AT_SYMLINK_NOFOLLOW;
  if (fstatat(fd_.get(), relative, &status, flags) != 0) return std::nullopt;
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

bool names_other_services(std::string_view nsswitch) {
  for (size_t at = 0; at < nsswitch.size();) {
    const size_t end = std::min(nsswitch.find('\n', at), nsswitch.size());
    std::string_view line = nsswitch.substr(at, end - at);
    at = end + 1;
    line = line.substr(0, line.find('#'));
    const size_t colon = line.find(':');
    if (colon == std::string_view::npos) continue;
    constexpr std::string_view kBlanks = " \t\r";
    std::string_view database = line.substr(0, colon);
    database.remove_prefix(std::min(database.find_first_not_of(kBlanks), database.size()));
    database = database.substr(0, database.find_first_of(kBlanks));
    if (database != "passwd" && database != "group" && database != "initgroups") continue;
    std::string_view rest = line.substr(colon + 1);
    while (true) {
      rest.remove_prefix(std::min(rest.find_first_not_of(kBlanks), rest.size()));
      if (rest.empty()) break;
      const bool is_action = rest[0] == '[';  // such as [SUCCESS=merge]
      const size_t length =
          std::min(is_action ? rest.find(']') : rest.find_first_of(" \t\r["), rest.size());
      const std::string_view service = rest.substr(0, length);
      if (!is_action && service != "files" && service != "systemd") return true;
      rest.remove_prefix(std::min(length + (is_action ? 1 : 0), rest.size()));
    }
  }
  return false;
}

TrustRule trust_rule(Trust trust) {
  TrustRule rule;
  rule.trust = trust;
  if (rule.trust == Trust::all) return rule;
  struct stat status {};
  if (stat("/", &status) == 0) rule.system_uid = status.st_uid;
  rule.unknown_uid = unknown_uid();
  if (rule.trust == Trust::owner) rule.private_groups = private_groups();
  return rule;
}

std::string distrust_of(const FileStamp& stamp, const FileStamp& root, const TrustRule& rule) {
  if (rule.trust == Trust::all) return {};
  const bool is_named = stamp.uid == root.uid || stamp.uid == geteuid();
  if (!is_system(stamp.uid, rule) && (!is_named || stamp.uid == rule.unknown_uid)) {
    return strange_owner(stamp.uid, ", nor the owner of the config folder, nor you", rule);
  }
  // Everybody may put files into a folder with the sticky bit, too.
  return strange_writers(stamp, rule);
}

std::vector<Distrust> distrust_of_way(const RootFolder& root, const TrustRule& rule) {
  return distrust_of_steps(root.way(), rule);
}

Result<std::string> read_trusted_file(const std::string& path, size_t max_bytes, Trust trust) {
  Walk walk;
  if (const int error = walk.go(path)) {
    return cannot_read(path, error_words(error), code_of(error));
  }
  const FileDescriptor file = walk.open_last(kReadFlags);
  if (!file) return cannot_read(path, error_words(errno), code_of(errno));
  auto content = read_all(file, max_bytes);
  if (!content) return cannot_read(path, content.error().message);
  const TrustRule rule = trust_rule(trust);
  FileStamp own{};
  own.uid = geteuid();
  std::string why = distrust_of(content->stamp, own, rule);
  std::string place = path;
  if (why.empty()) {
    const auto distrusted = distrust_of_steps(walk.take_steps(), rule);
    if (!distrusted.empty()) {
      place = distrusted.front().path;
      why = distrusted.front().why;
    }
  }
  if (!why.empty()) return cannot_read(path, "not trusted: " + place + " is " + why);
  return std::move(content->bytes);
}

}  // namespace fibshim
