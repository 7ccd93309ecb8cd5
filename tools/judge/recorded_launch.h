// One launch of a recording.
#pragma once

#include "tools/record/recording.h"

namespace fibshim::judge {

struct RecordedLaunch {
  const tools::KernelRecord* kernel = nullptr;
  tools::Geometry geometry{};
  std::vector<uint64_t> values;  // one for each parameter, zero-extended
};

}  // namespace fibshim::judge
