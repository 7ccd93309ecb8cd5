// fibshim record on recordings that are made here: what it shows and what it refuses.
// tests/shim/record_test.cc records programs.

#include "tests/support/text.h"
#include "tests/tools/config_folder.h"
#include "tests/tools/recorded_files.h"

namespace fibshim::test {
namespace {

namespace fs = std::filesystem;

TEST_F(RecordFiles, SummaryRanksTheKernelsByTime) {
  ASSERT_EQ(gather({example().bytes()}).exit_code, 0);
  const ProgramResult result = exits(0, run_fibshim({"record", "--summary", output()}));
  EXPECT_EQ(
      result.out,
      "GPU time 1.010 ms by events; replays of graphs are not in it\n"
      "\n"
      "#  SHARE  GPU ms  MEAN us   SPREAD us  LAUNCHES  IN GRAPHS  REPLAYED  PATTERN  KERNEL\n"
      "1  99.0%   1.000    10.00  8.00-12.00       100          0         -  -        scale\n"
      "2   1.0%   0.010     2.00   2.00-2.00         5          2         -  -        "
      "triton_add_one\n"
      "3      -       -        -           -         1          0         -  -        init\n"
      "\n"
      "3 kernels, 106 launches, 2 in graphs in 1 process\n");
  EXPECT_EQ(result.err, "");
}

// A decode step in a graph, and before it the same kernels eagerly; busy for 10 us of 20.
RecordingBuilder traced() {
  RecordingBuilder builder;
  builder.timing(RecordedTiming::cupti);
  builder.kernel("engine_scale", {{8, {}}, {8, {}}, {4, {}}, {1, {}}, {4, {}}}, 5, 1)
      .geometry(16, 256, 5, 1, {});
  builder.kernel("_Z3mulv", {}, 0, 1).geometry(1, 32, 0, 1, {});
  builder.runs("engine_scale", 16, 256, false, {3, 60000, 10000, 30000}, {2, 4000, 1900, 2100})
      .runs("engine_scale", 16, 256, true, {3, 6000, 2000, 2000}, {5, 10000, 1500, 2500})
      .runs("_Z3mulv", 1, 32, true, {3, 3000, 1000, 1000}, {5, 5000, 900, 1100})
      .runs("scale", 2, 64, true, {3, 3000, 1000, 1000}, {9, 9000, 1000, 1000});
  return builder.device(1000, 21000, 10000);
}

TEST_F(RecordFiles, SummaryBeginsWithWhereTheTimeOfTheGpuWent) {
  write_config_folder(folder_ / "config");
  ASSERT_EQ(gather({traced().bytes()}).exit_code, 0);
  const ProgramResult result =
      exits(0, run_fibshim({"record", "--summary", output(), "-c", folder_ / "config"}));
  // 80 us in the kernel that a pattern fits, 8 in another one, 12 in the solution's.
  EXPECT_EQ(
      result.out,
      "GPU time 0.100 ms by CUPTI, 72.0% of it in first runs\n"
      "busy 50.0% of 0.020 ms from the first kernel that CUPTI told of to the last\n"
      "92.0% of GPU time in kernels that a pattern knows, 12.0% in what replaced them\n"
      "\n"
      "#  SHARE  GPU ms  MEAN us  SPREAD us  LAUNCHES  IN GRAPHS  REPLAYED  PATTERN        KERNEL\n"
      "1  80.0%   0.080     2.00  1.50-2.50         5          1         8  engine-scale   "
      "engine_scale\n"
      "2  12.0%   0.012     1.00  1.00-1.00         0          0        12  = scale_h4096  scale\n"
      "3   8.0%   0.008     1.00  0.90-1.10         0          1         8  -              mul\n"
      "\n"
      "3 kernels, 5 launches, 2 in graphs in 1 process\n"
      "patterns of " +
          (folder_ / "config") + "\n");
  const auto json = parse_json(
      run_fibshim({"record", "--summary", output(), "-c", folder_ / "config", "--json"}).out);
  EXPECT_EQ(json["gpu_time"], parse_json(R"({"total_us":100.0,"source":"CUPTI","warm_up_us":72.0,
    "span_us":20.0,"busy_share":0.5,"known_share":0.92,"replaced_share":0.12,"dropped_runs":0,
    "events_because":{}})"));
  EXPECT_EQ(json["kernels"][0]["ran"], parse_json(R"({"eagerly":5,"in_graphs":8,
    "eager_mean_us":2.0,"in_graph_mean_us":2.0})"));
  EXPECT_EQ(json["kernels"][1]["replaces"], "scale_h4096");
  EXPECT_EQ(json["kernels"][2]["replaces"], nullptr);
}

TEST_F(RecordFiles, RunsOfKernelsWithOneNameGoByTheirGeometryElseTogether) {
  RecordingBuilder builder;
  builder.timing(RecordedTiming::cupti);
  builder.kernel("twin", {{8, {}}}, 4, 0, 1).geometry(1, 32, 2, 0, {}).geometry(2, 32, 2, 0, {});
  builder.kernel("twin", {{8, {}}}, 6, 0, 2).geometry(2, 32, 4, 0, {}).geometry(3, 32, 2, 0, {});
  builder.runs("twin", 1, 32, false, {2, 2000, 1000, 1000}, {})
      .runs("twin", 2, 32, false, {3, 6000, 2000, 2000}, {3, 6000, 2000, 2000})
      .runs("twin", 3, 32, false, {2, 10000, 5000, 5000}, {});
  ASSERT_EQ(gather({builder.bytes()}).exit_code, 0);
  const auto kernels =
      parse_json(exits(0, run_fibshim({"record", "--summary", output(), "--json"})).out)["kernels"];
  ASSERT_EQ(kernels.size(), 2u);
  EXPECT_EQ(kernels[0]["ran"]["eagerly"], 2 + 6) << kernels;
  EXPECT_EQ(kernels[1]["ran"]["eagerly"], 2);
  for (const auto& kernel : kernels) EXPECT_EQ(kernel["shares_runs"], true);
  const std::string text = run_fibshim({"record", "--summary", output()}).out;
  EXPECT_CONTAINS(text, "#1 has the name and geometries of another kernel");
}

TEST_F(RecordFiles, SummarySaysWhyEventsWereMeasuredAndWhatIsMissing) {
  RecordingBuilder builder = example();
  builder.timing(RecordedTiming::taken_over, "the program, or a tool, used CUPTI itself");
  ASSERT_EQ(gather({builder.bytes()}).exit_code, 0);
  const std::string text = run_fibshim({"record", "--summary", output()}).out;
  EXPECT_CONTAINS(text, "GPU time 1.010 ms by CUPTI and events\n");
  EXPECT_CONTAINS(text,
                  "events instead of CUPTI in 1 process: the program, or a tool, used CUPTI "
                  "itself\n");
}

TEST_F(RecordFiles, ComparesTwoRecordings) {
  const std::string a = folder_ / "a.jsonl";
  const std::string b = folder_ / "b.jsonl";
  const auto write = [&](const std::string& to, const RecordingBuilder& builder) {
    ASSERT_EQ(gather({builder.bytes()}).exit_code, 0);
    std::filesystem::rename(output(), to);
  };
  const auto build = [](const char* own, uint32_t grid, uint64_t launches, uint64_t sum_ns) {
    RecordingBuilder builder;
    builder.kernel("same", {}, 3).geometry(1, 32, 3, 0, {1, 5000, 5000, 5000});
    builder.kernel("shaped", {}, 3).geometry(grid, 32, 3, 0, {1, 5000, 5000, 5000});
    builder.kernel("counted", {}, launches).geometry(1, 32, launches, 0, {});
    builder.kernel("timed", {}, 4).geometry(1, 32, 4, 0, {4, sum_ns, 1, 90000});
    builder.kernel(own, {}, 2).geometry(1, 32, 2, 0, {});
    return builder;
  };
  write(a, build("old", 1, 5, 40000));
  write(b, build("new", 2, 6, 48000));
  const ProgramResult same = exits(0, run_fibshim({"record", "--compare", a, a}));
  EXPECT_EQ(same.out, "no difference; times within 10 %\n");
  const ProgramResult text = exits(1, run_fibshim({"record", "--compare", a, b}));
  EXPECT_EQ(text.out,
            "only in A\n"
            "GPU ms  LAUNCHES  IN GRAPHS  REPLAYED  KERNEL\n"
            "     -         2          0         0  old\n"
            "\n"
            "only in B\n"
            "GPU ms  LAUNCHES  IN GRAPHS  REPLAYED  KERNEL\n"
            "     -         2          0         0  new\n"
            "\n"
            "other shapes\n"
            "ONLY IN A        ONLY IN B        KERNEL\n"
            "1x1x1 of 32x1x1  2x1x1 of 32x1x1  shaped\n"
            "\n"
            "other counts, A -> B\n"
            "LAUNCHES  IN GRAPHS  RAN  REPLAYED  KERNEL\n"
            "  5 -> 6          0    0         0  counted\n"
            "\n"
            "means further apart than 10 %\n"
            " A us   B us  CHANGE  KERNEL\n"
            "10.00  12.00  +20.0%  timed\n");
  const auto json = parse_json(exits(1, run_fibshim({"record", "--compare", a, b, "--json"})).out);
  EXPECT_EQ(json["equal"], false);
  EXPECT_EQ(json["only_in_b"][0]["symbol"], "new");
  EXPECT_EQ(json["differences"].size(), 3u);
  // Times within the tolerance are not different.
  const auto wide = parse_json(
      exits(1, run_fibshim({"record", "--compare", a, b, "--json", "--tolerance", "25"})).out);
  EXPECT_EQ(wide["differences"].size(), 2u);
  EXPECT_CONTAINS(exits(1, run_fibshim({"record", "--compare", a, "nowhere"})).err, "nowhere");
}

// A file lists the 64 commonest geometries of a kernel.
TEST_F(RecordFiles, ComparesNoShapesForWhichThereWasNoRoom) {
  const auto build = [&](bool is_first_half_common) {
    RecordingBuilder builder;
    builder.kernel("gemm", {}, 1050);
    for (uint32_t i = 0; i < 100; ++i) {
      builder.geometry(i + 1, 128, (i < 50) == is_first_half_common ? 11 : 10, 0, {});
    }
    return builder.bytes();
  };
  const std::string a = folder_ / "a.jsonl";
  ASSERT_EQ(gather({build(true)}).exit_code, 0);
  fs::rename(output(), a);
  ASSERT_EQ(gather({build(false)}).exit_code, 0);
  EXPECT_EQ(exits(0, run_fibshim({"record", "--compare", a, output()})).out,
            "no difference; times within 10 %\n");
  exits(0, run_fibshim({"record", "--compare", folder_ / "recordings", output()}));
  const auto json = parse_json(run_fibshim({"record", "--compare", a, output(), "--json"}).out);
  EXPECT_EQ(json["kernels_left_out"], (nlohmann::json{{"a", 0}, {"b", 0}}));
}

TEST_F(RecordFiles, ComparesNoRunsWithARecordingThatHasNone) {
  RecordingBuilder with, without;
  with.kernel("gemm", {}, 100).geometry(3, 128, 100, 0, {});
  with.runs("gemm", 3, 128, false, {3, 30000, 9000, 11000}, {97, 970000, 9000, 11000});
  with.runs("not_launched", 3, 128, false, {1, 100, 100, 100}, {});
  without.kernel("gemm", {}, 100).geometry(3, 128, 100, 0, {4, 40000, 9000, 11000});
  ASSERT_EQ(gather({with.bytes()}).exit_code, 0);
  fs::rename(output(), folder_ / "with.jsonl");
  ASSERT_EQ(gather({without.bytes()}).exit_code, 0);
  exits(0, run_fibshim({"record", "--compare", folder_ / "with.jsonl", output()}));
  exits(0, run_fibshim({"record", "--compare", output(), folder_ / "with.jsonl"}));
}

// Events time no nodes of graphs, and do not tell which launches were replaced.
TEST_F(RecordFiles, SummaryTellsNoShareOfReplacementsThatCannotBeKnown) {
  write_config_folder(folder_ / "config");
  for (const auto& [hits, share] : {std::pair<uint64_t, const char*>{97, "-"}, {100, "100.0%"}}) {
    RecordingBuilder builder;
    builder.kernel("gemm", {}, 3, 97)
        .outcome(Outcome::untracked, 100 - hits)
        .outcome(Outcome::hit, hits)
        .geometry(3, 128, 3, 97, {3, 300000, 90000, 110000});
    ASSERT_EQ(gather({builder.bytes()}).exit_code, 0);
    const std::vector<std::string> command = {"record", "--summary", output(), "-c",
                                              folder_ / "config"};
    EXPECT_CONTAINS(exits(0, run_fibshim(command)).out,
                    std::string(", ") + share + " in what replaced them\n");
  }
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
            "GPU time was not measured\n"
            "\n"
            "#  SHARE  GPU ms  MEAN us  SPREAD us  LAUNCHES  IN GRAPHS  REPLAYED  PATTERN         "
            "KERNEL\n"
            "1      -       -        -          -         3          0         -  engine-scale    "
            "engine_scale (xxh128:00000000, params [8, 8, 4, 1, 4])\n"
            "2      -       -        -          -         2          0         -  (engine-scale)  "
            "engine_scale (xxh128:00000000, params [8, 8])\n"
            "\n"
            "  #2 engine-scale does not fit: params differ: the kernel's are [8, 8], the pattern's "
            "[8, 8, 4, 1, 4]\n"
            "2 kernels, 5 launches, 0 in graphs in 1 process\n"
            "patterns of " +
                (folder_ / "config") + "\n");
}

// Outcomes of launches are shown only for the folder that was in use, not for another one.
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

// Those of the recording, where all of them are here.
TEST_F(RecordFiles, SummaryComparesThePatternsOfSeveralFolders) {
  write_config_folder(folder_ / "config");
  fs::create_directories(fs::path(folder_ / "first/patterns"));
  const std::string both = folder_ / "first" + ":" + (folder_ / "config");
  RecordingBuilder builder;
  builder.kernel("engine_scale", {{8, {}}, {8, {}}, {4, {}}, {1, {}}, {4, {}}}, 3)
      .geometry(1, 1, 3, 0, {});
  builder.outcome(Outcome::fallback_arch, 3);
  builder.config(both);
  ASSERT_EQ(gather({builder.bytes()}).exit_code, 0);
  const ProgramResult here = exits(0, run_fibshim({"record", "--summary", output(), "--json"}));
  EXPECT_EQ(here.err, "");
  const auto pattern = parse_json(here.out)["kernels"][0]["patterns"][0];
  EXPECT_EQ(pattern["label"], "engine-scale");
  EXPECT_EQ(pattern["why"], "3 fallback_arch: no image for this GPU");
  fs::remove_all(folder_ / "first");
  const ProgramResult gone = exits(0, run_fibshim({"record", "--summary", output(), "--json"}));
  EXPECT_EQ(gone.err, "fibshim record: the program's config folder " + (folder_ / "first") +
                          " is not here: -c DIR compares patterns\n");
  EXPECT_EQ(parse_json(gone.out)["config"], nullptr);
}

// Patterns of other sizes and images have the same symbol.
TEST_F(RecordFiles, SummaryTellsOfFewPatternsThatDoNotFit) {
  write_config_folder(folder_ / "config");
  const auto add = [&](const std::string& label) {
    std::string text = read_text(folder_ / "config/patterns/engine-scale.json");
    text.replace(text.find("engine-scale"), strlen("engine-scale"), label);
    const size_t params = text.find("[8, 8, 4, 1, 4]");
    text.replace(params, strlen("[8, 8, 4, 1, 4]"), "[8, 8, 4, 1, 4, 8]");
    write_text(folder_ / ("config/patterns/" + label + ".json"), text);
  };
  for (const char* const label : {"a", "b", "c", "d"}) add(label);
  RecordingBuilder builder;
  builder.kernel("engine_scale", {{8, {}}, {8, {}}, {4, {}}, {1, {}}, {4, {}}}, 3)
      .geometry(1, 1, 3, 0, {});
  builder.kernel("engine_scale", {{8, {}}, {8, {}}}, 2, 0, 7).geometry(1, 1, 2, 0, {});
  ASSERT_EQ(gather({builder.bytes()}).exit_code, 0);
  const std::string out =
      exits(0, run_fibshim({"record", "--summary", output(), "-c", folder_ / "config"})).out;
  EXPECT_EQ(out.find("#1 "), std::string::npos) << "a pattern fits it";
  size_t told = 0;
  for (size_t at = out.find(" does not fit: "); at != std::string::npos;
       at = out.find(" does not fit: ", at + 1)) {
    ++told;
  }
  EXPECT_EQ(told, 3U);
}

// The shim decides the same: such a pattern does not fit the kernel.
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
      {other_version, "format version 99; this fibshim reads version 4"},
      {no_magic, "not a recording"},
      {fine.substr(0, fine.size() - 8), "damaged: it claims"},
  };
  for (const auto& [bytes, reason] : cases) {
    EXPECT_CONTAINS(exits(1, gather({bytes, fine})).err, std::string("1-0.recording: ") + reason);
    EXPECT_CONTAINS(read_text(output()), "\"launches\":106");
  }
  // A file that its process has not begun yet: the magic is written last.
  EXPECT_EQ(gather({std::string(65536, '\0'), fine}).exit_code, 0);
}

TEST_F(RecordFiles, DamageAnywhereIsRefusedOrReadButNeverACrash) {
  RecordingBuilder builder = example();
  const std::string fine = builder.runs("_Z4initv", 1, 1, true, {1, 1000, 1000, 1000}, {})
                               .device(1000, 2000, 1000)
                               .bytes();
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

TEST_F(RecordFiles, RefusesJsonThatLacksKernels) {
  ASSERT_EQ(gather({example().bytes()}).exit_code, 0);
  const std::string fine = read_text(output());
  const auto summarize = [&](const std::string& text) {
    write_text(output(), text);
    return run_fibshim({"record", "--summary", output()});
  };
  const std::string cut = fine.substr(0, fine.rfind('\n', fine.size() - 2) + 1);
  EXPECT_CONTAINS(exits(1, summarize(cut)).err, "it is not whole: it has 2 of 3 kernels\n");
  EXPECT_CONTAINS(exits(1, summarize(fine + cut)).err, "5 of 6 kernels");
  EXPECT_CONTAINS(exits(0, summarize(fine + fine)).out, "6 kernels, 212 launches");
  // A recording that does not say how many it has.
  const std::string number = "\"kernels\":3,";
  EXPECT_CONTAINS(cut, number);
  EXPECT_EQ(summarize(std::string(cut).erase(cut.find(number), number.size())).exit_code, 0);
}

TEST_F(RecordFiles, AreWholeWithoutWhatTheLimitLeavesOut) {
  RecordingBuilder builder;
  for (int i = 0; i < 300; ++i) {
    builder.kernel("kernel" + std::to_string(i), {}, 1).geometry(1, 1, 1, 0, {});
  }
  ASSERT_EQ(gather({builder.bytes()}).exit_code, 0);
  exits(0, run_fibshim(
               {"record", "--from", folder_ / "recordings", "-o", output(), "--limit", "64kb"}));
  EXPECT_LACKS(read_text(output()), "\"kernels_left_out\":0,");
  EXPECT_EQ(run_fibshim({"record", "--summary", output()}).exit_code, 0);
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
  for (const std::vector<std::string>& arguments : std::vector<std::vector<std::string>>{
           {"record"},
           {"record", "--", "true"},
           {"record", "-o", "x"},
           {"record", "-o", "x", "--summary", "y"},
           {"record", "-o", "x", "--json", "--", "true"},
           {"record", "-o", "x", "--limit", "10", "--", "true"},
           {"record", "-o", "x", "--mode", "off", "--", "true"},
           {"record", "--summary", "x", "--", "true"},
           {"record", "--compare", "x"},
           {"record", "--compare", "x", "y", "--summary", "z"},
           {"record", "-o", "x", "--tolerance", "5", "--", "true"},
           {"record", "-o", "x", "--times", "cuda", "--", "true"},
           {"record", "--summary", "x", "--mode", "observe"},
           {"record", "--summary", "x", "--limit", "1mb"},
           {"record", "--summary", "x", "--tensors", "y"},
           {"record", "--compare", "x", "y", "--keep-images", "*"},
           {"record", "--compare", "x", "y", "-c", "z"},
           {"record", "--compare", "x", "y", "--progress"},
           {"record", "--from", "x", "-o", "y", "--force"},
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

TEST_F(RecordFiles, AreForTheirOwnerAlone) {
  ASSERT_EQ(gather({example().bytes()}).exit_code, 0);
  EXPECT_EQ(fs::status(output()).permissions(), fs::perms(0600));
}

TEST_F(RecordFiles, AnEarlierRecordingIsNotTakenForThatOfAProgramThatRecordsNothing) {
  const auto record = [&](const std::string& script) {
    return run_fibshim({"record", "--simulate", "-o", output(), "--", "sh", "-c", script});
  };
  EXPECT_CONTAINS(exits(0, record("true")).err, "no launch was recorded");
  ASSERT_EQ(gather({example().bytes()}).exit_code, 0);
  const std::string before = read_text(output());
  EXPECT_CONTAINS(exits(1, record("true")).err, output() + " is an earlier recording\n");
  EXPECT_EQ(record("exit 5").exit_code, 5);
  EXPECT_EQ(read_text(output()), before);
}

TEST_F(RecordFiles, GoesOnWhereNobodyReadsItsMessages) {
  // The second line of progress has no reader.
  exits(0,
        run_program({"bash", "-c",
                     "\"$0\" record --simulate --progress -o \"$1\" -- sleep 3 2>&1 | head -n 1; "
                     "exit ${PIPESTATUS[0]}",
                     build_path("bin/fibshim"), output()}));
  // The program gets the signal as it would without.
  EXPECT_EQ(run_fibshim({"record", "--simulate", "-o", folder_ / "other", "--", "sh", "-c",
                         "kill -PIPE $$; exit 3"})
                .exit_code,
            128 + 13);
}

TEST_F(RecordFiles, RefusesWhereItCannotWriteBeforeTheProgramRuns) {
  write_text(folder_ / "file", "");
  for (const std::vector<std::string>& where : std::vector<std::vector<std::string>>{
           {"-o", folder_.path()},
           {"-o", folder_ / "x", "-c", build_path("config/demo"), "--tensors", folder_ / "file"}}) {
    std::vector<std::string> command = {"record", "--", "touch", folder_ / "ran"};
    command.insert(command.begin() + 1, where.begin(), where.end());
    EXPECT_CONTAINS(exits(1, run_fibshim(command)).err, where.back() + ": ");
    EXPECT_FALSE(fs::exists(folder_ / "ran"));
    EXPECT_FALSE(fs::exists(folder_ / "x.parts"));
  }
}

TEST_F(RecordFiles, AFolderWithoutRecordingsIsNoRecording) {
  fs::create_directories(folder_ / "empty");
  for (const std::vector<std::string>& command : std::vector<std::vector<std::string>>{
           {"record", "--summary", folder_ / "empty"},
           {"record", "--from", folder_ / "empty", "-o", folder_ / "made"}}) {
    EXPECT_CONTAINS(exits(1, run_fibshim(command)).err, "empty: a folder without recordings");
  }
  EXPECT_FALSE(fs::exists(folder_ / "made"));
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
