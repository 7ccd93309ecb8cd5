// Decompresses the images in a fatbin that nvcc has compressed, as the driver does when it loads
// them.
#pragma once

#include <optional>

#include "loader/read/fatbin.h"

namespace fibshim {

// Returns the entry's image: an ELF file or PTX text. If it was compressed, it lies in `memory`,
// which may be reused for the next entry. Fails with invalid_image if the entry is damaged or
// larger than kMaxImageBytes.
Result<std::string_view> unpack_payload(const FatbinEntry& entry, std::string* memory);

// An unpacked zstd frame, and the number of bytes that the compressed frame takes.
struct UnpackedFrame {
  std::string raw;
  size_t stored_bytes;
};

// Unpacks the zstd frame at the beginning of `bytes` if it contains a cubin, and charges the
// unpacked bytes, at least kFrameProbeBytes, to the budget. Returns nothing if the frame contains
// something else or the budget is too small.
constexpr size_t kFrameProbeBytes = size_t{128} << 10;
std::optional<UnpackedFrame> unpack_cubin_frame(std::string_view bytes, uint64_t* budget);

}  // namespace fibshim
