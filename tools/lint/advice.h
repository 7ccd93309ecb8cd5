// What looks wrong about a folder that can be loaded as it is: patterns that never decide, launches
// that CUDA would refuse, definitions that nothing solves. `fibshim check` asks for it, an engine
// does not. Only what can be shown is said: a pattern that might match is left alone.
#pragma once

#include "tools/lint/mistakes.h"
#include "tools/lint/schema.h"
#include "tools/lint/verify_block.h"

namespace fibshim {

// `model` has been bound and has no error that keeps it from loading. `sms`: compute capabilities, such as
// 90, that every solution should have an image for.
void advise(const FolderModel& model, const std::vector<uint32_t>& sms, Diagnostics* diagnostics);

// All that `fibshim check` finds beyond what keeps a folder from serving.
class CheckLint : public VerifyBlocks {
 public:
  explicit CheckLint(std::vector<uint32_t> sms = {}) : sms_(std::move(sms)) {}
  void check_json(Kind kind, JsonValue root) override;
  void check_model(const FolderModel& model, Diagnostics* diagnostics) override {
    find_mistakes(model, diagnostics);
    advise(model, sms_, diagnostics);
  }
  void finish(Diagnostics* diagnostics) override;

 private:
  std::vector<uint32_t> sms_;
  std::vector<SchemaFault> schema_faults_;
};

}  // namespace fibshim
