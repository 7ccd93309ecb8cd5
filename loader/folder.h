// Which files make up a config folder, and its settings.
#ifndef FIBSHIM_LOADER_FOLDER_H_
#define FIBSHIM_LOADER_FOLDER_H_

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "loader/diagnostics.h"
#include "loader/json_document.h"

namespace fibshim {

inline constexpr size_t kMaxFolderFiles = 1 << 20;  // entries below the root
inline constexpr size_t kMaxFolderDepth = 32;

// Paths below the root, sorted, so that nothing depends on the file system's order. Hidden files
// (editors' copies) are left out.
struct FolderListing {
  std::string given;  // as the user named it, without slashes at its end
  std::string root;   // absolute, links resolved: stays this folder when a link is repointed
  std::vector<std::string> definitions;
  std::vector<std::string> solutions;
  std::vector<std::string> patterns;
  bool has_settings = false;  // fibshim.json

  // The path as shown to people.
  std::string shown(const std::string& relative) const { return given + "/" + relative; }
};

// Nothing when there is no such folder; diagnostics say why.
std::optional<FolderListing> list_folder(const std::string& folder, Diagnostics* diagnostics);

inline constexpr char kSettingsFile[] = "fibshim.json";

// The settings of fibshim.json, with the FIBSHIM_ prefix, in the file's order.
std::vector<std::pair<std::string, std::string>> read_settings(JsonValue root,
                                                               Diagnostics* diagnostics);

}  // namespace fibshim

#endif  // FIBSHIM_LOADER_FOLDER_H_
