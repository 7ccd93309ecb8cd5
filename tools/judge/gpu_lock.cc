#include "tools/judge/gpu_lock.h"

#include <sys/file.h>

#include "tools/base/terminal.h"

namespace fibshim::judge {

using tools::FileDescriptor;
using tools::print_message;

GpuLock::GpuLock(const std::string& uuid, bool is_exclusive, const char* command) : fd_(-1) {
  const std::string path = "/tmp/fibshim-" + uuid + ".lock";
  // First without O_CREAT, which fails on another user's file in a folder with the sticky bit.
  int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
  if (fd < 0) fd = open(path.c_str(), O_RDONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644);
  fd_ = FileDescriptor(fd);
  const int wanted = is_exclusive ? LOCK_EX : LOCK_SH;
  if (!fd_) {
    print_message(command, fmt::format("no lock on the GPU: {}: {}", path, strerror(errno)));
  } else if (flock(fd_.get(), wanted | LOCK_NB) != 0) {
    print_message(command, "waiting for another fibshim that uses this GPU (" + path + ")");
    while (flock(fd_.get(), wanted) != 0 && errno == EINTR) {
    }
  }
}

}  // namespace fibshim::judge
