// Unpacks what nvcc has compressed: the images in a fatbin, as the driver does when it loads them.
#pragma once

#include <optional>

#include "loader/read/fatbin.h"

namespace fibshim {

// The entry's image: an ELF file or PTX text, in `memory` where it was compressed, which may be used again
// for the next. An entry that is damaged, or larger than kMaxImageBytes, is an Error (invalid_image).
Result<std::string_view> unpack_payload(const FatbinEntry& entry, std::string* memory);

// A zstd frame at the beginning of `bytes`, with the number of bytes that it takes there.
struct UnpackedFrame {
  std::string raw;
  size_t stored_bytes;
};

// Unpacks such a frame where a cubin is in it, and takes off the budget what it unpacked, at least
// kFrameProbeBytes. Nothing: something else is in it, or the budget is too small.
constexpr size_t kFrameProbeBytes = size_t{128} << 10;
std::optional<UnpackedFrame> unpack_cubin_frame(std::string_view bytes, uint64_t* budget);

}  // namespace fibshim
