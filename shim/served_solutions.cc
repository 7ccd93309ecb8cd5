#include "shim/served_solutions.h"

#include <atomic>

#include "loader/snapshot.h"
#include "shim/counters.h"
#include "shim/settings_in_force.h"

namespace fibshim {
namespace {

struct Served {
  std::atomic<SolutionOnError> on_error;
};
constinit Served g_served[kSeriesCapacity] = {};

}  // namespace

void note_solution(uint32_t series, const Snapshot& snapshot, const Binding& binding) {
  if (!is_one_definition(series)) return;
  const Solution& solution = snapshot.begin(snapshot.solutions)[binding.solution];
  g_served[series].on_error.store(solution.on_error, std::memory_order_relaxed);
}

OnError on_error_of_series(uint32_t series) {
  return on_error_of(g_served[series].on_error.load(std::memory_order_relaxed));
}

}  // namespace fibshim
