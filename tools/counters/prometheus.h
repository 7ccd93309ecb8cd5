// The counters in the Prometheus text format, version 0.0.4: for `stats --prometheus`, for node
// exporter's textfile collector and for `serve`.
//
// Every series of launches has the labels pid and start_time of its process: a process only counts
// up, so PromQL's sum(increase(...)) is right while processes come and go. The number of series is
// bounded, since labels are names from config folders: beyond the limit a process's counts are
// added up under "(other)".
#pragma once

#include <stddef.h>

#include "tools/counters/counters_folder.h"

namespace fibshim::tools {

struct PrometheusOptions {
  size_t max_series = 1000;
};
inline constexpr char kMaxSeriesHelp[] =
    "of the Prometheus text: at most this many series (default 1000); what comes later goes under "
    "\"(other)\"";

std::string prometheus_text(const CountersFolder& folder, const PrometheusOptions& options);

}  // namespace fibshim::tools
