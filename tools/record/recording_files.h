// Reads what the shim records, a binary file for each process (shim/abi/recording_format.h). A file is data from
// elsewhere: every number is checked before it is used.
#pragma once

#include <string>
#include <string_view>

#include "tools/record/recording.h"

namespace fibshim::tools {

// Reads every recording in the folder and adds those of one kernel up: symbol, image, GPU and
// parameters alike. A missing folder is an empty one; the error says why it cannot be read.
tl::expected<Recording, std::string> read_recording_folder(const std::string& folder);

// The same of one file's bytes. `name` is what it goes by.
Recording read_recording_file(const std::string& name, std::string_view bytes);

}  // namespace fibshim::tools
