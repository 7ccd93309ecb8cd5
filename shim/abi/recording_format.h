// The recording: what a process writes into FIBSHIM_RECORD and `fibshim record` reads, while the
// process runs and after it was killed.
//
//   RecordingHeader        at 0
//   blocks                 from header_bytes up to used_bytes, one after another, each a multiple of
//                          8 bytes long and beginning with a RecordedBlock that says what it is
//
// A block is published by storing `used_bytes` (release) once it is complete. Its place, kind and
// size never change; its counts grow by atomic additions. A value's slot is free while its count is
// 0. The file grows with its content, and never beyond limit_bytes.
#pragma once

#include <stdint.h>

namespace fibshim {

inline constexpr char kRecordingMagic[8] = {'F', 'I', 'B', 'R', 'E', 'C', 'D', 0};
inline constexpr uint32_t kRecordingVersion = 4;
inline constexpr char kRecordingSuffix[] = ".recording";
// Folder beside the recordings: images of chosen kernels, named "xxh128-<32 digits>" with an
// extension for their kind.
inline constexpr char kRecordedImagesFolder[] = "images";
inline constexpr uint32_t kRecordedOutcomeSlots = 16;
inline constexpr uint32_t kRecordedGeometryCount = 10;  // in the order of GeometryIndex, snapshot.h

// Limits of one kernel's record. What exceeds them is counted together.
inline constexpr uint32_t kRecordedGeometries = 512;
inline constexpr uint32_t kRecordedValues = 16;    // distinct ones of one parameter
inline constexpr uint32_t kRecordedAddresses = 4;  // distinct values that look like addresses
inline constexpr uint32_t kRecordedWords = 128;    // words of all parameters that are structs
inline constexpr uint32_t kRecordedSymbolBytes = 16384;

// Values are recorded for parameters of 1, 2, 4 and 8 bytes. A parameter of another size is a
// struct, recorded as words: as many of 8 bytes as fit, and the rest as words of 4, 2 and 1.
inline constexpr bool has_recorded_values(uint32_t size) {
  return size == 1 || size == 2 || size == 4 || size == 8;
}
inline constexpr uint32_t recorded_word_size(uint32_t rest) {
  return rest >= 8 ? 8 : rest >= 4 ? 4 : rest >= 2 ? 2 : 1;
}

// A launch is timed if it is its kernel's second, third or fourth launch, and at every
// kTimedEvery-th launch after that. A prime, so that the timed launches fall on every layer of a
// model in turn.
inline constexpr uint32_t kTimedEvery = 67;

// An 8-byte value in this range is taken for an address: it is above common sizes and strides, and
// below doubles, which begin at 2^52 times that for all but denormal values.
inline constexpr uint64_t kLowestAddress = uint64_t{1} << 32;
inline constexpr uint64_t kHighestAddress = uint64_t{1} << 56;
inline constexpr bool is_like_address(uint64_t value) {
  return value >= kLowestAddress && value < kHighestAddress;
}

// The first runs of a kernel with one geometry, which load code and fill caches. Counted separately
// in graphs and eagerly.
inline constexpr uint32_t kWarmUpRuns = 3;

// The source of kernels' times.
enum class RecordedTiming : uint32_t {
  events,
  cupti,
  taken_over,  // CUPTI until the program used it itself, events from then on
};

struct RecordingHeader {
  char magic[8];
  uint32_t version;       // a reader refuses a version that it does not know
  uint32_t header_bytes;  // sizeof(RecordingHeader)
  uint64_t used_bytes;    // atomic
  uint64_t limit_bytes;

  uint64_t pid;
  uint64_t start_time;  // clock ticks since boot: field 22 of /proc/<pid>/stat
  uint64_t created_unix_ns;
  uint32_t uid;
  uint32_t mode;  // Mode, settings.h
  uint32_t timed_every;
  RecordedTiming timing;  // atomic

  // atomic
  uint64_t unknown_launches;  // of handles for which the driver has no name
  uint64_t dropped_launches;  // of kernels for which the limit left no room
  uint64_t dropped_kernels;
  uint64_t dropped_runs;   // for which CUPTI had, or the limit left, no room
  uint32_t cupti_version;  // from cuptiGetVersion: 26, 130001; 0: not used
  uint32_t reserved;

  char timing_reason[128];  // why events are used; empty: CUPTI was not wanted, or reports all
  char executable[256];     // /proc/self/exe
  char command[512];        // the command line, separated by blanks, cut to fit
  char config[512];         // the config folder, links resolved; empty: none
};
static_assert(sizeof(RecordingHeader) % 8 == 0);

enum class RecordedKind : uint32_t { kernel = 1, geometry = 2, name = 3, runs = 4, device = 5 };
enum class RecordedImage : uint32_t { unknown, cubin, fatbin, ptx };

struct RecordedBlock {
  RecordedKind kind;
  uint32_t bytes;  // of the whole block
};

// Times of launches, measured with events on their stream, or of runs, reported by CUPTI.
struct RecordedTimes {
  uint64_t count;
  uint64_t sum_ns;
  uint64_t shortest_ns;  // 0: none yet
  uint64_t longest_ns;
};

struct RecordedValue {
  uint64_t value;  // zero-extended
  uint64_t count;  // atomic
};

// What the driver knows about a word's values that look like addresses.
enum class RecordedMemory : uint32_t {
  unknown,  // no value looked like an address, or the driver cannot tell
  none,     // no memory at any of them
  some,     // memory that a kernel can access, at one of them or more
};

// A parameter, or a word of one.
struct RecordedParam {
  uint32_t offset;  // in a packed buffer
  uint32_t size;
  uint32_t first_value;   // index of its kRecordedValues slots; UINT32_MAX: its size has no values
  RecordedMemory memory;  // of a word of 8 bytes; atomic
  uint64_t bits;          // bitwise or of all values
  uint64_t others;        // launches with a value that found no slot
};

// Followed by RecordedParam[param_count] for its parameters, RecordedParam[word_count] for the
// words of its structs, RecordedValue[value_count], and the symbol with its NUL.
struct RecordedKernel {
  RecordedBlock block;
  uint64_t image_high;
  uint64_t image_low;
  uint64_t code_high;  // both halves 0: not a cubin
  uint64_t code_low;
  RecordedImage image_kind;
  uint32_t sm;  // of the GPU of its first launch: 90 for compute capability 9.0; 0: unknown
  uint32_t param_count;
  uint32_t value_count;
  uint32_t symbol_bytes;  // with its NUL
  uint32_t has_params;    // 0: the driver does not report them
  uint32_t geometry_count;
  uint32_t word_count;
  uint64_t launches;        // eager ones
  uint64_t nodes;           // launches that became nodes of graphs
  uint64_t failed;          // refused by the driver; counted nowhere else
  uint64_t other_launches;  // those of `launches` for whose geometry there was no room
  uint64_t other_nodes;     // the same of `nodes`
  uint64_t outcomes[kRecordedOutcomeSlots];  // by Outcome, outcomes.h
  RecordedTimes other_times;
};

struct RecordedGeometry {
  RecordedBlock block;
  uint64_t kernel_at;  // of its kernel's block in the file
  uint32_t geometry[kRecordedGeometryCount];
  uint64_t launches;
  uint64_t nodes;
  RecordedTimes times;
};

// The name of a kernel that ran, as CUPTI reports it: one of the host's, or a replacement. Followed
// by the symbol with its NUL.
struct RecordedName {
  RecordedBlock block;
  uint32_t symbol_bytes;  // with its NUL
  uint32_t geometry_count;
};

// The runs of a name with one geometry. A node of a graph counts as often as it ran.
struct RecordedRuns {
  RecordedBlock block;
  uint64_t name_at;                           // of its name's block in the file
  uint32_t geometry[kRecordedGeometryCount];  // all 0: runs for whose geometry there was no room
  uint32_t is_in_graph;
  uint32_t reserved;
  RecordedTimes warm_up;  // the first kWarmUpRuns
  RecordedTimes times;    // the others
};

// A GPU's time from the start of its first kernel to the end of its last.
struct RecordedDevice {
  RecordedBlock block;
  uint64_t device;    // its CUDA ordinal in this process
  uint64_t first_ns;  // on CUPTI's clock
  uint64_t last_ns;
  uint64_t busy_ns;  // while at least one kernel ran
};
static_assert(sizeof(RecordedKernel) % 8 == 0 && sizeof(RecordedGeometry) % 8 == 0 &&
              sizeof(RecordedParam) % 8 == 0 && sizeof(RecordedName) % 8 == 0 &&
              sizeof(RecordedRuns) % 8 == 0 && sizeof(RecordedDevice) % 8 == 0);

}  // namespace fibshim
