// --keep and --no-sweep: what the commands that read counters do about those of ended processes.
#ifndef FIBSHIM_TOOLS_COMMANDS_SWEEP_OPTIONS_H_
#define FIBSHIM_TOOLS_COMMANDS_SWEEP_OPTIONS_H_

#include <stdint.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <string>

#include <CLI/CLI.hpp>

#include "tools/counters/swept_counts.h"

namespace fibshim::tools {

inline void add_sweep_options(CLI::App* app, uint64_t* keep_seconds, bool* is_sweeping) {
  app->add_option("--keep", *keep_seconds,
                  "how long the counters of an ended process stay (30m, 12h, 7d; default 24h)")
      ->type_name("TIME")
      ->check([](const std::string& text) {
        return text.starts_with('-') ? "a time is positive, not " + text : std::string();
      })
      ->transform(CLI::AsNumberWithUnit(
          std::map<std::string, uint64_t>{{"s", 1}, {"m", 60}, {"h", 3600}, {"d", 86400}},
          CLI::AsNumberWithUnit::Options(CLI::AsNumberWithUnit::CASE_SENSITIVE), ""));
  app->add_flag("!--no-sweep", *is_sweeping, "remove nothing");
}

// What hinders the sweep hinders no reading: that says itself what it cannot read.
inline void sweep_quietly(const std::string& folder, uint64_t keep_seconds) {
  (void)sweep_ended_counters(folder,
                             std::chrono::seconds(std::min<uint64_t>(keep_seconds, INT64_MAX)));
}

}  // namespace fibshim::tools

#endif  // FIBSHIM_TOOLS_COMMANDS_SWEEP_OPTIONS_H_
