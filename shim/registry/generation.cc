#include "shim/registry/generation.h"

#include <stddef.h>

#include "shim/registry/images.h"
#include "shim/base/pool.h"
#include "shim/registry/in_force.h"

namespace fibshim {
namespace {

Pool g_pool;

struct NoFolder {
  Snapshot snapshot;
  char root[8];
};
constexpr NoFolder kNoFolder = {{{'F', 'I', 'B', 'S', 'N', 'A', 'P', 0},
                                 kSnapshotVersion,
                                 sizeof(NoFolder),
                                 {},
                                 offsetof(NoFolder, root),
                                 0,
                                 0,
                                 {},
                                 {},
                                 {},
                                 {}},
                                {}};

}  // namespace

const Snapshot* no_folder() { return &kNoFolder.snapshot; }

Generation* make_generation(const Snapshot* snapshot, Mode mode, uint64_t number) {
  auto* generation = static_cast<Generation*>(g_pool.allocate(sizeof(Generation)));
  ReplacementRow* const replacements = make_replacement_table(*snapshot);
  if (generation == nullptr || replacements == nullptr) {
    g_pool.release(generation, sizeof(Generation));
    release_replacement_table(replacements, *snapshot);
    return nullptr;
  }
  *generation = {snapshot, number, 0, mode, replacements, nullptr};
  return generation;
}

void end_generation(Generation* generation) {
  release_replacement_table(generation->replacements, *generation->snapshot);
  if (!is_no_folder(*generation->snapshot)) loader().close(generation->snapshot);
  g_pool.release(generation, sizeof(Generation));
}

void lock_generations_for_fork() { g_pool.lock_for_fork(); }

void unlock_generations_after_fork(bool is_child) { g_pool.unlock_after_fork(is_child); }

}  // namespace fibshim
