// The installed alert rules and dashboard use only metrics, labels and outcomes that
// `fibshim stats --prometheus` writes.

#include "tests/support/text.h"
#include "tests/tools/counters_file_builder.h"
#include "tests/tools/fibshim_program.h"

namespace fibshim::test {
namespace {

std::string monitoring(const std::string& name) {
  return source_path("tools/packaging/monitoring/" + name);
}

TEST(Monitoring, NamesMetricsAndOutcomesThatAreWritten) {
  const TemporaryFolder folder;
  CountersFileBuilder builder(4194399, 1);
  write_text(folder / builder.file_name(), builder.bytes());
  const std::set<std::string> metrics =
      matches(run_fibshim({"stats", "--prometheus", "--dir", folder.path()}).out, "# TYPE (\\w+) ");
  std::string outcomes;
  for (const OutcomeInfo& outcome : kOutcomes) outcomes += std::string(outcome.name) + "\n";
  for (const char* name : {"fibshim-alerts.yml", "fibshim-dashboard.json"}) {
    const std::string text = read_text(monitoring(name));
    const std::set<std::string> named = matches(text, "\\b(fibshim_[a-z_]+)");
    EXPECT_FALSE(named.empty());
    for (const std::string& metric : named) EXPECT_TRUE(metrics.contains(metric)) << metric;
    for (const std::string& wanted : matches(text, "outcome=~?\\\\?\"([^\"\\\\]+)")) {
      EXPECT_FALSE(matches(outcomes, "(?:^|\\n)(" + wanted + ")\\n").empty()) << wanted;
    }
  }
}

TEST(Monitoring, TheDashboardIsJsonWhosePanelsAllAskSomething) {
  const nlohmann::json dashboard = parse_json(read_text(monitoring("fibshim-dashboard.json")));
  EXPECT_FALSE(dashboard["uid"].get<std::string>().empty());
  ASSERT_FALSE(dashboard["panels"].empty());
  std::set<int> ids;
  for (const auto& panel : dashboard["panels"]) {
    EXPECT_TRUE(ids.insert(panel["id"].get<int>()).second) << panel["title"];
    ASSERT_FALSE(panel["targets"].empty()) << panel["title"];
    EXPECT_EQ(panel["datasource"]["uid"], "${datasource}");
  }
}

TEST(Monitoring, PromtoolTakesTheRules) {
  if (run_program({"sh", "-c", "command -v promtool"}).exit_code != 0) {
    GTEST_SKIP() << "there is no promtool (package prometheus)";
  }
  const ProgramResult result =
      run_program({"promtool", "check", "rules", monitoring("fibshim-alerts.yml")});
  EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
}

}  // namespace
}  // namespace fibshim::test
