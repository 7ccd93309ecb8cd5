#include "shim/launch/shapes.h"

#include "shim/abi/hash.h"
#include "shim/abi/program.h"
#include "shim/counters/counters.h"

namespace fibshim {
namespace {

uint64_t add_value(uint64_t hash, int64_t value) {
  return scramble((hash ^ static_cast<uint64_t>(value)) + kHashFactor);
}

uint64_t hash_of_key(const Decision& decision, uint32_t count) {
  uint64_t hash = count;
  for (uint32_t i = 0; i < count; ++i) hash = add_value(hash, decision.key[i]);
  return hash;
}

}  // namespace

void record_shape(const Decision& decision, uint32_t own) {
  add_shape(decision.series, add_value(hash_of_key(decision, own), 0));
}

void record_shape_of_node(const LaunchPlan& plan, const LaunchView& view) {
  const Decision& decision = *plan.decision;
  const Snapshot& snapshot = *decision.snapshot;
  const NamedAxis* const axes = snapshot.begin(decision.binding->axes);
  uint64_t hash = hash_of_key(decision, plan.candidate->pattern->key.count);
  for (uint32_t i = 0; i < decision.binding->axes.count; ++i) {
    int64_t value = 0;
    const Program program = axes[i].value;
    (void)run_program(snapshot.begin(program), program.count, view, &value);
    hash = add_value(hash, value);
  }
  add_shape(decision.series, add_value(hash, 1));
}

}  // namespace fibshim
