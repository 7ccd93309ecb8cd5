// Fatbins: the images that one holds, still compressed (fatbin_payload.h decompresses them).
//
// Pure functions over bytes. The bytes may be truncated or hostile: every read is bounded, and
// what does not add up is an Error (invalid_image), never a crash.
#pragma once

#include <stdint.h>

#include <string_view>
#include <vector>

#include "loader/read/result.h"

namespace fibshim {

// Whether they begin as a fatbin's region does: without the wrapper struct.
bool has_fatbin_magic(std::string_view bytes);

enum class FatbinEntryKind : uint8_t { ptx, elf, other };
enum class FatbinCompression : uint8_t { none, lz4, zstd };

struct FatbinEntry {
  FatbinEntryKind kind;
  uint16_t kind_number;  // as the entry's header says: 1 PTX, 2 ELF
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

// The bytes of the one region that the input begins with: what the driver takes as one image. 0 when
// it begins with none, or is shorter than that.
size_t fatbin_region_bytes(std::string_view bytes);

}  // namespace fibshim
