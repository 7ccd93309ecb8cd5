// The counters file: what a process writes into FIBSHIM_STATS_DIR and `fibshim stats` reads, while
// the process runs and after it was killed.
//
//   FileHeader                      at 0
//   ControlBlock                    at control_at (control_format.h)
//   StepTimes[kTimedGraphs]         at steps_at
//   ShadowEntry[shadow_capacity]    at shadow_at: what shadow checks have found, one per (series, shape)
//   SeriesEntry[series_capacity]    at series_at: one per (config, pattern, definition,
//                                   solution, device)
//   shard 0, shard 1, ...           at shards_at + i * shard_stride; uint64 counters, that of (series s,
//                                   kind k, outcome o) at ((s * kCountKinds + k) * kOutcomeSlots + o) * 8
//
// A count is the sum over all shards. Each shard has one writing thread at a time, but for shard 0,
// which threads without one of their own share by atomic adds. Holes in the file read as zero.
// Series are published by storing `series_count` (release) after the entry is whole; they are never
// removed, and nothing but their atomic part changes. Series 0 is the one of launches that no pattern knows: empty names.
// The file's name is "<pid>-<start_time>.counters"; of the programs that a process goes on with by
// exec "<pid>-<start_time>-<number>.counters".
#pragma once

#include <stdint.h>

namespace fibshim {

inline constexpr char kCountersMagic[8] = {'F', 'I', 'B', 'C', 'N', 'T', 'R', 0};
inline constexpr uint32_t kCountersVersion = 9;
inline constexpr char kCountersSuffix[] = ".counters";
inline constexpr uint32_t kOutcomeSlots = 16;      // counters of one kind, room for later outcomes
inline constexpr uint32_t kSeriesCapacity = 4096;  // beyond: counted under "(other)" names

// What is counted of a series. A launch runs its kernel once, when it is made; a node is counted when a graph is
// instantiated, and runs each time that the graph is launched. A body_node is in the body of a conditional node: how
// often it runs, the device decides. A kept node keeps its original, for a GraphReason in the place of an outcome; it is
// counted each time that this is found.
enum class CountKind : uint32_t { launch, node, node_run, body_node, kept };
inline constexpr uint32_t kCountKinds = 5;
inline constexpr uint32_t kCountersPerSeries = kCountKinds * kOutcomeSlots;
inline constexpr uint32_t kMaxCountedDevices = 16;
// Folders that a process has been in, one after the other. Those beyond are counted under the last entry,
// whose path is "(other)".
inline constexpr uint32_t kMaxCountedConfigs = 64;

// How long the steps of a graph take: the intervals between two launches of an executable graph, while someone asks for them
// (ControlBlock::times_steps). The graphs that are launched first from then on have one each.
inline constexpr uint32_t kTimedGraphs = 32;
inline constexpr uint32_t kStepBuckets = 384;
struct StepTimes {
  uint32_t intervals[kStepBuckets];  // by step_bucket()
};

// 16 buckets of equal width from each power of two of nanoseconds to the next, from 1 us to 17 s.
constexpr uint32_t step_bucket(uint64_t ns) {
  if (ns < 1 << 10) return 0;
  const auto power = static_cast<uint32_t>(63 - __builtin_clzll(ns));
  const auto bucket = (power - 10) * 16 + static_cast<uint32_t>(ns >> (power - 4) & 15);
  return bucket < kStepBuckets ? bucket : kStepBuckets - 1;
}
// The least nanoseconds of a bucket.
constexpr uint64_t step_bucket_begin(uint32_t bucket) {
  return uint64_t{16 + bucket % 16} << (bucket / 16 + 6);
}

struct CountedDevice {
  uint32_t sm;    // 90 for compute capability 9.0
  char name[60];  // as the driver gives it
};

struct CountedConfig {
  uint64_t digest[2];  // Snapshot::digest
  char path[496];      // links resolved; of several folders, ':' between them
};

struct FileHeader {
  char magic[8];
  uint32_t version;        // a reader refuses what it does not know
  uint32_t header_bytes;   // sizeof(FileHeader)
  uint32_t outcome_slots;  // kOutcomeSlots
  uint32_t series_capacity;
  uint32_t series_entry_bytes;
  uint32_t count_kinds;  // kCountKinds
  uint64_t series_at;    // bytes from the file's start
  uint64_t shards_at;
  uint64_t shard_stride;
  uint32_t series_count;  // atomic
  uint32_t shard_count;   // atomic

  uint64_t pid;
  uint64_t start_time;  // clock ticks since boot: field 22 of /proc/<pid>/stat
  uint64_t created_unix_ns;
  uint32_t uid;
  uint32_t mode;         // Mode, settings.h
  char executable[256];  // /proc/self/exe
  char command[256];     // the command line, blanks between arguments, cut to fit

  uint32_t device_count;  // atomic
  uint32_t config_count;  // atomic
  CountedDevice devices[kMaxCountedDevices];
  CountedConfig configs[kMaxCountedConfigs];
  uint64_t control_at;  // bytes from the file's start
  uint64_t steps_at;
  uint64_t shadow_at;  // the same
  uint32_t shadow_capacity;
  uint32_t shadow_count;  // atomic
  uint32_t shadow_entry_bytes;
  uint32_t reserved;
};

// Why a launch that was to be checked was not.
enum class ShadowMiss : uint32_t {
  none,
  extent,   // it is not known how large something is that is written
  size,     // that is more than all of FIBSHIM_SHADOW_MEMORY
  memory,   // there is no such memory in this context, or not yet
  busy,     // checks that are under way have all of it
  capture,  // a stream of the process captures
  launch,   // the solution could not be launched on the copies
};
inline constexpr uint32_t kShadowMisses = 7;
inline constexpr const char* kShadowMissNames[kShadowMisses] = {
    "", "extent", "size", "memory", "busy", "capture", "launch"};

inline constexpr uint32_t kShadowCapacity = 1024;
// Checks by how far off the worst element was, as a share of what it may be: at most these, or more.
inline constexpr double kShadowBounds[] = {0, 0.1, 0.5, 1, 10};
inline constexpr uint32_t kShadowBuckets = sizeof(kShadowBounds) / sizeof(kShadowBounds[0]) + 1;

// Published by storing `shadow_count` (release) after series and shape. The rest is atomic.
struct ShadowEntry {
  uint32_t series;
  uint32_t reserved;
  // "batch_size=7, heads=8", cut to fit; "(other)": of all shapes beyond the room for them.
  char shape[88];
  uint64_t checks;
  uint64_t mismatches;
  uint64_t not_checked[kShadowMisses];  // by ShadowMiss
  uint64_t elements;                    // compared, and those that were wrong
  uint64_t wrong_elements;
  uint64_t nans;  // that the solution wrote
  uint64_t infinities;
  double largest_difference;  // absolute, of finite elements; and the largest mean of one check
  double largest_mean;
  uint64_t buckets[kShadowBuckets];
};
static_assert(sizeof(ShadowEntry) == 264);

// A Bloom filter of shapes, kShapeBits of these bits each: with up to twenty shapes one more is missed at most once in a hundred.
inline constexpr uint32_t kShapeWords = 4;
inline constexpr uint32_t kShapeBits = 4;

struct SeriesEntry {
  uint16_t config;  // index into FileHeader::configs
  int16_t device;   // ordinal, or -1 where devices are not told apart
  uint32_t reserved;
  char pattern[120];     // its label, cut to fit
  char definition[128];  // the name that the launch resolved to, cut to fit
  char solution[128];    // that serves it, cut to fit; empty: none, or which depends on the launch
  // Atomic. The image that the solution's kernel is of: the first eight bytes of its SHA-256, the first byte the highest;
  // of several, for GPUs that are not told apart, the largest. 0: none.
  uint64_t image;
  // Atomic. The constant axes of its decisions, and all axes of the graph nodes that it serves.
  uint64_t shapes[kShapeWords];
};
static_assert(sizeof(SeriesEntry) == 424);

}  // namespace fibshim
