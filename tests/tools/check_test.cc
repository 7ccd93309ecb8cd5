// fibshim check: how it shows a folder's mistakes to people and programs. The tests of the loader
// cover which mistakes are found.

#include <filesystem>

#include "loader/read/diagnostics.h"
#include "tests/support/text.h"
#include "tests/tools/config_folder.h"

namespace fibshim::test {
namespace {

class Check : public testing::Test {
 protected:
  Check() { write_config_folder(folder_.path()); }
  TemporaryFolder folder_;
};

TEST_F(Check, AGoodFolderHasNoMistakes) {
  const ProgramResult result = exits(0, run_fibshim({"check", folder_.path()}));
  EXPECT_EQ(result.out, folder_.path() + ": 1 definition, 1 solution, 1 pattern: no mistakes\n");
  EXPECT_EQ(result.err, "");
}

TEST_F(Check, ShowsEachMistakeWithItsLineAndAMark) {
  write_text(folder_ / "patterns/broken.json", "{\n  \"label\": \"x\",\n  \"benefit\": maybe\n}\n");
  const ProgramResult result = exits(1, run_fibshim({"check", folder_.path()}));
  EXPECT_EQ(result.out.rfind((folder_ / "patterns/broken.json") + ":3:14: error: ", 0), 0u)
      << result.out;
  EXPECT_CONTAINS(result.out,
                  " [json-syntax]\n"
                  "    3 |   \"benefit\": maybe\n"
                  "      |              ^\n");
  EXPECT_CONTAINS(result.out, "1 error, 0 warnings; the folder is not loaded\n");
}

TEST_F(Check, TheMarkCountsCharactersNotBytes) {
  write_text(folder_ / "patterns/broken.json", "{\"läbel\":\t\"ü\", \"x\": maybe}\n");
  const ProgramResult result = run_fibshim({"check", folder_.path()});
  EXPECT_CONTAINS(result.out,
                  "    1 | {\"läbel\": \"ü\", \"x\": maybe}\n"
                  "      |                     ^\n");
}

TEST_F(Check, TheMarkStandsBelowItsPlaceBehindWideCharacters) {
  write_text(folder_ / "patterns/broken.json", "{\"規範\": maybe}\n");
  EXPECT_CONTAINS(run_fibshim({"check", folder_.path()}).out,
                  "    1 | {\"規範\": maybe}\n      |          ^\n");
}

TEST_F(Check, FixesSumsAndRights) {
  const std::string solution = folder_ / "solutions/scale_by_hand.json";
  const std::string before = read_text(solution);
  std::string text = before;
  const size_t at = text.find("\"sha256\": \"") + 11;
  write_text(solution, text.replace(at, 64, std::string(64, 'a')));
  std::filesystem::permissions(folder_ / "patterns", std::filesystem::perms(0777));
  EXPECT_EQ(run_fibshim({"check", folder_.path()}).exit_code, 1);
  const ProgramResult result = exits(0, run_fibshim({"check", "--fix", folder_.path()}));
  EXPECT_CONTAINS(result.out, ": no mistakes\n");
  EXPECT_CONTAINS(result.err, "the sum of kernels.sm_90.cubin is ");
  EXPECT_CONTAINS(result.err, "patterns: only its owner can write it now");
  EXPECT_EQ(read_text(solution), before);
  EXPECT_EQ(exits(0, run_fibshim({"check", "--fix", folder_.path()})).err, "");
}

TEST_F(Check, FixesMisspeltKeysWhereOnlyOneCanBeMeant) {
  const std::string pattern = folder_ / "patterns/engine-scale.json";
  const std::string solution = folder_ / "solutions/scale_by_hand.json";
  const std::string before = read_text(pattern);
  const auto misspell = [](const std::string& path, const std::string& key, const std::string& as) {
    std::string text = read_text(path);
    const std::string quoted = "\"" + key + "\"";
    write_text(path, text.replace(text.find(quoted), quoted.size(), "\"" + as + "\""));
  };
  // Misspelt keys on one line, behind characters of several bytes, in a solution; and one that may
  // mean "where" or "when".
  misspell(pattern, "a test's kernel", "ein Prüfkörper 規範");
  const std::string described = read_text(pattern);
  misspell(pattern, "writes", "write");
  misspell(pattern, "symbol", "symbl");
  misspell(pattern, "params", "parms");
  misspell(solution, "shared_mem", "shared_memory");
  misspell(solution, "where", "wher");
  const ProgramResult result = exits(1, run_fibshim({"check", "--fix", folder_.path()}));
  EXPECT_CONTAINS(result.err, "engine-scale.json:5: \"symbl\" is \"symbol\" now\n");
  EXPECT_CONTAINS(result.err, "engine-scale.json:5: \"parms\" is \"params\" now\n");
  EXPECT_CONTAINS(result.err, "scale_by_hand.json:19: \"shared_memory\" is \"shared_mem\" now\n");
  EXPECT_EQ(read_text(pattern), described);
  EXPECT_CONTAINS(read_text(solution), "\"wher\"");
  EXPECT_CONTAINS(result.out, "unknown key \"wher\"");
  misspell(solution, "wher", "where");
  // A misspelt key is left alone if the right one is there already.
  misspell(pattern, "description", "writess");
  exits(1, run_fibshim({"check", "--fix", folder_.path()}));
  EXPECT_CONTAINS(read_text(pattern), "\"writess\"");
}

TEST_F(Check, AMisspeltKeyIsOneMistake) {
  const std::string pattern = folder_ / "patterns/engine-scale.json";
  std::string text = read_text(pattern);
  write_text(pattern, text.replace(text.find("\"writes\""), 8, "\"write\""));
  const auto report =
      parse_json(run_fibshim({"check", "--json", folder_.path()}).out)["folders"][0];
  EXPECT_EQ(report["errors"], 1) << report.dump(1);
  EXPECT_EQ(report["diagnostics"][0]["rule"], "unknown-key");
}

// ---- measurements.json

class Measured : public Check {
 protected:
  // The findings about measurements.json or because of it: "rule line:column message".
  std::set<std::string> findings(int exit_code = 0) {
    std::set<std::string> out;
    const ProgramResult result = exits(exit_code, run_fibshim({"check", "--json", folder_.path()}));
    const auto report = parse_json(result.out)["folders"][0];
    EXPECT_EQ(report["loads"], true);
    for (const auto& one : report["diagnostics"]) {
      out.insert(one["rule"].get<std::string>() + " " + std::to_string(one["line"].get<int>()) +
                 ":" + std::to_string(one["column"].get<int>()) + " " +
                 one["message"].get<std::string>());
    }
    return out;
  }
  void change(const std::string& from, const std::string& to) {
    std::string text = read_text(path());
    ASSERT_NE(text.find(from), std::string::npos);
    write_text(path(), text.replace(text.find(from), from.size(), to));
  }
  std::string path() const { return folder_ / "measurements.json"; }
};

TEST_F(Measured, SolutionsThatWereNeverMeasuredAreNoted) {
  EXPECT_EQ(findings(), (std::set<std::string>{}));
  const std::string none = "unmeasured 0:0 on sm_90: 1 of 1 solutions not measured: scale_by_hand";
  change("\"sm\":90", "\"sm\":80");
  EXPECT_EQ(findings(), (std::set<std::string>{none}));
  change("\"sm\":80", "\"sm\":90");
  std::filesystem::remove(path());
  EXPECT_EQ(findings(), (std::set<std::string>{none}));
  EXPECT_CONTAINS(run_fibshim({"check", folder_.path()}).out,
                  "fibshim bench --keep " + folder_.path() + " measures them");
  // Times of other images do not count.
  write_config_folder(folder_.path());
  change("\"images\":\"", "\"images\":\"0123");
  std::string text = read_text(path());
  const size_t at = text.find("0123") + 64;
  write_text(path(), text.erase(at, 4));
  EXPECT_EQ(findings(), (std::set<std::string>{none}));
}

TEST_F(Measured, SizesAtWhichASolutionIsSlowerAreAWarning) {
  change("\"original_us\":3.9", "\"original_us\":3.85");
  EXPECT_EQ(findings(), (std::set<std::string>{
                            "measured-slower 13:13 slower than \"engine_scale\" on NVIDIA H200 "
                            "(bench, 2026-11-01): at rows 64 4.00 us against 3.85"}));
  // Sizes that the solution's "when" leaves to the original do not count.
  const std::string solution = folder_ / "solutions/scale_by_hand.json";
  auto json = parse_json(read_text(solution));
  json["launch"]["when"] = {"rows < 64"};
  write_text(solution, json.dump());
  for (const std::string& one : findings()) EXPECT_LACKS(one, "measured-slower");
  json["launch"]["when"] = {"rows <= 64"};
  write_text(solution, json.dump());
  EXPECT_EQ(
      findings().count("measured-slower 1:" + std::to_string(json.dump().find("\"rows <= 64") + 1) +
                       " slower than \"engine_scale\" on NVIDIA H200 (bench, 2026-11-01): at "
                       "rows 64 4.00 us against 3.85"),
      1u);
}

TEST_F(Measured, MistakesAreErrorsOfAFolderThatLoads) {
  change("\"us\":2.5", "\"us\":\"2.5\"");
  EXPECT_EQ(findings(1),
            (std::set<std::string>{"schema 5:28 \"us\" does not fit the schema: Value type not "
                                   "permitted by 'type' constraint."}));
  write_text(path(), "{\"format\": 1,\n]");
  const auto found = findings(1);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found.begin()->find("schema 2:1 "), 0u) << *found.begin();
  write_text(path(), R"({"format": 2, "measurements": []})");
  EXPECT_EQ(findings(1).size(), 1u);
}

TEST_F(Check, LongLinesAreCutAroundThePlace) {
  write_text(folder_ / "patterns/broken.json", "{\"description\": \"" + std::string(5000, 'x') +
                                                   "\", \"y\": maybe, \"z\": \"" +
                                                   std::string(5000, 'z') + "\"}\n");
  const ProgramResult result = run_fibshim({"check", folder_.path()});
  EXPECT_CONTAINS(result.out, "    1 | ...x");
  std::istringstream lines(result.out);
  std::string line, above;
  bool has_mark = false;
  while (std::getline(lines, line)) {
    EXPECT_LT(line.size(), 200u + folder_.path().size());
    if (line.rfind("      | ", 0) == 0) {
      has_mark = true;
      EXPECT_EQ(above.substr(line.find('^'), 5), "maybe");
    }
    above = line;
  }
  EXPECT_TRUE(has_mark);
}

TEST_F(Check, PrintsJson) {
  write_text(folder_ / "patterns/broken.json", "{\n  \"label\": \"x\",\n  \"benefit\": maybe\n}\n");
  const ProgramResult result = exits(1, run_fibshim({"check", "--json", folder_.path()}));
  EXPECT_EQ(result.err, "");
  const auto document = parse_json(result.out);
  EXPECT_EQ(document["version"], 1);
  const auto& report = document["folders"][0];
  EXPECT_EQ(report["folder"], folder_.path());
  EXPECT_EQ(report["loads"], false);
  EXPECT_EQ(report["errors"], 1);
  ASSERT_EQ(report["diagnostics"].size(), 1u);
  EXPECT_EQ(report["diagnostics"][0]["file"], folder_ / "patterns/broken.json");
  EXPECT_EQ(report["diagnostics"][0]["line"], 3);
  EXPECT_EQ(report["diagnostics"][0]["column"], 14);
  EXPECT_EQ(report["diagnostics"][0]["severity"], "error");
  EXPECT_EQ(report["diagnostics"][0]["rule"], "json-syntax");
}

TEST_F(Check, BrokenSolutionsAreErrorsOfAFolderThatLoads) {
  std::filesystem::resize_file(folder_ / "solutions/kernels.sm_90.cubin", 100);
  EXPECT_CONTAINS(exits(1, run_fibshim({"check", folder_.path()})).out,
                  "1 solution cannot be launched\n");
  const auto report =
      parse_json(run_fibshim({"check", "--json", folder_.path()}).out)["folders"][0];
  EXPECT_EQ(report["loads"], true);
  EXPECT_EQ(report["broken_solutions"], 1);
  EXPECT_EQ(report["ready_bindings"], 0);
}

TEST_F(Check, ChecksSeveralFoldersAndTheWorstDecides) {
  const ProgramResult result =
      exits(1, run_fibshim({"check", folder_.path(), folder_ / "nowhere"}));
  EXPECT_CONTAINS(result.out, folder_.path() + ": 1 definition");
  EXPECT_CONTAINS(result.out, (folder_ / "nowhere") + ": error: ");
  EXPECT_CONTAINS(result.out, "[folder]");
}

TEST_F(Check, SaysThatNoIndexIsWrittenAnyMore) {
  const ProgramResult result = exits(2, run_fibshim({"check", "--write-index", folder_.path()}));
  EXPECT_EQ(result.err.find("fibshim check: --write-index was removed: "), 0u) << result.err;
  EXPECT_FALSE(std::filesystem::exists(folder_ / ".fibshim-index"));
}

TEST_F(Check, NotesGpusWithoutAnImage) {
  EXPECT_EQ(exits(0, run_fibshim({"check", "--sm", "90", folder_.path()})).out,
            folder_.path() + ": 1 definition, 1 solution, 1 pattern: no mistakes\n");
  const ProgramResult lacking =
      exits(0, run_fibshim({"check", "--sm", "90", "--sm", "100", "--json", folder_.path()}));
  const auto report = parse_json(lacking.out)["folders"][0];
  EXPECT_EQ(report["notes"], 1);
  EXPECT_EQ(report["warnings"], 0);
  EXPECT_EQ(report["diagnostics"][0]["severity"], "note");
  EXPECT_EQ(report["diagnostics"][0]["rule"], "no-image-for-gpu");
  EXPECT_CONTAINS(run_fibshim({"check", "--sm", "100", folder_.path()}).out,
                  "no mistakes, 1 note\n");
}

TEST_F(Check, AsksTheDriverForItsGpus) {
  // The simulated driver has GPUs of sm_90.
  EXPECT_EQ(exits(0, run_fibshim({"check", "--gpu", folder_.path()},
                                 {{{"LD_LIBRARY_PATH", build_path("sim")}}, ""}))
                .out,
            folder_.path() + ": 1 definition, 1 solution, 1 pattern: no mistakes\n");
  const ProgramResult lacking =
      run_fibshim({"check", "--gpu", folder_.path()},
                  {{{"LD_LIBRARY_PATH", build_path("sim")}, {"SIMCUDA_DEVICES", "90,80"}}, ""});
  EXPECT_CONTAINS(lacking.out, "no image for sm_80");
}

TEST_F(Check, ExplainsEveryRule) {
  for (const RuleInfo& rule : kRules) {
    const ProgramResult result = run_fibshim({"check", "--explain", rule.name});
    EXPECT_EQ(result.exit_code, 0) << rule.name;
    EXPECT_EQ(result.out.rfind(std::string(rule.name) + ": ", 0), 0u) << result.out;
    EXPECT_CONTAINS(result.out, rule.explanation);
  }
  const std::string all = run_fibshim({"check", "--explain", "all"}).out;
  for (const RuleInfo& rule : kRules) EXPECT_CONTAINS(all, rule.explanation);
}

TEST_F(Check, RefusesWrongUsage) {
  EXPECT_CONTAINS(exits(2, run_fibshim({"check", "--explain", "json-sintax"})).err,
                  "did you mean 'json-syntax'?");
  EXPECT_EQ(run_fibshim({"check"}).exit_code, 2);
  EXPECT_EQ(run_fibshim({"check", "--sm", "9", folder_.path()}).exit_code, 2);
  EXPECT_EQ(run_fibshim({"check", "--explain"}).exit_code, 2);
  EXPECT_EQ(run_fibshim({"check", "--key", "", folder_.path()}).exit_code, 2);
  EXPECT_EQ(run_fibshim({"check", "--key=", folder_.path()}).exit_code, 2);
  EXPECT_EQ(run_fibshim({"check", "--explain", "folder", folder_.path()}).exit_code, 2);
  EXPECT_EQ(run_fibshim({"check", "--explain", "folder", "--json"}).exit_code, 2);
}

// ---- --against

TEST_F(Check, SaysWhichKernelsOfATableAPatternFits) {
  TemporaryFolder tables;
  const auto check = [&](const std::string& lines) {
    write_text(tables / "toy.table", "fibshim kernels 1: toy\n" + lines);
    return run_fibshim({"check", "--json", folder_.path(), "--against", tables / "toy.table"});
  };
  ProgramResult result =
      check("1.0,1.1 0:8,8:8,16:4,20:1,24:4 engine_scale\n1.1 - nothing_to_do\n");
  EXPECT_EQ(result.exit_code, 0) << result.err;
  auto coverage = parse_json(result.out)["folders"][0]["against"];
  EXPECT_EQ(coverage["patterns"][0]["fits"][0]["in"], (nlohmann::json{"toy 1.0", "toy 1.1"}));
  EXPECT_EQ(coverage["unknown_kernels"][0]["symbol"], "nothing_to_do");

  // A kernel with other parameters alone, or beside one that fits.
  result = check("1.0 0:8,8:8,16:8 engine_scale\n");
  EXPECT_EQ(result.exit_code, 1);
  coverage = parse_json(result.out)["folders"][0]["against"];
  EXPECT_EQ(coverage["patterns"][0]["why_not"], "its parameters have the sizes [8, 8, 8]");
  EXPECT_EQ(check("1.0 0:8,8:8,16:4,20:1,24:4 engine_scale\n1.1 0:8 engine_scale\n").exit_code, 1);

  result = check("1.0 0:8 far_from_it\n");
  EXPECT_EQ(result.exit_code, 1);
  coverage = parse_json(result.out)["folders"][0]["against"];
  EXPECT_EQ(coverage["patterns"][0]["nearest"], nullptr);
}

TEST_F(Check, TakesTheDifferenceToTheNearestSymbolOut) {
  TemporaryFolder tables;
  write_text(tables / "toy.table",
             "fibshim kernels 1: toy\n2.0 0:8,8:8,16:4,20:1,24:4 engine_sLb1Ecale\n");
  const ProgramResult result =
      run_fibshim({"check", folder_.path(), "--against", tables / "toy.table"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_NE(result.out.find("engine-scale: fits nothing: fits but for one more template argument, "
                            "Lb1E\n      engine_sLb1Ecale (toy 2.0)\n      the pattern's: "
                            "engine_scale\n"),
            std::string::npos)
      << result.out;
}

// Another pattern for the same symbol fits the kernel's parameters.
TEST_F(Check, LeavesAKernelOfOtherParametersToThePatternThatFitsIt) {
  auto newer = parse_json(read_text(folder_ / "patterns/engine-scale.json"));
  newer["label"] = "engine-scale-newer";
  newer["match"]["params"].push_back(8);
  write_text(folder_ / "patterns/newer.json", newer.dump());
  TemporaryFolder tables;
  const std::string of_both =
      "fibshim kernels 1: toy\n1.0 0:8,8:8,16:4,20:1,24:4 engine_scale\n"
      "1.1 0:8,8:8,16:4,20:1,24:4,32:8 engine_scale\n";
  write_text(tables / "toy.table", of_both);
  EXPECT_EQ(run_fibshim({"check", folder_.path(), "--against", tables / "toy.table"}).exit_code, 0);
  // In a folder, too, in which a link leads to itself.
  std::filesystem::create_symlink("self", tables / "self");
  exits(0, run_fibshim({"check", folder_.path(), "--against", tables.path()}));
  write_text(tables / "toy.table", of_both + "1.2 0:8 engine_scale\n");
  EXPECT_EQ(run_fibshim({"check", folder_.path(), "--against", tables / "toy.table"}).exit_code, 1);
}

// A kernel with an image for each GPU counts once. A pattern for another version names it.
TEST_F(Check, CountsAKernelOnceAndNamesThePatternThatFitsIt) {
  auto newer = parse_json(read_text(folder_ / "patterns/engine-scale.json"));
  newer["label"] = "engine-scale-newer";
  newer["match"]["symbol"] = "engine_scale_by";
  write_text(folder_ / "patterns/newer.json", newer.dump());
  TemporaryFolder tables;
  const std::string kernel = " 0:8,8:8,16:4,20:1,24:4 engine_scale_by code:";
  write_text(tables / "toy.table", "fibshim kernels 1: toy\n1.1" + kernel + std::string(32, '1') +
                                       "\n1.2" + kernel + std::string(32, '2') + "\n");
  const ProgramResult result =
      run_fibshim({"check", folder_.path(), "--against", tables / "toy.table"});
  EXPECT_CONTAINS(result.out,
                  "  against 1 kernel of toy 1.1, toy 1.2: 1 of 2 patterns fit nothing\n"
                  "    engine-scale: fits nothing: the symbol differs\n"
                  "      engine_scale_by (toy 1.1)\n"
                  "      the pattern's: engine_scale\n"
                  "      engine-scale-newer fits that kernel\n"
                  "    engine-scale-newer: fits 1 kernel\n"
                  "      engine_scale_by (toy 1.1, toy 1.2)\n");
}

TEST_F(Check, ReadsKernelsOfLibrariesAndFolders) {
  TemporaryFolder engine;
  std::filesystem::create_directories(engine / "lib");
  std::filesystem::copy(build_path("tests/data/kernels.so"), engine / "lib/kernels.so");
  write_text(engine / "README", "no kernels\n");
  for (const std::string& path : {engine / "lib/kernels.so", engine.path()}) {
    const ProgramResult result =
        run_fibshim({"check", "--json", folder_.path(), "--against", path});
    EXPECT_EQ(result.exit_code, 1);
    const auto coverage = parse_json(result.out)["folders"][0]["against"];
    EXPECT_EQ(coverage["unknown_kernels"].size(), 2u) << path;
    EXPECT_EQ(coverage["unknown_kernels"][0]["in"], (nlohmann::json{engine / "lib/kernels.so"}));
  }
  for (const char* const bad :
       {"fibshim kernels 1: x\n1.0 0:8\n", "fibshim kernels 1: x\n1.0 8 s\n",
        "fibshim kernels 1: x\n1.0 0:0 s\n", "no table\n"}) {
    write_text(engine / "bad", bad);
    EXPECT_EQ(run_fibshim({"check", folder_.path(), "--against", engine / "bad"}).exit_code, 1);
  }
  // Of many damaged images a few are told.
  std::string damaged = read_text(build_path("tests/data/kernels.compressed.fatbin"));
  damaged.replace(16 + 64 + 300, 100, std::string(100, '\xff'));  // within the first image
  write_text(engine / "damaged", damaged + damaged + damaged + damaged + damaged);
  const ProgramResult told =
      run_fibshim({"check", folder_.path(), "--against", engine / "damaged"});
  EXPECT_CONTAINS(told.err, "entry 6 (sm_80): ");
  EXPECT_LACKS(told.err, "entry 9 ");
  EXPECT_CONTAINS(told.err, "damaged: 2 more, which fibshim inspect lists\n");
  // If the file cannot be read, nothing is said about the patterns.
  const ProgramResult result = run_fibshim({"check", folder_.path(), "--against", engine / "none"});
  EXPECT_CONTAINS(exits(1, result).err, "No such file or directory");
  EXPECT_LACKS(result.out, "fit");
}

}  // namespace
}  // namespace fibshim::test
