#include "loader/read/image_format.h"

#include <elf.h>

#include "loader/read/fatbin.h"
#include "loader/read/ptx.h"

namespace fibshim {

ImageFormat detect_image_format(std::string_view bytes) {
  if (bytes.starts_with(std::string_view(ELFMAG, 4))) return ImageFormat::cubin;
  if (has_fatbin_magic(bytes)) return ImageFormat::fatbin;
  return begins_like_ptx(bytes) ? ImageFormat::ptx : ImageFormat::unknown;
}

}  // namespace fibshim
