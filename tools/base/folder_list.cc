#include "tools/base/folder_list.h"

#include <limits.h>
#include <stdlib.h>

#include <filesystem>

#include "shim/abi/folder_list.h"

namespace fibshim::tools {
namespace {

template <class Change>
std::string change_each(const std::string& list, const Change& change) {
  std::string out;
  for (const std::string& folder : split_folders(list)) {
    if (!out.empty()) out += kFolderSeparator;
    out += change(folder);
  }
  return out;
}

}  // namespace

std::vector<std::string> split_folders(const std::string& list) {
  std::vector<std::string> out;
  const char* rest = list.c_str();
  size_t length = 0;
  while (const char* const begin = next_folder(&rest, &length)) out.emplace_back(begin, length);
  return out;
}

std::string path_of_folder(const std::string& folder) {
  size_t length = folder.size();
  (void)strip_share(folder.c_str(), &length);
  return folder.substr(0, length);
}

std::string absolute_folders(const std::string& list) {
  return change_each(list, [](const std::string& folder) {
    std::error_code error;
    std::filesystem::path absolute = std::filesystem::absolute(folder, error);
    if (error) return folder;
    // "dir/" and "dir" are one folder.
    if (!absolute.has_filename() && absolute.has_parent_path()) absolute = absolute.parent_path();
    return absolute.string();
  });
}

std::string resolved_folders(const std::string& list) {
  return change_each(list, [](const std::string& folder) {
    const std::string path = path_of_folder(folder);
    char out[PATH_MAX];
    return realpath(path.c_str(), out) == nullptr ? folder : out + folder.substr(path.size());
  });
}

}  // namespace fibshim::tools
