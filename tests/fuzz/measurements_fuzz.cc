// What processes leave behind for the tools: counters files, recordings, their JSON Lines.
//
// Input: a letter that says what the rest is.
//   c, r   changes to a counters file or a recording that is whole (with_changes)
//   C, R   one as it stands
//   j      JSON Lines of a recording
#include <sys/mman.h>
#include <unistd.h>

#include <set>
#include <tuple>

#include <nlohmann/json.hpp>

#include "loader/check/check.h"
#include "shim/abi/counters_format.h"
#include "tests/fuzz/fuzz.h"
#include "tests/tools/counters_file_builder.h"
#include "tests/tools/recording_file_builder.h"
#include "tools/counters/counters_folder.h"
#include "tools/counters/launch_groups.h"
#include "tools/counters/prometheus.h"
#include "tools/record/recording_files.h"
#include "tools/record/recording_json.h"
#include "tools/record/suggestion.h"
#include "tools/base/terminal.h"

namespace fibshim::fuzz {
namespace {

std::string whole_counters_file() {
  test::CountersFileBuilder builder(0x7fffffff, 12345);
  builder.add_device("NVIDIA H200", 90);
  builder.add_config("/etc/fibshim/config", 0x1234);
  builder.add_series("torch-rms-norm", "rmsnorm_h4096");
  builder.add_series("other", "", 3, 0);
  builder.add_shard();
  builder.count(0, Outcome::untracked, 100);
  builder.count(1, Outcome::hit, 7, 1);
  builder.count(2, Outcome::error, UINT64_MAX);
  return builder.bytes();
}

std::string whole_recording() {
  test::RecordingBuilder builder;
  builder
      .kernel("_Z8rms_normI13__nv_bfloat16EvPT_PKS1_S4_iif",
              {{8, {{0x7f0000001000, 5}}},
               {8, {{0x7f0000002000, 3}, {0, 2}}},
               {8, {{0x7f0000003000, 5}}},
               {4, {{4096, 5}}},
               {4, {{7, 2}, {9, 3}}},
               {4, {{0x3727c5ac, 5}}}},
              5, 2)
      .geometry(7, 512, 3, 2, {2, 3000, 1400, 1600})
      .geometry(9, 512, 2, 0, {0, 0, 0, 0})
      .kernel("triton_poi_fused_0",
              {{16,
                {},
                {{8, {{0x7f0000001000, 1}}, {}, RecordedMemory::some},
                 {8, {{33ull << 32 | 4096, 1}}, {}, RecordedMemory::none}}},
               {2, {{1, 1}}}},
              1);
  return builder.bytes();
}

// Every consumer takes what the reader gives.
void check_counters(const tools::ProcessCounters& process) {
  tools::CountersFolder folder{true, {process}, {}};
  for (const tools::GroupByInfo& info : tools::kGroupBys) {
    const auto groups = tools::group_launches(folder.processes, info.by);
    (void)tools::json_text(tools::groups_to_json(groups));
    (void)tools::format_table(tools::group_rows(groups, info.by, false));
  }
  constexpr size_t kMost = 10;
  const std::string text = tools::prometheus_text(folder, {.max_series = kMost});
  size_t series = 0;
  for (std::string_view rest = text; !rest.empty();) {
    const std::string_view line = take_until(&rest, '\n');
    require(!line.empty() && line.find('\0') == std::string_view::npos,
            "a line of the Prometheus text is whole");
    if (line[0] == '#') continue;
    require(line.substr(0, 8) == "fibshim_", "a line of the Prometheus text is a metric's");
    if (line.substr(0, 23) == "fibshim_launches_total{") ++series;
  }
  require(series <= kMost + kOutcomeSlots, "the number of series is bounded");
}

void read_counters(const std::string& bytes) {
  static const int file = memfd_create("counters", MFD_CLOEXEC);
  require(file >= 0 && ftruncate(file, 0) == 0 &&
              pwrite(file, bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()),
          "a file can be written");
  const auto read = tools::read_open_counters_file(file, "1-2.counters");
  if (!read) {
    require(!read.error().empty(), "a refusal says why");
    return;
  }
  if (!read->has_value()) return;
  const tools::ProcessCounters& process = **read;
  FileHeader header;
  memcpy(&header, bytes.data(), sizeof header);
  require(process.configs.size() == header.config_count &&
              process.devices.size() == header.device_count,
          "there are as many configs and devices as declared");
  require(process.counts.size() <= uint64_t{header.series_count} * kOutcomeSlots,
          "there are no more series than declared");
  for (const tools::Count& count : process.counts) {
    require(!(count.numbers == tools::LaunchNumbers{}) && count.outcome < kOutcomeSlots,
            "a count counts an outcome");
    require(count.pattern.size() < 121 && count.definition.size() < 129,
            "names end in their place");
  }
  check_counters(process);
}

// What is suggested for any kernel that was read passes the check.
void check_suggestion(const tools::Recording& recording, const tools::KernelRecord& kernel) {
  if (!kernel.has_params || kernel.params.size() > kMaxParams) return;
  static const ScratchFolder folder;
  static std::vector<tools::SuggestedFile> before;
  for (const tools::SuggestedFile& file : before) unlink((folder.path() + "/" + file.path).c_str());
  tools::Suggestion suggestion = tools::suggest(recording, kernel, "", 1);
  for (const tools::SuggestedFile& file : suggestion.files) folder.write(file.path, file.text);
  const CheckReport report = check_folder(folder.path());
  for (const Diagnostic& diagnostic : report.diagnostics) {
    if (diagnostic.severity != Severity::error) continue;
    fprintf(stderr, "%s\n", format_diagnostic(diagnostic).c_str());
  }
  require(report.error_count == 0, "what is suggested passes the check");
  before = std::move(suggestion.files);
}

// What is written is read back as the same.
void check_recording(const tools::Recording& recording) {
  for (const tools::KernelRecord& kernel : recording.kernels) {
    require(!kernel.symbol.empty() && kernel.estimated_ns() >= 0, "a kernel has a name and a time");
    for (const auto& param : kernel.params) require(param.size != 0, "a parameter has a size");
  }
  const tools::JsonLines lines = tools::to_json_lines(recording, UINT64_MAX);
  const auto again = tools::parse_json_lines(lines.text);
  if (!again) fprintf(stderr, "%s\n", again.error().c_str());
  require(again.has_value(), "what is written can be read");
  require(again->kernels.size() == recording.kernels.size() &&
              again->launches() == recording.launches() && again->nodes() == recording.nodes() &&
              again->processes.size() == recording.processes.size(),
          "what is written says the same");
  const tools::JsonLines less = tools::to_json_lines(recording, lines.text.size() / 2);
  require(less.kernels_left_out <= recording.kernels.size(), "no more is left out than there is");
  if (!recording.kernels.empty()) check_suggestion(recording, recording.kernels.front());
}

void read_recording(std::string_view bytes) {
  const tools::Recording recording = tools::read_recording_file("1-2.recording", bytes);
  require(recording.refused.size() + recording.processes.size() <= 1, "a file is read once");
  for (const tools::RefusedFile& file : recording.refused) {
    require(!file.reason.empty(), "a refusal says why");
  }
  check_recording(recording);
}

}  // namespace

FUZZ_TARGET(measurements) {
  if (size == 0) return 0;
  const std::string_view rest = as_text(data + 1, size - 1);
  static const std::string counters_file = whole_counters_file();
  static const std::string recording = whole_recording();
  switch (data[0]) {
    case 'c': read_counters(with_changes(counters_file, rest)); break;
    case 'C': read_counters(std::string(rest)); break;
    case 'r': read_recording(with_changes(recording, rest)); break;
    case 'R': read_recording(rest); break;
    case 'j':
      if (const auto read = tools::parse_json_lines(rest)) check_recording(*read);
      break;
    default: break;
  }
  return 0;
}

}  // namespace fibshim::fuzz
