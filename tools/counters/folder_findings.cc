#include "tools/counters/folder_findings.h"

#include "loader/read/folder.h"
#include "tools/counters/launch_groups.h"

namespace fibshim::tools {
namespace {

bool is_of(const FolderInQuestion& folder, const ProcessCounters& process, uint32_t config,
           const std::string& solution) {
  if (config >= process.configs.size()) return false;
  const ConfigIdentity& identity = process.configs[config];
  if (identity.path == "(other)") return true;  // any of the folders for which there was no room
  if (identity.digest != folder.digest) return false;
  // Launches without a solution's name may belong to it. A name that fills its field may be cut.
  return folder.share == 0 || solution.empty() ||
         solution.size() + 1 >= sizeof SeriesEntry::solution ||
         solution.ends_with(share_text(folder.share));
}

}  // namespace

FolderFindings findings_in(const ProcessCounters& process, const FolderInQuestion& folder) {
  FolderFindings out;
  for (const Count& count : process.counts) {
    if (!is_error(count.outcome) || !is_of(folder, process, count.config, count.solution)) continue;
    out.errors = saturating_add(out.errors, count.numbers.launches);
  }
  for (const ShadowCount& count : process.shadow) {
    if (!is_of(folder, process, count.config, count.solution)) continue;
    out.checks = saturating_add(out.checks, count.numbers.checks);
    out.mismatches = saturating_add(out.mismatches, count.numbers.mismatches);
  }
  return out;
}

}  // namespace fibshim::tools
