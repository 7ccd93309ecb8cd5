#include "tools/counters/ended_counters.h"

#include <time.h>

#include "shim/abi/writers.h"

namespace fibshim::tools {
namespace {

constexpr time_t kKeepSeconds = 24 * 3600;
constexpr mode_t kWriteBits = 0222;

// True if, by its name, the file belongs to a process that has ended.
bool is_of_ended_process(const std::string& name) {
  const auto identity = identity_in_file_name(name);
  return identity && !is_process_alive(identity->pid, identity->start_time);
}

FileDescriptor open_file(const OpenFolder& folder, const std::string& name) {
  return FileDescriptor(
      openat(folder.fd.get(), name.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
}

// Marks a file that is seen first. Its writer is gone, so the modification time stays as set here.
bool is_old(int fd, const struct stat& status) {
  timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if ((status.st_mode & kWriteBits) == 0) {
    return now.tv_sec - status.st_mtim.tv_sec >= kKeepSeconds;
  }
  const timespec times[2] = {now, now};
  if (futimens(fd, times) == 0) (void)fchmod(fd, status.st_mode & 0555);
  return false;
}

bool is_due(const OpenFolder& folder, const std::string& name) {
  if (!is_of_ended_process(name)) return false;
  const FileDescriptor file = open_file(folder, name);
  struct stat status;
  return file && fstat(file.get(), &status) == 0 &&
         file_fault(status, status.st_uid == geteuid()) == nullptr &&
         find_writer(file.get()) == Writer::none && is_old(file.get(), status) &&
         read_open_counters_file(file.get(), name).has_value();
}

// True if --clear deletes the file. Only a name is removed, so the file may have other hard links.
bool is_clearable(const OpenFolder& folder, const std::string& name) {
  struct stat status;
  if (!is_of_ended_process(name) ||
      fstatat(folder.fd.get(), name.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0 ||
      !S_ISREG(status.st_mode) || !is_ours_to_change(status.st_uid)) {
    return false;
  }
  const FileDescriptor file = open_file(folder, name);
  return !file || find_writer(file.get()) != Writer::some;
}

}  // namespace

void delete_old_counters(const std::string& folder) {
  const auto opened = open_counters_folder(folder);
  if (!opened || !opened->fd || !opened->change_fault.empty()) return;
  for (const std::string& name : opened->names) {
    if (is_due(*opened, name)) (void)unlinkat(opened->fd.get(), name.c_str(), 0);
  }
}

tl::expected<Removal, std::string> clear_ended_counters(const std::string& folder) {
  const auto opened = open_counters_folder(folder);
  if (!opened) return tl::unexpected(opened.error());
  if (!opened->change_fault.empty()) return tl::unexpected(opened->change_fault);
  Removal out;
  for (const std::string& name : opened->names) {
    if (!is_clearable(*opened, name)) continue;
    if (unlinkat(opened->fd.get(), name.c_str(), 0) == 0) {
      out.removed.push_back(name);
    } else if (errno != ENOENT) {
      out.kept.push_back({name, strerror(errno)});
    }
  }
  return out;
}

}  // namespace fibshim::tools
