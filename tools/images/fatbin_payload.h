// Unpacks what nvcc has compressed: the images in a fatbin, as the driver does when it loads them.
#ifndef FIBSHIM_TOOLS_IMAGES_FATBIN_PAYLOAD_H_
#define FIBSHIM_TOOLS_IMAGES_FATBIN_PAYLOAD_H_

#include <string>

#include "loader/read/cubin.h"

namespace fibshim::tools {

// The entry's image: an ELF file or PTX text. An entry that is damaged, or larger than
// kMaxImageBytes, is an Error (invalid_image).
Result<std::string> unpack_payload(const FatbinEntry& entry);

}  // namespace fibshim::tools

#endif  // FIBSHIM_TOOLS_IMAGES_FATBIN_PAYLOAD_H_
