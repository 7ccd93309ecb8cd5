// fibshim record on recordings that are made here: what is shown and what is refused. Recordings of programs: tests/shim/record_test.cc.
#include <gtest/gtest.h>
#include <string.h>

#include <algorithm>
#include <filesystem>

#include "shim/abi/outcomes.h"
#include "tests/support/text.h"
#include "tests/tools/config_folder.h"
#include "tests/tools/recorded_files.h"

namespace fibshim::test {
namespace {

namespace fs = std::filesystem;

TEST_F(RecordFiles, SummaryRanksTheKernelsByTime) {
  ASSERT_EQ(gather({example().bytes()}).exit_code, 0);
  const ProgramResult result = exits(0, run_fibshim({"record", "--summary", output()}));
  EXPECT_EQ(result.out,
            "#  SHARE  GPU ms  MEAN us  LAUNCHES  IN GRAPHS  PATTERN  KERNEL\n"
            "1  99.0%   1.000    10.00       100          0  -        scale\n"
            "2   1.0%   0.010     2.00         5          2  -        triton_add_one\n"
            "3      -       -        -         1          0  -        init\n"
            "\n"
            "3 kernels, 106 launches, 2 in graphs, about 1.010 ms of GPU time in 1 process\n");
  EXPECT_EQ(result.err, "");
}

TEST_F(RecordFiles, SummaryOfAFolderIsThatOfItsFile) {
  ASSERT_EQ(gather({example().bytes(), example().bytes()}).exit_code, 0);
  const auto of_file = run_fibshim({"record", "--summary", output(), "--json"});
  const auto of_folder = run_fibshim({"record", "--summary", folder_ / "recordings", "--json"});
  EXPECT_EQ(of_file.exit_code, 0) << of_file.err;
  EXPECT_EQ(of_file.out, of_folder.out);
  const auto summary = parse_json(of_file.out);
  EXPECT_EQ(summary["launches"], 212);
  EXPECT_EQ(summary["kernels"][0]["launches"], 200);
  EXPECT_EQ(summary["kernels"][0]["gpu_time"]["estimated_us"], 2000.0);
  EXPECT_EQ(summary["processes"].size(), 2u);
}

TEST_F(RecordFiles, TypesComeFromTheSignatureOrElseFromTheValues) {
  ASSERT_EQ(gather({example().bytes()}).exit_code, 0);
  const auto kernels =
      parse_json(run_fibshim({"record", "--summary", output(), "--json"}).out)["kernels"];
  const auto& params = kernels[0]["params"];
  EXPECT_EQ(params[0], parse_json(R"({"offset":0,"size":8,"type":"pointer","type_from":"signature",
    "to":"float32","const":false,"alignment":256,"null":0})"));
  EXPECT_EQ(params[1]["const"], true);
  EXPECT_EQ(params[2], parse_json(R"({"offset":16,"size":4,"type":"int32","type_from":"signature",
    "values":[{"value":4096,"count":100}],"other_values":0})"));
  EXPECT_EQ(params[3]["type"], "int8");
  EXPECT_EQ(params[4]["values"], parse_json(R"([{"value":2.0,"bits":"0x40000000","count":60},
    {"value":1.0,"bits":"0x3f800000","count":40}])"));
  const auto& guessed = kernels[1]["params"];
  EXPECT_EQ(guessed[0]["type"], "pointer");
  EXPECT_EQ(guessed[0]["type_from"], "values");
  EXPECT_EQ(guessed[2]["type"], "int32");
  EXPECT_EQ(
      kernels[1]["image"],
      parse_json(
          R"({"hash":"xxh128:0000000000000000000000000000abcd","code":null,"kind":"cubin"})"));
}

TEST_F(RecordFiles, SummarySaysWhichPatternsFitAndWhyNot) {
  write_config_folder(folder_ / "config");
  RecordingBuilder builder;
  builder.kernel("engine_scale", {{8, {}}, {8, {}}, {4, {}}, {1, {}}, {4, {}}}, 3)
      .geometry(1, 1, 3, 0, {});
  builder.kernel("engine_scale", {{8, {}}, {8, {}}}, 2, 0, 7).geometry(1, 1, 2, 0, {});
  ASSERT_EQ(gather({builder.bytes()}).exit_code, 0);
  const ProgramResult result =
      exits(0, run_fibshim({"record", "--summary", output(), "-c", folder_ / "config"}));
  EXPECT_EQ(result.out,
            "#  SHARE  GPU ms  MEAN us  LAUNCHES  IN GRAPHS  PATTERN         KERNEL\n"
            "1      -       -        -         3          0  engine-scale    engine_scale\n"
            "2      -       -        -         2          0  (engine-scale)  engine_scale\n"
            "\n"
            "  #2 engine-scale does not fit: params differ: the kernel's are [8, 8], the pattern's "
            "[8, 8, 4, 1, 4]\n"
            "2 kernels, 5 launches, 0 in graphs in 1 process\n"
            "patterns of " +
                (folder_ / "config") + "\n");
}

// What became of the launches is told of the folder that was in force, not of another one.
TEST_F(RecordFiles, SummaryOfAnotherFolderDoesNotTellTheOutcomesOfTheRecordings) {
  write_config_folder(folder_ / "config");
  fs::copy(folder_ / "config", folder_ / "other", fs::copy_options::recursive);
  RecordingBuilder builder;
  builder.kernel("engine_scale", {{8, {}}, {8, {}}, {4, {}}, {1, {}}, {4, {}}}, 3)
      .geometry(1, 1, 3, 0, {});
  builder.outcome(Outcome::fallback_arch, 3);
  builder.config(folder_ / "config");
  ASSERT_EQ(gather({builder.bytes()}).exit_code, 0);
  const auto why = [&](const char* folder) {
    return parse_json(
        run_fibshim({"record", "--summary", output(), "--json", "-c", folder_ / folder})
            .out)["kernels"][0]["patterns"][0]["why"];
  };
  EXPECT_EQ(why("config"), "3 fallback_arch: no image for this GPU");
  EXPECT_EQ(why("other"), nullptr);
}

// As the shim decides: such a pattern is none for the kernel.
TEST_F(RecordFiles, APatternThatReadsPastTheParametersDoesNotFit) {
  write_config_folder(folder_ / "config");
  write_text(folder_ / "config/patterns/far.json", R"({
    "label": "reads-far", "benefit": 1, "match": {"symbol": "engine_far"},
    "axes": {"n": {"arg": 1, "type": "int32", "offset": 8}},
    "arguments": {"x": {"arg": 0, "dtype": "float32"}},
    "writes": [], "where": ["n > 1"], "definition": "scale_n{n}"})");
  RecordingBuilder builder;
  builder.kernel("engine_far", {{8, {}}, {8, {}}}, 3).geometry(1, 1, 3, 0, {});
  builder.kernel("engine_far", {{8, {}}, {16, {}}}, 2, 0, 7).geometry(1, 1, 2, 0, {});
  ASSERT_EQ(gather({builder.bytes()}).exit_code, 0);
  const ProgramResult result =
      run_fibshim({"record", "--summary", output(), "-c", folder_ / "config", "--json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const auto kernels = parse_json(result.out)["kernels"];
  ASSERT_EQ(kernels.size(), 2u);
  EXPECT_EQ(kernels[0]["patterns"][0]["fits"], false);
  EXPECT_EQ(kernels[0]["patterns"][0]["why"],
            "the pattern reads past the kernel's params, which are [8, 8]");
  EXPECT_EQ(kernels[1]["patterns"][0]["fits"], true);
}

TEST_F(RecordFiles, RefusesWhatIsNoRecordingWithTheReason) {
  const std::string fine = example().bytes();
  std::string other_version = fine;
  other_version[offsetof(RecordingHeader, version)] = 99;
  std::string no_magic = fine;
  no_magic[0] = 'X';
  const std::pair<std::string, const char*> cases[] = {
      {other_version, "format version 99; this fibshim reads version 3"},
      {no_magic, "not a recording"},
      {fine.substr(0, fine.size() - 8), "damaged: it claims"},
  };
  for (const auto& [bytes, reason] : cases) {
    EXPECT_CONTAINS(exits(1, gather({bytes, fine})).err, std::string("1-0.recording: ") + reason);
    EXPECT_CONTAINS(read_text(output()), "\"launches\":106");
  }
  // Not begun yet: its magic is written last.
  EXPECT_EQ(gather({std::string(65536, '\0'), fine}).exit_code, 0);
}

TEST_F(RecordFiles, DamageAnywhereIsRefusedOrReadButNeverACrash) {
  const std::string fine = example().bytes();
  std::vector<std::string> damaged;
  for (size_t at = sizeof(RecordingHeader); at < fine.size(); at += 8) {
    for (const char byte : {'\xff', '\x7f'}) {
      std::string bytes = fine;
      bytes[at] = byte;
      bytes[at + 4] = byte;
      damaged.push_back(std::move(bytes));
    }
  }
  const ProgramResult result = gather(damaged);
  EXPECT_LE(result.exit_code, 1) << result.err;
}

TEST_F(RecordFiles, RefusesJsonThatIsNoRecording) {
  const char* const cases[] = {
      "",
      "{",
      "{\"type\":\"kernel\"}\n",
      "[1]\n",
      "{\"type\":\"recording\",\"version\":2}\n",
      "{\"type\":\"recording\",\"version\":1,\"kernels_left_out\":\"x\"}\n"};
  for (const char* text : cases) {
    write_text(output(), text);
    const ProgramResult result = run_fibshim({"record", "--summary", output()});
    EXPECT_EQ(result.exit_code, 1) << text;
    EXPECT_EQ(result.out, "") << text;
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
  }
  EXPECT_EQ(run_fibshim({"record", "--summary", folder_ / "nothing"}).exit_code, 1);
}

TEST_F(RecordFiles, RefusesNumbersThatAreNone) {
  ASSERT_EQ(gather({example().bytes()}).exit_code, 0);
  const std::string fine = read_text(output());
  const auto with = [&](const std::string& from, const std::string& to) {
    const size_t at = fine.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    return fine.substr(0, at) + to + fine.substr(at + from.size());
  };
  const std::string cases[] = {
      with("\"launches\":100", "\"launches\":-1"),
      with("\"launches\":100", "\"launches\":1e300"),
      with("\"grid\":[", "\"grid\":[4294967296,"),
      with("\"size\":8", "\"size\":0"),
      with("\"size\":8", "\"size\":" + std::string(200000, '[')),
      with("\"size\":8", "\"size\":" + std::string(100000, '[') + std::string(100000, ']')),
      with("\"symbol\":\"", "\"symbol\":\"\\u0000"),
  };
  for (const std::string& text : cases) {
    write_text(output(), text);
    const ProgramResult result = run_fibshim({"record", "--summary", output()});
    EXPECT_EQ(result.exit_code, 1) << text.substr(0, 2000);
    EXPECT_EQ(result.out, "") << text.substr(0, 2000);
  }
}

TEST_F(RecordFiles, RefusesWrongUsage) {
  for (const std::vector<std::string>& arguments :
       std::vector<std::vector<std::string>>{{"record"},
                                             {"record", "--", "true"},
                                             {"record", "-o", "x"},
                                             {"record", "-o", "x", "--summary", "y"},
                                             {"record", "-o", "x", "--json", "--", "true"},
                                             {"record", "-o", "x", "--limit", "10", "--", "true"},
                                             {"record", "-o", "x", "--mode", "off", "--", "true"},
                                             {"record", "--summary", "x", "--", "true"},
                                             {"suggest", "x", "1"},
                                             {"suggest", "x", "-o", "y"}}) {
    EXPECT_EQ(run_fibshim(arguments).exit_code, 2) << arguments.back();
  }
}

TEST_F(RecordFiles, SaysWhereTheOutputIsNotWritten) {
  ASSERT_EQ(gather({example().bytes()}).exit_code, 0);
  for (const std::string& path : {folder_ / "no/such", std::string("/dev/full")}) {
    const ProgramResult result =
        exits(1, run_fibshim({"record", "--from", folder_ / "recordings", "-o", path}));
    EXPECT_CONTAINS(result.err, path + ": cannot write it: ");
  }
}

TEST_F(RecordFiles, ControlCharactersOfARecordingReachNoTerminal) {
  RecordingBuilder builder;
  builder.kernel("bad\x1b[31m\n", {}, 1).geometry(1, 1, 1, 0, {});
  ASSERT_EQ(gather({builder.bytes()}).exit_code, 0);
  const ProgramResult result = run_fibshim({"record", "--summary", output()});
  EXPECT_EQ(result.out.find('\x1b'), std::string::npos);
  EXPECT_CONTAINS(result.out, "bad\\x1b[31m\\x0a");
}

}  // namespace
}  // namespace fibshim::test
