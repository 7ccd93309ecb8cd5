// Sends requests to the shim in this process, as `fibshim swap` does.
#pragma once

#include <fcntl.h>
#include <linux/futex.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include <filesystem>

#include "shim/abi/control_format.h"
#include "shim/abi/counters_format.h"
#include "tests/conformance/hosts/host.h"

namespace conform {

using fibshim::AnswerState;
using fibshim::AskTarget;
using fibshim::AskVerb;
using fibshim::ControlBlock;

// The path of this process's counters file.
inline std::string counters_file() {
  const std::string prefix = std::to_string(getpid()) + "-";
  std::string found;
  for (const auto& entry : std::filesystem::directory_iterator(getenv("FIBSHIM_STATS_DIR"))) {
    const std::string name = entry.path().filename();
    if (name.starts_with(prefix) && name.ends_with(fibshim::kCountersSuffix)) found = entry.path();
  }
  return found;
}

// The control block of this process.
class Control {
 public:
  // Waits for the shim's thread, which starts once something has been counted.
  Control() {
    const std::string found = counters_file();
    const int file = open(found.c_str(), O_RDWR | O_CLOEXEC);
    CHECK(file >= 0);
    fibshim::FileHeader header;
    CHECK(pread(file, &header, sizeof header, 0) == sizeof header);
    void* const at = mmap(nullptr, sizeof(ControlBlock), PROT_READ | PROT_WRITE, MAP_SHARED, file,
                          static_cast<off_t>(header.control_at));
    CHECK(at != MAP_FAILED);
    close(file);
    block_ = static_cast<ControlBlock*>(at);
    while (__atomic_load_n(&block_->status.has_watcher, __ATOMIC_ACQUIRE) == 0) sched_yield();
  }
  ~Control() { munmap(block_, sizeof *block_); }
  Control(const Control&) = delete;
  Control& operator=(const Control&) = delete;

  // Requests a swap, and waits for the answer.
  AnswerState move(AskTarget target, const std::string& folder = "") {
    return ask(AskVerb::move, target, folder);
  }
  // Requests a prepared swap; the decision of that identity is stored in this same block.
  AnswerState prepare(const std::string& folder, uint64_t id) {
    block_->hold_ms = 60'000;
    block_->decision_id = id;
    const std::string decider = std::filesystem::path(counters_file()).filename();
    snprintf(block_->decider, sizeof block_->decider, "%s", decider.c_str());
    store_decision(id, fibshim::Verdict::undecided);
    return ask(AskVerb::prepare, AskTarget::folder, folder);
  }
  // Stores the decision, and waits for the answer.
  AnswerState decide(uint64_t id, fibshim::Verdict verdict) {
    store_decision(id, verdict);
    return wait_for_answer(fibshim::control_number(block_->ask), AnswerState::prepared);
  }
  void must_move(const std::string& folder) {
    if (move(AskTarget::folder, folder) != AnswerState::moved) {
      fail(__FILE__, __LINE__, folder + ": " + block_->message);
    }
  }
  // Requests that 1 of `interval` launches of the definitions that match the glob is checked; 0:
  // none.
  void must_check(uint32_t interval, const std::string& definitions = "*") {
    block_->asked_interval = interval;
    CHECK(ask(AskVerb::shadow, AskTarget::folder, definitions) == AnswerState::moved);
  }
  const ControlBlock& block() const { return *block_; }

 private:
  void store_decision(uint64_t id, fibshim::Verdict verdict) {
    __atomic_store_n(&block_->decision,
                     id << fibshim::kDecisionBits | static_cast<uint64_t>(verdict),
                     __ATOMIC_SEQ_CST);
  }
  AnswerState ask(AskVerb verb, AskTarget target, const std::string& folder) {
    const uint32_t number = fibshim::control_number(block_->ask) + 1;
    __atomic_store_n(&block_->ask, fibshim::control_word(number, AskVerb::none), __ATOMIC_SEQ_CST);
    block_->asked_target = target;
    snprintf(block_->asked_folder, sizeof block_->asked_folder, "%s", folder.c_str());
    __atomic_store_n(&block_->ask, fibshim::control_word(number, verb), __ATOMIC_SEQ_CST);
    syscall(SYS_futex, &block_->ask, FUTEX_WAKE, 1, nullptr, nullptr, 0);
    return wait_for_answer(number, AnswerState::working);
  }
  AnswerState wait_for_answer(uint32_t number, AnswerState not_yet) const {
    for (;;) {
      const uint32_t answer = __atomic_load_n(&block_->answer, __ATOMIC_ACQUIRE);
      const auto state = fibshim::control_state<AnswerState>(answer);
      if (fibshim::control_number(answer) == number && state != not_yet) return state;
      syscall(SYS_futex, &block_->answer, FUTEX_WAIT, answer, nullptr, nullptr, 0);
    }
  }

  ControlBlock* block_;
};

}  // namespace conform
