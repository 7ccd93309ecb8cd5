#include "tools/commands/rollout_stages.h"

#include <math.h>

#include <algorithm>
#include <charconv>

#include <fmt/format.h>

#include "loader/check/check.h"
#include "shim/abi/control_format.h"
#include "shim/abi/folder_list.h"
#include "tools/base/folder_list.h"
#include "tools/base/terminal.h"

namespace fibshim::tools {

std::map<std::string, std::string> process_names(const std::vector<ProcessCounters>& processes) {
  std::map<std::string, std::string> out;
  for (const ProcessCounters& process : processes) {
    const bool is_alone = std::ranges::count(processes, process.pid, &ProcessCounters::pid) == 1;
    out[process.file] = is_alone ? fmt::format("{}", process.pid)
                                 : fmt::format("{} ({})", process.pid, process.file);
  }
  return out;
}

std::vector<Unit> units_of(const std::vector<ProcessCounters>& processes) {
  const std::map<std::string, std::string> names = process_names(processes);
  std::vector<Unit> out;
  for (const ProcessCounters& process : processes) {
    const std::string& job = process.folder.job;
    const std::string name = job.empty() ? "pid " + names.at(process.file) : "job " + job;
    const auto found = std::ranges::find(out, name, &Unit::name);
    if (found != out.end()) {
      found->processes.push_back(process);
    } else {
      out.push_back({name, {process}});
    }
  }
  return out;
}

Stage stage_of(double percent, size_t units, bool can_share) {
  const double wanted = percent / 100 * static_cast<double>(units);
  const auto share = static_cast<uint32_t>(lround(wanted * kWholeShare));
  if (can_share && share < kWholeShare) return {1, std::max(share, 1u)};
  return {static_cast<size_t>(ceil(wanted - 1e-9))};
}

std::string shared_list(const std::string& folder, uint32_t share, const ProcessCounters& process) {
  std::string out;
  for (const std::string& one : split_folders(folder)) {
    out += one + share_text(share) + kFolderSeparator;
  }
  return out + (process.folder.state == FolderState::on ? process.folder.config.path : "");
}

std::string parse_stages(const std::string& shares, std::vector<double>* stages) {
  for (std::string_view word : split(shares, ',')) {
    if (word.ends_with('%')) word.remove_suffix(1);
    double share = 0;
    const auto parsed = std::from_chars(word.data(), word.data() + word.size(), share);
    const double before = stages->empty() ? 0 : stages->back();
    if (parsed.ec != std::errc() || parsed.ptr != word.data() + word.size() || !(share > before) ||
        share > 100) {
      return "--to: takes rising shares, such as 10%,50%,100%";
    }
    stages->push_back(share);
  }
  return stages->empty() ? "--to: needs a share" : "";
}

std::string share_words(const Stage& stage) {
  return stage.share == 0 ? "" : fmt::format(" for {:g} % of its launches", stage.share / 100.0);
}

std::string why_not_shared(const Unit& unit, const std::string& folder) {
  const std::string list = shared_list(folder, 1, unit.processes.front());
  for (const ProcessCounters& process : unit.processes) {
    if (shared_list(folder, 1, process) != list) return "its processes run on different folders";
  }
  if (list.size() >= kControlPathBytes) return "the paths are too long";
  const CheckReport report = check_folder(list);
  if (report.snapshot != nullptr) return "";
  for (const Diagnostic& diagnostic : report.diagnostics) {
    if (diagnostic.severity == Severity::error) return format_diagnostic(diagnostic);
  }
  return "the folders do not go together";
}

}  // namespace fibshim::tools
