// The paths of this installation's parts, relative to this program: <prefix>/bin/fibshim,
// <prefix>/lib/libfibshim.so. So a tree can be moved or copied as a whole.
#pragma once

#include <string>

namespace fibshim::tools {

// Absolute path of this program; empty if /proc is missing.
std::string own_path();

// Absolute paths, whether the files exist or not.
std::string shim_library_path();
std::string loader_library_path();
std::string record_library_path();
std::string shadow_library_path();

std::string simulator_path();        // libcuda.so.1, a driver that needs no GPU
std::string demo_folder_path();      // a config folder whose kernels the simulator can compute
std::string example_program_path();  // launches the kernels that this folder replaces

// `path` made absolute, without following links: FIBSHIM_CONFIG may name a link that is repointed
// later.
std::string absolute_path(const std::string& path);

}  // namespace fibshim::tools
