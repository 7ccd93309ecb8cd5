// Why nodes of graphs kept their original (shim/abi/graph_reasons.h), added up for `stats` and the Prometheus text.
#pragma once

#include <map>

#include <nlohmann/json.hpp>

#include "tools/counters/counters_files.h"

namespace fibshim::tools {

std::string reason_name(uint32_t reason);

using KeptSums = std::map<uint32_t, uint64_t>;  // by reason
KeptSums kept_sums_of(const ProcessCounters& process);
KeptSums kept_sums_of(const std::vector<ProcessCounters>& processes);

// How many there were, and what their reasons mean, one line each; "" where there were none.
std::string kept_lines(const KeptSums& sums);

// Every reason that this program knows, also those that never were.
nlohmann::ordered_json kept_to_json(KeptSums sums);

}  // namespace fibshim::tools
