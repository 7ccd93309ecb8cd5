#include "tools/counters/launch_counts.h"

#include <fmt/format.h>
#include <fnmatch.h>

#include <algorithm>
#include <set>

namespace fibshim::tools {
namespace {

void add_counts(const ProcessCounters& process, std::map<LaunchKey, LaunchNumbers>* counts) {
  for (const Count& count : process.counts) {
    LaunchKey key{count.outcome, count.definition, count.solution, count.pattern, "", "",
                  count.device};
    // A launch that no pattern fits belongs to no config, whatever its series says.
    const bool has_config = !count.pattern.empty() && count.config < process.configs.size();
    if (has_config) {
      key.config = process.configs[count.config].path;
      key.digest = process.configs[count.config].digest;
    }
    (*counts)[std::move(key)].add(count.numbers);
  }
}

bool fits_any(const std::vector<std::string>& globs, const std::string& name) {
  return globs.empty() || std::ranges::any_of(globs, [&name](const auto& glob) {
           return fnmatch(glob.c_str(), name.c_str(), 0) == 0;
         });
}

template <typename T>
bool is_among(const std::vector<T>& list, const T& value) {
  return list.empty() || std::ranges::find(list, value) != list.end();
}

}  // namespace

void add_filter_options(CommandLine* line, LaunchFilter* filter) {
  line->pids(&filter->pids, "only this process (may be repeated, as the next three)");
  line->option("--definition", &filter->definitions, "GLOB",
               "only definitions whose name fits; \"\": launches that no pattern knows");
  line->option("--pattern", &filter->patterns, "GLOB", "only patterns whose label fits");
  line->number("--device", &filter->devices, 0, INT32_MAX, "N",
               "only this GPU, as its process numbers them (CUDA_VISIBLE_DEVICES)");
  line->check([filter] {
    for (const auto* globs : {&filter->definitions, &filter->patterns}) {
      for (const std::string& glob : *globs) {
        for (const char* kind : {"re:", "glob:", "demangled:"}) {
          if (!glob.starts_with(kind)) continue;
          return fmt::format("{}: takes a glob, as in the shell, not '{}': {} is for symbols",
                             globs == &filter->patterns ? "--pattern" : "--definition", glob, kind);
        }
      }
    }
    return std::string();
  });
}

bool is_wanted(const LaunchFilter& filter, const std::string& definition,
               const std::string& pattern) {
  return fits_any(filter.definitions, definition) && fits_any(filter.patterns, pattern);
}

std::vector<uint64_t> apply_filter(const LaunchFilter& filter, CountersFolder* folder,
                                   uint64_t* unattributed) {
  std::set<uint64_t> missing(filter.pids.begin(), filter.pids.end());
  std::erase_if(folder->processes, [&](const ProcessCounters& process) {
    missing.erase(process.pid);
    return !is_among(filter.pids, process.pid);
  });
  for (ProcessCounters& process : folder->processes) {
    std::erase_if(process.counts, [&](const Count& count) {
      if (!is_wanted(filter, count.definition, count.pattern)) return true;
      if (is_among(filter.devices, count.device)) return false;
      if (count.device < 0) *unattributed = saturating_add(*unattributed, count.numbers.launches);
      return true;
    });
    std::erase_if(process.kept, [&](const KeptNodes& kept) {
      return !is_wanted(filter, kept.definition, kept.pattern) ||
             !is_among(filter.devices, kept.device);
    });
    std::erase_if(process.shadow, [&](const ShadowCount& shadow) {
      return !is_wanted(filter, shadow.definition, shadow.pattern) ||
             !is_among(filter.devices, shadow.device);
    });
  }
  return {missing.begin(), missing.end()};
}

std::vector<LaunchRow> sorted_rows(const std::map<LaunchKey, LaunchNumbers>& counts) {
  std::vector<LaunchRow> rows;
  rows.reserve(counts.size());
  for (const auto& [key, numbers] : counts) rows.push_back({key, numbers});
  std::ranges::stable_sort(rows, [](const LaunchRow& a, const LaunchRow& b) {
    if (a.key.outcome != b.key.outcome) return a.key.outcome < b.key.outcome;
    return a.numbers.executions > b.numbers.executions;
  });
  return rows;
}

std::map<LaunchKey, LaunchNumbers> counts_of(const ProcessCounters& process) {
  std::map<LaunchKey, LaunchNumbers> counts;
  add_counts(process, &counts);
  return counts;
}

std::map<LaunchKey, LaunchNumbers> counts_of(const std::vector<ProcessCounters>& processes) {
  std::map<LaunchKey, LaunchNumbers> counts;
  for (const ProcessCounters& process : processes) add_counts(process, &counts);
  return counts;
}

std::map<uint32_t, LaunchNumbers> totals_of(const std::vector<LaunchRow>& rows) {
  std::map<uint32_t, LaunchNumbers> totals;
  for (const LaunchRow& row : rows) {
    totals[row.key.outcome].add(row.numbers);
  }
  return totals;
}

}  // namespace fibshim::tools
