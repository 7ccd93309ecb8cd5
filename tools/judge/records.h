// FlashInfer Trace evaluation records: `verify` and `bench` write them and resume from them,
// `report` reads them. A record is one line of JSONL. Keys that only we define are in
// evaluation.fibshim, which flashinfer-bench ignores, and in correctness.extra, which it keeps.
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

// The baseline of a benchmark: what the solution is compared with. None if `solution` is empty.
struct Baseline {
  std::string solution;
  double latency_ms = 0;  // 0: it could not be timed
};

struct Judged {
  std::string definition, op_type, solution, author;
  std::string image;  // SHA-256 over the solution's images: identifies what was judged
  Workload workload;
  CaseOutcome outcome;
  Baseline baseline;
};

// The record; null for an outcome for which FlashInfer Trace has no status (skipped).
nlohmann::ordered_json make_record(const Judged& judged, const RecordContext& context);

// Formats the driver's version number: "13.0" for 13000.
std::string cuda_version(int version);

// The device as the JSON output of `verify` and `bench` describes it. `number`: --device.
nlohmann::ordered_json device_to_json(const DeviceInfo& device, int number);

// Identifies what a record judges. If a record of the same key exists, judging may be skipped.
std::string record_key(const nlohmann::ordered_json& record);
std::string record_key(const Judged& judged, const RecordContext& context);

// The records with an evaluation in a JSONL file, or in all such files below a folder. *faults
// names lines that are not records. A file that does not exist has none.
std::vector<nlohmann::ordered_json> read_records(const std::string& path,
                                                 std::vector<std::string>* faults);

// The same for the text of one file.
void parse_records(const std::string& file, std::string_view text,
                   std::vector<nlohmann::ordered_json>* records, std::vector<std::string>* faults);

// True if the record has all that format_records() needs: records may come from anybody.
bool is_complete(const nlohmann::ordered_json& record);

// The file for a record: `output` itself if it ends in .jsonl, else
// output/traces/<author>/<op_type>/<definition>.jsonl.
std::string record_file(const std::string& output, const Judged& judged);

// Appends one line by one write, and creates folders as needed. First removes an incomplete last
// line, which an earlier run leaves if it is killed.
Result<void> append_record(const std::string& file, const nlohmann::ordered_json& record);

}  // namespace fibshim::judge
