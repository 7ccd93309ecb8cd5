// Where the parts of this installation lie, from where this program lies: <prefix>/bin/fibshim,
// <prefix>/lib/libfibshim.so. So a tree can be moved or copied as a whole.
#pragma once

#include <string>

namespace fibshim::tools {

// Absolute path of this program; empty when /proc is not there.
std::string own_path();

// Absolute paths, whether the files exist or not.
std::string shim_library_path();
std::string loader_library_path();
std::string record_library_path();
std::string shadow_library_path();

std::string simulator_path();        // libcuda.so.1, a driver that needs no GPU
std::string demo_folder_path();      // a config folder that the simulator computes
std::string example_program_path();  // launches what that folder replaces

// `path` made absolute, without following links: FIBSHIM_CONFIG may name a link that is repointed
// later.
std::string absolute_path(const std::string& path);

}  // namespace fibshim::tools
