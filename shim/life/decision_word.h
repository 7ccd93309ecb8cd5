// The word by which the ranks of a job decide whether all of them move to another folder
// (abi/control_format.h). Used only by the watcher.
#pragma once

#include "shim/life/mapped_control.h"

namespace fibshim {

// The word is in the counters file of one of the job's processes.
class DecisionWord {
 public:
  constexpr DecisionWord() = default;

  // Returns null, or why the word cannot be opened.
  const char* open(const char* file_name, uint64_t id) {
    id_ = id;
    return control_.open(file_name);
  }

  Verdict verdict() const {
    const uint64_t word = __atomic_load_n(&control_->decision, __ATOMIC_ACQUIRE);
    // Another identity: a newer request has replaced this one.
    if (word >> kDecisionBits != id_ << kDecisionBits >> kDecisionBits) return Verdict::abort;
    return static_cast<Verdict>(word & ((1u << kDecisionBits) - 1));
  }

  // Decides for abort unless a decision was made before. Returns the decision.
  Verdict abort() {
    uint64_t word = id_ << kDecisionBits | static_cast<uint64_t>(Verdict::undecided);
    const uint64_t aborted = id_ << kDecisionBits | static_cast<uint64_t>(Verdict::abort);
    __atomic_compare_exchange_n(&control_->decision, &word, aborted, false, __ATOMIC_ACQ_REL,
                                __ATOMIC_ACQUIRE);
    return verdict();
  }

  void close() { control_.close(); }

 private:
  MappedControl control_;
  uint64_t id_ = 0;
};

}  // namespace fibshim
