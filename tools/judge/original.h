// The kernel that a pattern recognises as the reference of what replaces it: launched from the image that
// `fibshim record` kept, as it was recorded, on buffers of the judge's own.
//
// A recording has the geometries of a kernel's launches and the values of each parameter, but not which went with
// which: values that were counted as often as a geometry are taken to go with it; else all are tried, and
// a launch that leaves part of an output unwritten is none that was made.
#pragma once

#include "loader/compile/model.h"
#include "tools/judge/case_data.h"
#include "tools/judge/recorded_launch.h"

namespace fibshim::judge {

struct Workload;

struct OriginalCase {
  std::string pattern;  // the label
  RecordedLaunch launch;
  std::map<std::string, double> scalars;  // what the pattern reads in it, beside the axes
  bool is_certain = false;                // that its values went with its geometry
};

struct OriginalRequest {
  const FolderModel& model;
  const Snapshot& snapshot;
  const std::vector<tools::KernelRecord>& kernels;
  std::string recording;  // where its images lie
};

// The recorded launches that the shim would give to this solution, the most frequent ones first. None: *why says
// what is missing.
std::vector<Workload> original_cases(const OriginalRequest& request, uint32_t solution,
                                     std::string* why);

// "grid 8x1x1, block 128x1x1".
std::string geometry_words(const tools::Geometry& geometry);

}  // namespace fibshim::judge
