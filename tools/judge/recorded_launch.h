// One launch that a recording tells of.
#pragma once

#include "tools/record/recording.h"

namespace fibshim::judge {

struct RecordedLaunch {
  const tools::KernelRecord* kernel = nullptr;
  tools::Geometry geometry{};
  std::vector<uint64_t> values;  // of each parameter, zero-extended
};

}  // namespace fibshim::judge
