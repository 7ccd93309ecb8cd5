// What was recorded of a program's launches: by the shim, a binary file for each process
// (shim/abi/recording_format.h), and in the JSON Lines that `fibshim record` makes of all of them. Both
// are data from elsewhere: every number is checked before it is used.
#ifndef FIBSHIM_TOOLS_RECORD_RECORDING_H_
#define FIBSHIM_TOOLS_RECORD_RECORDING_H_

#include <stdint.h>

#include <array>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>
#include <tl/expected.hpp>

#include "shim/abi/recording_format.h"
#include "tools/counters/counters_files.h"
#include "tools/images/kernel_signature.h"

namespace fibshim::tools {

struct Times {
  uint64_t count = 0;
  uint64_t sum_ns = 0;
  uint64_t shortest_ns = 0;
  uint64_t longest_ns = 0;

  void add(const Times& other);
};

struct ParamRecord {
  uint32_t offset = 0;
  uint32_t size = 0;
  uint64_t bits = 0;                    // of all values, or-ed
  uint64_t others = 0;                  // launches with a value that is not in `values`
  std::map<uint64_t, uint64_t> values;  // zero-extended -> launches
};

using Geometry = std::array<uint32_t, kRecordedGeometryCount>;

struct GeometryCounts {
  uint64_t launches = 0;
  uint64_t nodes = 0;
  Times times;
};

struct KernelRecord {
  std::string symbol;
  std::string image;  // "xxh128:" and 32 digits; empty: not known
  RecordedImage image_kind = RecordedImage::unknown;
  uint32_t sm = 0;
  bool has_params = false;
  std::vector<ParamRecord> params;
  uint64_t launches = 0;
  uint64_t nodes = 0;
  uint64_t failed = 0;
  std::map<Geometry, GeometryCounts> geometries;
  GeometryCounts other;                   // geometries that found no room
  std::map<uint32_t, uint64_t> outcomes;  // index into kOutcomes -> launches and nodes

  // All times that were measured.
  Times times() const;
  // GPU time of all launches: measured ones stand for their geometry, else for the kernel. 0 where
  // nothing was measured.
  double estimated_ns() const;
  // One for each parameter.
  std::vector<ParamType> param_types() const;
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
  uint64_t bytes = 0;
};

struct Recording {
  std::vector<RecordedProcess> processes;
  std::vector<KernelRecord> kernels;  // by falling GPU time, then launches, then symbol
  std::vector<RefusedFile> refused;
  uint64_t kernels_left_out = 0;  // of JSON Lines: for the limit's sake

  uint64_t launches() const;  // of all kernels, without nodes
  uint64_t nodes() const;
  double estimated_ns() const;
};

// Reads every recording in the folder and adds those of one kernel up: symbol, image, GPU and
// parameters alike. A missing folder is an empty one; the error says why it cannot be read.
tl::expected<Recording, std::string> read_recording_folder(const std::string& folder);

// The same of one file's bytes. `name` is what it goes by.
Recording read_recording_file(const std::string& name, std::string_view bytes);

// A kernel's record as a line of JSON, and back. `share` of all GPU time: negative when not known.
nlohmann::ordered_json kernel_to_json(const KernelRecord& kernel, double share);
nlohmann::ordered_json processes_to_json(const std::vector<RecordedProcess>& processes);

struct JsonLines {
  std::string text;
  uint64_t kernels_left_out;
};
// At most `limit` bytes: what matters least is left out, and said.
JsonLines to_json_lines(const Recording& recording, uint64_t limit);

// What `fibshim record -o` wrote, or a folder of recordings.
tl::expected<Recording, std::string> read_recording(const std::string& path);

// The JSON Lines of such a file.
tl::expected<Recording, std::string> parse_json_lines(std::string_view text);

}  // namespace fibshim::tools

#endif  // FIBSHIM_TOOLS_RECORD_RECORDING_H_
