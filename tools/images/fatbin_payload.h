// Unpacks what nvcc has compressed: the images in a fatbin, as the driver does when it loads them.
#pragma once

#include "loader/read/cubin.h"

namespace fibshim::tools {

// The entry's image: an ELF file or PTX text. An entry that is damaged, or larger than
// kMaxImageBytes, is an Error (invalid_image).
Result<std::string> unpack_payload(const FatbinEntry& entry);

}  // namespace fibshim::tools
