// Random programs: `conform random SEED` makes, from the seed alone, a few processes with a few
// threads each, which do what random_worker.h describes. The simulated driver's record is the
// truth: every launch of a tracked shape ran that shape's curated kernel, every other launch its
// original, and none used a dead handle. Each process states what its counters must be; with
// faults, the number of hits and of launches.
#include <stdio.h>

#include <thread>

#include "tests/conformance/hosts/random_worker.h"

namespace conform {
namespace {

// With faults: states what the counters must be over all launches, and checks that the shim has
// loaded at most one of each image per kind of GPU.
void state_with_faults(const Ran& ran, const Counts& counts, const Failures& failures) {
  const int64_t libraries = cuda().simcuda_live_count("library");
  const auto not_unloaded = static_cast<int64_t>(cuda().simcuda_own_faults("cuLibraryUnload"));
  constexpr int64_t kMostImages = 3 * 2;
  CHECK(libraries <= kMostImages + not_unloaded);
  state_faulted(ran, counts.hit, total(counts), failures.own, failures.own + failures.unknown);
}

// One process of a program: its threads, and then operations that only a single thread may do.
void run_process(uint64_t seed) {
  Random random(seed);
  const Gpu gpu;
  std::vector<std::unique_ptr<Worker>> workers;
  const int count = 1 + random.below(4);
  const int operations = 20 + random.below(120);
  for (int i = 0; i < count; ++i) {
    workers.push_back(std::make_unique<Worker>(gpu, random.next(), true));
  }
  std::vector<std::thread> threads;
  for (int i = 1; i < count; ++i) {
    threads.emplace_back([&, i] { workers[static_cast<size_t>(i)]->run(operations); });
  }
  workers[0]->run(operations);
  for (std::thread& thread : threads) thread.join();

  Ran ran;
  Counts counts;
  Failures failures;
  for (const auto& worker : workers) {
    add(&ran, worker->ran());
    add(&counts, worker->counts());
    failures.own += worker->failures().own;
    failures.unknown += worker->failures().unknown;
  }
  gpu.expect_ran(ran);
  if (has_faults()) return state_with_faults(ran, counts, failures);
  if (random.one_in(3)) {
    // Start again in a new primary context.
    OK(cuda().cuDevicePrimaryCtxReset_v2(gpu.device()));
    const Gpu again;
    Worker last(again, random.next(), false);
    last.run(operations / 2);
    add(&ran, last.ran());
    add(&counts, last.counts());
    // The marks of the first run ended with their context.
    again.expect_ran(cuda().is_simulated ? ran : last.ran());
  }
  state(ran, counts);
}

}  // namespace
}  // namespace conform

using namespace conform;

CASE(random) {
  const uint64_t seed = strtoull(arguments.at(0).c_str(), nullptr, 10);
  Random random(seed);
  std::vector<pid_t> children;
  for (int i = random.below(3); i > 0; --i) {
    const uint64_t child_seed = random.next();
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
      run_process(child_seed);
      fflush(stdout);
      _exit(0);
    }
    children.push_back(child);
  }
  run_process(random.next());
  for (const pid_t child : children) expect_exit(child);
}
