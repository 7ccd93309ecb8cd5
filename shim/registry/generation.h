// One config folder in force: its snapshot, and what this process has made of it. A process goes from
// one generation to the next when it moves to another folder (swap.h).
//
// A launch belongs to the generation of the record that it found: whatever it reads afterwards hangs
// on that record, so it sees one generation, whole. Immutable but for the table of loaded kernels.
// Read within a read section; taken back a grace period after the next one is in force.
#ifndef FIBSHIM_SHIM_REGISTRY_GENERATION_H_
#define FIBSHIM_SHIM_REGISTRY_GENERATION_H_

#include <stdint.h>

#include "shim/abi/snapshot.h"
#include "shim/abi/settings.h"

namespace fibshim {

struct ReplacementRow;

struct Generation {
  const Snapshot* snapshot;
  uint64_t number;               // from 1 on
  uint32_t config;               // its index in the counters file
  Mode mode;                     // off: no pattern is known
  ReplacementRow* replacements;  // one for each solution (images.h)
  Generation* next;              // once it is to be taken back

  bool knows_patterns() const { return mode != Mode::off && snapshot->patterns.count != 0; }
};

// The snapshot is the generation's from here on. Null: no memory; it is then still the caller's.
Generation* make_generation(const Snapshot* snapshot, Mode mode, uint64_t number);

// Nobody reads it any more. Closes its snapshot.
void end_generation(Generation* generation);

// A snapshot with nothing in it, for a process without a folder.
const Snapshot* no_folder();
inline bool is_no_folder(const Snapshot& snapshot) { return *snapshot.text(snapshot.root) == 0; }

// For the atfork handlers.
void lock_generations_for_fork();
void unlock_generations_after_fork(bool is_child);

}  // namespace fibshim

#endif  // FIBSHIM_SHIM_REGISTRY_GENERATION_H_
