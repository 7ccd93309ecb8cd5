// How the patterns of a config folder stand to the kernels of engines: which each fits, what comes nearest to
// one that fits nothing, and which kernels no pattern fits. The shim's own matcher and fit decide.
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "shim/abi/snapshot.h"
#include "tools/images/kernel_list.h"

namespace fibshim::tools {

using KernelAndOrigins = std::map<KnownKernel, std::set<std::string>>::value_type;

struct PatternCoverage {
  std::string label;
  std::vector<const KernelAndOrigins*> fits;
  std::vector<const KernelAndOrigins*> other_params;  // the symbol fits, the parameters do not
  // Where it fits nothing: the kernel whose symbol comes nearest, if one is near, and what is between.
  const KernelAndOrigins* nearest = nullptr;
  std::string why_not;
};

struct Coverage {
  // Whether every pattern fits a kernel, and none has the symbol of one with other parameters.
  bool is_whole() const;

  std::vector<PatternCoverage> patterns;                 // in the order of trial
  std::vector<const KernelAndOrigins*> unknown_kernels;  // that no pattern fits
};

// `kernels` must outlive what is returned.
Coverage cover_kernels(const Snapshot& snapshot, const KernelList& kernels);

nlohmann::ordered_json coverage_json(const Coverage& coverage);
std::string coverage_text(const Coverage& coverage);

}  // namespace fibshim::tools
