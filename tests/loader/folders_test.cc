// Several folders in force together: an earlier folder wins, and entries that are not used are
// reported.
#include <sodium.h>
#include <stdlib.h>
#include <string.h>

#include <algorithm>
#include <tuple>

#include "shim/abi/folder_list.h"
#include "shim/abi/program.h"
#include "tests/loader/checked_folder.h"
#include "tests/support/text.h"

namespace fibshim {
namespace {

// Gives the valid folder's entries other names.
void rename(const TestFolder& folder, const std::string& definition, const std::string& label) {
  folder.write("definitions/scale/" + definition + ".json",
               replaced(kDefinition, "scale_n64", definition));
  folder.remove(kDefinitionPath);
  folder.change(kSolutionPath, "\"definition\": \"scale_n64\"",
                "\"definition\": \"" + definition + "\"");
  folder.change(kPatternPath, "\"scale_n{n}\"", "\"" + definition + "\"");
  folder.change(kPatternPath, "\"factor == 0.1\"", "\"factor == 0.1\", \"n == 64\"");
  folder.change(kPatternPath, "engine-scale", label);
}

TEST(Folders, AreOneSnapshot) {
  const TestFolder a;
  const TestFolder b;
  rename(b, "zoom", "engine-zoom");
  const std::string list = a.path() + ":" + b.path();
  const CheckReport report = advise(list);
  ASSERT_NE(report.snapshot, nullptr) << all_of(report);
  EXPECT_EQ(all_of(report), "");
  const Snapshot& snapshot = *report.snapshot;
  EXPECT_EQ(snapshot.text(snapshot.root), list);
  ASSERT_EQ(snapshot.roots.count, 2u);
  EXPECT_EQ(snapshot.text(snapshot.begin(snapshot.roots)[1]), b.path());
  EXPECT_EQ(snapshot.patterns.count, 2u);
  ASSERT_EQ(snapshot.solutions.count, 2u);
  struct stat of_a {
  }, of_b{};
  ASSERT_EQ(stat(a.path().c_str(), &of_a) + stat(b.path().c_str(), &of_b), 0);
  EXPECT_EQ(snapshot.root_inode, mix_identity(mix_identity(0, of_a.st_ino), of_b.st_ino));
  // Each solution's images come from its own folder.
  b.write(kImagePath, "damaged");
  const LoaderApi& api = *fibloader_api(kLoaderApiVersion);
  int results[2];
  for (uint32_t i = 0; i < 2; ++i) {
    ImageBytes bytes;
    char message[256];
    results[snapshot.begin(snapshot.solutions)[i].folder] =
        api.read_image(&snapshot, i, 0, &bytes, message, sizeof message);
    api.release_image(&bytes);
  }
  EXPECT_EQ(results[0], 0);
  EXPECT_NE(results[1], 0);
  EXPECT_NE(check_folder(b.path() + ":" + a.path()).error_count, 0u);
}

TEST(Folders, TheFirstWinsPerDefinitionLabelAndSetting) {
  const TestFolder a;
  const TestFolder b;
  b.change(kSolutionPath, "my-scale", "their-scale");
  a.write("fibshim.json", R"({"mode": "observe"})");
  b.write("fibshim.json", R"({"mode": "apply", "on_error": "fallback"})");
  for (const bool is_turned : {false, true}) {
    const TestFolder& first = is_turned ? b : a;
    const TestFolder& second = is_turned ? a : b;
    const CheckReport report = advise(first.path() + ":" + second.path());
    ASSERT_NE(report.snapshot, nullptr) << all_of(report);
    const Snapshot& snapshot = *report.snapshot;
    ASSERT_EQ(snapshot.solutions.count, 1u);
    EXPECT_STREQ(snapshot.text(snapshot.begin(snapshot.solutions)[0].name),
                 is_turned ? "their-scale" : "my-scale");
    EXPECT_EQ(snapshot.patterns.count, 1u);
    const Setting* const settings = snapshot.begin(snapshot.settings);
    ASSERT_EQ(snapshot.settings.count, 2u);
    EXPECT_STREQ(snapshot.text(settings[0].value), is_turned ? "apply" : "observe");
    EXPECT_STREQ(snapshot.text(settings[1].value), "fallback");
    EXPECT_EQ(
        all_of(report),
        second.path("fibshim.json") + ": note: setting \"FIBSHIM_MODE\" is not used: that in " +
            first.path("fibshim.json") + " comes first [shadowed]\n" + second.path(kPatternPath) +
            ":2:12: note: pattern \"engine-scale\" is not used: that in " +
            first.path(kPatternPath) + ":2 comes first [shadowed]\n" + second.path(kSolutionPath) +
            ":3:17: note: solution of \"scale_n64\" is not used: that in " +
            first.path(kSolutionPath) + ":3 comes first [shadowed]\n");
    EXPECT_EQ(report.shadowed.size(), 3u);
  }
}

// Several solutions of one folder stay together.
TEST(Folders, TheFirstHasAllSolutionsOfADefinition) {
  const TestFolder a;
  const TestFolder b;
  for (const TestFolder* folder : {&a, &b}) {
    folder->write_solution(
        replaced(kSolution, "\"kernel\"", "\"when\": [\"rows < 9\"], \"kernel\""));
  }
  b.write_solution(replaced(replaced(kSolution, "my-scale", "rest"), "\"kernel\"",
                            "\"when\": [\"rows >= 9\"], \"kernel\""),
                   "solutions/me/rest.json");
  const CheckReport first = check_folder(a.path() + ":" + b.path());
  ASSERT_NE(first.snapshot, nullptr) << all_of(first);
  EXPECT_EQ(first.snapshot->solutions.count, 1u);
  const CheckReport second = check_folder(b.path() + ":" + a.path());
  ASSERT_NE(second.snapshot, nullptr) << all_of(second);
  EXPECT_EQ(second.snapshot->solutions.count, 2u);
}

TEST(Folders, APatternThatDoesNotFitTheFirstsDefinitionIsAnErrorWithBothPlaces) {
  const TestFolder a;
  const TestFolder b;
  a.change(kDefinitionPath, R"("y": {"shape": ["rows", "n"], "dtype": "float32"})",
           R"("y": {"shape": ["rows", "n"], "dtype": "float16"})");
  a.remove(kPatternPath);
  const CheckReport report = advise(a.path() + ":" + b.path());
  const std::string said = all_of(report);
  EXPECT_CONTAINS(said, b.path(kPatternPath) +
                            ":19:17: error: pattern \"engine-scale\" does not fit definition "
                            "\"scale_n64\" of " +
                            a.path(kDefinitionPath) + ":2, which comes before that of " +
                            b.path(kDefinitionPath) + ":2: \"y\" is float32");
  EXPECT_CONTAINS(said, "[shadowed-definition]");
  EXPECT_EQ(report.error_count, 1u) << said;
  EXPECT_EQ(report.warning_count, 0u) << said;
  // A mistake: a process loads it, and runs the original there.
  ASSERT_NE(report.snapshot, nullptr);
  EXPECT_EQ(report.refused_binding_count, 1u);
  // A definition that differs only in its wording is no mistake.
  const TestFolder c;
  c.change(kDefinitionPath, R"("reference": "def run(x):\n    return x * 2")",
           R"("reference": "")");
  EXPECT_EQ(advise(c.path() + ":" + b.path()).error_count, 0u);
}

TEST(Folders, APatternThatCannotUseTheFirstsSolutionIsAWarningOnce) {
  const TestFolder a;
  const TestFolder b;
  a.change(kSolutionPath, "\"factor\"", "\"gain\"");
  a.write("patterns/own.json",
          replaced(replaced(kPattern, "engine-scale", "own"), "\"factor\": {", "\"gain\": {"));
  a.change("patterns/own.json", "factor == 0.1", "gain == 0.1");
  a.change("patterns/own.json", "engine_scale", "own_scale");
  a.remove(kPatternPath);
  for (const char* const n : {"65", "66"}) {
    a.add_size(n);
    b.add_size(n);
  }
  const CheckReport report = advise(a.path() + ":" + b.path());
  EXPECT_EQ(report.warning_count, 1u) << all_of(report);
  EXPECT_CONTAINS(all_of(report),
                  b.path(kPatternPath) +
                      ":19:17: warning: pattern \"engine-scale\" does not fit solution "
                      "\"my-scale\" of " +
                      a.path(kSolutionPath));
  EXPECT_EQ(report.refused_binding_count, 3u);
}

TEST(Folders, EachIsCheckedForItself) {
  const TestFolder a;
  const TestFolder b;
  rename(b, "zoom", "engine-zoom");
  const std::string list = a.path() + ":" + b.path();
  // All folders are read, and refused together.
  const CheckReport missing = check_folder(a.path() + ":" + b.path("none"));
  EXPECT_EQ(missing.snapshot, nullptr);
  EXPECT_CONTAINS(all_of(missing), b.path("none") + ": error:");
  b.change(kPatternPath, "\"writes\"", "\"rites\"");
  const CheckReport faulty = check_folder(list);
  EXPECT_EQ(faulty.snapshot, nullptr);
  EXPECT_CONTAINS(all_of(faulty), b.path(kPatternPath));
  b.change(kPatternPath, "\"rites\"", "\"writes\"");
  EXPECT_NE(check_folder(list).snapshot, nullptr);
  // Each folder's permissions are checked.
  share(b.path(kPatternPath), 0664);
  const CheckReport untrusted = check_folder(list);
  EXPECT_EQ(untrusted.snapshot, nullptr);
  EXPECT_CONTAINS(all_of(untrusted), b.path(kPatternPath) + ": error: writable by its group");
  share(b.path(kPatternPath), 0644);
  // An image of two solutions, one of which is not used because of an earlier folder.
  const TestFolder c;
  c.write("definitions/zoom.json", replaced(kDefinition, "scale_n64", "zoom"));
  c.write_solution(replaced(replaced(kSolution, "scale_n64", "zoom"), "my-scale", "my-zoom"),
                   "solutions/me/zoom.json");
  EXPECT_NE(check_folder(a.path() + ":" + c.path()).snapshot, nullptr);
  share(c.path(kImagePath), 0664);
  EXPECT_CONTAINS(all_of(check_folder(a.path() + ":" + c.path())),
                  c.path(kImagePath) + ": error: writable by its group");
  // Each folder needs its own signature.
  CheckOptions options;
  options.required_key = "RWQBAgMEBQYHCGv3IJqU8bcxx3nUh0ol5qYvlBYTDNNNbkNbZmh9kk5E";
  EXPECT_EQ(check_folder(list, options).snapshot, nullptr);
}

// An earlier folder has all that the later one has twice.
TEST(Folders, DuplicatesOfTheLaterOneAreErrorsToo) {
  const struct {
    const char* from;
    const char* to;
    const char* said;
  } kRows[] = {
      {kPatternPath, "patterns/z.json", "pattern \"engine-scale\" is already in "},
      {kDefinitionPath, "definitions/z.json", "definition \"scale_n64\" is already in "},
      {kSolutionPath, "solutions/me/z.json", "definition \"scale_n64\" is already solved by "},
  };
  for (const auto& row : kRows) {
    SCOPED_TRACE(row.from);
    const TestFolder first;
    const TestFolder second;
    second.write(row.to, second.read(row.from));
    EXPECT_EQ(check_folder(second.path() + ":" + first.path()).error_count, 1u);
    const CheckReport report = check_folder(first.path() + ":" + second.path());
    EXPECT_EQ(report.snapshot, nullptr);
    EXPECT_EQ(report.error_count, 1u) << all_of(report);
    EXPECT_CONTAINS(all_of(report), row.said);
    EXPECT_CONTAINS(all_of(report), second.path(row.from));
    EXPECT_CONTAINS(all_of(report), second.path(row.to));
  }
}

TEST(Folders, TheListMayHaveEmptyPlacesButNotTooManyFolders) {
  const TestFolder a;
  EXPECT_EQ(all_of(check_folder(":" + a.path() + "::")), "");
  EXPECT_CONTAINS(all_of(check_folder(":")), "no folder is named");
  std::string list;
  for (uint32_t i = 0; i <= kMaxFolders; ++i) list += a.path() + ":";
  EXPECT_CONTAINS(all_of(check_folder(list)), "17 folders; at most 16 are accepted");
}

// ---- "new@10%:old"

TEST(SharedFolders, AShareIsReadOffAFoldersName) {
  const std::vector<std::tuple<const char*, uint32_t, size_t>> cases = {
      {"new@10%", 1000, 3},       {"new@0.01%", 1, 3},      {"new@12.5%", 1250, 3},
      {"new@100%", 10000, 3},     {"/a@5%/new@7%", 700, 9}, {"new", 0, 3},
      {"new@10", 0, 6},           {"new@%", 0, 5},          {"new@0%", 0, 6},
      {"new@101%", 0, 8},         {"new@1.234%", 0, 10},    {"new@x%", 0, 6},
      {"/a@5%/new%", 0, 10},      {"@10%", 0, 4},           {"new@10%/", 0, 8},
      {"new@99999999999%", 0, 16}};
  for (const auto& [text, share, length] : cases) {
    size_t rest = strlen(text);
    EXPECT_EQ(strip_share(text, &rest), share) << text;
    EXPECT_EQ(rest, length) << text;
  }
  for (const auto& [share, text] : std::map<uint32_t, std::string>{
           {0, ""}, {1, "@0.01%"}, {1250, "@12.5%"}, {1000, "@10%"}, {10000, "@100%"}}) {
    EXPECT_EQ(share_text(share), text);
  }
}

// Returns which rows, from 1 on, the first solution of the first pattern's only route serves.
std::vector<bool> rows_served(const Snapshot& snapshot) {
  const Pattern& pattern = snapshot.begin(snapshot.patterns)[0];
  const Route& route = snapshot.begin(pattern.routes)[0];
  const Binding& first = snapshot.begin(snapshot.bindings)[route.binding];
  std::vector<bool> out;
  for (int32_t rows = 1; rows <= 1000; ++rows) {
    std::vector<void*> params(16, &rows);
    LaunchView view{};
    view.params = params.data();
    out.push_back(run_program(snapshot.begin(first.when), first.when.count, view, nullptr));
  }
  return out;
}

TEST(SharedFolders, HaveThatShareOfTheShapesAndALargerShareHasThemToo) {
  const TestFolder a;
  const TestFolder b;
  a.change(kSolutionPath, "[\"n\", 1, 1]", "[32, 1, 1]");
  std::vector<bool> before(1000, false);
  for (const uint32_t percent : {1, 10, 50, 90, 100}) {
    const std::string list = a.path() + "@" + std::to_string(percent) + "%:" + b.path();
    const CheckReport report = check_folder(list);
    ASSERT_NE(report.snapshot, nullptr) << all_of(report);
    const Snapshot& snapshot = *report.snapshot;
    EXPECT_EQ(snapshot.text(snapshot.root), list);
    EXPECT_EQ(snapshot.text(snapshot.begin(snapshot.roots)[0]), a.path());
    ASSERT_EQ(snapshot.patterns.count, 1u);
    ASSERT_EQ(snapshot.solutions.count, 2u);
    const Solution* const solutions = snapshot.begin(snapshot.solutions);
    const Binding* const bindings = snapshot.begin(snapshot.bindings);
    EXPECT_EQ(snapshot.text(solutions[bindings[0].solution].name),
              "my-scale@" + std::to_string(percent) + "%");
    EXPECT_STREQ(snapshot.text(solutions[bindings[1].solution].name), "my-scale");
    EXPECT_EQ(bindings[1].when.count, 0u);
    const std::vector<bool> served = rows_served(snapshot);
    EXPECT_NEAR(std::ranges::count(served, true), percent * 10, 20);
    for (size_t i = 0; i < served.size(); ++i) EXPECT_TRUE(served[i] || !before[i]);
    before = served;
  }
}

// Without other folders, originals run for the rest of the launches.
TEST(SharedFolders, MayStandAlone) {
  const TestFolder a;
  const CheckReport report = check_folder(a.path() + "@10%");
  ASSERT_NE(report.snapshot, nullptr) << all_of(report);
  EXPECT_NEAR(std::ranges::count(rows_served(*report.snapshot), true), 100, 20);
}

TEST(SharedFolders, PatternsThatDifferLeadToTheirOwnSide) {
  const TestFolder a;
  const TestFolder b;
  a.change(kPatternPath, "\"factor == 0.1\"", "\"factor == 0.2\"");
  const CheckReport report = check_folder(a.path() + "@10%:" + b.path());
  ASSERT_NE(report.snapshot, nullptr) << all_of(report);
  const Snapshot& snapshot = *report.snapshot;
  ASSERT_EQ(snapshot.patterns.count, 2u);
  ASSERT_EQ(snapshot.bindings.count, 2u);
  for (uint32_t i = 0; i < 2; ++i) {
    const Binding& binding = snapshot.begin(snapshot.bindings)[i];
    EXPECT_EQ(binding.pattern, i);
    EXPECT_EQ(snapshot.begin(snapshot.solutions)[binding.solution].folder, i);
  }
}

TEST(SharedFolders, TheShareSaysNothingOfTheProcess) {
  const TestFolder a;
  const TestFolder b;
  a.write("fibshim.json",
          R"({"mode": "off", "definitions": {"scale_n64": {"on_error": "fallback"}}})");
  const CheckReport report = check_folder(a.path() + "@10%:" + b.path());
  ASSERT_NE(report.snapshot, nullptr) << all_of(report);
  const Snapshot& snapshot = *report.snapshot;
  EXPECT_EQ(snapshot.settings.count, 0u);
  for (uint32_t i = 0; i < 2; ++i) {
    const Solution& solution = snapshot.begin(snapshot.solutions)[i];
    EXPECT_EQ(solution.on_error,
              solution.folder == 0 ? SolutionOnError::fallback : SolutionOnError::unset);
  }
}

TEST(SharedFolders, AreRefusedWhereTheyDoNotGoTogether) {
  const TestFolder a;
  const TestFolder b;
  for (const std::string& list :
       {a.path() + ":" + b.path() + "@10%", a.path() + "@10%:" + b.path() + "@20%"}) {
    const CheckReport report = check_folder(list);
    EXPECT_EQ(report.snapshot, nullptr);
    EXPECT_CONTAINS(all_of(report), "folders with a share of the launches come first");
  }
  a.change(kDefinitionPath, "\"op_type\": \"scale\",\n  \"axes\": {\n    \"n\"",
           "\"op_type\": \"scale\",\n  \"axes\": {\n    \"m\": {\"type\": \"var\"}, \"n\"");
  const CheckReport report = check_folder(a.path() + "@10%:" + b.path());
  EXPECT_EQ(report.snapshot, nullptr);
  EXPECT_CONTAINS(all_of(report), "folders that share launches need the same definitions");
}

}  // namespace
}  // namespace fibshim
