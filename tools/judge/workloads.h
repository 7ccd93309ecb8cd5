// Recorded workloads: FlashInfer Trace records without a solution, one JSON object a line, below a
// dataset's workloads/. An input is random (made by make_inputs()), a scalar, or a tensor of a
// safetensors file below the same root.
#pragma once

#include <functional>
#include <memory>

#include <nlohmann/json_fwd.hpp>

#include "loader/compile/definition.h"
#include "tools/judge/case_data.h"

namespace fibshim::judge {

struct OriginalCase;

struct Workload {
  AxisValues axes;                                       // of the variable axes
  std::shared_ptr<const nlohmann::ordered_json> inputs;  // as recorded: an object
  std::string uuid;
  // Added by `fibshim record --tensors`: numbers that the definition does not name, and the
  // original's outputs.
  std::map<std::string, double> scalars = {};
  std::shared_ptr<const nlohmann::ordered_json> outputs = nullptr;  // an object; null: none
  // The launch of the original that computes the expected outputs; null: a reference does.
  std::shared_ptr<const OriginalCase> original = nullptr;
};

using Workloads = std::map<std::string, std::vector<Workload>>;  // by definition

// Takes one record. Returns what is wrong with it, or "".
using ReadRecord = std::function<std::string(nlohmann::ordered_json record)>;

// Passes each JSON object of `text`, one a line, to `read`. Adds to *faults, with file and line.
void parse_jsonl(const std::string& file, std::string_view text, const ReadRecord& read,
                 std::vector<std::string>* faults);
// The same for a file, or for all *.jsonl below a folder, sorted by name. A file that does not
// exist has no lines.
void read_jsonl(const std::string& path, const ReadRecord& read, std::vector<std::string>* faults);

// The root of a dataset. `path` is the dataset itself, or one file of its workloads.
std::string root_of_workloads(const std::string& path);

// Reads `root`/workloads/**/*.jsonl, in the order of files and lines, or the one file that `root`
// names. Returns nothing if there is no such folder. *faults gets lines that cannot be read.
Workloads read_workloads(const std::string& root, std::vector<std::string>* faults);

// Adds the workload of one record. Returns why the record is not a workload, or "".
std::string read_workload(const nlohmann::ordered_json& record, Workloads* workloads);

// A workload with random inputs. The uuid follows from definition and axes, so that runs of several
// solutions, now and later, name the same workload.
Workload made_workload(const Definition& definition, const AxisValues& variable_axes);

// The uuid for any text that identifies a workload.
std::string uuid_of(std::string_view key);

// Copies the recorded scalars and tensors into `data`, checked against the definition. Random ones
// are left to make_inputs(). `root`: the folder to which safetensors paths are relative.
Result<void> load_inputs(const Workload& workload, const Definition& definition,
                         const AxisValues& axes, const std::string& root, CaseData* data);

// The outputs that were recorded with the workload, if any.
Result<std::map<std::string, Tensor>> load_outputs(const Workload& workload,
                                                   const Definition& definition,
                                                   const AxisValues& axes, const std::string& root);

// One tensor of a safetensors file.
Result<Tensor> read_safetensor(const std::string& path, const std::string& key);

// Writes a file of these tensors. `note` is stored in its metadata, unless it is empty.
Result<void> write_safetensors(const std::string& path,
                               const std::map<std::string, const Tensor*>& tensors,
                               const std::string& note = "");

}  // namespace fibshim::judge
