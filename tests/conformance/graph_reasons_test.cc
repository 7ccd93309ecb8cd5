// Why nodes of graphs keep their original is counted (shim/abi/graph_reasons.h).
#include <set>

#include <nlohmann/json.hpp>

#include "shim/abi/graph_reasons.h"

#include "tests/conformance/conform_run.h"

namespace fibshim::conformance {
namespace {

using Reasons = std::map<std::string, long>;

struct ReasonsOfCase {
  const char* name;
  const char* words;
  Reasons expected;
  bool needs_simulation = false;
  Environment environment = {};
};

const ReasonsOfCase kReasonsOfCases[] = {
    {"NotInPlace", "exec_with_bodies", {{"not_in_place", 1}}},
    {"Unchecked",
     "bodies_cannot_be_checked",
     {{"unchecked", 1}},
     false,
     {{"FIBSHIM_SHADOW", "1/1"}}},
    {"ByTheDevice",
     "bodies_survive_failures",
     {{"device_launch", 1}, {"device_update", 1}, {"refused", 2}},
     true},
    {"SetChild", "exec_with_child_graphs_set", {{"set_child", 2}}},
    {"SetChildWithObjects", "kept_child_with_objects", {{"set_child", 2}}},
    {"NotCopied", "kept_uncopied", {{"not_copied", 2}}, true},
    {"NotDescribed", "kept_undescribed", {{"not_copied", 2}}, true},
    {"Refused", "exec_survives_failures", {{"refused", 2}}, true},
    {"Disabled", "exec_update_keeps_what_is_disabled", {{"disabled", 2}}},
    {"SetUnknown", "kept_set_unknown", {{"set_unknown", 2}}, true},
    {"SetAfterUpdate", "kept_set_after_update", {{"set_after_update", 2}}},
    {"SetWhereAllIsHeld", "check_graph_left", {}, true},
    {"RewriteOrderBuffersAndReader",
     "rewrite_needs_proof",
     {{"rewrite_order", 2}, {"rewrite_buffers", 4}, {"rewrite_reader", 6}},
     true},
    {"RewriteChanged", "rewrite_is_undone", {{"rewrite_changed", 4}}, true},
    {"RewritePriority", "replacements_keep_priorities", {{"rewrite_priority", 2}}, true},
    {"NoneWhereAllIsReplaced", "rewrite_runs_as_one", {}, true},
};
void PrintTo(const ReasonsOfCase& row, std::ostream* out) { *out << row.name; }

class GraphReasons : public testing::TestWithParam<ReasonsOfCase> {};

TEST_P(GraphReasons, AreCounted) {
  const ReasonsOfCase& row = GetParam();
  if (row.needs_simulation && is_real_driver()) GTEST_SKIP() << "not for a real driver";
  const HostRun run({"conform", row.words}, row.environment);
  run.expect_holds();
  Reasons counted;
  const nlohmann::json stats = stats_json(run.stats_dir());
  for (const auto& [reason, number] : stats["graph_reasons"].items()) {
    if (number != 0) counted[reason] = number.get<long>();
  }
  EXPECT_EQ(counted, row.expected);
}

// Of every reason there is a case.
TEST(EveryGraphReason, HasACase) {
  std::set<std::string> shown;
  for (const ReasonsOfCase& row : kReasonsOfCases) {
    for (const auto& [reason, number] : row.expected) shown.insert(reason);
  }
  for (const GraphReasonInfo& info : kGraphReasons)
    EXPECT_EQ(shown.count(info.name), 1u) << info.name;
}

INSTANTIATE_TEST_SUITE_P(Conformance, GraphReasons, testing::ValuesIn(kReasonsOfCases),
                         [](const auto& row) { return std::string(row.param.name); });

}  // namespace
}  // namespace fibshim::conformance
