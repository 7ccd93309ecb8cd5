// kernels/gemm, gemm_wide, gemm_scaled, gemm_block_scaled, gemm_w4a16, moe_gemm and moe_gemm_block_scaled require properties of a launch that they do
// not check. The tables of config/shared provide them.
#include <limits.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace fibshim {
namespace {

nlohmann::json read_json(const std::filesystem::path& path) {
  return nlohmann::json::parse(std::ifstream(path));
}

// A kernel's name without the suffixes for its type and variant.
std::string size_of(const std::string& kernel) {
  return std::regex_replace(
      kernel, std::regex("(_bias|_add|_offsets)?_(bf16|fp16|fp8)$|_(tensor|token|channel)$"), "");
}

// The numbers of the kernel's line in its source: FIBSHIM_KERNELS(name, numbers).
std::vector<int> numbers_in_source(const nlohmann::json& solution, const std::string& name) {
  static std::map<std::string, std::vector<int>> known;
  std::vector<int>& numbers = known[name];
  const std::regex number("\\d+");
  for (const nlohmann::json& source : solution["sources"]) {
    if (!numbers.empty()) break;
    std::istringstream text(source["content"].get<std::string>());
    for (std::string line; numbers.empty() && std::getline(text, line);) {
      const size_t at = line.find("(" + name + ", ");
      if (line.rfind("FIBSHIM_KERNEL", 0) != 0 || at == std::string::npos) continue;
      const auto begin = line.begin() + static_cast<long>(at + name.size() + 1);
      for (std::sregex_iterator i(begin, line.end(), number), end; i != end; ++i) {
        numbers.push_back(std::stoi(i->str()));
      }
    }
  }
  return numbers;
}

// FIBSHIM_KERNELS(name, rows, tiles, KB of ring, stages of A, cluster, warpgroups).
struct WideShape {
  int rows = 0, tiles = 0, ring_kb = 0, stages_of_a = 0, cluster = 0, warpgroups = 0;
  int scale_bytes = 0;  // of a row of A, in a stage

  int barriers() const { return 2 * (32 + stages_of_a) * 8 + (cluster > 1 ? 16 : 0); }
  int inbox() const { return (cluster - 1) * tiles * warpgroups * (rows / 8 / cluster) * 128 * 16; }
  int shared_mem() const {
    const int without_inbox =
        ring_kb * 1024 + stages_of_a * rows * (512 + scale_bytes) + barriers();
    return without_inbox + (without_inbox + inbox() > 227 * 1024 ? 0 : inbox());
  }
};

// FIBSHIM_KERNELS(name, warps, columns, cluster, stages), and columns that K lacks, if it does.
struct FewShape {
  int warps = 0, columns = 0, cluster = 0, stages = 0;

  int shared_mem() const {
    return warps * stages * 2048 + 2 * warps * 128 * 4 + (cluster > 1 ? 4 * 128 * 4 + 4 * 8 : 0);
  }
};

// FIBSHIM_KERNELS(name, rows, warps, warps that divide K, cluster, stages), and of wide ones (name, rows, warpgroups, cluster, stages).
struct FourBitShape {
  int rows = 0, warps = 0, splits = 0, cluster = 0, stages = 0;
  bool is_wide = false;

  // Of 16 rows of B each, that a cluster has at most.
  int strips(int n, int blocks) const { return (n / 16 * cluster + blocks - 1) / blocks; }
  int shared_mem(int n, int k, int blocks) const {
    const int part = k / cluster;
    const int sums = rows * 20 * 4;  // of a strip
    if (is_wide) {
      const int stage = rows * (2 * 128 + 4) + warps * 2 * (512 + 32) + 3 * 8;
      return stages * ((stage + 1023) / 1024 * 1024);
    }
    const int inbox = cluster > 1 ? strips(n, blocks) * sums : 0;
    const int a = rows * (part * 2 + 16) + part / 128 * rows * 4;
    return warps * stages * 1088 + 2 * warps * sums + a + inbox;
  }
};

struct Product {
  nlohmann::json solution;
  int n = 0, k = 0;
};

std::filesystem::path built_folders() {
  return std::filesystem::read_symlink("/proc/self/exe").parent_path().parent_path() / "config";
}

// The solutions in a folder below solutions/fibshim, for definitions in one below definitions.
std::vector<Product> products(const std::string& solutions, const std::string& definitions,
                              const std::string& config = "cublas") {
  const auto folder = built_folders() / config;
  std::vector<Product> found;
  for (const auto& entry :
       std::filesystem::directory_iterator(folder / "solutions/fibshim" / solutions)) {
    if (entry.path().extension() != ".json") continue;
    nlohmann::json solution = read_json(entry.path());
    const nlohmann::json axes =
        read_json(folder / "definitions" / definitions /
                  (solution["definition"].get<std::string>() + ".json"))["axes"];
    found.push_back({std::move(solution), axes["N"]["value"], axes["K"]["value"]});
  }
  return found;
}

// What a source includes from kernels/ is a source, too: they compile without this repository.
void expect_whole_sources(const nlohmann::json& solution) {
  std::string paths;
  for (const nlohmann::json& source : solution["sources"]) {
    paths += source["path"].get<std::string>() + " ";
  }
  const std::regex include("#include \"([^\"]+)\"");
  for (const nlohmann::json& source : solution["sources"]) {
    const std::string content = source["content"];
    for (std::sregex_iterator i(content.begin(), content.end(), include), end; i != end; ++i) {
      EXPECT_NE(paths.find((*i)[1].str() + " "), std::string::npos)
          << source["path"] << " includes " << (*i)[1];
    }
  }
}

// The most rows of A that the solution is for.
int most_rows(const nlohmann::json& launch) {
  const std::string most = launch["when"].back();
  const std::string begin = "M <= ";
  return most.rfind(begin, 0) == 0 ? std::stoi(most.substr(begin.size())) : INT_MAX;
}

// `columns`: of K, in a stage. `scale_bytes`: of a row of A there.
void expect_fits_wide_kernel(const Product& product, int columns, int scale_bytes = 0) {
  const auto& [solution, n, k] = product;
  SCOPED_TRACE(solution["name"].get<std::string>());
  const nlohmann::json& launch = solution["launch"];
  const int blocks = launch["grid"][0];
  const int parts = launch["grid"][1];
  const std::vector<int> numbers =
      numbers_in_source(solution, size_of(solution["launch"]["kernel"]));
  ASSERT_EQ(numbers.size(), 6u) << "the kernel is not in its sources";
  const WideShape shape{numbers[0], numbers[1], numbers[2], numbers[3],
                        numbers[4], numbers[5], scale_bytes};
  EXPECT_LE(most_rows(launch), shape.rows);
  EXPECT_EQ(launch["block"], nlohmann::json({(shape.warpgroups * 4 + 5) * 32, 1, 1}));
  EXPECT_EQ(launch["cluster"], nlohmann::json({shape.cluster, 1, 1}));
  EXPECT_EQ(launch["shared_mem"], shape.shared_mem());
  EXPECT_EQ(n % 8, 0);
  if (size_of(launch["kernel"]).find("_tail_") != std::string::npos) {
    EXPECT_EQ(k % 8, 0);
    EXPECT_EQ(parts, 1);
  } else {
    EXPECT_EQ(k % (columns * parts * shape.cluster), 0);
  }
  EXPECT_EQ(blocks % shape.cluster, 0);
  if (shape.cluster > 1) {
    const int clusters = blocks / shape.cluster;
    EXPECT_LE((n / 8 + clusters - 1) / clusters, shape.tiles * shape.warpgroups * 8)
        << "blocks meet once";
  }
}

TEST(ShippedProducts, FitTheKernelsOfManyRows) {
  size_t count = 0;
  for (const std::string kind : {"", "_split", "_bias", "_add", "_fp8"}) {
    for (const Product& product : products("gemm_wide" + kind, "gemm" + kind)) {
      expect_fits_wide_kernel(product, kind == "_fp8" ? 512 : 256);
      ++count;
    }
  }
  EXPECT_GT(count, 150u);
}

TEST(ShippedProducts, FitTheScalingKernels) {
  const std::vector<Product> all = products("gemm_scaled", "gemm_fp8", "vllm");
  EXPECT_GT(all.size(), 150u);
  for (const Product& product : all) expect_fits_wide_kernel(product, 512);
}

TEST(ShippedProducts, FitTheBlockScalingKernels) {
  const std::vector<Product> all = products("gemm_block_scaled", "gemm_fp8_block", "vllm");
  EXPECT_GT(all.size(), 40u);
  for (const Product& product : all) expect_fits_wide_kernel(product, 512, 16);
}

TEST(ShippedProducts, FitTheKernelsOfFewRows) {
  size_t count = 0;
  for (const std::string kind : {"", "_split", "_bias", "_add"}) {
    for (const auto& [solution, n, k] : products("gemm" + kind, "gemm" + kind)) {
      SCOPED_TRACE(solution["name"].get<std::string>());
      const nlohmann::json& launch = solution["launch"];
      const int parts = launch["grid"][1];
      const std::vector<int> numbers =
          numbers_in_source(solution, size_of(solution["launch"]["kernel"]));
      ASSERT_GE(numbers.size(), 4u) << "the kernel is not in its sources";
      const int lacking = numbers.size() == 5 ? numbers[4] : 0;
      const FewShape shape{numbers[0], numbers[1], numbers[2], numbers[3]};
      EXPECT_EQ(launch["block"][0], shape.warps * 32);
      EXPECT_EQ(launch["cluster"], nlohmann::json({shape.cluster, 1, 1}));
      EXPECT_EQ(launch["shared_mem"], shape.shared_mem());
      EXPECT_EQ(launch["grid"][0].get<int>() % shape.cluster, 0);
      EXPECT_EQ(n % 16, 0);
      EXPECT_EQ(k, shape.warps * shape.columns * shape.cluster * parts - lacking);
      ++count;
    }
  }
  EXPECT_GT(count, 50u);
}

TEST(ShippedProducts, FitTheKernelsOfFourBits) {
  size_t count = 0;
  for (const auto& [solution, n, k] : products("gemm_w4a16", "gemm_w4a16", "machete")) {
    SCOPED_TRACE(solution["name"].get<std::string>());
    const nlohmann::json& launch = solution["launch"];
    const std::string kernel = size_of(launch["kernel"]);
    const std::vector<int> numbers = numbers_in_source(solution, kernel);
    const bool is_wide = kernel.rfind("gemm_w4a16_wide", 0) == 0;
    ASSERT_EQ(numbers.size(), is_wide ? 4u : 5u) << "the kernel is not in its sources";
    const FourBitShape shape =
        is_wide ? FourBitShape{numbers[0], numbers[1] * 4, 1, numbers[2], numbers[3], is_wide}
                : FourBitShape{numbers[0], numbers[1], numbers[2], numbers[3], numbers[4]};
    const int blocks = launch["grid"][0];
    // A cluster has work, and its blocks add up their sums once.
    if (is_wide && shape.cluster > 1) {
      EXPECT_GE(n / 16, blocks / shape.cluster);
      EXPECT_LE(shape.strips(n, blocks), shape.warps);
    }
    EXPECT_LE(most_rows(launch), shape.rows);
    EXPECT_EQ(launch["block"], nlohmann::json({(shape.warps + (is_wide ? 4 : 0)) * 32, 1, 1}));
    EXPECT_EQ(launch["cluster"], nlohmann::json({shape.cluster, 1, 1}));
    EXPECT_EQ(launch["shared_mem"], shape.shared_mem(n, k, blocks));
    EXPECT_LE(launch["shared_mem"].get<int>(), 227 * 1024);
    EXPECT_EQ(blocks % shape.cluster, 0);
    EXPECT_EQ(n % 128, 0);
    EXPECT_EQ(k % (128 * shape.cluster), 0);
    ++count;
  }
  EXPECT_GT(count, 250u);
}

// The numbers at the end of the kernel's line: blocks of an SM, warps, blocks of 128 columns of a warp or its columns, pieces of its ring.
TEST(ShippedProducts, FitTheKernelsOfExperts) {
  size_t count = 0;
  for (const std::string folder : {"vllm", "sglang"}) {
    for (const bool is_scaled : {true, false}) {
      const std::string family = is_scaled ? "moe_gemm_block_scaled" : "moe_gemm";
      for (const auto& [solution, n, k] : products(family, family, folder)) {
        SCOPED_TRACE(solution["name"].get<std::string>());
        const nlohmann::json& launch = solution["launch"];
        const std::vector<int> numbers = numbers_in_source(solution, launch["kernel"]);
        ASSERT_GE(numbers.size(), 4u) << "the kernel is not in its sources";
        const int* const shape = &*(numbers.end() - 4);
        const int warps = shape[1];
        const int of_groups = 320 * 8;
        const int scaled = warps * shape[3] * (16 * 128 + 16) + 2 * warps * 8 * 20 * 4 + 2 * 64;
        const int plain = warps * shape[3] * 8 * 256 + 2 * warps * 8 * 16 * 4;
        EXPECT_EQ(launch["grid"][0].get<int>() % (shape[0] * 132), 0);
        EXPECT_EQ(launch["block"][0], warps * 32);
        EXPECT_EQ(launch["shared_mem"], of_groups + (is_scaled ? scaled : plain));
        EXPECT_EQ(k, warps * shape[2] * (is_scaled ? 128 : 1));
        EXPECT_EQ(n % (is_scaled ? 256 : 16), 0);
        ++count;
      }
    }
  }
  EXPECT_EQ(count, 8u + 8u + 6u + 3u);
}

// Of solutions with the same sources one is read.
TEST(ShippedProducts, HaveTheirSources) {
  std::set<std::string> known;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(built_folders())) {
    const std::filesystem::path& path = entry.path();
    if (path.extension() != ".json" || path.string().find("/solutions/") == std::string::npos) {
      continue;
    }
    std::ostringstream text;
    text << std::ifstream(path).rdbuf();
    const std::string solution = text.str();
    const std::string begin = "{\"path\": \"";  // escaped where a source has it
    std::string names;
    for (size_t at = 0; (at = solution.find(begin, at)) != std::string::npos;) {
      at += begin.size();
      names += solution.substr(at, solution.find('"', at) - at) + " ";
    }
    if (!known.insert(names).second) continue;
    SCOPED_TRACE(path.string());
    expect_whole_sources(nlohmann::json::parse(solution));
  }
  EXPECT_GT(known.size(), 20u);
}

}  // namespace
}  // namespace fibshim
