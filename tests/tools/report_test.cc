// fibshim report on records that are made here. tests/tools/judge/core_test.cc tests the page itself.
#include <unistd.h>

#include <filesystem>

#include "tests/support/text.h"
#include "tests/tools/fibshim_program.h"

namespace fibshim::test {
namespace {

namespace fs = std::filesystem;

std::string record(const std::string& uuid, const std::string& status) {
  const nlohmann::json out = {
      {"definition", "d"},
      {"solution", "s"},
      {"workload", {{"axes", {{"n", 1}}}, {"inputs", nlohmann::json::object()}, {"uuid", uuid}}},
      {"evaluation", {{"status", status}, {"log", ""}, {"environment", {{"hardware", "GPU"}}}}}};
  return out.dump() + "\n";
}

class Report : public testing::Test {
 protected:
  ProgramResult report_json(std::vector<std::string> command = {}) {
    command.insert(command.end(), {build_path("bin/fibshim"), "report", "--json", folder_.path()});
    return run_program(command);
  }

  TemporaryFolder folder_;
};

TEST_F(Report, PrintsTheRecordsThatCount) {
  write_text(folder_ / "t.jsonl", record("1", "RUNTIME_ERROR") + record("1", "PASSED"));
  const auto records = parse_json(exits(0, report_json()).out)["records"];
  ASSERT_EQ(records.size(), 1u);
  EXPECT_EQ(records[0]["evaluation"]["status"], "PASSED");
}

TEST_F(Report, TellsOfAFolderThatItCannotReadAndReadsTheOthers) {
  for (const char* name : {"a", "b", "c"}) {
    write_text(folder_ / (std::string(name) + "/t.jsonl"), record(name, "PASSED"));
  }
  fs::permissions(folder_ / "b", fs::perms::none);
  // Root may read everything; without its capabilities it may not.
  const auto result =
      report_json(geteuid() == 0 ? std::vector<std::string>{"setpriv", "--bounding-set", "-all",
                                                            "--inh-caps", "-all"}
                                 : std::vector<std::string>{});
  fs::permissions(folder_ / "b", fs::perms::owner_all);
  EXPECT_CONTAINS(exits(1, result).err,
                  (folder_ / "b") + ": cannot read the folder: Permission denied\n");
  EXPECT_EQ(parse_json(result.out)["records"].size(), 2u);
}

TEST_F(Report, SaysThatALinkToItselfIsNoFile) {
  fs::create_symlink("self", folder_ / "self");
  EXPECT_CONTAINS(exits(1, run_fibshim({"report", folder_ / "self"})).err,
                  "self: there is no such file\n");
}

}  // namespace
}  // namespace fibshim::test
