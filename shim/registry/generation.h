// One config folder in force: its snapshot, and what this process has made of it. A process goes from
// one generation to the next when it moves to another folder (life/).
//
// A launch belongs to the generation of the record that it found: whatever it reads afterwards hangs
// on that record, so it sees one generation, whole. Immutable but for the table of loaded kernels.
// Read within a read section; retired when the next one is in force.
#pragma once

#include <atomic>
#include <stdint.h>

#include "shim/abi/settings.h"
#include "shim/abi/snapshot.h"
#include "shim/driver/cuda_names.h"

namespace fibshim {

// GPUs of one compute capability form a class (devices.h).
inline constexpr uint32_t kMaxDeviceClasses = 8;

// The loaded kernels of one solution (images.h).
struct LoadedSolution {
  std::atomic<CUkernel> kernels[kMaxDeviceClasses];  // null: not loaded
  std::atomic<uint64_t> images[kMaxDeviceClasses];   // that they are of; written before
  std::atomic<uint32_t> reported;                    // bit per class: its failure was logged
};

struct Generation {
  const Snapshot* snapshot;
  uint64_t number;            // from 1 on
  uint32_t config;            // its index in the counters file
  Mode mode;                  // off: no pattern is known
  LoadedSolution* solutions;  // one for each of the snapshot's
  Generation* next;           // once it is retired

  bool knows_patterns() const { return mode != Mode::off && snapshot->patterns.count != 0; }
};

// The generation in force, once there is one. Within a read section: it stays until that is left.
const Generation* current_generation();
inline bool has_generation() { return current_generation() != nullptr; }

// Puts `next` in force and returns the generation before. Only the start and put_in_force() call it.
Generation* exchange_generation(Generation* next);

// The generation takes ownership of the snapshot. Null: no memory; the caller keeps it.
Generation* make_generation(const Snapshot* snapshot, Mode mode, uint64_t number);

// Closes the snapshot of a generation that has no reader left.
void end_generation(Generation* generation);

// A snapshot with nothing in it, for a process without a folder.
const Snapshot* no_folder();
inline bool is_no_folder(const Snapshot& snapshot) { return *snapshot.text(snapshot.root) == 0; }

// The loader's functions; valid once set_loader() was called, which comes before the first generation.
const LoaderApi& loader();
void set_loader(const LoaderApi& api);

// For the atfork handlers.
void lock_generations_for_fork();
void unlock_generations_after_fork(bool is_child);

}  // namespace fibshim
