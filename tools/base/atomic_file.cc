#include "tools/base/atomic_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fmt/format.h>

#include "tools/base/file_descriptor.h"
#include "tools/base/terminal.h"

namespace fibshim::tools {

std::string write_file_atomically(const std::string& path, std::string_view data, mode_t mode) {
  const size_t name_at = path.rfind('/') + 1;  // npos + 1 is 0
  const std::string folder = name_at == 0 ? "." : path.substr(0, name_at);
  const FileDescriptor fd(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd) return strerror(errno);
  return write_file_atomically(fd.get(), path.substr(name_at), data, mode);
}

std::string write_file_atomically(int folder_fd, const std::string& name, std::string_view data,
                                  mode_t mode) {
  constexpr int kAttempts = 100;
  std::string temporary;
  FileDescriptor file(-1);
  for (int attempt = 0; !file && attempt < kAttempts; ++attempt) {
    uint32_t random = 0;
    if (getentropy(&random, sizeof random) != 0) return strerror(errno);
    temporary = fmt::format(".{}.{:08x}", name, random);
    file = FileDescriptor(openat(folder_fd, temporary.c_str(),
                                 O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
    if (!file && errno != EEXIST) break;
  }
  if (!file) return strerror(errno);
  // Written out before it gets its name: after a power cut an empty file must not bear it.
  if (write_all(file.get(), data) && fchmod(file.get(), mode) == 0 && fsync(file.get()) == 0 &&
      renameat(folder_fd, temporary.c_str(), folder_fd, name.c_str()) == 0) {
    return "";
  }
  std::string reason = strerror(errno);
  (void)unlinkat(folder_fd, temporary.c_str(), 0);
  return reason;
}

}  // namespace fibshim::tools
