// What kernels/gemm_wide demands of a launch, and nothing in it checks: the tables of config/shared/gemm_wide give it.
#include <filesystem>
#include <fstream>
#include <regex>
#include <string>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace fibshim {
namespace {

nlohmann::json read_json(const std::filesystem::path& path) {
  return nlohmann::json::parse(std::ifstream(path));
}

// As the kernel's source says: FIBSHIM_KERNEL(name, type, rows, tiles, KB of ring, stages of A, cluster).
struct WideShape {
  int rows = 0, tiles = 0, ring_kb = 0, stages_of_a = 0, cluster = 0;

  int barriers() const { return 2 * (32 + stages_of_a) * 8; }
  int inbox() const { return cluster > 1 ? tiles * (rows / 8 / cluster) * 128 * 16 : 0; }
  int shared_mem() const {
    return ring_kb * 1024 + stages_of_a * rows * 512 + barriers() + inbox();
  }
};

WideShape shape_in_source(const nlohmann::json& solution) {
  const std::regex line("FIBSHIM_KERNEL\\(" + solution["launch"]["kernel"].get<std::string>() +
                        ", \\w+, (\\d+), (\\d+), (\\d+), (\\d+), (\\d+)\\)");
  for (const nlohmann::json& source : solution["sources"]) {
    const auto text = source["content"].get<std::string>();
    std::smatch found;
    if (!std::regex_search(text, found, line)) continue;
    const auto number = [&found](int i) { return std::stoi(found[i]); };
    return {number(1), number(2), number(3), number(4), number(5)};
  }
  return {};
}

TEST(ShippedProducts, FitTheKernelsOfManyRows) {
  const auto build = std::filesystem::read_symlink("/proc/self/exe").parent_path().parent_path();
  const auto folder = build / "config/cublas";
  int count = 0;
  for (const std::string kind : {"", "_split"}) {
    const auto solutions = folder / "solutions/fibshim" / ("gemm_wide" + kind);
    for (const auto& entry : std::filesystem::directory_iterator(solutions)) {
      if (entry.path().extension() != ".json") continue;
      SCOPED_TRACE(entry.path().filename().string());
      const nlohmann::json solution = read_json(entry.path());
      const nlohmann::json axes =
          read_json(folder / "definitions" / ("gemm" + kind) /
                    (solution["definition"].get<std::string>() + ".json"))["axes"];
      const int n = axes["N"]["value"];
      const int k = axes["K"]["value"];
      const nlohmann::json& launch = solution["launch"];
      const int blocks = launch["grid"][0];
      const int parts = launch["grid"][1];
      const WideShape shape = shape_in_source(solution);
      ASSERT_NE(shape.rows, 0) << "the kernel is not in its sources";
      EXPECT_EQ(launch["when"].back(), "M <= " + std::to_string(shape.rows));
      EXPECT_EQ(launch["cluster"], nlohmann::json({shape.cluster, 1, 1}));
      EXPECT_EQ(launch["shared_mem"], shape.shared_mem());
      EXPECT_EQ(n % 8, 0);
      EXPECT_EQ(k % (256 * parts * shape.cluster), 0);
      EXPECT_EQ(blocks % shape.cluster, 0);
      if (shape.cluster > 1) {
        const int clusters = blocks / shape.cluster;
        EXPECT_LE((n / 8 + clusters - 1) / clusters, shape.tiles * 8) << "blocks meet once";
      }
      ++count;
    }
  }
  EXPECT_GT(count, 50);
}

}  // namespace
}  // namespace fibshim
