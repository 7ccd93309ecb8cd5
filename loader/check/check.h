// Reads and checks a whole config folder: what `fibshim check` prints and what the shim loads are
// one and the same, so they cannot disagree.
#pragma once

#include "loader/compile/snapshot_builder.h"
#include "loader/read/manifest.h"
#include "loader/read/signature.h"
#include "loader/read/trust.h"

namespace fibshim {

struct FolderModel;
struct SolutionSpec;

// The files that a snapshot was made from, where CheckOptions asks for them.
struct FolderManifest {
  std::vector<ManifestEntry> entries;
};

// Of several folders, what an earlier one keeps a later one's from being used.
struct Shadowed {
  const char* kind;  // "solution", "pattern", "definition" or "setting"
  std::string name;  // of a solution its definition's
  Place place;
  Place by;
};

// What a program looks for beyond what serving needs. Its findings stand among the others.
class FolderLint {
 public:
  virtual ~FolderLint() = default;
  enum class Kind : uint8_t { pattern, solution };
  // Called before a file is read, with its JSON, which lives until this returns.
  virtual void check_json(Kind /*kind*/, JsonValue /*root*/) {}
  // `root`: the solution's JSON, which lives only that long.
  virtual void read_solution(JsonValue root, const SolutionSpec& solution,
                             Diagnostics* diagnostics) = 0;
  // The model has been bound and has no error that keeps it from loading.
  virtual void check_model(const FolderModel& model, Diagnostics* diagnostics) = 0;
  // All else has been said, also of a folder that does not load.
  virtual void finish(Diagnostics* /*diagnostics*/) {}
};

struct CheckOptions {
  FolderLint* lint = nullptr;  // an engine does without
  // Who must have signed the folder, as read_public_key() takes it; empty: nobody.
  std::string required_key = required_key_in_force();
  // Who may be able to write it.
  Trust trust = trust_in_force();
  // What a signature of the folder would stand for.
  bool wants_entries = false;
  // Gets what the folder was read as, complete only when the report has a snapshot.
  FolderModel* model = nullptr;
};

struct CheckReport {
  std::vector<Diagnostic> diagnostics;  // all of them, by file, line and column
  uint32_t error_count = 0;             // of any effect; `check` exits 1 when there is one
  uint32_t warning_count = 0;
  uint32_t note_count = 0;
  uint32_t invalid_count = 0;  // errors that keep the folder from loading

  uint32_t definition_count = 0;  // files that were read as such
  uint32_t solution_count = 0;
  uint32_t pattern_count = 0;
  uint32_t broken_solution_count = 0;
  uint32_t ready_binding_count = 0;  // pattern and solution pairs that can redirect launches
  uint32_t refused_binding_count = 0;

  SnapshotPtr snapshot;  // null when invalid_count is not 0
  FolderManifest manifest;
  std::vector<Shadowed> shadowed;
};

// `folders`: one, or several as FIBSHIM_CONFIG has them. Paths in the report begin with a folder as it was given. Never throws: a lack of memory is a
// diagnostic too.
CheckReport check_folder(const std::string& folders, const CheckOptions& options = {}) noexcept;

}  // namespace fibshim
