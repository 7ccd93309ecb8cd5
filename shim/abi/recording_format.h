// The recording: what a process writes into FIBSHIM_RECORD and `fibshim record` reads, while the
// process runs and after it was killed.
//
//   RecordingHeader        at 0
//   blocks                 from header_bytes up to used_bytes, one after another, each a multiple of
//                          8 bytes long and beginning with a RecordedBlock that says what it is
//
// A block is published by storing `used_bytes` (release) once it is whole; its place, kind and size
// never change, its counts grow by atomic additions. A value's slot is free while its count is 0.
// The file grows with what is in it, and never beyond limit_bytes.
#pragma once

#include <stdint.h>

namespace fibshim {

inline constexpr char kRecordingMagic[8] = {'F', 'I', 'B', 'R', 'E', 'C', 'D', 0};
inline constexpr uint32_t kRecordingVersion = 4;
inline constexpr char kRecordingSuffix[] = ".recording";
// Beside the recordings: images of chosen kernels, each named "xxh128-<32 digits>" with an ending by its kind.
inline constexpr char kRecordedImagesFolder[] = "images";
inline constexpr uint32_t kRecordedOutcomeSlots = 16;
inline constexpr uint32_t kRecordedGeometryCount = 10;  // in the order of GeometryIndex, snapshot.h

// Bounds of one kernel's record; what is beyond is counted together.
inline constexpr uint32_t kRecordedGeometries = 512;
inline constexpr uint32_t kRecordedValues = 16;    // distinct ones of one parameter
inline constexpr uint32_t kRecordedAddresses = 4;  // of these, that look like addresses
inline constexpr uint32_t kRecordedWords = 128;    // of its parameters that are structs
inline constexpr uint32_t kRecordedSymbolBytes = 16384;

// Parameters of 1, 2, 4 and 8 bytes have values. Any other is a struct, and has words with values: as many
// of 8 bytes as it holds, and the rest in 4, 2 and 1.
inline constexpr bool has_recorded_values(uint32_t size) {
  return size == 1 || size == 2 || size == 4 || size == 8;
}
inline constexpr uint32_t recorded_word_size(uint32_t rest) {
  return rest >= 8 ? 8 : rest >= 4 ? 4 : rest >= 2 ? 2 : 1;
}

// A launch's time is measured at its kernel's second, third and fourth launch and at every so-many-th
// after that. A prime: so that it falls on every layer of a model in turn.
inline constexpr uint32_t kTimedEvery = 67;

// An 8-byte parameter whose value lies here is taken for an address: above what sizes and strides
// come to, below doubles, which begin at 2^52 times that for all but denormal values.
inline constexpr uint64_t kLowestAddress = uint64_t{1} << 32;
inline constexpr uint64_t kHighestAddress = uint64_t{1} << 56;
inline constexpr bool is_like_address(uint64_t value) {
  return value >= kLowestAddress && value < kHighestAddress;
}

// The first runs of a kernel with one geometry, eagerly and in graphs each: they load code and fill caches.
inline constexpr uint32_t kWarmUpRuns = 3;

// What kernels' times come from.
enum class RecordedTiming : uint32_t {
  events,
  cupti,
  taken_over,  // CUPTI, until the program used it itself; events from then on
};

struct RecordingHeader {
  char magic[8];
  uint32_t version;       // a reader refuses what it does not know
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
  uint64_t unknown_launches;  // of handles that the driver has no name for
  uint64_t dropped_launches;  // of kernels that the limit left no room for
  uint64_t dropped_kernels;
  uint64_t dropped_runs;   // that CUPTI, or the limit, had no room for
  uint32_t cupti_version;  // as cuptiGetVersion has it: 26, 130001; 0: not used
  uint32_t reserved;

  char timing_reason[128];  // why events; empty: CUPTI was not wanted, or tells all
  char executable[256];     // /proc/self/exe
  char command[512];        // the command line, blanks between arguments, cut to fit
  char config[512];         // the config folder, resolved; empty: none
};
static_assert(sizeof(RecordingHeader) % 8 == 0);

enum class RecordedKind : uint32_t { kernel = 1, geometry = 2, name = 3, runs = 4, device = 5 };
enum class RecordedImage : uint32_t { unknown, cubin, fatbin, ptx };

struct RecordedBlock {
  RecordedKind kind;
  uint32_t bytes;  // of the whole block
};

// Times of launches, measured with events on their stream; or of runs, which CUPTI tells.
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

// What the driver says of a word's values that look like addresses.
enum class RecordedMemory : uint32_t {
  unknown,  // nothing looked like one, or the driver cannot tell
  none,     // nothing lies there
  some,     // memory that a kernel can reach, at one at least
};

// A parameter, or a word of one.
struct RecordedParam {
  uint32_t offset;  // in a packed buffer
  uint32_t size;
  uint32_t
      first_value;  // index of its kRecordedValues slots; UINT32_MAX: of a size that has no values
  RecordedMemory memory;  // of a word of 8 bytes; atomic
  uint64_t bits;          // of all values, or-ed
  uint64_t others;        // launches with a value that found no slot
};

// Followed by RecordedParam[param_count], in the same form the words of its structs, word_count of them in their
// order, then RecordedValue[value_count] and the symbol with its NUL.
struct RecordedKernel {
  RecordedBlock block;
  uint64_t image_high;
  uint64_t image_low;
  uint64_t code_high;  // 0, as code_low: not a cubin
  uint64_t code_low;
  RecordedImage image_kind;
  uint32_t sm;  // of the GPU of its first launch: 90 for compute capability 9.0; 0: not known
  uint32_t param_count;
  uint32_t value_count;
  uint32_t symbol_bytes;  // with its NUL
  uint32_t has_params;    // 0: the driver does not tell them
  uint32_t geometry_count;
  uint32_t word_count;
  uint64_t launches;  // that ran at once; the others became nodes of graphs
  uint64_t nodes;
  uint64_t failed;          // the driver refused them; counted nowhere else
  uint64_t other_launches;  // of the launches: with a geometry that found no room
  uint64_t other_nodes;
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

// What ran, as CUPTI tells it: the host's kernels, and what was launched in their place. A name is followed by the
// symbol with its NUL.
struct RecordedName {
  RecordedBlock block;
  uint32_t symbol_bytes;  // with its NUL
  uint32_t geometry_count;
};

// The runs of a name with one geometry; in graphs as often as they ran there.
struct RecordedRuns {
  RecordedBlock block;
  uint64_t name_at;                           // of its name's block in the file
  uint32_t geometry[kRecordedGeometryCount];  // all 0: those that found no room
  uint32_t is_in_graph;
  uint32_t reserved;
  RecordedTimes warm_up;  // the first kWarmUpRuns
  RecordedTimes times;    // the others
};

// A GPU's time from the begin of its first kernel to the end of its last.
struct RecordedDevice {
  RecordedBlock block;
  uint64_t device;    // CUDA's number of it in this process
  uint64_t first_ns;  // on CUPTI's clock
  uint64_t last_ns;
  uint64_t busy_ns;  // in which some kernel ran
};
static_assert(sizeof(RecordedKernel) % 8 == 0 && sizeof(RecordedGeometry) % 8 == 0 &&
              sizeof(RecordedParam) % 8 == 0 && sizeof(RecordedName) % 8 == 0 &&
              sizeof(RecordedRuns) % 8 == 0 && sizeof(RecordedDevice) % 8 == 0);

}  // namespace fibshim
