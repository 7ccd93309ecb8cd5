// The GPU architectures that an image may target, as cubins, PTX and config folders name them.
#pragma once

#include <stdint.h>

#include <string>

namespace fibshim {

// sm_90 is portable, sm_90a runs on exactly that SM, sm_100f runs on its family.
enum class ArchScope : uint8_t { portable, arch_specific, family_specific };

// Returns "sm_90", "sm_90a" or "sm_100f".
inline std::string arch_name(uint16_t sm, ArchScope scope) {
  std::string name = "sm_" + std::to_string(sm);
  if (scope == ArchScope::arch_specific) name += 'a';
  if (scope == ArchScope::family_specific) name += 'f';
  return name;
}

}  // namespace fibshim
