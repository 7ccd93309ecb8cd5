#include "tools/counters/kept_nodes.h"

#include "shim/abi/graph_reasons.h"
#include "tools/base/terminal.h"

namespace fibshim::tools {
namespace {

void add(const ProcessCounters& process, KeptSums* sums) {
  for (const KeptNodes& kept : process.kept) {
    uint64_t& sum = (*sums)[kept.reason];
    sum = saturating_add(sum, kept.number);
  }
}

}  // namespace

std::string reason_name(uint32_t reason) {
  return reason < kGraphReasonCount ? kGraphReasons[reason].name : fmt::format("reason_{}", reason);
}

KeptSums kept_sums_of(const ProcessCounters& process) {
  KeptSums sums;
  add(process, &sums);
  return sums;
}

KeptSums kept_sums_of(const std::vector<ProcessCounters>& processes) {
  KeptSums sums;
  for (const ProcessCounters& process : processes) add(process, &sums);
  return sums;
}

std::string kept_lines(const KeptSums& sums) {
  if (sums.empty()) return "";
  uint64_t all = 0;
  std::string parts;
  std::string meanings;
  for (const auto& [reason, number] : sums) {
    all = saturating_add(all, number);
    parts += fmt::format("{}{} {}", parts.empty() ? "" : ", ", number, reason_name(reason));
    meanings += fmt::format(
        "  {}: {}\n", reason_name(reason),
        reason < kGraphReasonCount ? kGraphReasons[reason].meaning : "written by a newer shim");
  }
  return counted(all, "node of a graph was", "nodes of graphs were") +
         " found to keep the original: " + parts + "\n" + meanings;
}

nlohmann::ordered_json kept_to_json(KeptSums sums) {
  for (uint32_t reason = 0; reason < kGraphReasonCount; ++reason) sums.try_emplace(reason);
  nlohmann::ordered_json out = nlohmann::ordered_json::object();
  for (const auto& [reason, number] : sums) out[reason_name(reason)] = number;
  return out;
}

}  // namespace fibshim::tools
