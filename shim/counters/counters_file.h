// The process's counters file: where everything lies in it (counters_format.h), and space for it.
//
// Space is reserved before it is touched, so that no store into the mapping can fail. What is counted, and as what, is
// counters.h's; it calls these holding its lock, but for what any thread may call.
#pragma once

#include <atomic>
#include <stdint.h>

#include "shim/abi/counters_format.h"
#include "shim/abi/settings.h"

namespace fibshim {

struct ControlBlock;

// Its header. Null: there is no file.
FileHeader* file_header();

// What the process is, and the file's layout; folders, devices and series stay as they are.
void describe_process(FileHeader* head);

// Maps header, series table and shard 0 of a new file, with the series that there are. Null; or why not, and
// nothing is left behind.
const char* create_counters_file(const FileHeader& head, const SeriesEntry* series,
                                 uint32_t series_count, void** first_shard);

// In a child: the file is its parent's.
void forget_counters_file();

void warn_of_space(const char* what);

// A new shard of the file, with space for all existing series. MAP_FAILED: no space.
void* map_shard(uint32_t index);
// One for a process without a file.
void* map_private_shard();

// Space for one more series, in the table and in every shard.
bool reserve_series(uint32_t series, uint32_t shard_count);
// Adds it to the table.
void write_series(uint32_t series, const SeriesEntry& entry);
// One that is in it. Null: there is no file.
SeriesEntry* series_in_file(uint32_t series);

// Space for what shadow checks find, and where the file says how many entries there are. Null: no file, or no space.
ShadowEntry* reserve_shadow_space(std::atomic<uint32_t>** count);

// --- any thread, at any time ---

// The mode that is in force, for readers.
void publish_mode(Mode mode);

// The process's control block, and where it lies in any counters file of this version. Null: no file.
ControlBlock* own_control();
uint64_t control_offset();

// kTimedGraphs of them. Null: no file.
StepTimes* own_step_times();

}  // namespace fibshim
