// Uses the kernel that a pattern recognises as the reference for its replacement. It is launched
// from the image that `fibshim record` kept, as it was recorded, on buffers of the judge.
//
// A recording has the geometries of a kernel's launches and the values of each parameter, but not
// which belong together. A value that was counted as often as a geometry is assumed to belong to
// it; otherwise all are tried, and a launch that leaves part of an output unwritten is taken to be
// one that was never made.
#pragma once

#include "loader/compile/model.h"
#include "tools/judge/case_data.h"
#include "tools/judge/recorded_launch.h"

namespace fibshim::judge {

struct Workload;

struct OriginalCase {
  std::string pattern;  // the label
  RecordedLaunch launch;
  std::map<std::string, double> scalars;  // the pattern's values in it, besides the axes
  bool is_certain = false;                // its values surely belong to its geometry
};

struct OriginalRequest {
  const FolderModel& model;
  const Snapshot& snapshot;
  const std::vector<tools::KernelRecord>& kernels;
  std::string recording;  // its path, beside which the images are
};

// The recorded launches that the shim would give to this solution, the most frequent ones first. If
// there are none, *why says what is missing.
std::vector<Workload> original_cases(const OriginalRequest& request, uint32_t solution,
                                     std::string* why);

// "grid 8x1x1, block 128x1x1".
std::string geometry_words(const tools::Geometry& geometry);

}  // namespace fibshim::judge
