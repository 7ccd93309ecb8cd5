#include "shim/base/process_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "shim/abi/writers.h"

namespace fibshim {
namespace {

// Makes a folder. Returns 0, or the errno of the failure.
int make_folder(const char* path) {
  if (mkdir(path, 0700) == 0 || errno == EEXIST) return 0;
  if (errno != ENOENT) return errno;
  char part[PATH_MAX];
  snprintf(part, sizeof part, "%s", path);
  for (char* slash = strchr(part + 1, '/'); slash != nullptr; slash = strchr(slash + 1, '/')) {
    *slash = 0;
    (void)mkdir(part, 0755);
    *slash = '/';
  }
  return mkdir(path, 0700) == 0 ? 0 : errno;
}

}  // namespace

int open_process_folder(const char* given, const char** reason) {
  char path[PATH_MAX];
  size_t length = strlen(given);
  while (length > 1 && given[length - 1] == '/') --length;
  if (length >= sizeof path) length = 0;
  memcpy(path, given, length);
  path[length] = 0;
  const int fault = make_folder(path);
  const int folder = open_folder(path, reason);
  if (folder < 0) {
    if (*reason == nullptr) {
      *reason = errno == ENOTDIR                ? "not a folder"
                : errno == ENOENT && fault != 0 ? strerror(fault)
                                                : strerror(errno);
    }
    return -1;
  }
  struct stat status;
  *reason = fstat(folder, &status) != 0 ? strerror(errno) : folder_fault(status);
  if (*reason == nullptr) *reason = exchange_fault(path);
  if (*reason == nullptr) return folder;
  close(folder);
  return -1;
}

int create_process_file(const char* folder, uint64_t start_time, const char* suffix, mode_t mode,
                        ProcessFile* file, const char** reason) {
  const int opened_folder = open_process_folder(folder, reason);
  if (opened_folder < 0) return -1;
  int opened = -1;
  for (int program = 0; opened < 0; ++program) {
    char number[16] = "";
    if (program > 0) snprintf(number, sizeof number, "-%d", program);
    const int length = snprintf(file->path, sizeof file->path, "%s/%d-%llu%s%s", folder,
                                static_cast<int>(getpid()),
                                static_cast<unsigned long long>(start_time), number, suffix);
    if (length < 0 || static_cast<size_t>(length) >= sizeof file->path) {
      *reason = strerror(ENAMETOOLONG);
      break;
    }
    opened = openat(opened_folder, strrchr(file->path, '/') + 1,
                    O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, mode);
    if (opened < 0 && (errno != EEXIST || program == 1000)) {
      *reason = strerror(errno);
      break;
    }
  }
  close(opened_folder);
  if (opened < 0) return -1;
  struct stat status;
  if (fstat(opened, &status) != 0) {
    *reason = strerror(errno);
    (void)unlink(file->path);
    close(opened);
    return -1;
  }
  file->device = status.st_dev;
  file->inode = status.st_ino;
  return opened;
}

int reopen_process_file(const ProcessFile& file) {
  const int opened = open(file.path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
  if (opened < 0) return -1;
  struct stat status;
  if (fstat(opened, &status) != 0 || status.st_dev != file.device || status.st_ino != file.inode) {
    close(opened);
    return -1;
  }
  return opened;
}

bool reserve_file_range(int file, uint64_t at, uint64_t bytes) {
  int result;
  do {
    result = posix_fallocate(file, static_cast<off_t>(at), static_cast<off_t>(bytes));
  } while (result == EINTR);
  if (result != 0) errno = result;
  return result == 0;
}

bool is_within_file_limit(uint64_t bytes) {
  rlimit limit;
  return getrlimit(RLIMIT_FSIZE, &limit) != 0 || bytes <= limit.rlim_cur;
}

uint64_t process_start_time(const char* pid) {
  char text[1024];
  snprintf(text, sizeof text, "/proc/%s/stat", pid);
  const int file = open(text, O_RDONLY | O_CLOEXEC);
  if (file < 0) return 0;
  const ssize_t length = read(file, text, sizeof text - 1);
  close(file);
  if (length <= 0) return 0;
  text[length] = 0;
  const char* at = strrchr(text, ')');  // the command's name may contain any character
  for (int field = 2; at != nullptr && field < 22; ++field) at = strchr(at + 1, ' ');
  return at == nullptr ? 0 : strtoull(at + 1, nullptr, 10);
}

uint64_t unix_time_ns() {
  timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1000000000u + static_cast<uint64_t>(now.tv_nsec);
}

void read_executable(char* out, size_t out_size) {
  const ssize_t length = readlink("/proc/self/exe", out, out_size - 1);
  out[length < 0 ? 0 : length] = 0;
}

void read_command_line(char* out, size_t out_size) {
  out[0] = 0;
  const int file = open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
  if (file < 0) return;
  const ssize_t length = read(file, out, out_size - 1);
  close(file);
  if (length <= 0) return;
  for (ssize_t i = 0; i + 1 < length; ++i) {
    if (out[i] == 0) out[i] = ' ';
  }
  out[length] = 0;
}

}  // namespace fibshim
