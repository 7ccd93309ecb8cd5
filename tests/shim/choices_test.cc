// Several solutions for one definition, in a host: each launch, in whatever way it comes, gets the
// solution for its size and is counted under it. Also several folders in use together.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tests/shim/preloaded_engine.h"
#include "tests/support/text.h"

namespace fibshim {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

Json read_json(const fs::path& path) { return Json::parse(std::ifstream(path)); }

void write_json(const fs::path& path, const Json& json) { std::ofstream(path) << json.dump(1); }

// A copy of the folder in which rows of 128 elements have a solution for 1 to 8 rows, and one for
// 17 to 32.
std::string choosing_config() {
  const std::string folder = copy_of_pytorch_config();
  const fs::path file = find_file(folder, "fibshim_rmsnorm_h128.json");
  Json solution = read_json(file);
  solution["name"] = "few_rows";
  solution["launch"]["when"] = {"batch_size <= 8"};
  write_json(file, solution);
  solution["name"] = "more_rows";
  solution["launch"]["when"] = {"batch_size > 16", "batch_size <= 32"};
  write_json(file.parent_path() / "more_rows.json", solution);
  return folder;
}

// "solution outcome" -> launches with rows of 128 elements.
std::map<std::string, long> counts_of(const PreloadedEngine& engine) {
  std::map<std::string, long> counts;
  const Json stats = engine.stats();
  for (const Json& one : stats["counters"]) {
    if (one["definition"] != "rmsnorm_h128") continue;
    counts[one["solution"].get<std::string>() + " " + one["outcome"].get<std::string>()] +=
        one["count"].get<long>();
  }
  return counts;
}

struct Row {
  int rows;
  const char* counted;
};
constexpr Row kRows[] = {{1, "few_rows hit"},     {8, "few_rows hit"},   {9, " fallback_where"},
                         {16, " fallback_where"}, {17, "more_rows hit"}, {32, "more_rows hit"},
                         {33, " fallback_where"}};

TEST(Choices, EachLaunchHasTheSolutionThatIsForItsSize) {
  const std::string config = choosing_config();
  const std::vector<std::vector<std::string>> ways = {
      {}, {"--api=ex"}, {"--pass=extra"}, {"--capture"}, {"--ptsz"}, {"--module=module"}};
  for (const auto& way : ways) {
    for (const Row& row : kRows) {
      SCOPED_TRACE((way.empty() ? "" : way[0]) + " rows " + std::to_string(row.rows));
      const PreloadedEngine engine;
      std::vector<std::string> arguments = {"--hidden=128", "--launches=50",
                                            "--rows=" + std::to_string(row.rows)};
      arguments.insert(arguments.end(), way.begin(), way.end());
      const EngineRun run = exits(0, engine.run(arguments, config));
      const bool is_hit = std::string(row.counted).ends_with("hit");
      EXPECT_EQ(run.ran_curated(), is_hit ? 50 : 0) << run.process.out;
      EXPECT_EQ(run.ran_original(), is_hit ? 0 : 50);
      const long launches = !way.empty() && way[0] == "--capture" ? 1 : 50;
      EXPECT_EQ(counts_of(engine), (std::map<std::string, long>{{row.counted, launches}}));
      EXPECT_TRUE(run.messages().empty()) << run.process.err;
    }
  }
}

TEST(Choices, ABrokenSolutionFailsTheLaunchesThatItIsForAndNoOthers) {
  const std::string config = choosing_config();
  edit_file(find_file(config, "more_rows.json"), "\"kernel\": \"", "\"kernel\": \"no_");
  const PreloadedEngine engine;
  const EngineRun small =
      exits(0, engine.run({"--hidden=128", "--rows=8", "--launches=5"}, config));
  EXPECT_EQ(small.ran_curated(), 5);
  const EngineRun large = engine.run({"--hidden=128", "--rows=32", "--launches=5"}, config);
  EXPECT_EQ(large.launches_with(0), 0) << large.process.out;
  const EngineRun beyond =
      exits(0, engine.run({"--hidden=128", "--rows=33", "--launches=5"}, config));
  EXPECT_EQ(beyond.ran_original(), 5);
  EXPECT_EQ(counts_of(engine),
            (std::map<std::string, long>{
                {"few_rows hit", 5}, {"more_rows error", 5}, {" fallback_where", 5}}));
}

// Only the solution that failed is not used any more.
TEST(Choices, QuarantineIsOfOneSolution) {
  const std::string config = choosing_config();
  edit_file(find_file(config, "more_rows.json"), "\"kernel\": \"", "\"kernel\": \"no_");
  const PreloadedEngine engine;
  const Environment environment = {{"FIBSHIM_QUARANTINE", "2"}};
  (void)engine.run({"--hidden=128", "--rows=32", "--launches=5"}, config, environment);
  (void)exits(0, engine.run({"--hidden=128", "--rows=8", "--launches=5"}, config, environment));
  EXPECT_EQ(
      counts_of(engine),
      (std::map<std::string, long>{
          {"few_rows hit", 5}, {"more_rows error", 2}, {"more_rows fallback_quarantined", 3}}));
}

// A folder that contains only what rows of 128 elements need.
std::string config_of_128() {
  const std::string folder = copy_of_pytorch_config();
  const fs::path file = find_file(folder, "fibshim_rmsnorm_h128.json");
  Json solution = read_json(file);
  solution["name"] = "first";
  write_json(file, solution);
  for (const auto& entry : fs::recursive_directory_iterator(folder + "/solutions")) {
    if (entry.path().extension() == ".json" && entry.path() != file) fs::remove(entry.path());
  }
  return folder;
}

TEST(Folders, TheFirstThatHasADefinitionsSolutionServesIt) {
  const std::string first = config_of_128();
  const std::string list = first + ":" + pytorch_config();
  const PreloadedEngine engine;
  EXPECT_EQ(exits(0, engine.run({"--hidden=128", "--launches=3"}, list)).ran_curated(), 3);
  EXPECT_EQ(exits(0, engine.run({"--hidden=2048", "--launches=3"}, list)).ran_curated(), 3);
  std::map<std::string, std::string> solutions, configs;
  const Json stats = engine.stats();
  for (const Json& one : stats["counters"]) {
    if (one["outcome"] != "hit") continue;
    solutions[one["definition"]] = one["solution"];
    configs[one["definition"]] = one["config"];
  }
  EXPECT_EQ(solutions, (std::map<std::string, std::string>{
                           {"rmsnorm_h128", "first"}, {"rmsnorm_h2048", "fibshim_rmsnorm_h2048"}}));
  EXPECT_EQ(configs["rmsnorm_h128"],
            fs::canonical(first).string() + ":" + fs::canonical(pytorch_config()).string());
}

TEST(Folders, AreRelativeToWhereTheProgramBegan) {
  const std::string first = config_of_128();
  const PreloadedEngine engine;
  const std::string list =
      fs::relative(first).string() + "::" + fs::relative(pytorch_config()).string();
  EXPECT_EQ(exits(0, engine.run({"--hidden=2048", "--launches=3"}, list)).ran_curated(), 3);
}

TEST(Folders, OneThatIsMissingRefusesTheList) {
  const PreloadedEngine engine;
  const EngineRun run =
      exits(0, engine.run({"--hidden=128", "--launches=3"}, pytorch_config() + ":/nowhere"));
  EXPECT_EQ(run.ran_original(), 3);
  ASSERT_EQ(run.messages().size(), 1u) << run.process.err;
  EXPECT_CONTAINS(run.messages()[0], "/nowhere");
}

}  // namespace
}  // namespace fibshim
