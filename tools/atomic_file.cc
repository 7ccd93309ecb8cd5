#include "tools/atomic_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tools/file_descriptor.h"
#include "tools/terminal.h"

namespace fibshim::tools {

std::string write_file_atomically(const std::string& path, std::string_view data, mode_t mode) {
  const size_t name_at = path.rfind('/') + 1;  // npos + 1 is 0
  std::string temporary = path.substr(0, name_at) + "." + path.substr(name_at) + ".XXXXXX";
  const FileDescriptor file(mkostemp(temporary.data(), O_CLOEXEC));
  if (!file) return strerror(errno);
  // Written out before it gets its name: after a power cut an empty file must not bear it.
  if (write_all(file.get(), data) && fchmod(file.get(), mode) == 0 && fsync(file.get()) == 0 &&
      rename(temporary.c_str(), path.c_str()) == 0) {
    return "";
  }
  const std::string reason = strerror(errno);
  (void)unlink(temporary.c_str());
  return reason;
}

}  // namespace fibshim::tools
