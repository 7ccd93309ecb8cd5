// What was recorded of a program's launches, and what follows from it: sums, means, estimates.
// recording_files.h reads it from the shim's binary files, recording_json.h from the JSON Lines of
// `fibshim record`. Both are untrusted: every number is checked before it is used.
#pragma once

#include <array>

#include "shim/abi/recording_format.h"
#include "tools/counters/counters_folder.h"
#include "tools/record/kernel_signature.h"

namespace fibshim::tools {

// Stops at the largest number.
inline void add_to(uint64_t* sum, uint64_t value) { *sum = saturating_add(*sum, value); }

struct Times {
  uint64_t count = 0;
  uint64_t sum_ns = 0;
  uint64_t shortest_ns = 0;
  uint64_t longest_ns = 0;

  void add(const Times& other);
};

// Runs that CUPTI reported. The first ones of each process are warm-up.
struct Runs {
  Times warm_up;
  Times steady;

  void add(const Runs& more);
  uint64_t count() const { return saturating_add(warm_up.count, steady.count); }
  uint64_t sum_ns() const { return saturating_add(warm_up.sum_ns, steady.sum_ns); }
  // The runs of which a mean is computed: those after the warm-up, or the warm-up if there are
  // none.
  const Times& typical() const { return steady.count != 0 ? steady : warm_up; }
};

using Geometry = std::array<uint32_t, kRecordedGeometryCount>;

struct GeometryCounts {
  uint64_t launches = 0;
  uint64_t nodes = 0;
  Times times;

  void add(const GeometryCounts& more);
};

// A geometry, and whether the runs were in graphs. A geometry of zeros stands for all for which
// there was no room.
using RunKey = std::pair<Geometry, bool>;

struct KernelRecord {
  std::string symbol;
  std::string image;  // "xxh128:" and 32 digits; empty: not known
  std::string code;   // "code:" and 32 digits; empty: the image is not a single cubin
  RecordedImage image_kind = RecordedImage::unknown;
  uint32_t sm = 0;
  bool has_params = false;
  std::vector<ParamRecord> params;
  uint64_t launches = 0;
  uint64_t nodes = 0;
  uint64_t failed = 0;
  std::map<Geometry, GeometryCounts> geometries;
  GeometryCounts other;                   // all geometries for which there was no room
  std::map<uint32_t, uint64_t> outcomes;  // index into kOutcomes -> launches and nodes
  std::map<RunKey, Runs> runs;
  // Another kernel of this process has the same name and geometry: the first has the runs of both.
  bool shares_runs = false;

  // True if a kernel of this name ran that the host did not launch: a replacement, or launched in a
  // way that the shim does not see.
  bool only_ran() const { return launches == 0 && nodes == 0 && failed == 0 && !runs.empty(); }
  Runs all_runs(bool in_graph) const;
  Runs all_runs() const;
  // The times of the runs of which a mean is computed; without runs, all measured with events.
  Times times() const;
  // GPU time: the runs that CUPTI reported, plus an estimate for the other launches from the mean
  // of their geometry, else of the kernel. 0 if nothing was measured.
  double estimated_ns() const;
  // One for each parameter.
  std::vector<ParamType> param_types() const;
  // Null if none was kept.
  const Geometry* commonest_geometry() const;

 private:
  Times event_times() const;
  double estimated_by_events_ns() const;  // of all launches
};

// `span_ns`: from the begin of a GPU's first kernel to the end of its last.
struct DeviceTime {
  uint64_t device = 0;
  uint64_t span_ns = 0;
  uint64_t busy_ns = 0;
};

struct RecordedProcess {
  std::string file;
  uint64_t pid = 0;
  uint64_t start_time = 0;
  uint64_t created_unix_ns = 0;
  bool is_alive = false;
  std::string mode;
  std::string executable;
  std::string command;
  std::string config;  // empty: none
  uint64_t unknown_launches = 0;
  uint64_t dropped_launches = 0;
  uint64_t dropped_kernels = 0;
  uint64_t dropped_runs = 0;
  RecordedTiming timing = RecordedTiming::events;
  std::string timing_reason;
  uint64_t cupti_version = 0;
  std::vector<DeviceTime> devices;
  uint64_t bytes = 0;
};

struct Recording {
  std::vector<RecordedProcess> processes;
  std::vector<KernelRecord> kernels;  // by falling GPU time, then launches, then symbol
  std::vector<RefusedFile> refused;
  uint64_t kernels_left_out = 0;  // in JSON Lines: kernels beyond the size limit

  uint64_t sum_of(uint64_t KernelRecord::*member) const;
  uint64_t launches() const { return sum_of(&KernelRecord::launches); }  // without nodes
  uint64_t nodes() const { return sum_of(&KernelRecord::nodes); }
  uint64_t runs() const;
  double estimated_ns() const;

  void sort_kernels();
};

// Limits for one file. They are above all that a shim writes with a sensible limit.
inline constexpr uint64_t kMaxRecordingBytes = uint64_t{4} << 30;
inline constexpr uint32_t kMaxRecordedParams = 4096;

}  // namespace fibshim::tools
