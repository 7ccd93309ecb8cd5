// The counters in the Prometheus text format, version 0.0.4: for `stats --prometheus`, for node
// exporter's textfile collector and for `serve`.
//
// The sums never fall while processes come and go: what was swept stays in them. The number of
// series is bounded: labels are names from config folders, and beyond the limit the names that came
// last are added up under "(other)".
#ifndef FIBSHIM_TOOLS_COUNTERS_PROMETHEUS_H_
#define FIBSHIM_TOOLS_COUNTERS_PROMETHEUS_H_

#include <stddef.h>

#include <string>

#include "tools/counters/counters_files.h"

namespace fibshim::tools {

inline constexpr size_t kDefaultMaxSeries = 1000;

struct PrometheusOptions {
  bool is_per_process = false;  // labels pid and start_time; without what was swept
  size_t max_series = kDefaultMaxSeries;
};

std::string prometheus_text(const CountersFolder& folder, const PrometheusOptions& options);

}  // namespace fibshim::tools

#endif  // FIBSHIM_TOOLS_COUNTERS_PROMETHEUS_H_
