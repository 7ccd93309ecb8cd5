// Config folders as FIBSHIM_CONFIG names them: one, or several with ':' between them (shim/abi/folder_list.h).
#pragma once

#include <string>
#include <vector>

namespace fibshim::tools {

std::vector<std::string> split_folders(const std::string& list);

// One of them without its share ("@10%").
std::string path_of_folder(const std::string& folder);

// The list with each folder's path absolute.
std::string absolute_folders(const std::string& list);

// The same with links followed; a path that leads nowhere stays as it is.
std::string resolved_folders(const std::string& list);

}  // namespace fibshim::tools
