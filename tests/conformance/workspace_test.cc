// Solutions with a workspace: the cases of workspace_cases.cc, in folders made of that of random graphs.

#include <filesystem>
#include <fstream>

#include <nlohmann/json.hpp>

#include "tests/conformance/conform_run.h"

namespace fibshim::conformance {
namespace {

namespace fs = std::filesystem;

// In folder "a" the launch of graph_c says how large its solution's workspace is; "none" has none of its solutions.
std::string make_workspace_folders() {
  const std::string root = make_temporary_dir();
  const std::string solution = "/solutions/curated_graph_c_n64.json";
  for (const char* name : {"/a", "/none"}) {
    fs::copy(conform_path("graphs_config"), root + name, fs::copy_options::recursive);
  }
  nlohmann::json read = nlohmann::json::parse(std::ifstream(root + "/a" + solution));
  read["launch"]["workspace"] = "1024 * (1 + salt0)";
  std::ofstream(root + "/a" + solution) << read.dump(2);
  fs::remove(root + "/none" + solution);
  return root;
}

class Workspaces : public testing::TestWithParam<const char*> {};

TEST_P(Workspaces, Hold) {
  const std::string folders = make_workspace_folders();
  const std::string name = GetParam();
  const HostRun run({"conform", "workspaces_" + name, folders},
                    {{"FIBSHIM_CONFIG", folders + "/a"},
                     {"SIMCUDA_KERNELS", conform_path("libgraph_kernels.so")},
                     {"SIMCUDA_LOG", ""}},
                    shim_path(), 60);
  if (run.was_skipped()) GTEST_SKIP() << run.process().out;
  run.expect_holds(name == "have_a_limit" ? 1 : 0);
}

INSTANTIATE_TEST_SUITE_P(Conformance, Workspaces,
                         testing::Values("of_streams", "have_a_limit", "of_graphs", "end"));

}  // namespace
}  // namespace fibshim::conformance
