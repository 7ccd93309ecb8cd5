// Which files make up a config folder, and its settings.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "loader/read/diagnostics.h"
#include "loader/read/fields.h"
#include "loader/read/file.h"
#include "loader/read/json_document.h"
#include "shim/abi/snapshot.h"

namespace fibshim {

struct PathStamp {
  std::string relative;
  FileStamp stamp;
};

// Paths below the root, sorted, so that nothing depends on the file system's order. Hidden files
// (editors' copies) are left out. Links are followed where they stay inside.
struct FolderListing {
  std::string given;  // as the user named it, without slashes at its end
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

// Reports files and folders that others can write. After a few it only counts, and finish() says
// how many there were: a folder that was unpacked with the wrong umask has thousands.
class TrustCheck {
 public:
  TrustCheck(const FolderListing& listing, Diagnostics* diagnostics)
      : listing_(listing), diagnostics_(diagnostics) {}
  void look_at_way();                                                 // to the root
  void look_at(const std::string& relative, const FileStamp& stamp);  // "": the root
  void finish();

 private:
  const FolderListing& listing_;
  Diagnostics* diagnostics_;
  size_t count_ = 0;
};

inline constexpr char kSettingsFile[] = "fibshim.json";

// What fibshim.json says of single definitions.
struct DefinitionSetting {
  MarkedName definition;  // a name, or a glob over names
  SolutionOnError on_error = SolutionOnError::unset;

  bool is_glob() const { return definition.name.find_first_of("*?[") != std::string::npos; }
  bool fits(const std::string& name) const;
};

struct FolderSettings {
  std::vector<std::pair<std::string, std::string>> of_process;  // with the FIBSHIM_ prefix
  std::vector<DefinitionSetting> of_definitions;

  // What holds for a definition: its own name's, else the first glob's that fits it. May be null.
  const DefinitionSetting* find(const std::string& definition) const;
};

// In the file's order.
FolderSettings read_settings(JsonValue root, Diagnostics* diagnostics);

}  // namespace fibshim
