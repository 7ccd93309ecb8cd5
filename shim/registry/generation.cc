#include "shim/registry/generation.h"

#include <stddef.h>

#include "shim/base/pool.h"

namespace fibshim {
namespace {

Pool g_pool;
std::atomic<Generation*> g_current;
const LoaderApi* g_loader;  // written before the first generation is published

struct NoFolder {
  Snapshot snapshot;
  char root[8];
};

constexpr NoFolder make_no_folder() {
  NoFolder none = {};
  for (int i = 0; i < 7; ++i) none.snapshot.magic[i] = "FIBSNAP"[i];
  none.snapshot.version = kSnapshotVersion;
  none.snapshot.size_bytes = sizeof(NoFolder);
  none.snapshot.root = offsetof(NoFolder, root);
  return none;
}
constexpr NoFolder kNoFolder = make_no_folder();

size_t solutions_bytes(const Snapshot& snapshot) {
  return (snapshot.solutions.count + 1) * sizeof(LoadedSolution);
}

}  // namespace

const Generation* current_generation() { return g_current.load(std::memory_order_seq_cst); }

Generation* exchange_generation(Generation* next) { return g_current.exchange(next); }

Generation* make_generation(const Snapshot* snapshot, Mode mode, OnError on_error,
                            uint64_t number) {
  auto* const generation = static_cast<Generation*>(g_pool.allocate(sizeof(Generation)));
  auto* const solutions = static_cast<LoadedSolution*>(g_pool.allocate(solutions_bytes(*snapshot)));
  if (generation == nullptr || solutions == nullptr) {
    g_pool.release(generation, sizeof(Generation));
    g_pool.release(solutions, solutions_bytes(*snapshot));
    return nullptr;
  }
  *generation = {snapshot, number, 0, mode, on_error, solutions, nullptr};
  return generation;
}

void end_generation(Generation* generation) {
  g_pool.release(generation->solutions, solutions_bytes(*generation->snapshot));
  if (!is_no_folder(*generation->snapshot)) loader().close(generation->snapshot);
  g_pool.release(generation, sizeof(Generation));
}

const Snapshot* no_folder() { return &kNoFolder.snapshot; }

const LoaderApi& loader() { return *g_loader; }
void set_loader(const LoaderApi& api) { g_loader = &api; }

void lock_generations_for_fork() { g_pool.lock_for_fork(); }

void unlock_generations_after_fork(bool is_child) { g_pool.unlock_after_fork(is_child); }

}  // namespace fibshim
