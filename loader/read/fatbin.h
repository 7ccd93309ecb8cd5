// Lists the images in a fatbin, still compressed (fatbin_payload.h decompresses them).
//
// Pure functions over bytes. The bytes may be truncated or hostile: every read is bounded, and
// inconsistent input gives an Error (invalid_image), never a crash.
#pragma once

#include <stdint.h>

#include <string_view>
#include <vector>

#include "loader/read/result.h"

namespace fibshim {

// True if the bytes begin with the magic of a fatbin region (not with the wrapper struct).
bool has_fatbin_magic(std::string_view bytes);

enum class FatbinEntryKind : uint8_t { ptx, elf, other };
enum class FatbinCompression : uint8_t { none, lz4, zstd };

struct FatbinEntry {
  FatbinEntryKind kind;
  uint16_t kind_number;  // from the entry's header: 1 is PTX, 2 is ELF
  uint16_t sm;
  FatbinCompression compression;
  uint64_t stored_bytes;     // in the file, without padding
  uint64_t raw_bytes;        // uncompressed
  std::string_view payload;  // the stored bytes; points into the input
};

struct FatbinInfo {
  std::vector<FatbinEntry> entries;  // in file order
};

// Reads a fatbin region (magic 0xba55ed50) or several, one after another.
Result<FatbinInfo> read_fatbin(std::string_view bytes);

// Returns the size of the first region of the input, which the driver takes as one image. Returns 0
// if the input does not begin with a region, or is shorter than its header states.
size_t fatbin_region_bytes(std::string_view bytes);

}  // namespace fibshim
