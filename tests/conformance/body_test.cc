// What becomes of kernels in bodies of conditional nodes (hosts/body_cases.cc) is listed apart.
#include <nlohmann/json.hpp>

#include "tests/conformance/conform_run.h"

namespace fibshim::conformance {
namespace {

nlohmann::json body_nodes_of(const HostRun& run) {
  run.expect_holds();
  const nlohmann::json stats = stats_json(run.stats_dir());
  for (const char* const kind : {"totals", "executions"}) EXPECT_EQ(stats[kind]["hit"], 0);
  return stats["body_nodes"];
}

TEST(BodyNodes, AreListedApart) {
  const HostRun run({"conform", "exec_with_bodies"});
  const nlohmann::json nodes = body_nodes_of(run);
  EXPECT_EQ(nodes["hit"], 3);
  EXPECT_EQ(nodes["fallback_graph"], 1);
  EXPECT_EQ(nodes["untracked"], 3);
}

TEST(BodyNodes, AreReplacedInAnUpdate) {
  const HostRun run({"conform", "exec_update_with_bodies"});
  if (run.was_skipped()) GTEST_SKIP() << run.process().out;
  EXPECT_EQ(body_nodes_of(run)["hit"], 2);
}

TEST(BodyNodes, RunAsTheyAreWhereEveryLaunchIsToBeChecked) {
  const HostRun run({"conform", "bodies_cannot_be_checked"}, {{"FIBSHIM_SHADOW", "1/1"}});
  EXPECT_EQ(body_nodes_of(run)["fallback_graph"], 1);
}

TEST(BodyNodes, OfASolutionThatCannotLoadFailTheCall) {
  if (is_real_driver()) GTEST_SKIP() << "it makes driver calls fail";
  const HostRun run({"conform", "body_whose_solution_cannot_load"});
  const nlohmann::json nodes = body_nodes_of(run);
  EXPECT_EQ(nodes["error"], 1);
  EXPECT_EQ(nodes["hit"], 1);
}

}  // namespace
}  // namespace fibshim::conformance
