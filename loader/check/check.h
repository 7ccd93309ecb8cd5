// Reads and checks a whole config folder. `fibshim check` and the shim both use this code, so they
// cannot disagree about a folder.
#pragma once

#include "loader/compile/snapshot_builder.h"
#include "loader/read/manifest.h"
#include "loader/read/signature.h"
#include "loader/read/trust.h"

namespace fibshim {

struct FolderModel;
struct SolutionSpec;

// The files that a snapshot was made from, if CheckOptions asks for them.
struct FolderManifest {
  std::vector<ManifestEntry> entries;
};

// An entry of one folder that is not used because an earlier folder has the same one.
struct Shadowed {
  const char* kind;  // "solution", "pattern", "definition" or "setting"
  std::string name;  // for a solution, the name of its definition
  Place place;       // of the entry that is not used
  Place by;          // of the entry that is used
};

// Further checks that a program runs and serving does not need. Their findings join the others.
class FolderLint {
 public:
  virtual ~FolderLint() = default;
  enum class Kind : uint8_t { pattern, solution };
  // Called with a file's JSON before it is read. The JSON lives until this returns.
  virtual void check_json(Kind /*kind*/, JsonValue /*root*/) {}
  // `root`: the solution's JSON, which lives until this returns.
  virtual void read_solution(JsonValue root, const SolutionSpec& solution,
                             Diagnostics* diagnostics) = 0;
  // Called after the model is bound, if no error keeps it from loading.
  virtual void check_model(const FolderModel& model, Diagnostics* diagnostics) = 0;
  // Called after all other checks, even for a folder that does not load.
  virtual void finish(Diagnostics* /*diagnostics*/) {}
};

struct CheckOptions {
  FolderLint* lint = nullptr;  // null in an engine
  // The key that must have signed the folder, as for read_public_key(); empty: none is required.
  std::string required_key = required_key_in_force();
  // The users who may be able to write it.
  Trust trust = trust_in_force();
  // Fills CheckReport::manifest, the entries that a signature of the folder would cover.
  bool wants_entries = false;
  // Receives the model of the folder, which is complete only if the report has a snapshot.
  FolderModel* model = nullptr;
};

struct CheckReport {
  std::vector<Diagnostic> diagnostics;  // all of them, by file, line and column
  uint32_t error_count = 0;             // of any effect; `check` exits 1 if there is one
  uint32_t warning_count = 0;
  uint32_t note_count = 0;
  uint32_t invalid_count = 0;  // errors that keep the folder from loading

  uint32_t definition_count = 0;  // files that were read as definitions
  uint32_t solution_count = 0;
  uint32_t pattern_count = 0;
  uint32_t broken_solution_count = 0;
  uint32_t ready_binding_count = 0;  // pattern and solution pairs that can redirect launches
  uint32_t refused_binding_count = 0;

  SnapshotPtr snapshot;  // null if invalid_count is not 0
  FolderManifest manifest;
  std::vector<Shadowed> shadowed;
};

// `folders`: one folder, or several as in FIBSHIM_CONFIG. Paths in the report begin with a folder
// as it was given. Never throws: a lack of memory becomes a diagnostic, too.
CheckReport check_folder(const std::string& folders, const CheckOptions& options = {}) noexcept;

}  // namespace fibshim
