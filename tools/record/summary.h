// The text of `fibshim record --summary`: how the GPU's time was spent, for how much of it a folder
// has patterns, and how much was replaced.
#pragma once

#include <map>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "tools/record/pattern_fit.h"
#include "tools/record/recording.h"

namespace fibshim::tools {

struct Summary {
  Recording recording;
  std::string config;                         // empty: no patterns were compared
  std::vector<std::vector<PatternFit>> fits;  // of each kernel
  std::map<std::string, std::string>
      replacements;  // a solution's kernel -> its definition, or several
};

// The definition whose original the kernel replaced; empty if it is a kernel of the host.
std::string replaced_definition(const Summary& summary, const KernelRecord& kernel);

// `top`: how many kernels to list; 0: all.
std::string summary_text(const Summary& summary, uint32_t top);
nlohmann::ordered_json summary_json(const Summary& summary, uint32_t top);

}  // namespace fibshim::tools
