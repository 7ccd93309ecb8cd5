// Reads the target and the kernels of PTX.
//
// Pure functions over bytes. The bytes may be truncated or hostile: every read is bounded, and
// inconsistent input gives an Error (invalid_image), never a crash.
#pragma once

#include <stdint.h>

#include <string>
#include <string_view>
#include <vector>

#include "loader/read/architecture.h"
#include "loader/read/result.h"

namespace fibshim {

struct PtxInfo {
  std::string version;  // "9.0"
  uint16_t sm = 0;
  ArchScope scope = ArchScope::portable;
  std::vector<std::string> kernels;    // names after .entry, in file order
  std::vector<uint32_t> param_counts;  // of each kernel
};

// Reads the directives at the head of a PTX file, and its kernels' names and parameter counts.
Result<PtxInfo> read_ptx(std::string_view bytes);

// True if the first word of the bytes is PTX's first directive.
bool begins_like_ptx(std::string_view bytes);

}  // namespace fibshim
