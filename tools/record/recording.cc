#include "tools/record/recording.h"

#include <algorithm>
#include <tuple>

namespace fibshim::tools {
void GeometryCounts::add(const GeometryCounts& more) {
  add_to(&launches, more.launches);
  add_to(&nodes, more.nodes);
  times.add(more.times);
}

void Recording::sort_kernels() {
  std::ranges::sort(kernels, [](const KernelRecord& a, const KernelRecord& b) {
    return std::make_tuple(-a.estimated_ns(), ~(a.launches + a.nodes), a.symbol, a.image) <
           std::make_tuple(-b.estimated_ns(), ~(b.launches + b.nodes), b.symbol, b.image);
  });
}

void Times::add(const Times& other) {
  add_to(&count, other.count);
  add_to(&sum_ns, other.sum_ns);
  if (other.shortest_ns != 0 && (shortest_ns == 0 || other.shortest_ns < shortest_ns)) {
    shortest_ns = other.shortest_ns;
  }
  longest_ns = std::max(longest_ns, other.longest_ns);
}

void Runs::add(const Runs& more) {
  warm_up.add(more.warm_up);
  steady.add(more.steady);
}

Runs KernelRecord::all_runs(bool in_graph) const {
  Runs all;
  for (const auto& [key, one] : runs) {
    if (key.second == in_graph) all.add(one);
  }
  return all;
}

Runs KernelRecord::all_runs() const {
  Runs all = all_runs(false);
  all.add(all_runs(true));
  return all;
}

Times KernelRecord::event_times() const {
  Times all = other.times;
  for (const auto& [geometry, counts] : geometries) all.add(counts.times);
  return all;
}

const Geometry* KernelRecord::commonest_geometry() const {
  const auto at = std::ranges::max_element(
      geometries, {}, [](const auto& one) { return one.second.launches + one.second.nodes; });
  return at == geometries.end() ? nullptr : &at->first;
}

Times KernelRecord::times() const { return runs.empty() ? event_times() : all_runs().typical(); }

double KernelRecord::estimated_ns() const {
  const uint64_t told = std::min(launches, all_runs(false).count());
  const double by_events = launches == 0
                               ? 0
                               : estimated_by_events_ns() * static_cast<double>(launches - told) /
                                     static_cast<double>(launches);
  return static_cast<double>(all_runs().sum_ns()) + by_events;
}

double KernelRecord::estimated_by_events_ns() const {
  const Times all = event_times();
  if (all.count == 0) return 0;
  const auto estimate = [&](const GeometryCounts& counts) {
    const Times& times = counts.times.count != 0 ? counts.times : all;
    return static_cast<double>(times.sum_ns) / static_cast<double>(times.count) *
           static_cast<double>(counts.launches);
  };
  double sum = estimate(other);
  for (const auto& [geometry, counts] : geometries) sum += estimate(counts);
  return sum;
}

std::vector<ParamType> KernelRecord::param_types() const { return types_of_params(symbol, params); }

uint64_t Recording::sum_of(uint64_t KernelRecord::*member) const {
  uint64_t sum = 0;
  for (const KernelRecord& kernel : kernels) add_to(&sum, kernel.*member);
  return sum;
}

uint64_t Recording::runs() const {
  uint64_t sum = 0;
  for (const KernelRecord& kernel : kernels) add_to(&sum, kernel.all_runs().count());
  return sum;
}

double Recording::estimated_ns() const {
  double sum = 0;
  for (const KernelRecord& kernel : kernels) sum += kernel.estimated_ns();
  return sum;
}

}  // namespace fibshim::tools
