// Finds what looks wrong in a folder that can be loaded: patterns that never decide, launches
// that CUDA would refuse, definitions that nothing solves. Called by `fibshim check`, not in
// engines. Reports only what can be proved: a pattern that might match is not reported.
#pragma once

#include "tools/lint/mistakes.h"

namespace fibshim {

// Requires that `model` has been bound and has no error that prevents loading. `sms`: compute
// capabilities, such as 90, for which every solution should have an image.
void advise(const FolderModel& model, const std::vector<uint32_t>& sms, Diagnostics* diagnostics);

// All checks of `fibshim check` beyond the errors that keep a folder from serving.
class CheckLint : public MistakeLint {
 public:
  explicit CheckLint(std::vector<uint32_t> sms = {}) : sms_(std::move(sms)) {}
  void check_model(const FolderModel& model, Diagnostics* diagnostics) override {
    find_mistakes(model, diagnostics);
    advise(model, sms_, diagnostics);
  }

 private:
  std::vector<uint32_t> sms_;
};

}  // namespace fibshim
