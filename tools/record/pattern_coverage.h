// How the patterns of a config folder stand to the kernels of engines: which each fits, what comes nearest to
// one that fits nothing, and which kernels no pattern fits. The shim's own matcher and fit decide.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "shim/abi/snapshot.h"
#include "tools/images/kernel_list.h"

namespace fibshim::tools {

// With all the images that have it, one for each GPU, say.
struct FoundKernel {
  const KnownKernel* kernel;  // of the first of them
  std::set<std::string> origins;
};

struct PatternCoverage {
  std::string label;
  std::string symbol;  // as the pattern asks for it
  std::vector<FoundKernel> fits;
  // The symbol fits, the parameters do not; where it fits a kernel, without those that another pattern fits.
  std::vector<FoundKernel> other_params;
  // Where it fits nothing: the kernel whose symbol comes nearest, if one is near, what is between, and a
  // pattern that fits that kernel, if there is one.
  std::optional<FoundKernel> nearest;
  std::string why_not;
  std::string instead;
};

struct Coverage {
  // Whether every pattern fits a kernel, and no kernel has other parameters than all patterns for its symbol.
  bool is_whole() const;

  std::vector<PatternCoverage> patterns;     // in the order of trial
  std::vector<FoundKernel> unknown_kernels;  // that no pattern fits
  size_t kernel_count = 0;                   // in all
};

// `kernels` must outlive what is returned.
Coverage cover_kernels(const Snapshot& snapshot, const KernelList& kernels);

nlohmann::ordered_json coverage_json(const Coverage& coverage);
std::string coverage_text(const Coverage& coverage);

}  // namespace fibshim::tools
