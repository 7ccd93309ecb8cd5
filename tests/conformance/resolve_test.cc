// How a host finds functions, driver's and others: every hooked one is the shim's by every way, and
// all else is as it is without the shim, to the letter.

#include <sstream>

#include "tests/conformance/conform_run.h"
#include "tests/support/text.h"

namespace fibshim::conformance {
namespace {

class EveryWay : public testing::TestWithParam<const char*> {};

TEST_P(EveryWay, GivesTheHooks) {
  const std::string way = GetParam();
  Environment environment;
  if (way == "dlvsym") {
    if (is_real_driver()) GTEST_SKIP() << "not for a real driver: it has no symbol versions";
    environment["LD_LIBRARY_PATH"] = build_dir() + "/sim/versioned";
  }
  HostRun({"conform", "reach", way}, environment).expect_holds();
}

INSTANTIATE_TEST_SUITE_P(Conformance, EveryWay,
                         testing::Values("dlsym", "dlsym_default", "dlvsym", "getproc4",
                                         "getproc5"),
                         kByItself);

TEST(Resolve, ALinkedProgramIsBoundToTheHooks) {
  const HostRun run({"linked"});
  run.expect_holds();
  std::istringstream out(run.process().out);
  int hooks = 0;
  for (std::string name, object; out >> name >> object && name != "state"; ++hooks) {
    EXPECT_EQ(object, "libfibshim.so") << name;
  }
  EXPECT_GT(hooks, 30);
}

// What a host prints with the shim preloaded and active, preloaded without a configuration, and
// without it.
void expect_same(const std::string& expected, const std::string& got, const char* what) {
  std::istringstream expected_in(expected);
  std::istringstream got_in(got);
  int shown = 0;
  for (std::string one, other; shown < 10;) {
    const bool has_one = static_cast<bool>(std::getline(expected_in, one));
    const bool has_other = static_cast<bool>(std::getline(got_in, other));
    if (!has_one && !has_other) break;
    if (has_one == has_other && one == other) continue;
    ++shown;
    ADD_FAILURE() << what << "\n  without the shim: " << (has_one ? one : "(nothing)")
                  << "\n  with it:          " << (has_other ? other : "(nothing)");
  }
}

class SameAsWithout : public testing::TestWithParam<const char*> {};

TEST_P(SameAsWithout, Answers) {
  const std::vector<std::string> command = {"conform", GetParam()};
  const ProcessResult without = HostRun(command, {}, "").process();
  ASSERT_EQ(without.exit_code, 0) << without.out << without.err;
  EXPECT_FALSE(without.out.empty());
  const ProcessResult with = exits(0, HostRun(command).process());
  expect_same(without.out, with.out, "active");
  expect_same(without.err, with.err, "active");
  const ProcessResult shallow =
      exits(0, HostRun(command, {{"FIBSHIM_DEEPBIND", "clear"}}).process());
  expect_same(without.out, shallow.out, "without RTLD_DEEPBIND");
  expect_same(without.err, shallow.err, "without RTLD_DEEPBIND");
  const ProcessResult inactive = exits(0, HostRun(command, {{"FIBSHIM_CONFIG", ""}}).process());
  expect_same(without.out, inactive.out, "without a configuration");
  expect_same(without.err, inactive.err, "without a configuration");
}

INSTANTIATE_TEST_SUITE_P(Conformance, SameAsWithout,
                         testing::Values("replay", "replay_wrong", "before_init", "dlerror_is_kept",
                                         "exact_names", "next_and_default", "origin"),
                         kByItself);

TEST(Resolve, HelpersAreHidden) {
  const HostRun run({"conform", "helpers_are_hidden"});
  EXPECT_EQ(run.process().exit_code, 0) << run.process().err;
}

TEST(Resolve, TheReplayAsksAsMuchAsLibcudartDoes) {
  const HostRun run({"conform", "replay"});
  std::istringstream out(run.process().out);
  std::string last;
  int names = 0;
  int found = 0;
  for (std::string line; std::getline(out, line);) {
    const std::string name = line.substr(0, line.find(' '));
    names += name != last;
    last = name;
    found += line.find(": 0 cu") != std::string::npos;
  }
  EXPECT_GE(names, 430);
  EXPECT_GE(found, 1000);
}

}  // namespace
}  // namespace fibshim::conformance
