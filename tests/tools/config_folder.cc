#include "tests/tools/config_folder.h"

#include <sys/stat.h>

#include <filesystem>

namespace fibshim::test {
namespace {

constexpr char kDefinition[] = R"json({
  "name": "scale_h4096",
  "op_type": "scale",
  "axes": {"rows": {"type": "var"}, "hidden_size": {"type": "const", "value": 4096}},
  "inputs": {"input": {"shape": ["rows", "hidden_size"], "dtype": "float32"}},
  "outputs": {"output": {"shape": ["rows", "hidden_size"], "dtype": "float32"}},
  "reference": "def run(input):\n    return 2 * input"
}
)json";

constexpr char kPattern[] = R"json({
  "label": "engine-scale",
  "benefit": 1,
  "description": "a test's kernel",
  "match": {"symbol": "engine_scale", "params": [8, 8, 4, 1, 4]},
  "axes": {"hidden_size": {"arg": 4, "type": "int32"}, "rows": {"grid": "x"}},
  "arguments": {
    "output": {"arg": 0, "dtype": "float32"},
    "input": {"arg": 1, "dtype": "float32"},
    "count": {"arg": 2, "type": "int32"},
    "is_inverse": {"arg": 3, "type": "int8"}
  },
  "writes": ["output"],
  "where": ["is_inverse == 0"],
  "definition": "scale_h{hidden_size}"
}
)json";

constexpr char kSolution[] = R"json({
  "name": "scale_by_hand",
  "definition": "scale_h4096",
  "author": "tests",
  "spec": {
    "language": "cuda",
    "target_hardware": ["NVIDIA H200"],
    "entry_point": "kernels.cu::scale",
    "dependencies": [],
    "destination_passing_style": true
  },
  "sources": [{"path": "kernels.cu", "content": "scale"}],
  "launch": {
    "kernel": "scale",
    "images": [{"path": "kernels.sm_90.cubin", "sha256": "@SHA256@"}],
    "grid": ["ceil_div(count, 256)", 1, 1],
    "block": [256, 1, 1],
    "cluster": [1, 1, 1],
    "shared_mem": 0,
    "arguments": ["output", "input", "count", "is_inverse"],
    "where": [],
    "pdl": false
  }
}
)json";

// As `fibshim bench --keep` writes it, but for "images", which write_measurements() fills in.
constexpr char kMeasurements[] = R"json({
 "format": 1,
 "measurements": [
  {"definition":"scale_h4096","solution":"scale_by_hand","images":"0000000000000000000000000000000000000000000000000000000000000000","gpu":"NVIDIA H200","sm":90,
   "driver":"13.0","date":"2026-11-01","mode":"bench","original":"engine_scale","times":[
   {"axes":{"rows":1},"us":2.5,"p10_us":2.4,"p90_us":2.6,"original_us":3.0},
   {"axes":{"rows":64},"us":4.0,"p10_us":3.9,"p90_us":4.1,"original_us":3.9}]}
 ]
}
)json";

}  // namespace

void write_config_folder(const std::string& folder) {
  umask(022);  // files that others can write are not trusted
  const std::string image = build_path("tests/data/kernels.sm_90.cubin");
  std::string solution = kSolution;
  const std::string sha256 = run_program({"sha256sum", image}).out.substr(0, 64);
  solution.replace(solution.find("@SHA256@"), 8, sha256);
  write_text(folder + "/definitions/scale_h4096.json", kDefinition);
  write_text(folder + "/patterns/engine-scale.json", kPattern);
  write_text(folder + "/solutions/scale_by_hand.json", solution);
  std::filesystem::copy_file(image, folder + "/solutions/kernels.sm_90.cubin",
                             std::filesystem::copy_options::overwrite_existing);
  std::filesystem::remove(folder + "/measurements.json");
  write_text(folder + "/times.json", kMeasurements);
  run_fibshim({"bench", "-q", "--keep-from", folder + "/times.json", folder});
  std::filesystem::remove(folder + "/times.json");
}

}  // namespace fibshim::test
