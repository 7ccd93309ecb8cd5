// A lock between processes, so that nothing else of ours runs on a GPU while `bench` times on it.
// `bench` holds it alone; several `verify` may share it. The kernel releases it when the holder
// ends, however it ends.
#pragma once

#include <string>

#include "tools/base/file_descriptor.h"

namespace fibshim::judge {

class GpuLock {
 public:
  // Waits, with a message, while another process holds the lock. `command` is named in messages.
  GpuLock(const std::string& uuid, bool is_exclusive, const char* command);

 private:
  tools::FileDescriptor fd_;
};

}  // namespace fibshim::judge
