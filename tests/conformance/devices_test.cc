// Counts by device, in a process that uses two: however the second one's context was made.
#include <regex>

#include <nlohmann/json.hpp>

#include "tests/conformance/conform_run.h"
#include "tests/support/text.h"

namespace fibshim::conformance {
namespace {

const char* const kContextCalls[] = {"cuDevicePrimaryCtxRetain", "cuCtxCreate",
                                     "cuCtxCreate_v2",           "cuCtxCreate_v3",
                                     "cuCtxCreate_v4",           "cuGreenCtxCreate"};

// Device -> hits; -1: not told.
std::map<int, long> hits_by_device(const HostRun& run) {
  std::map<int, long> hits;
  const nlohmann::json stats = stats_json(run.stats_dir());
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
    run.expect_holds(0);
    EXPECT_EQ(hits_by_device(run), (std::map<int, long>{{0, 10}, {1, 5}})) << devices;
  }
}

INSTANTIATE_TEST_SUITE_P(Conformance, DevicesInCounters, testing::ValuesIn(kContextCalls),
                         kByItself);

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
  EXPECT_CONTAINS(table, "0 Simulated GPU");
  EXPECT_CONTAINS(table, "1 Simulated GPU");
  const std::string text = printed(run, {"--prometheus"});
  EXPECT_CONTAINS(text, "outcome=\"hit\",config=");
  const std::regex five(R"re(device="1",solution="\w+",pid="\d+",start_time="\d+"} 5\n)re");
  const std::regex ten(R"re(device="0",solution="\w+",pid="\d+",start_time="\d+"} 10\n)re");
  EXPECT_TRUE(std::regex_search(text, five)) << text;
  EXPECT_TRUE(std::regex_search(text, ten)) << text;
}

}  // namespace
}  // namespace fibshim::conformance
