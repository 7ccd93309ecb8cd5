#include "tools/counters/folders_in_force.h"

#include <nlohmann/json.hpp>

#include "tools/base/terminal.h"

namespace fibshim::tools {
namespace {

std::string size_words(uint64_t bytes) {
  constexpr uint64_t kMiB = 1 << 20;
  return bytes < kMiB ? fmt::format("{:.1f} KiB", static_cast<double>(bytes) / 1024)
                      : fmt::format("{:.1f} MiB", static_cast<double>(bytes) / kMiB);
}

}  // namespace

const char* folder_state_name(FolderState state) {
  switch (state) {
    case FolderState::on: return "on";
    case FolderState::off: return "off";
    case FolderState::refused: return "refused";
  }
  return "unknown";
}

FolderTotals folder_totals(const std::vector<ProcessCounters>& processes) {
  FolderTotals out;
  for (const FolderState state : {FolderState::on, FolderState::off, FolderState::refused}) {
    out.process_counts[state] = 0;
  }
  for (const ProcessCounters& process : processes) {
    if (!process.is_alive) continue;
    const FolderInForce& folder = process.folder;
    ++out.process_counts[folder.state];
    out.swap_count = saturating_add(out.swap_count, folder.swap_count);
    out.refused_count = saturating_add(out.refused_count, folder.refused_count);
    out.image_count = saturating_add(out.image_count, folder.image_count);
    out.image_bytes = saturating_add(out.image_bytes, folder.image_bytes);
    out.kept_image_count = saturating_add(out.kept_image_count, folder.kept_image_count);
    out.kept_image_bytes = saturating_add(out.kept_image_bytes, folder.kept_image_bytes);
  }
  return out;
}

std::string folder_words(const std::vector<ProcessCounters>& processes) {
  const FolderTotals totals = folder_totals(processes);
  if (totals.swap_count == 0 && totals.refused_count == 0) return "";
  std::map<std::string, uint64_t> counts;
  for (const ProcessCounters& process : processes) {
    const FolderInForce& folder = process.folder;
    if (!process.is_alive) continue;
    if (folder.state != FolderState::on) {
      ++counts[folder_state_name(folder.state)];
    } else if (!folder.config.path.empty()) {
      ++counts[fmt::format("in {} ({})", printable(folder.config.path),
                           folder.config.digest.substr(0, 12))];
    }
  }
  std::string out;
  for (const auto& [where, count] : counts) {
    out += fmt::format("{}{} {}", out.empty() ? "" : ", ",
                       out.empty() ? counted(count, "process", "processes") : fmt::to_string(count),
                       where);
  }
  out += "; " + counted(totals.swap_count, "move", "moves");
  if (totals.refused_count != 0) out += ", " + counted(totals.refused_count, "refusal", "refusals");
  return out;
}

std::string image_words(const std::vector<ProcessCounters>& processes) {
  const FolderTotals totals = folder_totals(processes);
  if (totals.image_count == 0) return "";
  std::string out = fmt::format("{} image{} loaded ({})", totals.image_count,
                                totals.image_count == 1 ? "" : "s", size_words(totals.image_bytes));
  if (totals.kept_image_count != 0) {
    out += fmt::format(", {} of them ({}) kept from folders before", totals.kept_image_count,
                       size_words(totals.kept_image_bytes));
  }
  return out;
}

nlohmann::ordered_json folder_to_json(const FolderInForce& folder) {
  nlohmann::ordered_json out;
  out["path"] = folder.config.path;
  out["digest"] = folder.config.digest;
  out["state"] = folder_state_name(folder.state);
  out["off"] = folder.state == FolderState::off;
  out["movable"] = folder.has_watcher;
  out["previous"] = folder.previous;
  out["configured"] = folder.configured;
  out["job"] = folder.job;
  out["swaps"] = folder.swap_count;
  out["refusals"] = folder.refused_count;
  out["refusal"] = folder.refusal;
  out["images"] = {{"count", folder.image_count},
                   {"bytes", folder.image_bytes},
                   {"kept_count", folder.kept_image_count},
                   {"kept_bytes", folder.kept_image_bytes}};
  return out;
}

}  // namespace fibshim::tools
