// Finds mistakes in a folder that loads: what it says is valid, but cannot be what its author
// meant. `fibshim check` reports them as errors; an engine loads the folder all the same.
#pragma once

#include "tools/lint/schema.h"
#include "tools/lint/verify_block.h"

namespace fibshim {

// Requires that `model` has been bound and has no error that prevents loading.
void find_mistakes(const FolderModel& model, Diagnostics* diagnostics);

// Finds every mistake for which `fibshim check` fails: also of JSON Schemas, "verify" blocks and
// measurements.
class MistakeLint : public VerifyBlocks {
 public:
  void check_json(Kind kind, JsonValue root) override;
  void check_model(const FolderModel& model, Diagnostics* diagnostics) override;
  void finish(Diagnostics* diagnostics) override;

 private:
  std::vector<SchemaFault> schema_faults_;
};

// Checks the folder as the shim does, and for mistakes. For commands that start or move programs.
CheckReport check_with_mistakes(const std::string& folder);

// `errors`: errors that keep something from being served. `mistakes`: the report's other errors.
struct FoundMistakes {
  uint32_t errors = 0, mistakes = 0;
  // "has 2 mistakes, such as FILE:LINE:COLUMN: error: ...; 'fibshim check DIR' shows them"
  std::string words;
};
FoundMistakes count_mistakes(const std::string& folder, const CheckReport& report);

}  // namespace fibshim
