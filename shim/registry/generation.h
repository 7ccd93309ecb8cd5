// One config folder in force: its snapshot, and the kernels that this process has loaded for it. A
// process goes from one generation to the next when it moves to another folder (life/).
//
// A launch belongs to the generation of the record that it found. It reads everything else through
// that record, so it sees one complete generation. Immutable except for the table of loaded
// kernels. Read within a read section; retired when the next one is in force.
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
  OnError on_error;           // where neither the environment nor the definition says more
  LoadedSolution* solutions;  // one for each solution of the snapshot
  Generation* next;           // in a list, once it is retired

  bool knows_patterns() const { return mode != Mode::off && snapshot->patterns.count != 0; }
};

// Returns the generation in force, or null before the first. It stays valid within a read section.
const Generation* current_generation();
inline bool has_generation() { return current_generation() != nullptr; }

// Puts `next` in force and returns the previous generation. Called only at the start and by
// put_in_force().
Generation* exchange_generation(Generation* next);

// Makes a generation, which takes ownership of the snapshot. Null: no memory; the caller keeps it.
Generation* make_generation(const Snapshot* snapshot, Mode mode, OnError on_error, uint64_t number);

// Closes the snapshot of a generation that has no reader left.
void end_generation(Generation* generation);

// An empty snapshot, for a process without a folder.
const Snapshot* no_folder();
inline bool is_no_folder(const Snapshot& snapshot) { return *snapshot.text(snapshot.root) == 0; }

// The loader's functions. Valid after set_loader(), which precedes the first generation.
const LoaderApi& loader();
void set_loader(const LoaderApi& api);

// For the atfork handlers.
void lock_generations_for_fork();
void unlock_generations_after_fork(bool is_child);

}  // namespace fibshim
