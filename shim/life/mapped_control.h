// The control block of a process of this user, mapped from its counters file
// (abi/control_format.h). Used only by the watcher.
#pragma once

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shim/abi/control_format.h"
#include "shim/abi/counters_format.h"
#include "shim/abi/writers.h"
#include "shim/base/settings_in_force.h"
#include "shim/counters/counters_file.h"

namespace fibshim {

// Must be closed explicitly, since it may be a global, which nothing destroys.
class MappedControl {
 public:
  constexpr MappedControl() = default;

  // Returns null, or why it cannot be opened.
  const char* open(const char* file_name) {
    close();
    char path[PATH_MAX];
    if (file_name[0] == 0 || file_name[0] == '.' || strchr(file_name, '/') != nullptr ||
        snprintf(path, sizeof path, "%s/%s", stats_dir(), file_name) >=
            static_cast<int>(sizeof path)) {
      return "its name is none of a counters file";
    }
    const int file = ::open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (file < 0) return strerror(errno);
    struct stat status;
    FileHeader header;
    const bool is_ours =
        fstat(file, &status) == 0 && file_fault(status, status.st_uid == geteuid()) == nullptr &&
        status.st_size >= static_cast<off_t>(control_offset() + kBytes) &&
        pread(file, &header, sizeof header, 0) == sizeof header &&
        memcmp(header.magic, kCountersMagic, sizeof header.magic) == 0 &&
        header.version == kCountersVersion && header.control_at == control_offset();
    void* at = MAP_FAILED;
    if (is_ours) {
      at = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file,
                static_cast<off_t>(control_offset()));
    }
    ::close(file);
    if (at == MAP_FAILED) return "it is not a counters file of this user";
    block_ = static_cast<ControlBlock*>(at);
    pid_ = header.pid;
    start_time_ = header.start_time;
    return nullptr;
  }

  void close() {
    if (block_ != nullptr) munmap(block_, kBytes);
    block_ = nullptr;
  }

  ControlBlock* operator->() const { return block_; }
  ControlBlock& operator*() const { return *block_; }
  // The process that owns the counters file.
  uint64_t pid() const { return pid_; }
  uint64_t start_time() const { return start_time_; }

 private:
  static constexpr size_t kBytes = sizeof(ControlBlock);

  ControlBlock* block_ = nullptr;
  uint64_t pid_ = 0;
  uint64_t start_time_ = 0;
};

}  // namespace fibshim
