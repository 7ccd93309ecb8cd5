#include "shim/counters/step_times.h"

#include <atomic>
#include <time.h>

#include "shim/abi/control_format.h"
#include "shim/counters/counters_file.h"

namespace fibshim {
namespace {

// Low half: the number of the request. High half: how many graphs have a place for it.
constinit std::atomic<uint64_t> g_places;

uint32_t asked_number() {
  const ControlBlock* const control = own_control();
  return control == nullptr ? 0 : __atomic_load_n(&control->times_steps, __ATOMIC_RELAXED);
}

uint32_t reserve_place(uint32_t asked) {
  uint64_t places = g_places.load(std::memory_order_relaxed);
  while (true) {
    const uint64_t taken = static_cast<uint32_t>(places) == asked ? places >> 32 : 0;
    if (taken == kTimedGraphs) return kTimedGraphs;
    if (g_places.compare_exchange_weak(places, (taken + 1) << 32 | asked,
                                       std::memory_order_relaxed)) {
      return static_cast<uint32_t>(taken);
    }
  }
}

uint64_t now_ns() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
}

}  // namespace

bool are_steps_timed() { return asked_number() != 0; }

void time_step(StepClock* clock) {
  const uint32_t asked = asked_number();
  const uint64_t now = now_ns();
  if (clock->asked != asked) {
    *clock = {now, asked, reserve_place(asked)};
    return;
  }
  StepTimes* const times = own_step_times();
  if (times != nullptr && clock->place < kTimedGraphs) {
    uint32_t* const count = &times[clock->place].intervals[step_bucket(now - clock->last_ns)];
    __atomic_store_n(count, *count + 1, __ATOMIC_RELAXED);
  }
  clock->last_ns = now;
}

}  // namespace fibshim
