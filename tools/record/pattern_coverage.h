// Compares the patterns of a config folder with the kernels of engines: which kernels each pattern
// fits, which kernel is nearest to a pattern that fits none, and which kernels no pattern fits. The
// shim's own matcher and fit decide.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "shim/abi/snapshot.h"
#include "tools/images/kernel_list.h"

namespace fibshim::tools {

// A kernel and all the images that contain it, for example one for each GPU.
struct FoundKernel {
  const KnownKernel* kernel;  // of the first of them
  std::set<std::string> origins;
};

struct PatternCoverage {
  std::string label;
  std::string symbol;  // as the pattern writes it
  std::vector<FoundKernel> fits;
  // Kernels whose symbol fits and whose parameters do not. If `fits` is not empty, without those
  // that another pattern fits.
  std::vector<FoundKernel> other_params;
  // If the pattern fits nothing: the kernel with the most similar symbol, if one is similar, the
  // difference, and a pattern that fits that kernel, if there is one.
  std::optional<FoundKernel> nearest;
  std::string why_not;
  std::string instead;
};

struct Coverage {
  // True if every pattern fits a kernel, and no kernel differs from all patterns for its symbol.
  bool is_whole() const;

  std::vector<PatternCoverage> patterns;     // in the order in which the shim tries them
  std::vector<FoundKernel> unknown_kernels;  // those that no pattern fits
  size_t kernel_count = 0;                   // in all
};

// `kernels` must outlive the result.
Coverage cover_kernels(const Snapshot& snapshot, const KernelList& kernels);

nlohmann::ordered_json coverage_json(const Coverage& coverage);
std::string coverage_text(const Coverage& coverage);

}  // namespace fibshim::tools
