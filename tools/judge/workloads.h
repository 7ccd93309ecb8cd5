// Recorded workloads: FlashInfer Trace records without a solution, one JSON object a line, below a
// dataset's workloads/. Their inputs are random (made as ever), scalars, or tensors of safetensors
// files below the same root.
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
  // What `fibshim record --tensors` adds: numbers that the definition does not name, and what the original has put out.
  std::map<std::string, double> scalars = {};
  std::shared_ptr<const nlohmann::ordered_json> outputs = nullptr;  // an object; null: none
  // The launch of the original kernel that says what the outputs must be; null: a reference does (original.h).
  std::shared_ptr<const OriginalCase> original = nullptr;
};

using Workloads = std::map<std::string, std::vector<Workload>>;  // by definition

// What is wrong with one record, or "".
using ReadRecord = std::function<std::string(nlohmann::ordered_json record)>;

// Hands each JSON object of `text`, one a line, to `read`. *faults gets what is wrong, with file and line.
void parse_jsonl(const std::string& file, std::string_view text, const ReadRecord& read,
                 std::vector<std::string>* faults);
// The same of a file, or of all *.jsonl below a folder, by name. A file that does not exist holds none.
void read_jsonl(const std::string& path, const ReadRecord& read, std::vector<std::string>* faults);

// A dataset, or one file of its workloads: the dataset's root.
std::string root_of_workloads(const std::string& path);

// All of `root`/workloads/**/*.jsonl, in the order of files and lines, or of the one file; none when there is no such
// folder. Lines that cannot be read are named in *faults, with file and line.
Workloads read_workloads(const std::string& root, std::vector<std::string>* faults);

// Adds the workload of one record. Empty, or why it is none.
std::string read_workload(const nlohmann::ordered_json& record, Workloads* workloads);

// One made here: random inputs. The uuid follows from definition and axes, so that runs of several
// solutions, now and later, speak of the same workload.
Workload made_workload(const Definition& definition, const AxisValues& variable_axes);

// The same for any text that says what the workload is.
std::string uuid_of(std::string_view key);

// Puts the recorded scalars and tensors into `data`, checked against the definition. Random ones are
// left to make_inputs. `root`: of safetensors paths.
Result<void> load_inputs(const Workload& workload, const Definition& definition,
                         const AxisValues& axes, const std::string& root, CaseData* data);

// The outputs that were recorded with it; none where there are none.
Result<std::map<std::string, Tensor>> load_outputs(const Workload& workload,
                                                   const Definition& definition,
                                                   const AxisValues& axes, const std::string& root);

// One tensor of a safetensors file.
Result<Tensor> read_safetensor(const std::string& path, const std::string& key);

// A file of these tensors. `note`: in its metadata, unless empty.
Result<void> write_safetensors(const std::string& path,
                               const std::map<std::string, const Tensor*>& tensors,
                               const std::string& note = "");

}  // namespace fibshim::judge
