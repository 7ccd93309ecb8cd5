// Which files make up a config folder, and its settings.
#pragma once

#include "loader/read/fields.h"
#include "loader/read/trust.h"

namespace fibshim {

struct PathStamp {
  std::string relative;
  FileStamp stamp;
};

// Paths below the root, sorted, so that nothing depends on the file system's order. Hidden files
// (editors' copies) are left out. Links are followed where they stay inside.
struct FolderListing {
  std::string given;   // as the user named it, without slashes at its end
  uint32_t share = 0;  // that it has of the launches (shim/abi/folder_list.h); 0: all
  RootFolder root;
  TrustRule trust;
  std::vector<PathStamp> folders;  // every folder listed
  std::vector<std::string> definitions;
  std::vector<std::string> solutions;
  std::vector<std::string> patterns;
  bool has_settings = false;  // fibshim.json

  // The path as shown to people.
  std::string shown(const std::string& relative) const { return given + "/" + relative; }
};

// Nothing when there is no such folder; diagnostics say why.
std::optional<FolderListing> list_folder(const std::string& folder, Trust trust,
                                         Diagnostics* diagnostics);

// Files and folders that others can write, and the way to them. After a few it only counts: a folder
// that was unpacked with the wrong umask has thousands. finish() reports them, with one command that
// mends all.
class TrustCheck {
 public:
  TrustCheck(const FolderListing& listing, Diagnostics* diagnostics)
      : listing_(listing), diagnostics_(diagnostics) {}
  void check_way();                                                 // the folders above the root
  void check(const std::string& relative, const FileStamp& stamp);  // "": the root itself
  void finish();

 private:
  const FolderListing& listing_;
  Diagnostics* diagnostics_;
  std::vector<Distrust> found_;  // on the way, and the first below
  size_t way_count_ = 0;
  size_t count_ = 0;          // below
  bool needs_chmod_ = false;  // something below does
};

inline constexpr char kSettingsFile[] = "fibshim.json";

// What fibshim.json says of single definitions.
struct DefinitionSetting {
  MarkedName definition;  // a name, or a glob over names
  SolutionOnError on_error = SolutionOnError::unset;
  OnMismatch on_mismatch = OnMismatch::unset;
  uint32_t shadow_interval = kShadowUnset;

  bool is_glob() const { return definition.name.find_first_of("*?[") != std::string::npos; }
  bool fits(const std::string& name) const;
};

// "@10%"; "" for none (shim/abi/folder_list.h).
std::string share_text(uint32_t share);

struct FolderSetting {
  std::string text;
  std::string file;  // that has it
};

struct FolderSettings {
  std::vector<std::pair<std::string, FolderSetting>> of_process;  // names with the FIBSHIM_ prefix
  std::vector<DefinitionSetting> of_definitions;
  // Only solutions that claim batch invariance are used.
  bool requires_batch_invariant = false;

  // What holds for a definition: its own name's, else the first glob's that fits it. May be null.
  const DefinitionSetting* find(const std::string& definition) const;
};

// The format of config folders: raised when a folder may hold what an earlier fibshim would misread.
inline constexpr int64_t kFolderFormat = 1;

// False, and reported, where fibshim.json says that the folder has a later format.
bool is_known_format(JsonValue settings, Diagnostics* diagnostics);

// In the file's order.
FolderSettings read_settings(JsonValue root, Diagnostics* diagnostics);

}  // namespace fibshim
