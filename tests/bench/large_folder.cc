#include "tests/bench/large_folder.h"

#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>

namespace fibshim::bench {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr char kModel[] = "bench_same_order_n4096";
constexpr int kModelColumns = 4096;

Json read(const fs::path& path) {
  std::ifstream file(path);
  if (!file) throw std::runtime_error("cannot read " + path.string());
  return Json::parse(file);
}

void write(const fs::path& path, const Json& json) { std::ofstream(path) << json.dump(2) << "\n"; }

// Symbols like those of engines. None fits a kernel of the benchmarks.
std::string symbol(int i) {
  const std::string number = std::to_string(i);
  switch (i % 3) {
    case 0:
      return "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_15CUDAFunctor_" + number +
             "IN3c108BFloat16EEESt5arrayIPcLm3EEEEviT0_T1_";
    case 1: return "glob:_ZN10flashinfer*norm_kernel_" + number + "*BFloat16*";
    default:
      return R"(re:_ZN2at6native\d+_GLOBAL__N__[0-9a-f]{8}_\d+_layer_norm_kernel_cu_[0-9a-f]{8}28)"
             "vectorized_layer_norm_kernel_" +
             number + R"(IN3c10(?:8BFloat16|4Half)EfLb1EEEviT0_PKT_.*)";
  }
}

}  // namespace

void make_large_folder(const std::string& bench_folder, const std::string& path, FolderSize size) {
  const fs::path root = path;
  umask(022);  // files that others can write are not trusted
  fs::remove_all(root);
  fs::create_directories(root.parent_path());
  fs::copy(bench_folder, root, fs::copy_options::recursive);

  Json pattern = read(root / "patterns/bench-hit.json");
  fs::create_directory(root / "patterns/many");
  for (int i = 0; i < size.patterns; ++i) {
    const std::string label = "many-" + std::to_string(i);
    pattern["label"] = label;
    pattern["match"]["symbol"] = symbol(i);
    // Each pattern has its own name, and so few solutions, as real patterns have.
    pattern["definition"] = "many" + std::to_string(i) + "_n{columns}";
    write(root / "patterns/many" / (label + ".json"), pattern);
  }

  Json definition = read(root / "definitions" / (std::string(kModel) + ".json"));
  const fs::path model = root / "solutions";
  Json solution = read(model / ("fibshim_" + std::string(kModel) + ".json"));
  const fs::path image = model / std::string(solution["launch"]["images"][0]["path"]);
  // Processes do not need the sources.
  solution["sources"][0]["content"] = "";
  fs::create_directory(root / "definitions/many");
  for (int columns = 1; columns <= size.solutions; ++columns) {
    if (columns == kModelColumns) continue;
    const std::string name = "bench_same_order_n" + std::to_string(columns);
    definition["name"] = name;
    definition["axes"]["columns"]["value"] = columns;
    write(root / "definitions/many" / (name + ".json"), definition);
    const fs::path folder = root / "solutions/many" / name;
    fs::create_directories(folder);
    solution["name"] = "fibshim_" + name;
    solution["definition"] = name;
    write(folder / ("fibshim_" + name + ".json"), solution);
    // Uses links, since ten thousand copies would measure the disk.
    fs::create_hard_link(image, folder / image.filename());
  }
}

}  // namespace fibshim::bench
