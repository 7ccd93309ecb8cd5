#include "shim/registry/kept_images.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>

#include "shim/base/log.h"
#include "shim/base/process_file.h"
#include "shim/base/settings_in_force.h"

namespace fibshim {
namespace {

void warn_once(const char* folder, const char* reason) {
  static std::atomic<bool> was_warned{false};
  if (was_warned.exchange(true, std::memory_order_relaxed)) return;
  log_message(LogLevel::warn, "%s: an image is not kept: %s", folder, reason);
}

// Returns the sum of the sizes of all files in the folder.
uint64_t bytes_in(int folder) {
  const int again = openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR* const listing = again < 0 ? nullptr : fdopendir(again);
  if (listing == nullptr) {
    if (again >= 0) close(again);
    return UINT64_MAX;
  }
  uint64_t sum = 0;
  while (const dirent* const entry = readdir(listing)) {
    struct stat status;
    if (fstatat(folder, entry->d_name, &status, AT_SYMLINK_NOFOLLOW) == 0 &&
        S_ISREG(status.st_mode)) {
      sum += static_cast<uint64_t>(status.st_size);
    }
  }
  closedir(listing);
  return sum;
}

bool write_whole(int file, const char* data, uint64_t bytes) {
  while (bytes != 0) {
    const ssize_t written = write(file, data, bytes);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    data += written;
    bytes -= static_cast<uint64_t>(written);
  }
  return true;
}

}  // namespace

bool is_image_kept_for(const char* kernel) {
  const char* const glob = record_images();
  return glob[0] != 0 && fnmatch(glob, kernel, 0) == 0;
}

void keep_image(const ImageHash& hash, RecordedImage kind, const void* image, uint64_t bytes) {
  static constexpr const char* kEndings[] = {"image", "cubin", "fatbin", "ptx"};
  char path[PATH_MAX];
  expand_path(record_folder(), path, sizeof path);
  const size_t used = strlen(path);
  snprintf(path + used, sizeof path - used, "/%s", kRecordedImagesFolder);
  const char* reason = nullptr;
  const int folder = open_process_folder(path, &reason);
  if (folder < 0) return warn_once(path, reason);
  char name[80];
  char unfinished[112];
  snprintf(name, sizeof name, "xxh128-%016llx%016llx.%s",
           static_cast<unsigned long long>(hash.high), static_cast<unsigned long long>(hash.low),
           kEndings[static_cast<size_t>(kind)]);
  snprintf(unfinished, sizeof unfinished, ".%s.%d", name, static_cast<int>(gettid()));
  const uint64_t kept = bytes_in(folder);
  if (faccessat(folder, name, F_OK, 0) == 0) {
    reason = nullptr;
  } else if (kept > record_limit() || bytes > record_limit() - kept ||
             !is_within_file_limit(bytes)) {
    reason = "no room (FIBSHIM_RECORD_LIMIT)";
  } else {
    const int file = openat(folder, unfinished, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    const bool is_written = file >= 0 &&
                            write_whole(file, static_cast<const char*>(image), bytes) &&
                            renameat(folder, unfinished, folder, name) == 0;
    if (!is_written) reason = strerror(errno);
    if (file >= 0) close(file);
    if (!is_written) (void)unlinkat(folder, unfinished, 0);
  }
  close(folder);
  if (reason != nullptr) warn_once(path, reason);
}

}  // namespace fibshim
