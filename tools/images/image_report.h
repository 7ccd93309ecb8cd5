// What GPU images hold, and host programs or libraries with images inside: as JSON, and as text made
// from that JSON, so that the two cannot say different things. The bytes may be damaged or hostile:
// what does not add up is an Error.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "loader/read/cubin.h"

namespace fibshim::tools {

// Which kernels are wanted: all where no glob was given, else those whose name, mangled or readable,
// fits one.
using KernelGlobs = std::vector<std::string>;

Result<nlohmann::ordered_json> image_json(std::string_view bytes, const KernelGlobs& globs);

// Of what image_json() gave.
std::string image_text(const nlohmann::ordered_json& image, const std::string& indent);

}  // namespace fibshim::tools
