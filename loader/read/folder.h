// Lists the files of a config folder, checks who can write them, and reads the folder's settings.
#pragma once

#include "loader/read/fields.h"
#include "loader/read/trust.h"

namespace fibshim {

struct PathStamp {
  std::string relative;
  FileStamp stamp;
};

// Paths below the root, sorted, so that nothing depends on the file system's order. Hidden files
// (editors' copies) are left out. Links are followed if they stay inside the folder.
struct FolderListing {
  std::string given;   // as the user named it, without slashes at its end
  uint32_t share = 0;  // its share of the launches (shim/abi/folder_list.h); 0: all
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

// Returns nothing if the folder cannot be listed; diagnostics say why.
std::optional<FolderListing> list_folder(const std::string& folder, Trust trust,
                                         Diagnostics* diagnostics);

// Collects the files and folders that others can write, including those on the way to the root.
// After the first few it only counts: a folder unpacked with the wrong umask has thousands.
// finish() reports them, with one command that mends all.
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
  std::vector<Distrust> found_;  // those on the way, then the first few below the root
  size_t way_count_ = 0;
  size_t count_ = 0;          // of those below the root
  bool needs_chmod_ = false;  // chmod helps for some of those below the root
};

inline constexpr char kSettingsFile[] = "fibshim.json";

// The settings of fibshim.json for one definition, or for all that a glob matches.
struct DefinitionSetting {
  MarkedName definition;  // a name, or a glob over names
  SolutionOnError on_error = SolutionOnError::unset;
  OnMismatch on_mismatch = OnMismatch::unset;
  uint32_t shadow_interval = kShadowUnset;

  bool is_glob() const { return definition.name.find_first_of("*?[") != std::string::npos; }
  bool fits(const std::string& name) const;
};

// Returns a text such as "@10%", or "" for 0, which means no share (shim/abi/folder_list.h).
std::string share_text(uint32_t share);

struct FolderSetting {
  std::string text;
  std::string file;  // the fibshim.json that contains it
};

struct FolderSettings {
  std::vector<std::pair<std::string, FolderSetting>> of_process;  // by name with prefix FIBSHIM_
  std::vector<DefinitionSetting> of_definitions;
  // Only solutions that claim batch invariance are used.
  bool requires_batch_invariant = false;

  // Returns the entry with the definition's exact name, else the first glob that matches, else
  // null.
  const DefinitionSetting* find(const std::string& definition) const;
};

// The format of config folders. It is raised when a folder may contain something that an earlier
// fibshim would misread.
inline constexpr int64_t kFolderFormat = 1;

// Returns false after reporting it if fibshim.json says that the folder has a later format.
bool is_known_format(JsonValue settings, Diagnostics* diagnostics);

// Settings are in the file's order.
FolderSettings read_settings(JsonValue root, Diagnostics* diagnostics);

}  // namespace fibshim
