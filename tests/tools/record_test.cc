// fibshim record and suggest on recordings that are made here: what is shown, what is refused, and what
// is written. Recordings of programs: tests/shim/record_test.cc.
#include <gtest/gtest.h>
#include <string.h>

#include <algorithm>
#include <filesystem>

#include "shim/abi/outcomes.h"
#include "tests/support/text.h"
#include "tests/tools/config_folder.h"
#include "tests/tools/fibshim_program.h"
#include "tests/tools/recording_file_builder.h"

namespace fibshim::test {
namespace {

namespace fs = std::filesystem;

RecordingBuilder example() {
  RecordingBuilder builder;
  builder
      .kernel(kScale,
              {{8, {{kAddress + 256, 100}}},
               {8, {{kAddress + 512, 90}, {kAddress + 4096, 10}}},
               {4, {{4096, 100}}},
               {1, {{1, 100}}},
               {4, {{0x40000000, 60}, {0x3f800000, 40}}}},
              100)
      .geometry(16, 256, 90, 0, {4, 40000, 8000, 12000})
      .geometry(32, 256, 10, 0, {});
  builder
      .kernel("triton_add_one",
              {{8, {{kAddress, 7}}}, {8, {{kAddress + 16, 7}}}, {4, {{900, 5}, {901, 2}}}}, 5, 2,
              0xabcd)
      .geometry(4, 128, 5, 2, {1, 2000, 2000, 2000});
  builder.kernel("_Z4initv", {}, 1).geometry(1, 1, 1, 0, {});
  return builder;
}

class RecordFiles : public testing::Test {
 protected:
  std::string output() { return folder_ / "out.jsonl"; }

  // Makes the JSON Lines of some processes' recordings.
  ProgramResult gather(const std::vector<std::string>& recordings) {
    fs::remove_all(folder_ / "recordings");
    for (size_t i = 0; i < recordings.size(); ++i) {
      write_text(folder_ / ("recordings/1-" + std::to_string(i) + ".recording"), recordings[i]);
    }
    return run_fibshim({"record", "--from", folder_ / "recordings", "-o", output()});
  }

  ProgramResult suggest(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "suggest");
    return run_fibshim(arguments);
  }

  TemporaryFolder folder_;
};

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
      {other_version, "format version 99; this fibshim reads version 2"},
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

TEST_F(RecordFiles, WhatIsSuggestedForAnySymbolPassesTheCheck) {
  std::string endless = "_Z1fSt4pairIiiE";
  for (const char id : std::string("0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ")) {
    const std::string one = std::string("S") + id + "_";
    endless += "S_I" + one + one + "E";
  }
  for (const std::string& symbol :
       {std::string("re:not (one)"), std::string("glob:["), std::string("a b*?"), endless,
        std::string(9000, '+'), std::string("1_GLOBAL__N__") + std::string(9000, 'a') + "_cu_",
        std::string("\x01\xff\"\\\n")}) {
    RecordingBuilder builder;
    builder.kernel(symbol, {{8, {{0x7f0000001000, 1}}}, {4, {{4096, 1}}}}, 1);
    const std::string config = folder_ / "config";
    fs::remove_all(config);
    ASSERT_EQ(gather({builder.bytes()}).exit_code, 0);
    (void)exits(0, suggest({output(), "1", "-o", config}));
    EXPECT_EQ(run_fibshim({"check", config}).exit_code, 0) << symbol.substr(0, 100);
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

TEST_F(RecordFiles, SuggestWritesAFolderThatCheckAccepts) {
  ASSERT_EQ(gather({example().bytes()}).exit_code, 0);
  const std::string config = folder_ / "config";
  EXPECT_EQ(exits(0, suggest({output(), "scale", "-o", config})).err, "");
  EXPECT_EQ(parse_json(read_text(config + "/patterns/scale-n-fp32.json")), parse_json(R"json({
    "label": "scale-n-fp32", "benefit": 1,
    "description": "scale(float*, float const*, int, signed char, float)",
    "match": {"symbol": "_Z5scalePfPKfiaf", "params": [8, 8, 4, 1, 4]},
    "axes": {"grid_x": {"grid": "x"}, "n": {"arg": 2, "type": "int32"}},
    "arguments": {"output0": {"arg": 0, "dtype": "float32"}, "input1": {"arg": 1, "dtype": "float32"},
                  "arg3": {"arg": 3, "type": "int8"}, "arg4": {"arg": 4, "type": "float32"}},
    "writes": ["output0"],
    "where": ["output0 != 0", "input1 != 0", "arg3 == 1"],
    "definition": "scale_n{n}_fp32"})json"));
  const auto definition = parse_json(read_text(config + "/definitions/scale_n4096_fp32.json"));
  EXPECT_EQ(definition["axes"]["n"], parse_json(R"({"type":"const","value":4096})"));
  EXPECT_EQ(definition["inputs"]["arg4"], parse_json(R"({"shape":null,"dtype":"float32"})"));
  const std::string source = read_text(config + "/solutions/scale_n4096_fp32/kernel.cu");
  EXPECT_CONTAINS(source,
                  "__global__ void scale_n4096_fp32(float* output0, const float* input1, float "
                  "arg4)");
  // The note: nothing solves the definition yet.
  const std::string checked = run_fibshim({"check", config}).out;
  EXPECT_TRUE(checked.ends_with(": 1 definition, 0 solutions, 1 pattern: no mistakes, 1 note\n"))
      << checked;
  EXPECT_CONTAINS(checked, "[unsolved-definition]");
}

TEST_F(RecordFiles, SuggestAsksForTheImageOfAKernelWhoseNameSaysLittle) {
  ASSERT_EQ(gather({example().bytes()}).exit_code, 0);
  const std::string config = folder_ / "config";
  const ProgramResult result =
      exits(0, suggest({output(), "2", "-o", config, "--name", "add", "--json"}));
  const auto suggestion = parse_json(result.out);
  EXPECT_EQ(suggestion["definition"], "add");
  EXPECT_EQ(suggestion["files"].size(), 5u);
  const auto pattern = parse_json(read_text(config + "/patterns/add.json"));
  EXPECT_EQ(pattern["match"]["image"],
            parse_json(R"(["xxh128:0000000000000000000000000000abcd"])"));
  EXPECT_EQ(pattern["axes"]["arg2"], parse_json(R"({"arg":2,"type":"int32"})"));
  // Nothing tells what is read: all of it counts as written.
  EXPECT_EQ(pattern["writes"], parse_json(R"(["output0","output1"])"));
  EXPECT_EQ(run_fibshim({"check", config}).exit_code, 0);
}

// The number at its end counts the kernels of one process; the next one may give it another.
TEST_F(RecordFiles, SuggestAsksForTheCodeOfAJustInTimeCompiledKernel) {
  RecordingBuilder builder;
  builder.kernel("triton_poi_fused_mul_silu_17", {{8, {{kAddress, 7}}}, {4, {{900, 7}}}}, 7, 0,
                 0xabcd, 0xc0de);
  ASSERT_EQ(gather({builder.bytes()}).exit_code, 0);
  const std::string config = folder_ / "config";
  ASSERT_EQ(suggest({output(), "1", "-o", config, "--name", "silu"}).exit_code, 0);
  const auto match = parse_json(read_text(config + "/patterns/silu-n.json"))["match"];
  EXPECT_EQ(match["symbol"], R"(re:triton_poi_fused_mul_silu_\d+)");
  EXPECT_EQ(match["image"], parse_json(R"(["code:0000000000000000000000000000c0de"])"));
  EXPECT_EQ(run_fibshim({"check", config}).exit_code, 0);
  const auto fits = parse_json(
      run_fibshim({"record", "--summary", output(), "-c", config, "--json"}).out)["kernels"][0];
  EXPECT_EQ(fits["patterns"][0]["fits"], true) << fits.dump(2);
}

TEST_F(RecordFiles, SuggestTakesTheBuildsHashesOutOfAnonymousNamespaces) {
  RecordingBuilder builder;
  const std::string symbol =
      "_ZN2at6native53_GLOBAL__N__a25d6a36_20_layer_norm_kernel_cu_9c5ada8a10row_kernelEPf";
  builder.kernel(symbol, {{8, {{kAddress, 1}}}}, 1).geometry(1, 1, 1, 0, {});
  ASSERT_EQ(gather({builder.bytes()}).exit_code, 0);
  ASSERT_EQ(suggest({output(), "row_kernel", "-o", folder_ / "config"}).exit_code, 0);
  EXPECT_EQ(parse_json(read_text(folder_ / "config/patterns/row-fp32.json"))["match"]["symbol"],
            "re:_ZN2at6native\\d+_GLOBAL__N__[0-9a-f]+_20_layer_norm_kernel_cu_[0-9a-f]{8}(_\\d+)?"
            "10row_kernelEPf");
  // Another build's symbol fits, another function's does not.
  std::string other = symbol;
  other.replace(other.find("a25d6a36"), 8, "0badf00d");
  RecordingBuilder second;
  second.kernel(other, {{8, {}}}, 1).geometry(1, 1, 1, 0, {});
  second.kernel("_ZN2at6native3fooEPf", {{8, {}}}, 1).geometry(1, 1, 1, 0, {});
  ASSERT_EQ(gather({second.bytes()}).exit_code, 0);
  const auto summary = parse_json(
      run_fibshim({"record", "--summary", output(), "--json", "-c", folder_ / "config"}).out);
  for (const auto& kernel : summary["kernels"]) {
    EXPECT_EQ(kernel["patterns"].size(), kernel["symbol"] == other ? 1u : 0u) << kernel["symbol"];
  }
}

TEST_F(RecordFiles, SuggestReplacesNothingUnlessTold) {
  ASSERT_EQ(gather({example().bytes()}).exit_code, 0);
  const std::string config = folder_ / "config";
  ASSERT_EQ(suggest({output(), "scale", "-o", config}).exit_code, 0);
  const std::string source = config + "/solutions/scale_n4096_fp32/kernel.cu";
  write_text(source, "mine");
  EXPECT_CONTAINS(exits(1, suggest({output(), "scale", "-o", config})).err, "--force replaces it");
  EXPECT_EQ(read_text(source), "mine");
  EXPECT_EQ(suggest({output(), "scale", "-o", config, "--force"}).exit_code, 0);
  EXPECT_NE(read_text(source), "mine");
}

TEST_F(RecordFiles, SuggestSaysWhichKernelsAreMeant) {
  ASSERT_EQ(gather({example().bytes()}).exit_code, 0);
  const ProgramResult several = exits(1, suggest({output(), "i", "-o", folder_ / "config"}));
  EXPECT_EQ(several.err,
            "fibshim suggest: several kernels have this name; give the number of one:\n"
            "     1  scale\n"
            "     2  triton_add_one\n"
            "     3  init\n");
  EXPECT_EQ(suggest({output(), "nothing", "-o", folder_ / "config"}).exit_code, 1);
  EXPECT_EQ(suggest({output(), "4", "-o", folder_ / "config"}).exit_code, 1);
  EXPECT_FALSE(fs::exists(folder_ / "config"));
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
