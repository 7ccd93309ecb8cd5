// FlashInfer Trace evaluation records: what verify and bench write, resume from, and report reads.
// A record is one line of JSONL. Keys that only we know lie in evaluation.fibshim and
// correctness.extra; flashinfer-bench's reader ignores the one and keeps the other.
#pragma once

#include "tools/judge/trial.h"
#include "tools/judge/workloads.h"

namespace fibshim::judge {

struct RecordContext {
  std::string mode;  // "verify", "bench" or "bench-graph"
  DeviceInfo device;
  double copy_bytes_per_second = 0;  // 0: not measured
  std::string timestamp;             // ISO 8601
};

// The baseline of a benchmark: what the solution is compared with. Empty name: there is none.
struct Baseline {
  std::string solution;
  double latency_ms = 0;  // 0: it could not be timed
};

struct Judged {
  std::string definition, op_type, solution, author;
  std::string image;  // SHA-256 over the solution's images: what was judged
  Workload workload;
  CaseOutcome outcome;
  Baseline baseline;
};

// The record; null for an outcome that FlashInfer Trace has no status for (skipped).
nlohmann::ordered_json make_record(const Judged& judged, const RecordContext& context);

// "13.0" of 13000, as the driver spells its version.
std::string cuda_version(int version);

// The device as the JSON of verify and bench names it. `number`: --device.
nlohmann::ordered_json device_to_json(const DeviceInfo& device, int number);

// What makes two records speak of the same thing: judged again, it may be skipped.
std::string record_key(const nlohmann::ordered_json& record);
std::string record_key(const Judged& judged, const RecordContext& context);

// Records with an evaluation of a JSONL file, or of all below a folder. Lines that are none are named
// in *faults. A file that does not exist holds none.
std::vector<nlohmann::ordered_json> read_records(const std::string& path,
                                                 std::vector<std::string>* faults);

// The same of one file's lines.
void parse_records(const std::string& file, std::string_view text,
                   std::vector<nlohmann::ordered_json>* records, std::vector<std::string>* faults);

// Has all that format_records() needs: records may be anybody's.
bool is_complete(const nlohmann::ordered_json& record);

// Where a record goes: `output` itself when it ends in .jsonl, else
// output/traces/<author>/<op_type>/<definition>.jsonl.
std::string record_file(const std::string& output, const Judged& judged);

// Appends one line by one write, making folders as needed. Half a line, which an earlier run was killed
// over, is taken out first.
Result<void> append_record(const std::string& file, const nlohmann::ordered_json& record);

}  // namespace fibshim::judge
