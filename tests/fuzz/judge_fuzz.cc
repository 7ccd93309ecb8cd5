// What `fibshim verify`, `bench` and `report` read: workloads, evaluation records, tensors.
//
// Input: a letter that says what the rest is.
//   w, r   lines of workloads; of evaluation records
//   t      a safetensors file: its JSON header, a NUL, its tensors; T: one as it stands
#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "loader/compile/definition.h"
#include "tests/fuzz/fuzz.h"
#include "tools/judge/judge.h"
#include "tools/judge/records.h"
#include "tools/judge/report_page.h"
#include "tools/judge/workloads.h"

namespace fibshim::fuzz {
namespace {

using judge::Tensor;

constexpr char kTensorKeys[] = "xysn";  // names of tensors, a letter each

const Definition& definition() {
  static const std::string file = "d.json";
  static const Definition made = [] {
    Diagnostics diagnostics;
    const auto document = JsonDocument::parse(R"({
      "name": "d", "axes": {"n": {"type": "const", "value": 2}, "rows": {"type": "var"},
                            "wide": {"type": "var"}},
      "inputs": {"x": {"shape": ["rows", "n"], "dtype": "float32"},
                 "y": {"shape": ["wide", "rows", "wide"], "dtype": "bfloat16"},
                 "s": {"shape": null, "dtype": "float32"}, "n1": {"shape": null, "dtype": "int64"}},
      "outputs": {"z": {"shape": ["rows"], "dtype": "int32"}}, "reference": ""})",
                                              &file, &diagnostics);
    return *read_definition(document->root(), &diagnostics);
  }();
  return made;
}

// A file in memory, by a path.
std::string path_of(const std::string& bytes) {
  static const int file = memfd_create("tensors", MFD_CLOEXEC);
  require(file >= 0 && ftruncate(file, 0) == 0 &&
              pwrite(file, bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()),
          "a file can be written");
  return "/proc/self/fd/" + std::to_string(file);
}

void check_tensor(const Tensor& tensor) {
  require(tensor.type != nullptr, "a tensor has a type");
  require(tensor.bytes.size() == static_cast<uint64_t>(tensor.count()) * tensor.type->bytes,
          "a tensor has the bytes of its shape");
  for (int64_t i = 0; i < std::min<int64_t>(tensor.count(), 100); ++i) (void)tensor.at(i);
}

void read_tensors(const std::string& bytes) {
  const std::string path = path_of(bytes);
  for (const char key : std::string_view(kTensorKeys)) {
    const auto tensor = judge::read_safetensor(path, std::string(1, key));
    if (tensor) {
      check_tensor(*tensor);
    } else {
      require(!tensor.error().message.empty(), "a refusal says why");
    }
  }
}

void read_workloads(std::string_view lines) {
  // What tensors are read from, where a line asks for "t".
  static const ScratchFolder root;
  [[maybe_unused]] static const bool is_made = [] {
    Tensor x{judge::find_element_type("float32"), {3, 2}, {}};
    x.allocate();
    return judge::write_safetensors(root.path() + "/t", {{"x", &x}}).has_value();
  }();
  judge::Workloads workloads;
  std::vector<std::string> faults;
  judge::parse_jsonl(
      "w.jsonl", lines,
      [&](const auto& record) { return judge::read_workload(record, &workloads); }, &faults);
  for (const auto& [name, all] : workloads) {
    for (const judge::Workload& workload : all) {
      judge::AxisValues axes;
      for (const DefinitionAxis& axis : definition().axes) {
        const auto given = workload.axes.find(axis.name);
        axes[axis.name] = axis.is_const                  ? axis.value
                          : given != workload.axes.end() ? given->second
                                                         : 1;
      }
      judge::CaseData data;
      const auto loaded = judge::load_inputs(workload, definition(), axes, root.path(), &data);
      require(loaded || !loaded.error().message.empty(), "a refusal says why");
      for (const auto& [tensor_name, tensor] : data.tensors) check_tensor(tensor);
    }
  }
}

void read_records(std::string_view lines) {
  std::vector<nlohmann::ordered_json> records;
  std::vector<std::string> faults;
  judge::parse_records("r.jsonl", lines, &records, &faults);
  const std::string page = judge::make_report_page("title", records);
  require(page.find("<script") == std::string::npos && page.find("<img") == std::string::npos,
          "a record cannot put elements into the page");
  std::erase_if(records, [](const auto& record) { return !judge::is_complete(record); });
  for (const bool is_bench : {false, true}) {
    (void)judge::format_records(records, is_bench);
    (void)judge::format_verdict(records, 0, is_bench);
  }
}

}  // namespace

FUZZ_TARGET(judge) {
  if (size == 0) return 0;
  std::string_view rest = as_text(data + 1, size - 1);
  switch (data[0]) {
    case 'w': read_workloads(rest); break;
    case 'r': read_records(rest); break;
    case 'T': read_tensors(std::string(rest)); break;
    case 't': {
      const std::string_view header = take_until(&rest, '\0');
      const uint64_t bytes = header.size();
      std::string file(reinterpret_cast<const char*>(&bytes), sizeof bytes);
      read_tensors(file.append(header).append(rest));
      break;
    }
    default: break;
  }
  return 0;
}

}  // namespace fibshim::fuzz
