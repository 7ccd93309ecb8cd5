// The interface between libfibshim.so and libfibrecord.so: a table of functions in each direction.
//
// The shim opens the recorder if FIBSHIM_RECORD is set, and reports every launch to it. Both
// libraries come from one build; a pair of different versions is refused.
#pragma once

#include <atomic>
#include <limits.h>
#include <stdint.h>

#include "shim/abi/outcomes.h"
#include "shim/abi/param.h"
#include "shim/abi/recording_format.h"
#include "shim/abi/settings.h"
#include "shim/abi/snapshot.h"

struct CUctx_st;
struct CUstream_st;

namespace fibshim {

inline constexpr uint32_t kRecorderApiVersion = 5;

struct EventPair;
struct KeptTensors;

// Where and how this process records. May differ in a forked child.
struct RecordingSettings {
  char folder[PATH_MAX];
  uint64_t limit_bytes;
  Mode mode;
  RecordTimes times;
};

struct KernelOrigin {
  ImageHashes image;
  RecordedImage image_kind;
  uint32_t sm;  // of the current GPU: 90 for compute capability 9.0; 0: unknown
};

// Functions of the shim that the recorder calls. Any thread may call these.
struct RecorderHost {
  const char* config;  // the config folder; empty: none
  void (*log)(LogLevel level, const char* format, ...) __attribute__((format(printf, 2, 3)));
  void (*read_settings)(RecordingSettings* out);
  // `record`: LaunchToRecord::record. May read the image and call the driver.
  void (*find_origin)(const void* record, KernelOrigin* out);
  // Returns the driver's own function, never a hook. Null: the driver lacks it or is not loaded.
  void* (*find_driver_function)(const char* name);
  // Null: the driver does not report it.
  CUctx_st* (*context_of_stream)(CUstream_st* stream);
  // libc's own dlopen and dlsym, not the shim's hooks.
  void* (*open_library)(const char* path, int mode);
  void* (*find_symbol)(void* library, const char* name);
};

// One launch, or one kernel node that is added to a graph. What it points to stays valid until
// end_launch returns.
struct LaunchToRecord {
  // The kernel.
  const char* symbol;  // null: the handle is unknown
  const Param* params;
  uint32_t param_count;
  bool has_params;     // the driver reports the parameters
  const void* record;  // for find_origin
  // The recorder's word for the handle; null for a new handle. Lives as long as `record`.
  std::atomic<RecordedKernel*>* known_kernel;

  // The launch.
  bool is_node;              // it becomes a node of a graph
  bool has_captures;         // some stream of the process is capturing: nothing is timed
  CUstream_st* stream;       // the driver's own special values for the default streams
  const uint32_t* geometry;  // by GeometryIndex; null: only the driver knows it
  Outcome outcome;           // set before end_launch
  void* const* arguments;    // one pointer per parameter; null: they cannot be read

  // The pattern that reads the launch, or null, and what it reads.
  const char* pattern;
  const char* definition;
  const int64_t* captures;  // the pattern's
  uint32_t series;          // of the counters: one per pattern, definition, solution and device
  bool runs_original;       // rather than a solution

  // Set by begin_launch for end_launch.
  RecordedKernel* kernel;
  RecordedGeometry* known_geometry;
  EventPair* timing;
  KeptTensors* kept_tensors;
};

struct RecorderApi {
  // Called once, before all others. `host` must stay valid.
  void (*start)(const RecorderHost& host);
  void (*begin_launch)(LaunchToRecord* launch);
  // Called again for the same launch if it failed and another kernel was launched instead.
  void (*end_launch)(LaunchToRecord* launch, bool has_succeeded);
  // Called before a context ends.
  void (*drop_events)();
  // The atfork handlers.
  void (*lock_for_fork)();
  void (*unlock_after_fork)(bool is_child);
};

}  // namespace fibshim

// The one symbol that libfibrecord.so exports. Returns nullptr for a version it does not speak.
extern "C" const fibshim::RecorderApi* fibrecord_api(uint32_t version);
