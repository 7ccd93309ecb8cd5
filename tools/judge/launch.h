// What is launched of a solution's kernel.
#pragma once

#include <array>
#include <vector>

#include "shim/abi/snapshot.h"

namespace fibshim::judge {

struct Launch {
  std::vector<std::array<uint8_t, 8>> params;  // the first bytes of each are the value
  std::array<uint32_t, kGeometryCount> geometry;

  bool operator==(const Launch&) const = default;
};

}  // namespace fibshim::judge
