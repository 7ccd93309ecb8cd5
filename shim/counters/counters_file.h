// The process's counters file: its layout (counters_format.h), and disk space for it.
//
// Space is reserved before it is touched, so that no store into the mapping can fail, unless the
// file's owner or root cuts it short. counters.cc, which counts, calls these functions with its
// lock held, except those that any thread may call.
#pragma once

#include <atomic>
#include <stdint.h>

#include "shim/abi/counters_format.h"
#include "shim/abi/settings.h"

namespace fibshim {

struct ControlBlock;

// Returns the file's header, or null if there is no file.
FileHeader* file_header();

// Fills in the process and the file's layout. Folders, devices and series are not changed.
void describe_process(FileHeader* head);

// Makes a file, maps its header, series table and shard 0, and writes the existing series. Returns
// null, or the reason for a failure, after which nothing is left behind.
const char* create_counters_file(const FileHeader& head, const SeriesEntry* series,
                                 uint32_t series_count, void** first_shard);

// Called in a forked child, since the file is its parent's.
void forget_counters_file();

void warn_of_space(const char* what);

// Maps a new shard of the file, with space for all existing series. MAP_FAILED: no space.
void* map_shard(uint32_t index);
// Maps a shard for a process without a file.
void* map_private_shard();

// Reserves space for one more series, in the table and in every shard. False: no space.
bool reserve_series(uint32_t series, uint32_t shard_count);
// Writes it into the table.
void write_series(uint32_t series, const SeriesEntry& entry);
// One that is in it. Null: there is no file.
SeriesEntry* series_in_file(uint32_t series);

// Like reserve_shadow_entries() (counters.h).
ShadowEntry* reserve_shadow_space(std::atomic<uint32_t>** count);

// --- any thread, at any time ---

// Writes the mode in force into the header.
void publish_mode(Mode mode);

// Return the process's control block, or null without a file, and its offset in any counters file
// of this version.
ControlBlock* own_control();
uint64_t control_offset();

// Returns an array of kTimedGraphs, or null without a file.
StepTimes* own_step_times();

}  // namespace fibshim
