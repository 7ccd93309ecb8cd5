// Shadow checks (FIBSHIM_SHADOW): some launches run the original, and beside it the solution on copies, and what
// both have written is compared. Planted faults are found, what is within the tolerance is not reported, and the host
// sees the original's results.
#include <gtest/gtest.h>

#include <limits.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <thread>

#include "tests/shim/preloaded_engine.h"
#include "tests/support/text.h"

namespace fibshim {
namespace {

using Json = nlohmann::json;

Environment with_fault(const std::string& fault, Environment more) {
  more["SIMCUDA_KERNELS"] = build_dir() + "/tests/data/libshadow_faults.so";
  more["SHADOW_FAULT"] = fault;
  return more;
}

constexpr long kNorms = 10;  // of the host's graph

// What one run of shadow_host came to.
struct Shadowed {
  EngineRun run;
  Json shadow;  // stats: one entry for each shape

  long sum(const std::string& key) const {
    long sum = 0;
    for (const Json& one : shadow) sum += one[key].get<long>();
    return sum;
  }
  long not_checked() const {
    long sum = 0;
    for (const Json& one : shadow) {
      for (const auto& [reason, count] : one["not_checked"].items()) sum += count.get<long>();
    }
    return sum;
  }
  long outcome(const std::string& name) const {
    return run.outcome("torch-rms-norm-bf16 rmsnorm_h128 " + name);
  }
  std::string digest() const { return run.report.value("digest", ""); }
  long launches() const { return run.report.value("launches", -1L); }
  // Of graphs: results unlike those of the same input before.
  long unlike() const { return run.report.value("unlike", -1L); }
  // Of graphs' nodes.
  Json executions;
  long executed(const std::string& outcome) const { return executions[outcome].get<long>(); }
};

Shadowed run_host(const std::vector<std::string>& arguments, const Environment& environment,
                  const std::string& config = pytorch_config()) {
  const PreloadedEngine engine;
  Shadowed out{exits(0, engine.run(arguments, config, environment, "shadow_host")), {}, {}};
  const Json stats = engine.stats();
  out.shadow = stats["shadow"];
  out.executions = stats["executions"];
  return out;
}

TEST(Shadow, EachLaunchIsCheckedAtOneInOneAndTheHostSeesTheOriginalsResults) {
  const Shadowed checked = run_host({"300"}, with_fault("two_ulps", {{"FIBSHIM_SHADOW", "1/1"}}));
  EXPECT_EQ(checked.outcome("shadowed"), 300);
  EXPECT_EQ(checked.outcome("hit"), 0);
  EXPECT_EQ(checked.sum("checks"), 300);
  EXPECT_GT(checked.sum("mismatches"), 290);
  EXPECT_EQ(checked.not_checked(), 0);
  const Shadowed plain = run_host({"300"}, with_fault("two_ulps", {{"FIBSHIM_MODE", "observe"}}));
  EXPECT_EQ(checked.digest(), plain.digest());
  EXPECT_TRUE(plain.shadow.empty());
  // The fault is one that the host would see.
  EXPECT_NE(run_host({"300"}, with_fault("two_ulps", {})).digest(), plain.digest());
}

TEST(Shadow, OneWarningNamesDefinitionShapeSolutionAndDifference) {
  const Shadowed checked = run_host({"50"}, with_fault("just_beyond", {{"FIBSHIM_SHADOW", "1/1"}}));
  ASSERT_EQ(checked.run.messages().size(), 1u) << checked.run.process.err;
  const std::string message = checked.run.messages()[0];
  for (const char* part : {"warn: rmsnorm_h128", "batch_size=", "fibshim_rmsnorm_h128", "1 of ",
                           "the largest difference is"}) {
    EXPECT_NE(message.find(part), std::string::npos) << message;
  }
}

TEST(Shadow, WhatIsRightIsNotReported) {
  const Shadowed checked = run_host({"20000"}, with_fault("none", {{"FIBSHIM_SHADOW", "1/1"}}));
  EXPECT_EQ(checked.sum("checks"), 20000);
  EXPECT_EQ(checked.sum("mismatches"), 0);
  EXPECT_EQ(checked.sum("wrong_elements"), 0);
  EXPECT_TRUE(checked.run.messages().empty()) << checked.run.process.err;
}

// What is right, and what is as far off as it may be. SHADOW_CHECKS: how many of each (`make shadow-proof`).
class ManyChecks : public testing::TestWithParam<const char*> {};

TEST_P(ManyChecks, ReportNothing) {
  constexpr long kOfProcess = 100000;
  const char* const given = getenv("SHADOW_CHECKS");
  const long all = given == nullptr ? 20000 : atol(given);
  long checks = 0;
  for (long done = 0; done < all && !HasFailure(); done += kOfProcess) {
    const long launches = std::min(kOfProcess, all - done);
    const Shadowed checked =
        run_host({"many", std::to_string(launches), std::to_string(done / kOfProcess)},
                 with_fault(GetParam(), {{"FIBSHIM_SHADOW", "1/1"}}));
    EXPECT_EQ(checked.sum("checks"), launches);
    EXPECT_EQ(checked.sum("mismatches"), 0);
    EXPECT_EQ(checked.sum("wrong_elements"), 0);
    EXPECT_TRUE(checked.run.messages().empty()) << checked.run.process.err;
    checks += checked.sum("checks");
  }
  printf("%s: %ld checks\n", GetParam(), checks);
}

INSTANTIATE_TEST_SUITE_P(Shadow, ManyChecks, testing::Values("none", "one_ulp", "just_within"),
                         [](const auto& one) { return std::string(one.param); });

// The interval is drawn: about one in so many.
TEST(Shadow, ChecksAboutOneOfSoManyLaunches) {
  const Shadowed checked = run_host({"20000"}, with_fault("none", {{"FIBSHIM_SHADOW", "1/100"}}));
  EXPECT_GT(checked.outcome("shadowed"), 140);
  EXPECT_LT(checked.outcome("shadowed"), 270);
  EXPECT_EQ(checked.outcome("shadowed") + checked.outcome("hit"), 20000);
  EXPECT_EQ(checked.sum("checks"), checked.outcome("shadowed"));
}

// The lines of SHADOW_RESULTS.
std::vector<std::string> results_of(const std::vector<std::string>& arguments,
                                    Environment environment, Shadowed* run = nullptr) {
  const std::string path = make_temporary_dir() + "/results";
  environment["SHADOW_RESULTS"] = path;
  const Shadowed ran = run_host(arguments, environment);
  if (run != nullptr) *run = ran;
  std::vector<std::string> out;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) out.push_back(line);
  return out;
}

// Of a solution whose every result is another one: the launches with the original's results, bit for bit, are those that
// are checked.
TEST(Shadow, AtOneInAHundredTheHostSeesTheOriginalsResultsOfCheckedLaunches) {
  constexpr size_t kLaunches = 5000;
  const std::vector<std::string> arguments = {std::to_string(kLaunches)};
  const auto originals =
      results_of(arguments, with_fault("weight_plus_one", {{"FIBSHIM_MODE", "observe"}}));
  Shadowed checked;
  const auto found =
      results_of(arguments, with_fault("weight_plus_one", {{"FIBSHIM_SHADOW", "1/100"}}), &checked);
  ASSERT_EQ(originals.size(), kLaunches);
  ASSERT_EQ(found.size(), kLaunches);
  long same = 0;
  for (size_t i = 0; i < kLaunches; ++i) same += found[i] == originals[i] ? 1 : 0;
  EXPECT_GT(same, 20);
  EXPECT_EQ(same, checked.outcome("shadowed"));
  EXPECT_EQ(checked.sum("checks"), same);
}

TEST(ShadowInGraphs, AtOneInAHundredTheHostSeesTheOriginalsResultsOfCheckedLaunches) {
  constexpr size_t kReplays = 3000, kInputs = 7;  // the host's
  const auto originals = results_of({"replay", std::to_string(kInputs), "0"},
                                    with_fault("weight_plus_one", {{"FIBSHIM_MODE", "observe"}}));
  Shadowed checked;
  const auto found =
      results_of({"replay", std::to_string(kReplays), "0"},
                 with_fault("weight_plus_one", {{"FIBSHIM_SHADOW", "1/100"}}), &checked);
  ASSERT_EQ(originals.size(), kInputs);
  ASSERT_EQ(found.size(), kReplays);
  long same = 0;
  for (size_t i = 0; i < kReplays; ++i) same += found[i] == originals[i % kInputs] ? 1 : 0;
  EXPECT_GT(same, 10);
  EXPECT_EQ(same * kNorms, checked.executed("shadowed"));
  EXPECT_EQ(checked.executed("shadowed") + checked.executed("hit"),
            kNorms * static_cast<long>(kReplays));
}

// Ranks and restarts check other launches than each other, and not each its first.
TEST(Shadow, EachProcessDrawsItsOwnLaunches) {
  const Environment environment = with_fault("weight_plus_one", {{"FIBSHIM_SHADOW", "1/10"}});
  EXPECT_NE(results_of({"300"}, environment), results_of({"300"}, environment));
  const Shadowed rarely =
      run_host({"200"}, with_fault("none", {{"FIBSHIM_SHADOW", "1/1000000000"}}));
  EXPECT_EQ(rarely.outcome("shadowed"), 0);
  EXPECT_EQ(rarely.outcome("hit"), 200);
}

struct Fault {
  const char* name;
  long launches;         // within which it must be found at 1/1
  bool is_found = true;  // within the tolerance: it must not be
  bool is_often = true;  // in more than a tenth of the launches
};
constexpr Fault kFaults[] = {
    {"wrong_for_one_shape", 400, true, false},
    {"wrong_for_many_rows", 100},
    {"wrong_for_one_row_alone", 400, true, false},
    {"wrong_for_even_rows", 50},
    {"one_row_in_a_thousand", 400, true, false},
    {"nan", 1},
    {"nan_everywhere", 1},
    {"nan_in_the_last_element", 1},
    {"nan_in_one_launch_of_ten", 10, true, false},
    {"infinite", 1},
    {"minus_infinite", 1},
    {"just_beyond", 1},
    {"just_beyond_everywhere", 1},
    {"two_ulps", 20},
    {"one_ulp", 2000, false},
    {"just_within", 2000, false},
    {"stale_read", 50},
    {"stale_weight", 50},
    {"stale_first_row", 50},
    {"nothing_written", 50},
    {"unwritten_tail", 50},
    {"unwritten_last_element", 50},
    {"unwritten_last_row", 50},
    {"unwritten_first_row", 50},
    {"unwritten_rstd", 50},
    {"wrong_input_stride", 20},
    {"wrong_output_stride", 20},
    {"shifted", 1},
    {"rows_exchanged", 20},
    {"first_row_repeated", 20},
    {"weight_ignored", 1},
    {"weight_plus_one", 1},
    {"sum_of_half_a_row", 1},
    {"rstd_of_a_shorter_row", 1},
    {"rstd_squared", 1},
    {"eps_is_another", 1},
    {"saturated", 20},
    {"sign_lost", 1},
    {"race", 200, true, false},
    {"torn_write", 400, true, false},
    {"wrong_in_place", 60},
};
static_assert(sizeof kFaults / sizeof kFaults[0] >= 30 + 2);

std::string fault_name(const testing::TestParamInfo<Fault>& info) { return info.param.name; }

// SHADOW_ROUNDS: how many processes for each rate (`make shadow-faults`).
class PlantedFault : public testing::TestWithParam<Fault> {
 protected:
  // After how many launches it was found: the solution is left alone from then on. 0: it was not.
  static long launches_until_found(const Fault& fault, const std::string& rate, long launches) {
    const Shadowed checked = run_host(
        {"until", std::to_string(launches)},
        with_fault(fault.name, {{"FIBSHIM_SHADOW", rate}, {"FIBSHIM_ON_MISMATCH", "quarantine"}}));
    EXPECT_EQ(checked.outcome("hit") + checked.outcome("shadowed") +
                  checked.outcome("fallback_quarantined"),
              checked.launches());
    if (checked.outcome("fallback_quarantined") == 0 && checked.sum("mismatches") == 0) return 0;
    return checked.outcome("hit") + checked.outcome("shadowed");
  }

  // Of so many processes, in rising order.
  static std::vector<long> launches_until_found(const Fault& fault, const std::string& rate,
                                                long launches, long rounds) {
    std::vector<long> out;
    for (long i = 0; i < rounds; ++i) {
      out.push_back(launches_until_found(fault, rate, launches));
      if (out.back() == 0) out.back() = LONG_MAX;
    }
    std::ranges::sort(out);
    return out;
  }
};

// "1234 (5678)": the median, and the most.
std::string words_of(const std::vector<long>& counts) {
  const auto words = [](long count) { return count == LONG_MAX ? "never" : std::to_string(count); };
  return words(counts[counts.size() / 2]) + " (" + words(counts.back()) + ")";
}

TEST_P(PlantedFault, IsFound) {
  const Fault& fault = GetParam();
  const long at_all = launches_until_found(fault, "1/1", fault.launches + 100);
  RecordProperty("one_in_1", std::to_string(at_all));
  if (!fault.is_found) {
    EXPECT_EQ(at_all, 0) << "reported, though it is within the tolerance";
    return;
  }
  EXPECT_GT(at_all, 0);
  // A check is known when the next begins.
  EXPECT_LE(at_all, fault.launches + 2);
  // Which launches are checked is chance: one that has the fault is among a hundred and fifty, but for once in a million.
  if (fault.is_often) {
    EXPECT_GT(launches_until_found(fault, "1/100", 15'000), 0);
  }
  const char* const rounds = getenv("SHADOW_ROUNDS");
  if (rounds == nullptr) return;
  const auto at_100 = launches_until_found(fault, "1/100", 100'000, atol(rounds));
  const auto at_1000 = launches_until_found(fault, "1/1000", 1'000'000, atol(rounds));
  printf("| %s | %ld | %s | %s |\n", fault.name, at_all, words_of(at_100).c_str(),
         words_of(at_1000).c_str());
}

INSTANTIATE_TEST_SUITE_P(Shadow, PlantedFault, testing::ValuesIn(kFaults), fault_name);

TEST(Shadow, AMismatchLeavesTheSolutionAloneWhereThatIsAskedFor) {
  const Environment environment =
      with_fault("nan", {{"FIBSHIM_SHADOW", "1/1"}, {"FIBSHIM_ON_MISMATCH", "quarantine"}});
  const Shadowed checked = run_host({"100"}, environment);
  EXPECT_GE(checked.outcome("shadowed"), 1);
  EXPECT_LE(checked.outcome("shadowed"), 3);
  EXPECT_EQ(checked.outcome("shadowed") + checked.outcome("fallback_quarantined"), 100);
  ASSERT_EQ(checked.run.messages().size(), 1u) << checked.run.process.err;
  EXPECT_NE(checked.run.messages()[0].find("it is left alone"), std::string::npos);
}

// One element may be wrong where a share must be right; none may be NaN.
TEST(Shadow, ARatioForgivesNoNaN) {
  const std::string config = copy_of_pytorch_config();
  edit_file(find_file(config, "fibshim_rmsnorm_h128.json"), R"("launch":)",
            R"("verify": {"required_matched_ratio": 0.5}, "launch":)");
  const auto check = [&](const char* fault) {
    return run_host({"50"}, with_fault(fault, {{"FIBSHIM_SHADOW", "1/1"}}), config);
  };
  const Shadowed wrong = check("just_beyond");
  EXPECT_EQ(wrong.sum("checks"), 50);
  EXPECT_GT(wrong.sum("wrong_elements"), 0);
  EXPECT_EQ(wrong.sum("mismatches"), 0);
  EXPECT_GT(check("nan").sum("mismatches"), 0);
}

// A folder's settings, and those of single definitions.
TEST(Shadow, FoldersSayHowManyLaunchesAreChecked) {
  struct Case {
    const char* settings;
    const char* environment;
    long shadowed;  // of 50
  };
  for (const Case& one : {
           Case{R"({"shadow": "1/1"})", "", 50},
           Case{R"({"shadow": "off"})", "", 0},
           Case{R"({"definitions": {"rmsnorm_*": {"shadow": "1/1"}}})", "", 50},
           Case{R"({"shadow": "1/1", "definitions": {"rmsnorm_h128": {"shadow": "off"}}})", "", 0},
           Case{R"({"shadow": "1/1"})", "off", 0},
           Case{R"({"definitions": {"rmsnorm_h128": {"shadow": "off"}}})", "1/1", 50},
       }) {
    SCOPED_TRACE(one.settings);
    const std::string config = copy_of_pytorch_config();
    std::ofstream(config + "/fibshim.json") << one.settings;
    Environment environment = with_fault("none", {});
    if (*one.environment != 0) environment["FIBSHIM_SHADOW"] = one.environment;
    EXPECT_EQ(run_host({"50"}, environment, config).outcome("shadowed"), one.shadowed);
  }
}

// An output whose order the original leaves open is not compared, by whatever name the pattern has it; the others are.
TEST(Shadow, ComparesWhatIsBesideAnOpenOrder) {
  const std::string config = copy_of_pytorch_config();
  const auto tag = [&](const std::string& tags) {
    edit_file(find_file(config, "rmsnorm_h128.json"), R"("dtype:bfloat16"])", tags);
  };
  const auto mismatches = [&](const std::string& fault) {
    const Shadowed checked =
        run_host({"60"}, with_fault(fault, {{"FIBSHIM_SHADOW", "1/1"}}), config);
    EXPECT_EQ(checked.outcome("shadowed"), 60);
    EXPECT_EQ(checked.sum("checks"), 60);
    return checked.sum("mismatches");
  };
  EXPECT_GT(mismatches("rstd_squared"), 0);
  const auto pattern = find_file(config, "torch-rms-norm-bf16.json");
  edit_file(
      pattern, R"("output": {)",
      R"("rstd_again": {"arg": 6, "dtype": "float32", "layout": [["batch_size", 1]]}, "output": {)");
  edit_file(pattern, R"("writes": ["output", "rstd"])",
            R"("writes": ["output", "rstd", "rstd_again"])");
  edit_file(pattern, R"("weight != 0")", R"("weight != 0", "rstd_again == rstd")");
  tag(R"("dtype:bfloat16", "order:any:rstd"])");
  EXPECT_EQ(mismatches("rstd_squared"), 0);
  EXPECT_GT(mismatches("nan"), 0);
}

// The second half of each row of 128 is said to lie between rows of 64.
TEST(Shadow, ComparesNothingOfTheGapsBetweenRows) {
  const std::string config = copy_of_pytorch_config();
  const auto mismatches = [&](const std::string& fault) {
    const Shadowed checked =
        run_host({"60"}, with_fault(fault, {{"FIBSHIM_SHADOW", "1/1"}}), config);
    EXPECT_EQ(checked.sum("checks"), 60);
    EXPECT_EQ(checked.digest(),
              run_host({"60"}, with_fault(fault, {{"FIBSHIM_MODE", "observe"}})).digest());
    return checked.sum("mismatches");
  };
  const auto in_gap = {"unwritten_tail", "nan_in_the_last_element"};
  for (const char* const fault : in_gap) EXPECT_GT(mismatches(fault), 0) << fault;
  edit_file(
      find_file(config, "torch-rms-norm-bf16.json"), R"("output": {"arg": 7, "dtype": "bfloat16"})",
      R"("output": {"arg": 7, "dtype": "bfloat16", "layout": [["batch_size", 128], [64, 1]]})");
  for (const char* const fault : in_gap) EXPECT_EQ(mismatches(fault), 0) << fault;
  EXPECT_GT(mismatches("nan"), 0);
  EXPECT_GT(mismatches("unwritten_last_row"), 0);
}

// The output is where a null pointer of the host's leads with a shift: checks are as ever. If the pointer leads to another
// tensor, too, that cannot go with the copy.
TEST(Shadow, FollowsAShiftToTheOutput) {
  const std::string config = copy_of_pytorch_config();
  const auto pattern = find_file(config, "torch-rms-norm-bf16.json");
  edit_file(pattern, R"("output": {"arg": 7, "dtype": "bfloat16"})",
            R"("to_output": {"arg": 7, "type": "int64"},
    "output": {"arg": 4, "dtype": "bfloat16", "shift": "to_output"})");
  const auto run = [&](const std::string& fault) {
    return run_host({"60"}, with_fault(fault, {{"FIBSHIM_SHADOW", "1/1"}}), config);
  };
  const Shadowed right = run("none");
  EXPECT_EQ(right.sum("checks"), 60);
  EXPECT_EQ(right.sum("mismatches"), 0);
  const Shadowed wrong = run("nan");
  EXPECT_EQ(wrong.sum("checks"), 60);
  EXPECT_GT(wrong.sum("mismatches"), 0);
  EXPECT_EQ(wrong.digest(), right.digest());
  EXPECT_EQ(right.digest(),
            run_host({"60"}, with_fault("none", {{"FIBSHIM_MODE", "observe"}})).digest());
  edit_file(pattern, R"("to_output": {)",
            R"("beside": {"arg": 4, "dtype": "bfloat16", "shift": 4096,
      "layout": [["batch_size", 1]]}, "to_output": {)");
  const Shadowed apart = run("none");
  EXPECT_EQ(apart.sum("checks"), 0);
  EXPECT_GT(apart.shadow[0]["not_checked"]["extent"], 0);
  EXPECT_EQ(apart.digest(), right.digest());
}

TEST(Shadow, WhatCannotBeCheckedIsCountedAndTheOriginalRuns) {
  const Shadowed plain = run_host({"60"}, with_fault("two_ulps", {{"FIBSHIM_MODE", "observe"}}));
  // Rows of 256 bytes: of more than half of the launches more than 64k cannot be, of all of them less.
  const std::string config = copy_of_pytorch_config();
  edit_file(find_file(config, "torch-rms-norm-bf16.json"),
            R"("rstd": {"arg": 6, "dtype": "float32", "layout": [["batch_size", 1]]})",
            R"("rstd": {"arg": 6, "dtype": "float32"})");
  const Shadowed unknown =
      run_host({"60"}, with_fault("two_ulps", {{"FIBSHIM_SHADOW", "1/1"}}), config);
  EXPECT_EQ(unknown.outcome("shadowed"), 60);
  EXPECT_EQ(unknown.sum("checks"), 0);
  ASSERT_FALSE(unknown.shadow.empty());
  EXPECT_EQ(unknown.not_checked(), 60);
  EXPECT_GT(unknown.shadow[0]["not_checked"]["extent"], 0);
  EXPECT_EQ(unknown.digest(), plain.digest());
  // No memory.
  const Shadowed short_of_memory = run_host(
      {"60"},
      with_fault("two_ulps", {{"FIBSHIM_SHADOW", "1/1"}, {"SIMCUDA_FAIL", "cuMemHostRegister=2"}}));
  EXPECT_EQ(short_of_memory.not_checked(), 60);
  EXPECT_GT(short_of_memory.shadow[0]["not_checked"]["memory"], 0);
  EXPECT_EQ(short_of_memory.digest(), plain.digest());
  // The solution cannot be launched.
  const Shadowed failing =
      run_host({"60"}, with_fault("two_ulps", {{"FIBSHIM_SHADOW", "1/1"},
                                               {"SIMCUDA_FAIL", "cuLaunchKernel:rmsnorm_*=1"}}));
  EXPECT_EQ(failing.not_checked(), 60);
  EXPECT_EQ(failing.sum("checks"), 0);
  EXPECT_GT(failing.shadow[0]["not_checked"]["launch"], 0);
  EXPECT_EQ(failing.digest(), plain.digest());
}

// Captured launches become nodes as they are; eager ones beside them are checked. Of a graph that is launched once
// nothing is ready.
TEST(Shadow, NothingOfItIsCaptured) {
  const Shadowed checked = run_host({"200", "4"}, with_fault("none", {{"FIBSHIM_SHADOW", "1/1"}}));
  EXPECT_EQ(checked.outcome("shadowed"), 150);
  EXPECT_EQ(checked.executed("shadowed"), 200);
  EXPECT_EQ(checked.sum("checks") + checked.not_checked(), 200);
  EXPECT_EQ(checked.sum("mismatches"), 0);
  EXPECT_EQ(checked.outcome("hit"), 50);
  // Nothing is copied, and no memory taken, while any stream captures.
  const Shadowed beside =
      run_host({"200", "4", "-1", "beside"}, with_fault("none", {{"FIBSHIM_SHADOW", "1/1"}}));
  EXPECT_EQ(beside.outcome("shadowed"), 200);
  EXPECT_EQ(beside.executed("shadowed"), 250);
  EXPECT_EQ(beside.sum("checks") + beside.not_checked(), 250);
  long in_captures = 0;
  for (const Json& one : beside.shadow) in_captures += one["not_checked"]["capture"].get<long>();
  EXPECT_EQ(in_captures, 50);
}

constexpr size_t kShapes = 9;

TEST(ShadowInGraphs, AtOneInOneTheHostSeesTheOriginalsResultsAndEachNodeIsChecked) {
  const Shadowed checked =
      run_host({"replay", "100", "120"}, with_fault("two_ulps", {{"FIBSHIM_SHADOW", "1/1"}}));
  EXPECT_EQ(checked.executed("shadowed"), kNorms * checked.launches());
  EXPECT_EQ(checked.executed("hit"), 0);
  EXPECT_EQ(checked.unlike(), 0);
  EXPECT_GE(checked.sum("checks"), 110);
  EXPECT_GT(checked.sum("mismatches"), 100);
  long shapes = 0;
  long launched_alone = 0;
  for (const Json& one : checked.shadow) {
    if (one["checks"].get<long>() > 0) ++shapes;
    if (one["shape"] == "(graph)") launched_alone = one["not_checked"]["busy"].get<long>();
  }
  EXPECT_EQ(shapes, kShapes);
  // Each launch has checks with it, at most eight, or is counted as not checked.
  EXPECT_LE(checked.sum("checks"), 8 * (checked.launches() - launched_alone));
  EXPECT_EQ(checked.not_checked(), launched_alone);
  const Shadowed plain =
      run_host({"replay", "100", "0"}, with_fault("two_ulps", {{"FIBSHIM_MODE", "observe"}}));
  EXPECT_EQ(checked.digest(), plain.digest());
  // The fault is one that the host would see.
  EXPECT_NE(run_host({"replay", "100", "0"}, with_fault("two_ulps", {})).digest(), plain.digest());
}

TEST(ShadowInGraphs, AboutOneOfSoManyLaunchesRunsTheOriginals) {
  const Shadowed checked =
      run_host({"replay", "3000", "80"}, with_fault("none", {{"FIBSHIM_SHADOW", "1/10"}}));
  const long sampled = checked.executed("shadowed") / kNorms;
  EXPECT_GT(sampled, checked.launches() / 15);
  EXPECT_LT(sampled, checked.launches() / 7);
  EXPECT_EQ(checked.executed("shadowed") + checked.executed("hit"), kNorms * checked.launches());
  EXPECT_GE(checked.sum("checks"), 70);
  EXPECT_EQ(checked.sum("mismatches"), 0);
  EXPECT_EQ(checked.unlike(), 0);
  EXPECT_TRUE(checked.run.messages().empty()) << checked.run.process.err;
}

TEST(ShadowInGraphs, TheirMemoryIsBounded) {
  // A quarter of it is for graphs: each norm has room there, but not eight at once.
  const Shadowed checked = run_host(
      {"replay", "100", "60"},
      with_fault("two_ulps", {{"FIBSHIM_SHADOW", "1/1"}, {"FIBSHIM_SHADOW_MEMORY", "64k"}}));
  for (const Json& one : checked.shadow) {
    if (one["shape"] == "(graph)") continue;
    EXPECT_GT(one["checks"].get<long>(), 0) << one;
    EXPECT_EQ(one["not_checked"]["busy"], 0) << one;  // the next sample begins with it
  }
  EXPECT_EQ(checked.shadow.size(), kShapes + 1);
  EXPECT_EQ(checked.unlike(), 0);
}

TEST(ShadowInGraphs, WhatTheDriverRefusesLeavesTheOriginals) {
  const Shadowed checked = run_host(
      {"replay", "300", "0"}, with_fault("two_ulps", {{"FIBSHIM_SHADOW", "1/1"},
                                                      {"SIMCUDA_FAIL", "cuGraphAddMemcpyNode=1"}}));
  EXPECT_EQ(checked.executed("shadowed"), kNorms * checked.launches());
  EXPECT_EQ(checked.sum("checks"), 0);
  EXPECT_EQ(checked.unlike(), 0);
}

TEST(ShadowInGraphs, AMismatchLeavesTheSolutionAloneWhereThatIsAskedFor) {
  const Shadowed checked = run_host(
      {"replay", "100", "-1"},
      with_fault("nan", {{"FIBSHIM_SHADOW", "1/2"}, {"FIBSHIM_ON_MISMATCH", "quarantine"}}));
  EXPECT_GT(checked.sum("mismatches"), 0);
  EXPECT_GT(checked.executed("fallback_quarantined"), 0);
  EXPECT_EQ(checked.executed("fallback_quarantined") + checked.executed("hit") +
                checked.executed("shadowed"),
            kNorms * checked.launches());
  ASSERT_EQ(checked.run.messages().size(), 1u) << checked.run.process.err;
}

// `fibshim shadow` reaches graphs that were instantiated before.
TEST(ShadowInGraphs, ARunningProcessIsToldHowManyLaunchesToCheck) {
  const PreloadedEngine engine;
  EngineRun run;
  std::thread host([&] {
    run = engine.run({"replay", "100", "100"}, pytorch_config(), with_fault("none", {}),
                     "shadow_host");
  });
  Json answer;
  for (int i = 0; i < 200 && answer["processes"].empty(); ++i) {
    const ProcessResult told =
        run_process({build_dir() + "/bin/fibshim", "shadow", "--json", "1/2"},
                    {{"FIBSHIM_STATS_DIR", engine.stats_dir()}});
    answer = Json::parse(told.out, nullptr, false);
    if (!answer.is_object()) answer = Json::object();
  }
  host.join();
  EXPECT_EQ(run.process.exit_code, 0) << run.process.err;
  const Json stats = engine.stats();
  EXPECT_GT(stats["executions"]["hit"], 0);
  EXPECT_GT(stats["executions"]["shadowed"], 0);
  long checks = 0;
  for (const Json& one : stats["shadow"]) checks += one["checks"].get<long>();
  EXPECT_GE(checks, 90);
}

// From the first launch on, also where the host's exec holds replacements itself, and where the graph has moved meanwhile.
TEST(ShadowInGraphs, AtOneInOneTheOriginalsRunFromWhenTheProcessWasTold) {
  const auto command = [](const std::string& words) {
    return "env -u LD_PRELOAD " + build_dir() + "/bin/fibshim " + words + " --pid $PPID >&2";
  };
  constexpr long kLaunches = 50;
  const std::vector<std::string> moves = {"shadow off", "swap --off --wait", "swap --on --wait",
                                          "shadow 1/1"};
  // A graph of one norm, made while nothing is to be checked, holds the replacement itself.
  for (const std::string host : {"replay", "replay_one"}) {
    const Shadowed plain =
        run_host({host, "50", "0"}, with_fault("two_ulps", {{"FIBSHIM_MODE", "observe"}}));
    const long norms = host == "replay" ? kNorms : 1;
    for (const std::string at_start : {"off", "1/1000000000"}) {
      for (const bool moves_first : {false, true}) {
        SCOPED_TRACE(host + ", " + at_start + (moves_first ? ", moved" : ""));
        std::vector<std::string> words = {host, std::to_string(kLaunches), "20"};
        for (size_t i = moves_first ? 0 : 3; i < moves.size(); ++i)
          words.push_back(command(moves[i]));
        const Shadowed checked =
            run_host(words, with_fault("two_ulps", {{"FIBSHIM_SHADOW", at_start}}));
        EXPECT_EQ(checked.executed("hit"), norms * kLaunches * (moves_first ? 3 : 1));
        EXPECT_GE(checked.sum("checks"), 10);
        EXPECT_EQ(checked.unlike(), 0);
        EXPECT_EQ(checked.digest(), plain.digest());
      }
    }
  }
}

TEST_P(PlantedFault, IsFoundInGraphs) {
  const Fault& fault = GetParam();
  const Shadowed checked =
      run_host({"replay", "1", "150"}, with_fault(fault.name, {{"FIBSHIM_SHADOW", "1/1"}}));
  EXPECT_GE(checked.sum("checks"), 140);
  EXPECT_EQ(checked.sum("mismatches") > 0, fault.is_found);
  EXPECT_EQ(checked.run.messages().size(), fault.is_found ? 1u : 0u) << checked.run.process.err;
  EXPECT_EQ(checked.unlike(), 0);
}

// `fibshim shadow` reaches a process that runs: decisions that it has made, too.
TEST(Shadow, ARunningProcessIsToldHowManyLaunchesToCheck) {
  const PreloadedEngine engine;
  PausedEngine paused(engine.environment(pytorch_config()), {"--hidden=128"});
  const auto tell = [&](const std::vector<std::string>& arguments) {
    std::vector<std::string> command = {build_dir() + "/bin/fibshim", "shadow", "--json"};
    command.insert(command.end(), arguments.begin(), arguments.end());
    return run_process(command, {{"FIBSHIM_STATS_DIR", engine.stats_dir()}});
  };
  EXPECT_EQ(tell({"1/0"}).exit_code, 2);
  EXPECT_EQ(tell({"often"}).exit_code, 2);
  EXPECT_EQ(tell({"1/1", "--definition", "softmax_*"}).exit_code, 0);
  const ProcessResult told = tell({"1/1", "--definition", "rmsnorm_*"});
  EXPECT_EQ(told.exit_code, 0) << told.err;
  const Json answer = Json::parse(told.out, nullptr, false);
  ASSERT_EQ(answer["processes"].size(), 1u) << told.out;
  EXPECT_EQ(answer["processes"][0]["state"], "done");
  (void)paused.resume();
  std::map<std::string, long> counts;
  const Json stats = engine.stats();
  for (const Json& one : stats["counters"]) {
    counts[one["outcome"].get<std::string>()] += one["count"].get<long>();
  }
  // Three threads have made 40 launches each before.
  EXPECT_EQ(counts["hit"], 120);
  EXPECT_EQ(counts["shadowed"], 180);
}

}  // namespace
}  // namespace fibshim
