// Config folders as FIBSHIM_CONFIG names them: one, or several with ':' between them (shim/abi/folder_list.h).
#pragma once

#include <string>
#include <vector>

namespace fibshim::tools {

std::vector<std::string> split_folders(const std::string& list);

// The path of one folder of a list, without its share ("@10%").
std::string path_of_folder(const std::string& folder);

// The list, with each folder's path made absolute.
std::string absolute_folders(const std::string& list);

// The same, with symbolic links followed. A path that cannot be resolved stays as it is.
std::string resolved_folders(const std::string& list);

}  // namespace fibshim::tools
