// What shadow checks have found (FIBSHIM_SHADOW), added up over processes.
#pragma once

#include <map>

#include <nlohmann/json_fwd.hpp>

#include "tools/counters/counters_files.h"

namespace fibshim::tools {

struct ShadowKey {
  std::string definition, solution, pattern, shape;
  auto operator<=>(const ShadowKey&) const = default;
};
using ShadowSums = std::map<ShadowKey, ShadowNumbers>;
ShadowSums shadow_sums_of(const std::vector<ProcessCounters>& processes);

void add(const ShadowNumbers& more, ShadowNumbers* sum);

// A table; empty if nothing was to be checked.
std::string shadow_table(const ShadowSums& sums);
nlohmann::ordered_json shadow_to_json(const ShadowSums& sums);
// "12 shadow checks, 1 mismatch, most of norm_h8 at rows=3, 3 not checked"; empty as above.
std::string shadow_words(const ShadowSums& sums);

}  // namespace fibshim::tools
