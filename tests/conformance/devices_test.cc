// Counts by device, in a process that uses two: however the second one's context was made.
#include <regex>

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/conformance/conform_run.h"

namespace fibshim::conformance {
namespace {

const char* const kWays[] = {"cuDevicePrimaryCtxRetain", "cuCtxCreate",    "cuCtxCreate_v2",
                             "cuCtxCreate_v3",           "cuCtxCreate_v4", "cuGreenCtxCreate"};

// Device -> hits; -1: not told.
std::map<int, long> hits_by_device(const HostRun& run) {
  const ProcessResult result = run_process({build_dir() + "/bin/fibshim", "stats", "--json"},
                                           {{"FIBSHIM_STATS_DIR", run.stats_dir()}});
  const nlohmann::json stats = nlohmann::json::parse(result.out, nullptr, false);
  EXPECT_FALSE(stats.is_discarded()) << result.out << result.err;
  std::map<int, long> hits;
  for (const auto& row : stats["counters"]) {
    if (row["outcome"] == "hit") hits[row["device"].get<int>()] += row["count"].get<long>();
  }
  return hits;
}

std::string printed(const HostRun& run, const std::vector<std::string>& arguments) {
  std::vector<std::string> command = {build_dir() + "/bin/fibshim", "stats"};
  command.insert(command.end(), arguments.begin(), arguments.end());
  return run_process(command, {{"FIBSHIM_STATS_DIR", run.stats_dir()}}).out;
}

class DevicesInCounters : public testing::TestWithParam<const char*> {};

TEST_P(DevicesInCounters, AreToldApart) {
  if (is_real_driver()) GTEST_SKIP() << "not for a real driver: tests/gpu/two_devices.py does it";
  for (const char* devices : {"90,90", "90,80"}) {
    const HostRun run({"conform", "counts_by_device", GetParam()}, {{"SIMCUDA_DEVICES", devices}});
    run.expect_holds();
    EXPECT_TRUE(run.messages().empty()) << run.process().err;
    EXPECT_EQ(hits_by_device(run), (std::map<int, long>{{0, 10}, {1, 5}})) << devices;
  }
}

INSTANTIATE_TEST_SUITE_P(Conformance, DevicesInCounters, testing::ValuesIn(kWays),
                         [](const auto& one) { return std::string(one.param); });

TEST(DevicesInCounters, AreNotToldApartForKernelsWhereThatIsNotWanted) {
  if (is_real_driver()) GTEST_SKIP() << "not for a real driver: it needs two GPUs that are alike";
  const HostRun run({"conform", "counts_by_device", "cuCtxCreate_v2"},
                    {{"SIMCUDA_DEVICES", "90,90"}, {"FIBSHIM_DEVICES", "together"}});
  run.expect_holds();
  EXPECT_EQ(hits_by_device(run), (std::map<int, long>{{-1, 9}, {0, 4}, {1, 2}}));
}

TEST(DevicesInCounters, AreInTheTableAndInThePrometheusText) {
  if (is_real_driver()) GTEST_SKIP() << "not for a real driver: tests/gpu/two_devices.py does it";
  const HostRun run({"conform", "counts_by_device", "cuCtxCreate_v2"},
                    {{"SIMCUDA_DEVICES", "90,90"}});
  const std::string table = printed(run, {"--by", "device"});
  EXPECT_NE(table.find("0 Simulated GPU"), std::string::npos) << table;
  EXPECT_NE(table.find("1 Simulated GPU"), std::string::npos) << table;
  const std::string text = printed(run, {"--prometheus"});
  EXPECT_NE(text.find("outcome=\"hit\",config="), std::string::npos) << text;
  const std::regex five(R"re(device="1",pid="\d+",start_time="\d+"} 5\n)re");
  const std::regex ten(R"re(device="0",pid="\d+",start_time="\d+"} 10\n)re");
  EXPECT_TRUE(std::regex_search(text, five)) << text;
  EXPECT_TRUE(std::regex_search(text, ten)) << text;
}

}  // namespace
}  // namespace fibshim::conformance
