// The word by which the ranks of a job decide whether all of them move to another folder
// (abi/control_format.h). The watcher alone uses it.
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
#include "shim/base/settings_in_force.h"
#include "shim/counters/counters.h"

namespace fibshim {

// Lies in the counters file of one of the job's processes.
class DecisionWord {
 public:
  constexpr DecisionWord() = default;

  // Null, or why it cannot be had.
  const char* open(const char* file_name, uint64_t id) {
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
        fstat(file, &status) == 0 && S_ISREG(status.st_mode) && status.st_uid == geteuid() &&
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
    if (at == MAP_FAILED) return "it is no counters file of this user's";
    block_ = static_cast<ControlBlock*>(at);
    id_ = id;
    return nullptr;
  }

  Verdict verdict() const {
    const uint64_t word = __atomic_load_n(&block_->decision, __ATOMIC_ACQUIRE);
    // Another identity: whoever asked has been followed by another asker.
    if (word >> kDecisionBits != id_ << kDecisionBits >> kDecisionBits) return Verdict::abort;
    return static_cast<Verdict>(word & ((1u << kDecisionBits) - 1));
  }

  // Decides for abort, unless it is decided. What it is then.
  Verdict abort() {
    uint64_t word = id_ << kDecisionBits | static_cast<uint64_t>(Verdict::undecided);
    const uint64_t aborted = id_ << kDecisionBits | static_cast<uint64_t>(Verdict::abort);
    __atomic_compare_exchange_n(&block_->decision, &word, aborted, false, __ATOMIC_ACQ_REL,
                                __ATOMIC_ACQUIRE);
    return verdict();
  }

  void close() {
    if (block_ != nullptr) munmap(block_, kBytes);
    block_ = nullptr;
  }

 private:
  static constexpr size_t kBytes = sizeof(ControlBlock);

  ControlBlock* block_ = nullptr;
  uint64_t id_ = 0;
};

}  // namespace fibshim
