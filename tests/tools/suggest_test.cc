// fibshim suggest on recordings that are made here: what it writes, and what it does not touch.

#include "tests/support/text.h"
#include "tests/tools/recorded_files.h"

namespace fibshim::test {
namespace {

namespace fs = std::filesystem;

using Suggest = RecordFiles;

TEST_F(Suggest, WhatIsSuggestedForAnySymbolPassesTheCheck) {
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

TEST_F(Suggest, WritesAFolderThatCheckAccepts) {
  ASSERT_EQ(gather({example().bytes()}).exit_code, 0);
  const std::string config = folder_ / "config";
  const ProgramResult result = exits(0, suggest({output(), "scale", "-o", config}));
  EXPECT_EQ(result.err, "");
  EXPECT_CONTAINS(result.out, "\nthe pattern fits all of the 100 recorded launches\n");
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
  // The note says that nothing solves the definition yet.
  const std::string checked = run_fibshim({"check", config}).out;
  EXPECT_TRUE(checked.ends_with(": 1 definition, 0 solutions, 1 pattern: no mistakes, 1 note\n"))
      << checked;
  EXPECT_CONTAINS(checked, "[unsolved-definition]");
}

TEST_F(Suggest, AsksForTheImageOfAKernelWhoseNameSaysLittle) {
  ASSERT_EQ(gather({example().bytes()}).exit_code, 0);
  const std::string config = folder_ / "config";
  const ProgramResult result =
      exits(0, suggest({output(), "2", "-o", config, "--name", "add", "--json"}));
  const auto suggestion = parse_json(result.out);
  EXPECT_EQ(suggestion["definition"], "add");
  EXPECT_EQ(suggestion["files"].size(), 5u);
  EXPECT_EQ(suggestion["recorded_launches"], 7);
  EXPECT_EQ(suggestion["fitting_launches"], 7);
  const auto pattern = parse_json(read_text(config + "/patterns/add.json"));
  EXPECT_EQ(pattern["match"]["image"],
            parse_json(R"(["xxh128:0000000000000000000000000000abcd"])"));
  EXPECT_EQ(pattern["axes"]["arg2"], parse_json(R"({"arg":2,"type":"int32"})"));
  // Nothing tells which buffers are only read, so all count as written.
  EXPECT_EQ(pattern["writes"], parse_json(R"(["output0","output1"])"));
  EXPECT_EQ(run_fibshim({"check", config}).exit_code, 0);
}

// The number at the end of the name counts the kernels of one process; another process may give
// another number.
TEST_F(Suggest, AsksForTheCodeOfAJustInTimeCompiledKernel) {
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

TEST_F(Suggest, TakesTheBuildsHashesOutOfAnonymousNamespaces) {
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

// The plan decides: of two patterns that fit the shim asks the first alone.
TEST_F(Suggest, CountsTheLaunchesThatAnotherPatternOfTheFolderTakes) {
  ASSERT_EQ(gather({example().bytes()}).exit_code, 0);
  const std::string config = folder_ / "config";
  (void)exits(0, suggest({output(), "scale", "-o", config, "--name", "a"}));
  std::string pattern = read_text(config + "/patterns/a-n-fp32.json");
  const size_t clause = pattern.find("arg3 == 1");
  ASSERT_NE(clause, std::string::npos);
  const std::string few = "arg3 == 1 && grid_x == 32";
  write_text(config + "/patterns/a-n-fp32.json", pattern.replace(clause, 9, few));
  const auto second =
      parse_json(exits(0, suggest({output(), "scale", "-o", config, "--name", "b", "--json"})).out);
  EXPECT_EQ(second["recorded_launches"], 100);
  EXPECT_EQ(second["fitting_launches"], 90);
  EXPECT_CONTAINS(
      exits(0, suggest({output(), "scale", "-o", config, "--name", "b", "--force"})).out,
      "the pattern fits 90 of the 100 recorded launches: see 'fibshim explain'\n");
}

TEST_F(Suggest, ReplacesNothingUnlessTold) {
  ASSERT_EQ(gather({example().bytes()}).exit_code, 0);
  const std::string config = folder_ / "config";
  ASSERT_EQ(suggest({output(), "scale", "-o", config}).exit_code, 0);
  const std::string source = config + "/solutions/scale_n4096_fp32/kernel.cu";
  const std::string begun = "// mine\n" + read_text(source);
  write_text(source, begun);
  EXPECT_CONTAINS(exits(1, suggest({output(), "scale", "-o", config})).err, "--force replaces it");
  EXPECT_EQ(read_text(source), begun);
  EXPECT_EQ(suggest({output(), "scale", "-o", config, "--force"}).exit_code, 0);
  EXPECT_NE(read_text(source), begun);
}

TEST_F(Suggest, SaysWhichKernelsAreMeant) {
  ASSERT_EQ(gather({example().bytes()}).exit_code, 0);
  const ProgramResult several = exits(1, suggest({output(), "i", "-o", folder_ / "config"}));
  EXPECT_EQ(several.err,
            "fibshim suggest: several kernels have this name; give the number of one:\n"
            "     1  scale\n"
            "     2  triton_add_one\n"
            "     3  init\n");
  EXPECT_EQ(suggest({output(), "nothing", "-o", folder_ / "config"}).exit_code, 1);
  EXPECT_EQ(suggest({output(), "4", "-o", folder_ / "config"}).exit_code, 1);
  EXPECT_CONTAINS(exits(1, suggest({output(), "", "-o", folder_ / "config"})).err,
                  "the kernel's name is empty");
  EXPECT_FALSE(fs::exists(folder_ / "config"));
}

constexpr char kFusedAdd[] = "_Z9fused_add4Viewi";  // fused_add(View, int)

// A kernel whose tensors are in a struct: an output, an input, rows, columns, two floats, null.
RecordingBuilder with_struct(RecordedMemory memory) {
  RecordingBuilder builder;
  builder
      .kernel(
          kFusedAdd,
          {{40,
            {},
            {{8, {{kAddress, 5}, {kAddress + 512, 2}}, {}, memory},
             {8, {{kAddress + 4096, 7}}, {}, memory},
             // 4096 columns, 33 or 64 rows: both look like addresses, but the driver knows better.
             {8, {{33ull << 32 | 4096, 3}, {64ull << 32 | 4096, 4}}, {}, RecordedMemory::none},
             {8, {{0x3f000000'3e800000, 7}}},  // 0.25f and 0.5f
             {8, {{0, 7}}}}},
           {4, {{3, 7}}}},
          7)
      .geometry(4, 128, 7, 0, {});
  return builder;
}

TEST_F(Suggest, FindsTheOutputsInAStruct) {
  ASSERT_EQ(gather({with_struct(RecordedMemory::some).bytes()}).exit_code, 0);
  const std::string config = folder_ / "config";
  const auto suggested = parse_json(exits(0, suggest({output(), "1", "-o", config, "--json"})).out);
  const auto pattern = parse_json(read_text(config + "/patterns/fused-add-n.json"));
  EXPECT_EQ(pattern["match"]["params"], parse_json("[40, 4]"));
  EXPECT_EQ(pattern["arguments"], parse_json(R"json({
    "arg1": {"arg": 1, "type": "int32"},
    "output0_0": {"arg": 0, "offset": 0, "dtype": "unknown"},
    "output0_8": {"arg": 0, "offset": 8, "dtype": "unknown"},
    "arg0_24": {"arg": 0, "offset": 24, "type": "float32"},
    "arg0_28": {"arg": 0, "offset": 28, "type": "float32"},
    "arg0_32": {"arg": 0, "offset": 32, "type": "int64"}})json"));
  EXPECT_EQ(pattern["axes"], parse_json(R"json({
    "grid_x": {"grid": "x"}, "n": {"arg": 0, "offset": 16, "type": "int32"},
    "arg0_20": {"arg": 0, "offset": 20, "type": "int32"}})json"));
  EXPECT_EQ(pattern["writes"], parse_json(R"(["output0_0", "output0_8"])"));
  EXPECT_EQ(pattern["where"], parse_json(R"(["arg1 == 3", "output0_0 != 0", "output0_8 != 0",
    "arg0_32 == 0"])"));
  EXPECT_CONTAINS(read_text(config + "/solutions/fused_add_n4096/kernel.cu"),
                  "fused_add_n4096(void* output0_0, void* output0_8, int32_t arg0_20, float "
                  "arg0_24, float arg0_28)");
  EXPECT_CONTAINS(suggested["notes"].dump(), "parameter 0 is a struct of 40 bytes");
  EXPECT_EQ(run_fibshim({"check", config}).exit_code, 0);
}

// If the driver cannot tell, a value that looks like an address counts as one: no output is missed.
TEST_F(Suggest, TakesWhatLooksLikeAnAddressInAStructForAnOutput) {
  ASSERT_EQ(gather({with_struct(RecordedMemory::unknown).bytes()}).exit_code, 0);
  ASSERT_EQ(suggest({output(), "1", "-o", folder_ / "config"}).exit_code, 0);
  const auto pattern = parse_json(read_text(folder_ / "config/patterns/fused-add-n.json"));
  EXPECT_EQ(pattern["writes"], parse_json(R"(["output0_0", "output0_8"])"));
}

TEST_F(Suggest, SaysWhatOfAStructIsNotRecorded) {
  RecordingBuilder builder;
  builder.kernel(kFusedAdd, {{40, {}, {{8, {{kAddress, 7}}}}}, {4, {{3, 7}}}}, 7);
  ASSERT_EQ(gather({builder.bytes()}).exit_code, 0);
  EXPECT_CONTAINS(exits(0, suggest({output(), "1", "-o", folder_ / "config"})).out,
                  "parameter 0, a struct of 40 bytes: those from 8 on are not in the recording");
}

// A struct of 8 bytes that contains a pointer: its type is the struct's name, which tells nothing.
TEST_F(Suggest, FindsTheOutputInAStructOfOneWord) {
  RecordingBuilder builder;
  builder.kernel("_Z4fill4View", {{8, {{kAddress, 7}}}}, 7);
  ASSERT_EQ(gather({builder.bytes()}).exit_code, 0);
  ASSERT_EQ(suggest({output(), "1", "-o", folder_ / "config"}).exit_code, 0);
  const auto pattern = parse_json(read_text(folder_ / "config/patterns/fill.json"));
  EXPECT_EQ(pattern["writes"], parse_json(R"(["output0_0"])"));
}

// For example a struct of three halves: no scalar type has as many bytes.
TEST_F(Suggest, LeavesOutAStructThatIsNoWord) {
  RecordingBuilder builder;
  builder.kernel("_Z4fill5ThreePf", {{6, {{0x3c0040004200, 7}}}, {8, {{kAddress, 7}}}}, 7);
  ASSERT_EQ(gather({builder.bytes()}).exit_code, 0);
  const std::string config = folder_ / "config";
  EXPECT_CONTAINS(exits(0, suggest({output(), "1", "-o", config})).out,
                  "parameter 0, a struct of 6 bytes: those from 0 on are not in the recording");
  EXPECT_EQ(run_fibshim({"check", config}).exit_code, 0);
}

TEST_F(Suggest, TellsKernelsOfOneNameApartByTheirParameters) {
  RecordingBuilder builder;
  builder.kernel("_Z4copyPfi", {{8, {{kAddress, 9}}}, {4, {{2, 9}}}}, 9).geometry(1, 1, 9, 0, {});
  builder.kernel("_Z4copyPfii", {{8, {{kAddress, 7}}}, {4, {{2, 7}}}, {4, {{3, 7}}}}, 7)
      .geometry(1, 1, 7, 0, {});
  ASSERT_EQ(gather({builder.bytes()}).exit_code, 0);
  const std::string config = folder_ / "config";
  EXPECT_EQ(
      suggest({output(), "copy", "-o", config}).err,
      "fibshim suggest: several kernels have this name; give the number of one:\n"
      "     1  copy (params [8, 4], 9 launches, xxh128:00000000000000000000000000001234)\n"
      "     2  copy (params [8, 4, 4], 7 launches, xxh128:00000000000000000000000000001234)\n");
  (void)exits(0, suggest({output(), "1", "-o", config}));
  const auto second = parse_json(exits(0, suggest({output(), "2", "-o", config, "--json"})).out);
  EXPECT_EQ(second["label"], "copy-2-fp32");
  EXPECT_EQ(second["definition"], "copy_2_fp32");
  EXPECT_EQ(run_fibshim({"check", config}).exit_code, 0);
  const auto kernels = parse_json(
      run_fibshim({"record", "--summary", output(), "-c", config, "--json"}).out)["kernels"];
  EXPECT_EQ(kernels[0]["patterns"][0]["label"], "copy-fp32");
  EXPECT_EQ(kernels[1]["patterns"][0]["label"], "copy-2-fp32");
  // The first pattern exists already.
  EXPECT_CONTAINS(exits(1, suggest({output(), "1", "-o", config})).err, "copy-fp32.json is there");
}

TEST_F(Suggest, TellsKernelsOfOneSymbolApartByTheirImages) {
  const std::vector<RecordedParamValues> params = {{8, {{kAddress, 9}}}, {4, {{2, 9}}}};
  RecordingBuilder builder;
  builder.kernel("_Z4copyPfi", params, 9, 0, 0xaaaa).geometry(1, 1, 9, 0, {});
  builder.kernel("_Z4copyPfi", params, 7, 0, 0xbbbb, 0xc0de).geometry(1, 1, 7, 0, {});
  builder.kernel("_Z4fillPfi", params, 5, 0, 0xcccc).geometry(1, 1, 5, 0, {});
  ASSERT_EQ(gather({builder.bytes()}).exit_code, 0);
  const std::string config = folder_ / "config";
  for (const char* number : {"1", "2", "3"}) {
    (void)exits(0, suggest({output(), number, "-o", config}));
  }
  const auto match_of = [&](const char* label) {
    return parse_json(read_text(config + "/patterns/" + label + ".json"))["match"];
  };
  EXPECT_EQ(match_of("copy-fp32")["image"],
            parse_json(R"(["xxh128:0000000000000000000000000000aaaa"])"));
  EXPECT_EQ(match_of("copy-2-fp32")["image"],
            parse_json(R"(["code:0000000000000000000000000000c0de"])"));
  EXPECT_FALSE(match_of("fill-fp32").contains("image"));
  const auto kernels = parse_json(
      run_fibshim({"record", "--summary", output(), "-c", config, "--json"}).out)["kernels"];
  for (const auto& kernel : kernels) {
    size_t fitting = 0;
    for (const auto& pattern : kernel["patterns"]) fitting += pattern["fits"] == true ? 1 : 0;
    EXPECT_EQ(fitting, 1u) << kernel.dump(2);
  }
}

TEST_F(Suggest, NeverReplacesAKernelThatIsWritten) {
  ASSERT_EQ(gather({example().bytes()}).exit_code, 0);
  const std::string config = folder_ / "config";
  ASSERT_EQ(suggest({output(), "scale", "-o", config}).exit_code, 0);
  const std::string solution = config + "/solutions/scale_n4096_fp32/";
  write_text(solution + "kernel.cu", "extern \"C\" __global__ void mine() {}\n");
  write_text(solution + "build.sh", "old\n");
  const ProgramResult again = exits(0, suggest({output(), "scale", "-o", config, "--force"}));
  EXPECT_CONTAINS(again.err, "kernel.cu is kept");
  EXPECT_EQ(read_text(solution + "kernel.cu"), "extern \"C\" __global__ void mine() {}\n");
  EXPECT_NE(read_text(solution + "build.sh"), "old\n");
}

TEST_F(Suggest, BuildKeepsTheImagesOfOtherArchitectures) {
  ASSERT_EQ(gather({example().bytes()}).exit_code, 0);
  const std::string config = folder_ / "config";
  ASSERT_EQ(suggest({output(), "scale", "-o", config}).exit_code, 0);
  // A compiler that writes its arguments to the output file.
  write_text(folder_ / "nvcc",
             "#!/bin/sh\nwhile [ \"$1\" != -o ]; do shift; done\necho \"$*\" >\"$2\"\n");
  fs::permissions(folder_ / "nvcc", fs::perms::owner_all);
  const std::string solution = config + "/solutions/scale_n4096_fp32/";
  const auto build = [&](std::vector<std::string> architectures) {
    architectures.insert(architectures.begin(), {"sh", solution + "build.sh"});
    ProgramOptions options;
    options.environment = {{"NVCC", folder_ / "nvcc"}};
    (void)exits(0, run_program(architectures, options));
    std::map<std::string, std::string> sums;
    const auto written = parse_json(read_text(solution + "scale_n4096_fp32.json"));
    for (const auto& image : written["launch"]["images"]) {
      sums[image["path"]] = image["sha256"];
    }
    return sums;
  };
  const auto first = build({});
  ASSERT_EQ(first.size(), 1u);
  EXPECT_EQ(first.begin()->first, "scale_n4096_fp32.sm_90.cubin");
  EXPECT_EQ(first.begin()->second.size(), 64u);
  const auto second = build({"sm_80"});
  ASSERT_EQ(second.size(), 2u);
  EXPECT_EQ(second.at("scale_n4096_fp32.sm_90.cubin"), first.begin()->second);
  EXPECT_NE(second.at("scale_n4096_fp32.sm_80.cubin"), first.begin()->second);
  EXPECT_EQ(build({"sm_100", "sm_120"}).size(), 4u);
}

TEST_F(Suggest, EqualValuesAreOneAxis) {
  RecordingBuilder builder;
  builder.kernel("_Z4copyPfiil",
                 {{8, {{kAddress, 9}}}, {4, {{4096, 9}}}, {4, {{4096, 9}}}, {8, {{4096, 9}}}}, 9);
  ASSERT_EQ(gather({builder.bytes()}).exit_code, 0);
  ASSERT_EQ(suggest({output(), "1", "-o", folder_ / "config"}).exit_code, 0);
  const auto pattern = parse_json(read_text(folder_ / "config/patterns/copy-n-fp32.json"));
  EXPECT_EQ(pattern["definition"], "copy_n{n}_fp32");
  EXPECT_EQ(pattern["axes"]["n"], parse_json(R"({"arg": 1, "type": "int32"})"));
  EXPECT_EQ(pattern["where"], parse_json(R"(["output0 != 0", "arg2 == n", "arg3 == n"])"));
  EXPECT_EQ(run_fibshim({"check", folder_ / "config"}).exit_code, 0);
}

TEST_F(Suggest, NamesAfterTheFunctionWhateverItsTemplateArguments) {
  const std::pair<const char*, const char*> cases[] = {
      // tw<int, ((3)>(2))>::type vk<int, 3>(float*, int)
      {"_Z2vkIiLi3EEN2twIT_XgtT0_Li2EEE4typeEPfS1_", "vk_fp32"},
      // void n::dep<float, 2>(W<float, ((sizeof (float))>(2)), true>, float*)
      {"_ZN1n3depIfLi2EEEv1WIT_XgtstS2_T0_ELb1EEPf", "dep"},
      // void row<&(S::operator>(int)), true>(float*)
      {"_Z3rowIXadL_ZN1SgtEiEELb1EEvPf", "row_fp32"},
      // void row<(2)>>(1), true>(float*)
      {"_Z3rowIXrsLi2ELi1EELb1EEvPf", "row_fp32"},
      // void row<(2)<(1), true>(float*)
      {"_Z3rowIXltLi2ELi1EELb1EEvPf", "row_fp32"},
      // at::native::block<(anonymous namespace)::Kind, true>(float*)
      {"_ZN2at6native5blockINS0_12_GLOBAL__N_14KindELb1EEEvPf", "block_fp32"},
  };
  for (const auto& [symbol, name] : cases) {
    RecordingBuilder builder;
    std::vector<RecordedParamValues> params = {{8, {{kAddress, 9}}}};
    if (std::string_view(symbol).ends_with("S1_")) params.push_back({4, {{2, 9}}});
    if (std::string_view(name) == "dep") params.insert(params.begin(), {1, {{0, 9}}});
    builder.kernel(symbol, params, 9);
    ASSERT_EQ(gather({builder.bytes()}).exit_code, 0);
    const std::string config = folder_ / "config";
    fs::remove_all(config);
    const auto suggested =
        parse_json(exits(0, suggest({output(), "1", "-o", config, "--json"})).out);
    EXPECT_TRUE(suggested["definition"].get<std::string>().starts_with(name)) << suggested;
  }
}

}  // namespace
}  // namespace fibshim::test
