// fibshim explain and init: what a folder would do with a recording, and a first folder.
#include <sys/stat.h>

#include <filesystem>

#include "tests/support/text.h"
#include "tests/tools/config_folder.h"
#include "tests/tools/recording_file_builder.h"

namespace fibshim::test {
namespace {

class Explain : public testing::Test {
 protected:
  Explain() {
    write_config_folder(config());
    const std::vector<RecordedParamValues> params = {{8, {{kAddress, 9}}},
                                                     {8, {{kAddress, 9}}},
                                                     {4, {{256, 9}}},
                                                     {1, {{0, 8}, {1, 1}}},
                                                     {4, {{4096, 9}}}};
    RecordingBuilder recording;
    recording.kernel("engine_scale", params, 9).geometry(64, 256, 9, 0, {});
    recording.kernel("another", params, 1).geometry(64, 256, 1, 0, {});
    std::filesystem::create_directory(folder_ / "recorded");
    write_text(folder_ / "recorded/host-1.recording", recording.bytes());
    exits(0, run_fibshim({"record", "--from", folder_ / "recorded", "-o", folder_ / "run.jsonl"}));
  }

  std::string config() { return folder_ / "config"; }
  ProgramResult explain(const std::string& kernel, const std::string& format = "--") {
    std::vector<std::string> words = {"explain", "-c", config()};
    if (format != "--") words.push_back(format);
    words.insert(words.end(), {folder_ / "run.jsonl", kernel});
    return run_fibshim(words);
  }

  TemporaryFolder folder_;
};

TEST_F(Explain, SaysWhichLaunchesHitAndWhichClauseStopsTheOthers) {
  const std::string out = exits(1, explain("engine_scale")).out;
  EXPECT_CONTAINS(out,
                  "  grid 64x1x1, block 256x1x1: hit, pattern engine-scale\n"
                  "    solution \"scale_by_hand\" of definition \"scale_h4096\"\n");
  EXPECT_CONTAINS(out,
                  "  grid 64x1x1, block 256x1x1, parameter 3 is 1: fallback_where, pattern "
                  "engine-scale\n    " +
                      (config() + "/patterns/engine-scale.json") +
                      ":14:13: \"is_inverse == 0\" does not hold, is_inverse is 1\n");
}

// Words whose values came equally often are varied together: 24 heads in all, 3 rows of both.
TEST_F(Explain, VariesTheWordsOfAStruct) {
  auto pattern = parse_json(read_text(config() + "/patterns/engine-scale.json"));
  pattern["label"] = "engine-scale-struct";
  pattern["match"] = {{"symbol", "engine_scale_struct"}, {"params", {8, 16, 16}}};
  pattern["axes"] = {{"hidden_size", {{"value", 4096}}},
                     {"rows", {{"arg", 1}, {"offset", 0}, {"type", "int64"}}},
                     {"output_rows", {{"arg", 2}, {"offset", 0}, {"type", "int64"}}},
                     {"heads", {{"arg", 0}, {"type", "int64"}}}};
  pattern["arguments"]["input"] = {{"arg", 1}, {"offset", 8}, {"dtype", "float32"}};
  pattern["arguments"]["output"] = {{"arg", 2}, {"offset", 8}, {"dtype", "float32"}};
  pattern["arguments"]["count"] = {{"expr", "rows * 4096"}};
  pattern["arguments"]["is_inverse"] = {{"value", 0}};
  pattern["where"] = {"output_rows == rows", "heads == rows * 8", "rows != 5"};
  write_text(config() + "/patterns/engine-scale-struct.json", pattern.dump(1));
  const RecordedParamValues tensor{16, {}, {{8, {{1, 4}, {3, 3}, {5, 2}}}, {8, {{kAddress, 9}}}}};
  RecordingBuilder recording;
  recording.kernel("engine_scale_struct", {{8, {{8, 4}, {24, 3}, {40, 2}}}, tensor, tensor}, 9)
      .geometry(64, 256, 9, 0, {});
  write_text(folder_ / "recorded/host-1.recording", recording.bytes());
  exits(0, run_fibshim({"record", "--from", folder_ / "recorded", "-o", folder_ / "run.jsonl"}));
  const std::string out = exits(1, explain("engine_scale_struct")).out;
  const std::string launch = "  grid 64x1x1, block 256x1x1";
  const std::string hit = ": hit, pattern engine-scale-struct\n";
  EXPECT_CONTAINS(out, launch + hit);
  EXPECT_CONTAINS(
      out,
      launch + ", parameter 0 is 24, parameter 1 at byte 0 is 3, parameter 2 at byte 0 is 3" + hit);
  EXPECT_CONTAINS(out, "parameter 2 at byte 0 is 5: fallback_where, pattern engine-scale-struct\n");
  EXPECT_CONTAINS(out, "\"rows != 5\" does not hold, rows is 5\n");
}

TEST_F(Explain, NamesTheDefinitionThatNothingSolves) {
  std::filesystem::remove(config() + "/solutions/scale_by_hand.json");
  const auto report = parse_json(exits(1, explain("engine_scale", "--json")).out);
  EXPECT_EQ(report["launches"][0]["outcome"], "fallback_no_solution");
  EXPECT_EQ(report["launches"][0]["why"], "nothing solves definition \"scale_h4096\"");
}

TEST_F(Explain, NamesASolutionsClauseWithItsPlace) {
  const std::string path = config() + "/solutions/scale_by_hand.json";
  std::string text = read_text(path);
  text.replace(text.find("\"where\": []"), 11, "\"where\": [\"rows > 99\"]");
  write_text(path, text);
  EXPECT_CONTAINS(explain("engine_scale").out,
                  "scale_by_hand.json:21:15: \"rows > 99\" does not hold, rows is 64\n");
}

TEST_F(Explain, SaysForWhichSizesTheSolutionsAre) {
  const std::string path = config() + "/solutions/scale_by_hand.json";
  auto solution = parse_json(read_text(path));
  solution["launch"]["when"] = {"rows <= 8"};
  write_text(path, solution.dump(1));
  const std::string out = exits(1, explain("engine_scale")).out;
  EXPECT_CONTAINS(out,
                  "  grid 64x1x1, block 256x1x1: fallback_where, pattern engine-scale\n"
                  "    solution \"scale_by_hand\": " +
                      path + ":");
  EXPECT_CONTAINS(out, "\"rows <= 8\" does not hold, rows is 64\n");
  solution["name"] = "scale_many";
  solution["launch"]["when"] = {"rows > 8"};
  write_text(config() + "/solutions/scale_many.json", solution.dump(1));
  EXPECT_CONTAINS(explain("engine_scale").out,
                  "block 256x1x1: hit, pattern engine-scale\n"
                  "    solution \"scale_many\" of definition \"scale_h4096\"\n");
}

TEST_F(Explain, SaysThatNoPatternFits) {
  EXPECT_CONTAINS(exits(1, explain("another")).out,
                  "  every launch: untracked\n    no pattern has its symbol\n");
  EXPECT_CONTAINS(exits(1, explain("nobody")).err, "no kernel named nobody");
  EXPECT_CONTAINS(exits(2, run_fibshim({"explain", folder_ / "run.jsonl", "1"})).err, "-c: name");
}

TEST(Init, WritesAFolderThatIsSoundAndRunsOnTheSimulator) {
  const TemporaryFolder folder;
  const std::string own = folder / "own";
  const mode_t before =
      umask(002);  // usual if users have their own groups; the folder must be trusted all the same
  const std::string said = exits(0, run_fibshim({"init", own})).out;
  (void)umask(before);
  // The command, which is not on PATH here, and a program to try the folder with can be pasted.
  const std::string fibshim = std::filesystem::canonical(build_path("bin/fibshim"));
  const std::string program =
      std::filesystem::canonical(build_path("tests/hosts/engine")).string() + " --demo";
  EXPECT_CONTAINS(said, "\n  " + fibshim + " run --simulate -c " + own + " -- " + program + " ");
  EXPECT_CONTAINS(
      run_program(
          {"sh", "-c", "PATH=" + build_path("bin") + ":$PATH fibshim init " + (folder / "other")})
          .out,
      "\n  fibshim check ");
  exits(0, run_program({"sh", "-c",
                        build_path("bin/fibshim") + " run --simulate -c " + own + " --stats-dir " +
                            (folder / "tried") + " -- " + program}));
  for (const auto& entry : std::filesystem::recursive_directory_iterator(own)) {
    EXPECT_EQ(entry.status().permissions() & std::filesystem::perms::group_write,
              std::filesystem::perms::none)
        << entry.path();
  }
  EXPECT_CONTAINS(exits(0, run_fibshim({"check", own})).out, ": no mistakes, 1 note\n");
  EXPECT_CONTAINS(exits(1, run_fibshim({"init", own})).err, "exists, and is not empty");
  const std::vector<std::string> engine = {build_path("tests/hosts/engine"), "--demo", "--rows=8",
                                           "--launches=5", "--dtype=bf16"};
  for (const std::string hidden : {"--hidden=4096", "--hidden=4100"}) {
    std::vector<std::string> words = {"run", "--simulate", "--stats-dir", folder / "stats",
                                      "-c",  own,          "--"};
    words.insert(words.end(), engine.begin(), engine.end());
    words.push_back(hidden);
    EXPECT_LACKS(exits(0, run_fibshim(words)).err, "not computed");
  }
  const auto stats =
      parse_json(exits(0, run_fibshim({"stats", "--json", "--dir", folder / "stats"})).out);
  EXPECT_EQ(stats["totals"]["hit"], 5);
  EXPECT_EQ(stats["totals"]["fallback_no_solution"], 5);
}

TEST(Init, WritesNoFolderThatCannotBeNamed) {
  const TemporaryFolder folder;
  for (const std::string name : {"a:b", "a@10%"}) {
    EXPECT_CONTAINS(exits(2, run_fibshim({"init", folder / name})).err, "no config folder can be");
    EXPECT_FALSE(std::filesystem::exists(folder / name));
  }
  EXPECT_CONTAINS(exits(0, run_fibshim({"init", "--", "-x"}, {{}, folder.path()})).out,
                  " check ./-x\n");
}

TEST(Simulate, RecordsAProgramWithoutAGpu) {
  const TemporaryFolder folder;
  exits(0, run_fibshim({"init", folder / "own"}));
  const std::string file = folder / "run.jsonl";
  const ProgramResult result =
      exits(0, run_fibshim({"record", "--simulate", "-o", file, "-c", folder / "own", "--",
                            build_path("tests/hosts/engine"), "--demo", "--launches=5"},
                           {{{"FIBSHIM_STATS_DIR", folder / "stats"}}, ""}));
  EXPECT_CONTAINS(result.err, "5 launches of 1 process in " + file);
  const auto summary =
      parse_json(exits(0, run_fibshim({"record", "--summary", file, "--json"})).out);
  EXPECT_EQ(summary["kernels"][0]["launches"], 5);
  EXPECT_CONTAINS(exits(2, run_fibshim({"record", "--simulate", "--summary", file})).err,
                  "--simulate goes with a command");
}

TEST(Simulate, SaysOnceThatAKernelIsNotComputed) {
  const TemporaryFolder folder;
  exits(0, run_fibshim({"init", folder / "own"}));
  // The same launches, but the solution's kernel is one that the simulator cannot compute.
  const std::string path = folder / "own/solutions/fibshim/fibshim_rmsnorm_h4096.json";
  auto solution = parse_json(read_text(path));
  solution["launch"]["kernel"] = "rmsnorm_strided_h4096_bf16";
  auto& arguments =
      solution["launch"]["arguments"] = {"hidden_states", "weight", "output", "eps", "eps"};
  for (int i = 0; i < 7; ++i) arguments.push_back("batch_size");
  write_text(path, solution.dump());
  const std::string pattern = folder / "own/patterns/torch-rms-norm-bf16.json";
  auto own = parse_json(read_text(pattern));
  own["writes"] = {"output"};
  write_text(pattern, own.dump());
  const ProgramResult result =
      run_fibshim({"run", "--simulate", "--stats-dir", folder / "stats", "-c", folder / "own", "--",
                   build_path("tests/hosts/engine"), "--demo", "--rows=8", "--launches=5",
                   "--dtype=bf16", "--hidden=4096"});
  const std::string said = "kernel rmsnorm_strided_h4096_bf16 is counted, but not computed";
  EXPECT_CONTAINS(result.err, said);
  EXPECT_EQ(result.err.find(said), result.err.rfind(said));
  const auto stats =
      parse_json(exits(0, run_fibshim({"stats", "--json", "--dir", folder / "stats"})).out);
  EXPECT_EQ(stats["totals"]["hit"], 5);
}

}  // namespace
}  // namespace fibshim::test
