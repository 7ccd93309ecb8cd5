// One timing at a time on a GPU, whoever runs it: `bench` holds the lock alone, `verify` shares it with
// others of its kind. The kernel lets go of it when the holder ends, however it ends.
#pragma once

#include <string>

#include "tools/base/file_descriptor.h"

namespace fibshim::judge {

class GpuLock {
 public:
  // Waits, and says so, where another holds it. `command` is named in messages.
  GpuLock(const std::string& uuid, bool is_exclusive, const char* command);

 private:
  tools::FileDescriptor fd_;
};

}  // namespace fibshim::judge
