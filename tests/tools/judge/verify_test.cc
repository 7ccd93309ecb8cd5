// `fibshim verify`, `bench` and `report` as a user runs them, on the simulated driver, with solutions
// that are right and solutions that are wrong in one way each.
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <filesystem>
#include <regex>

#include "tests/support/text.h"
#include "tests/tools/judge/judged_folder.h"
#include "tests/tools/recording_file_builder.h"

namespace fibshim::test {
namespace {

class Judge : public ::testing::Test {
 protected:
  void write_norm(const std::string& kernel, const std::string& where = kAligned,
                  const std::string& more = "", const std::string& below = "config") {
    write_text(folder_ / (below + "/definitions/rmsnorm_h64.json"), kNormDefinition);
    write_text(folder_ / (below + "/patterns/engine-norm.json"), kNormPattern);
    write_text(folder_ / (below + "/solutions/norm.json"),
               solution("rmsnorm_h64", kernel, kNormArguments, where, more));
    copy_image(below);
  }
  void copy_image(const std::string& below = "config") {
    std::filesystem::copy_file(build_path(kImage),
                               folder_ / (below + "/solutions/judged_kernels.sm_90.cubin"),
                               std::filesystem::copy_options::overwrite_existing);
  }
  static ProgramOptions with_kernels() {
    return {{{"LD_LIBRARY_PATH", build_path("sim")},
             {"SIMCUDA_KERNELS", build_path("tests/data/libjudged_kernels.so")}},
            ""};
  }
  ProgramResult run(std::vector<std::string> arguments) {
    return run_fibshim(std::move(arguments), with_kernels());
  }
  ProgramResult verify(std::vector<std::string> more = {}) {
    std::vector<std::string> arguments = {"verify", folder_ / "config", "--axis",
                                          "batch_size=1,3,8"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run(arguments);
  }

  TemporaryFolder folder_;
};

TEST_F(Judge, PassesARightSolution) {
  write_norm("norm_right");
  const ProgramResult result = exits(0, verify());
  EXPECT_CONTAINS(result.out, "3 cases: 3 passed, 0 failed");
  // Another test may be using the GPU.
  const bool has_waited = result.err.rfind("fibshim verify: waiting for another fibshim", 0) == 0;
  EXPECT_EQ(has_waited ? result.err.substr(result.err.find('\n') + 1) : result.err, "");
}

TEST_F(Judge, GivesASolutionItsWorkspace) {
  write_norm("norm_right");
  std::string arguments = kNormArguments;
  arguments.insert(arguments.size() - 1, ", \"workspace\"");
  write_text(folder_ / "config/solutions/norm.json",
             solution("rmsnorm_h64", "norm_with_workspace", arguments,
                      R"([], "workspace": "4 * batch_size")"));
  EXPECT_CONTAINS(exits(0, verify()).out, "3 cases: 3 passed, 0 failed");
  EXPECT_CONTAINS(exits(0, run({"bench", folder_ / "config", "--axis", "batch_size=1,8"})).out,
                  "2 cases: 2 passed, 0 failed");
}

TEST_F(Judge, GivesAnInputTheValueThatThePatternFixes) {
  write_norm("norm_right");
  std::string definition = test::kNormDefinition;
  definition.insert(definition.find("\"weight\""),
                    R"("mode": {"shape": null, "dtype": "int32"}, )");
  write_text(folder_ / "config/definitions/rmsnorm_h64.json", definition);
  EXPECT_CONTAINS(exits(1, verify()).out, "the integer input \"mode\" needs a range");
  std::string pattern = test::kNormPattern;
  pattern.insert(pattern.find("\"eps\""), R"("mode": {"value": 3}, )");
  write_text(folder_ / "config/patterns/engine-norm.json", pattern);
  EXPECT_CONTAINS(exits(0, verify()).out, "3 cases: 3 passed, 0 failed");
}

TEST_F(Judge, SaysInOneLineWhyACaseCouldNotRun) {
  write_norm("norm_right");
  const ProgramResult result =
      exits(1, run({"verify", folder_ / "config", "--axis", "batch_size=999999999999"}));
  EXPECT_CONTAINS(result.out, "1 case: 0 passed, 1 failed");
  EXPECT_LACKS(result.out + result.err, "\\x0a");
}

// Judges sizes around those in a "when", where it holds. bench times other sizes if asked to.
TEST_F(Judge, JudgesASolutionAtTheSizesThatItIsFor) {
  write_norm("norm_right");
  const std::string path = folder_ / "config/solutions/norm.json";
  auto solution = parse_json(read_text(path));
  solution["launch"]["when"] = {"batch_size <= 5"};
  write_text(path, solution.dump());
  const auto sizes = [&](const std::vector<std::string>& arguments, const std::string& status) {
    std::set<int> out;
    const auto document = parse_json(run(arguments).out);
    for (const auto& record : document["records"]) {
      if (record["evaluation"]["status"] != status) continue;
      out.insert(record["workload"]["axes"]["batch_size"].get<int>());
    }
    return out;
  };
  const std::string config = folder_ / "config";
  EXPECT_EQ(sizes({"verify", "--json", config}, "PASSED"), (std::set<int>{1, 3, 4, 5}));
  const std::vector<std::string> bench = {
      "bench", "--json", config, "--axis", "batch_size=5,6", "--iterations", "1", "--trials", "1"};
  EXPECT_EQ(sizes(bench, "PASSED"), (std::set<int>{5}));
  std::vector<std::string> all = bench;
  all.emplace_back("--all-sizes");
  EXPECT_EQ(sizes(all, "PASSED"), (std::set<int>{5, 6}));
  EXPECT_CONTAINS(run({"verify", config, "--axis", "batch_size=6"}).err,
                  "its \"when\" does not hold");
  // A second solution takes over at other sizes; both are judged.
  solution["name"] = "for_more";
  solution["launch"]["when"] = {"batch_size >= 5"};
  solution["launch"]["benefit"] = -1;
  write_text(folder_ / "config/solutions/more.json", solution.dump());
  EXPECT_EQ(sizes({"verify", "--json", config}, "PASSED"),
            (std::set<int>{1, 3, 4, 5, 6, 17, 64, 257}));
  EXPECT_CONTAINS(run({"verify", config, "--axis", "batch_size=5"}).err,
                  "for_more: solution \"by_norm_right\" is for this size");
}

// 135,000 rows take 35 MB. eps differs from run to run, beginning with the definition's own.
TEST_F(Judge, RunsLargeCasesOnceEachWithOtherInputs) {
  write_norm("norm_ignores_eps");
  const std::string config = folder_ / "config";
  EXPECT_CONTAINS(exits(1, run({"verify", config, "--axis", "batch_size=135000,135001"})).out,
                  "2 cases: 1 passed, 1 failed");
}

// Speaks as the script that verify gives to a Python, without torch: writes down what it is asked.
constexpr char kInterpreter[] = R"py(#!/usr/bin/env python3
import json, os, re, struct, sys
log = open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "log"), "a", buffering=1)
log.write("start\n")
print("{}", flush=True)
def read(path):
    data = open(path, "rb").read()
    size, = struct.unpack("<Q", data[:8])
    header = json.loads(data[8:8 + size])
    tensors = {}
    for name, entry in header.items():
        begin, end = (8 + size + at for at in entry["data_offsets"])
        values = struct.unpack("<%dH" % ((end - begin) // 2), data[begin:end])
        tensors[name] = [struct.unpack("<f", struct.pack("<I", value << 16))[0] for value in values]
    return tensors, header
for line in sys.stdin:
    request = json.loads(line)
    if "reference" in request:
        eps = float((re.findall(r"EPS = (\S+)", request["reference"]) or [1e-6])[0])
        log.write("define " + request["name"] + " " + str(eps) + "\n")
        print("{}", flush=True)
        continue
    log.write("run\n")
    tensors, header = read(request["inputs"])
    x, weight = tensors["hidden_states"], tensors["weight"]
    y = []
    for at in range(0, len(x), 64):
        row = x[at:at + 64]
        scale = (sum(value * value for value in row) / 64 + eps) ** -0.5
        y += [value * scale * w for value, w in zip(row, weight)]
    text = json.dumps({"output": {"dtype": "F64", "shape": header["hidden_states"]["shape"],
                                  "data_offsets": [0, len(y) * 8]}}).encode()
    with open(request["outputs"], "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + struct.pack("<%dd" % len(y), *y))
    print("{}", flush=True)
)py";

// Importing torch takes seconds, of which a folder has hundreds of solutions.
TEST_F(Judge, StartsPythonOnceForAllSolutionsAndAgainAfterACrash) {
  write_norm("norm_right");
  const std::string config = folder_ / "config", python = folder_ / "python";
  write_text(python, kInterpreter);
  std::filesystem::permissions(python, std::filesystem::perms::owner_all);
  auto solution = parse_json(read_text(config + "/solutions/norm.json"));
  const auto write = [&](const std::string& file, const std::string& kernel, int rows) {
    solution["name"] = file;
    solution["launch"]["kernel"] = kernel;
    solution["launch"]["when"] = {"batch_size == " + std::to_string(rows)};
    write_text(config + "/solutions/" + file + ".json", solution.dump());
  };
  write("norm", "norm_right", 1);
  write("second", "norm_right", 3);
  write("third", "norm_right", 8);
  const auto starts = [&] {
    const std::string log = read_text(folder_ / "log");
    size_t count = 0;
    for (size_t at = 0; (at = log.find("start\n", at)) != std::string::npos; ++at) ++count;
    std::filesystem::remove(folder_ / "log");
    return count;
  };
  EXPECT_CONTAINS(exits(0, verify({"--python", python})).out, "3 cases: 3 passed");
  EXPECT_EQ(starts(), 1u);
  write("second", "norm_crashes", 3);
  EXPECT_CONTAINS(exits(1, verify({"--python", python})).out, "3 cases: 2 passed, 1 failed");
  EXPECT_EQ(starts(), 2u);
}

// kNormPattern of a kernel that is compiled for this eps.
std::string pattern_with_eps(const std::string& label, const std::string& eps) {
  auto pattern = parse_json(kNormPattern);
  pattern["label"] = label;
  pattern["match"]["symbol"] = "engine_" + label;
  pattern["arguments"]["eps"] = {{"value", parse_json(eps)}};
  return pattern.dump();
}

// The definition's reference has 1e-6. Where the inputs are small, the other is far off.
TEST_F(Judge, HandsTheReferenceTheEpsOfThePattern) {
  write_norm("norm_right");
  const std::string config = folder_ / "config", python = folder_ / "python";
  write_text(config + "/patterns/engine-norm.json", pattern_with_eps("eps5", "1e-5"));
  write_text(config + "/patterns/second.json", pattern_with_eps("eps6", "1e-6"));
  EXPECT_CONTAINS(exits(0, verify()).out, "3 cases: 3 passed, 0 failed");
  write_text(python, kInterpreter);
  std::filesystem::permissions(python, std::filesystem::perms::owner_all);
  EXPECT_CONTAINS(exits(0, verify({"--python", python})).out, "3 cases: 3 passed, 0 failed");
  EXPECT_CONTAINS(read_text(folder_ / "log"), "define rmsnorm_h64 1e-05");

  write_norm("norm_ignores_eps");
  write_text(config + "/patterns/engine-norm.json", pattern_with_eps("eps5", "1e-5"));
  for (const auto& more : {std::vector<std::string>(), {"--python", python}}) {
    EXPECT_CONTAINS(exits(1, verify(more)).out, "called as by pattern \"eps5\": ");
  }
}

TEST_F(Judge, DoesNotJudgeByAReferenceOfAnotherEps) {
  write_norm("norm_right");
  const std::string config = folder_ / "config", python = folder_ / "python";
  const std::string definition = config + "/definitions/rmsnorm_h64.json";
  write_text(definition, std::regex_replace(kNormDefinition, std::regex("EPS"), "E"));
  write_text(config + "/patterns/engine-norm.json", pattern_with_eps("eps5", "1e-5"));
  write_text(python, kInterpreter);
  std::filesystem::permissions(python, std::filesystem::perms::owner_all);
  EXPECT_CONTAINS(exits(1, verify({"--python", python})).out,
                  "its launches have eps 1e-05, and the definition's reference does not state its "
                  "own as \"EPS = 1e-06\"");
  // What the solution's block says of eps is taken to be the reference's.
  write_text(config + "/patterns/engine-norm.json", pattern_with_eps("eps6", "1e-6"));
  EXPECT_CONTAINS(exits(0, verify({"--python", python})).out, "3 cases: 3 passed, 0 failed");
}

// Claims and batch sizes of solutions that share a definition.
class BatchInvariance : public Judge {
 protected:
  void write_solutions(const std::vector<std::pair<std::string, std::string>>& all) {
    write_norm(all[0].first);
    for (size_t i = 0; i < all.size(); ++i) {
      auto document =
          parse_json(solution("rmsnorm_h64", all[i].first, kNormArguments, kAligned, ""));
      document["name"] = "solution_" + std::to_string(i);
      document["launch"].update(parse_json(all[i].second));
      write_text(folder_ / (i == 0 ? "config/solutions/norm.json"
                                   : "config/solutions/" + std::to_string(i) + ".json"),
                 document.dump());
    }
  }
  ProgramResult find_out(std::vector<std::string> more = {}) {
    more.insert(more.begin(), {"verify", folder_ / "config", "--batch-invariant"});
    return run(std::move(more));
  }
};

TEST_F(BatchInvariance, IsWhatGivesARowTheSameBitsInEveryBatch) {
  write_solutions({{"norm_right", "{}"}});
  const ProgramResult result = exits(0, find_out());
  EXPECT_CONTAINS(result.out, "1 to 256");
  EXPECT_CONTAINS(result.out, "1 solution: 1 batch-invariant, 0 not");
}

TEST_F(BatchInvariance, IsNotWhatDependsOnTheBatchOrThePlaceByOneBit) {
  write_solutions({{"norm_by_batch", "{}"}});
  EXPECT_CONTAINS(
      exits(1, find_out()).out,
      "\"rstd\": row 2 has other bits at place 2 of a batch of 48 than in a batch of 1");
  write_solutions({{"norm_by_place", R"({"batch_invariant": true})"}});
  EXPECT_CONTAINS(exits(1, find_out()).out,
                  "it claims to be batch-invariant, and is not: \"rstd\": row 7 has other bits at "
                  "place 7 of a batch of 8 than in a batch of 1");
  // It is no fault if the solution says so itself, and all tolerances hold.
  write_solutions({{"norm_by_place", R"({"batch_invariant": false})"}});
  EXPECT_CONTAINS(exits(0, find_out()).out, "0 batch-invariant, 1 not (1 claim not to be)");
  EXPECT_EQ(verify().exit_code, 0);
}

TEST_F(BatchInvariance, IsAskedOfTheSolutionsOfADefinitionTogether) {
  constexpr char kFew[] = R"({"when": ["batch_size <= 7"], "batch_invariant": true})";
  constexpr char kMany[] = R"({"when": ["batch_size > 33"], "batch_invariant": true})";
  write_solutions({{"norm_right", kFew}, {"norm_right", kMany}});
  // All solutions of a definition are judged, whether the definition is named or not.
  ProgramResult result = exits(0, find_out({"--json", "rmsnorm_h64"}));
  auto records = parse_json(result.out)["records"];
  ASSERT_EQ(records.size(), 2u);
  EXPECT_EQ(records[0]["batches"], (std::vector<int>{1, 2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(records[1]["batches"][0], 34);
  EXPECT_EQ(records[1]["status"], "INVARIANT");
  EXPECT_EQ(records[1]["claim"], true);
  // Each solution alone is batch-invariant.
  write_solutions(
      {{"norm_right", kFew}, {"norm_of_other_bits", R"({"when": ["batch_size > 33"]})"}});
  EXPECT_EQ(find_out({"--axis", "batch_size=1,2"}).exit_code, 0);
  records = parse_json(exits(1, find_out({"--json", "--axis", "batch_size=1,64"})).out)["records"];
  for (const auto& record : records) {
    EXPECT_EQ(record["status"], "NOT_INVARIANT");
    EXPECT_CONTAINS(record["log"].get<std::string>(),
                    "\"rstd\": row 0 has other bits by \"solution_1\" in a batch of 64 than by "
                    "\"solution_0\" in one of 1");
  }
}

TEST_F(BatchInvariance, OfWhatCrashesOrCannotBeJudgedIsToldWithTheOthers) {
  write_solutions({{"norm_crashes", "{}"}});
  EXPECT_CONTAINS(exits(1, find_out()).out, "it crashed with signal");
  write_solutions({{"norm_hangs", "{}"}});
  EXPECT_CONTAINS(exits(1, find_out({"--timeout", "1"})).out, "no answer within 1 s");
  EXPECT_CONTAINS(exits(2, find_out({"--output", "x"})).err, "--batch-invariant compares");
}

// What a solution does wrong, and what is said about it.
struct Mistake {
  const char* name;
  const char* kernel;
  const char* status;
  const char* why;
  const char* where = kAligned;
};

constexpr char kWrong[] = "INCORRECT_NUMERICAL";
const Mistake kMistakes[] = {
    {"AnIgnoredEps", "norm_ignores_eps", kWrong, "\"output\": "},
    {"AnElementLeftUnwritten", "norm_leaves_one", kWrong, "element 63 is nan"},
    {"Nan", "norm_writes_nan", kWrong, "not finite"},
    {"ResultsOfEarlierInputs", "norm_stale", kWrong, "(run 2)"},
    {"WritesPastTheEnd", "norm_past_the_end", kWrong, "it writes past \"output\""},
    {"WritesBeforeTheStart", "norm_before_the_start", kWrong, "it writes before \"output\""},
    {"WritesToAnInput", "norm_writes_input", kWrong, "it writes the input \"weight\""},
    {"ReadsPastTheEnd", "norm_reads_past_the_end", kWrong, "not finite"},
    {"AWrongBufferBesideTheDefinition", "norm_wrong_rstd", kWrong, "\"rstd\": "},
    {"AKernelThatHangs", "norm_hangs", "TIMEOUT", "no answer within 2 s"},
    {"AKernelThatCrashes", "norm_crashes", "RUNTIME_ERROR", "it crashed with signal"},
    {"AlignmentThatNoWhereAsksFor", "norm_assumes_alignment", kWrong, "aligned to one element only",
     "[]"},
};

class JudgeCatches : public Judge, public testing::WithParamInterface<Mistake> {};

TEST_P(JudgeCatches, TheMistake) {
  const Mistake& mistake = GetParam();
  write_norm(mistake.kernel, mistake.where);
  const ProgramResult result = exits(1, verify({"--timeout", "2"}));
  EXPECT_CONTAINS(result.out, mistake.status);
  EXPECT_CONTAINS(result.out, mistake.why);
}

INSTANTIATE_TEST_SUITE_P(, JudgeCatches, testing::ValuesIn(kMistakes), kByName);

TEST_F(Judge, ReadsOutputsInTheLayoutOfThePattern) {
  write_norm("norm_by_columns");
  EXPECT_CONTAINS(exits(1, verify()).out, kWrong);
  std::string pattern = kNormPattern;
  const std::string output = R"("output": {)";
  pattern.insert(pattern.find(output) + output.size(),
                 R"("layout": [["batch_size", 1], [64, "batch_size + 1"]], )");
  write_text(folder_ / "config/patterns/engine-norm.json", pattern);
  EXPECT_CONTAINS(exits(0, verify()).out, "0 failed");
  EXPECT_CONTAINS(run({"verify", folder_ / "config", "--batch-invariant"}).out, "left out");
}

TEST_F(Judge, DoesNotJudgeWhatTheReferenceDoesNotKnow) {
  write_norm(
      "norm_right", kAligned,
      R"("verify": {"op": "softmax", "arguments": {"rstd": {"shape": ["batch_size"], "dtype": "float32"}}}, )");
  const ProgramResult result = exits(1, verify());
  EXPECT_CONTAINS(result.out, "NOT JUDGED");
  EXPECT_CONTAINS(result.out, "give --python");
  EXPECT_CONTAINS(result.err, "nothing was judged");
}

TEST_F(Judge, LetsAWhereKeepUnalignedBuffersOut) {
  write_norm("norm_assumes_alignment");
  EXPECT_EQ(verify().exit_code, 0);
}

TEST_F(Judge, GivesUpASolutionThatKeepsFailing) {
  write_norm("norm_crashes");
  EXPECT_CONTAINS(
      exits(1, run({"verify", folder_ / "config", "--axis", "batch_size=1,2,3,4,5"})).out,
      "(batch_size=4): not run: the solution failed 3 times");
}

// The pattern passes one buffer as input and output.
TEST_F(Judge, JudgesInPlaceWhereThePatternCallsSo) {
  const std::string definition = R"json({
    "name": "fused_add_rmsnorm_h64", "op_type": "rmsnorm",
    "axes": {"batch_size": {"type": "var"}, "hidden_size": {"type": "const", "value": 64}},
    "inputs": {
      "hidden_states": {"shape": ["batch_size", "hidden_size"], "dtype": "bfloat16"},
      "residual": {"shape": ["batch_size", "hidden_size"], "dtype": "bfloat16"},
      "weight": {"shape": ["hidden_size"], "dtype": "bfloat16"}},
    "outputs": {
      "output": {"shape": ["batch_size", "hidden_size"], "dtype": "bfloat16"},
      "residual_output": {"shape": ["batch_size", "hidden_size"], "dtype": "bfloat16"}}})json";
  const std::string pattern = R"json({
    "label": "engine-add-norm", "benefit": 1,
    "match": {"symbol": "engine_add_norm", "params": [8, 8, 8, 4]},
    "axes": {"batch_size": {"grid": "x"}},
    "arguments": {
      "hidden_states": {"arg": 0, "dtype": "bfloat16"}, "output": {"arg": 0, "dtype": "bfloat16"},
      "residual": {"arg": 1, "dtype": "bfloat16"},
      "residual_output": {"arg": 1, "dtype": "bfloat16"},
      "weight": {"arg": 2, "dtype": "bfloat16"}, "eps": {"arg": 3, "type": "float32"}},
    "writes": ["output", "residual_output"], "definition": "fused_add_rmsnorm_h64"})json";
  const std::string arguments =
      R"(["hidden_states", "residual", "weight", "output", "residual_output", "eps", "batch_size"])";
  write_text(folder_ / "config/definitions/d.json", definition);
  write_text(folder_ / "config/patterns/p.json", pattern);
  const auto judge = [&](const char* kernel) {
    write_text(folder_ / "config/solutions/s.json",
               solution("fused_add_rmsnorm_h64", kernel, arguments, "[]"));
    copy_image();
    return verify();
  };
  const ProgramResult right = exits(0, judge("add_norm_right"));
  (void)exits(1, judge("add_norm_not_in_place"));
  // The same kernel with separate buffers is right: without a pattern there are no aliases.
  std::filesystem::remove(folder_ / "config/patterns/p.json");
  write_text(folder_ / "config/solutions/s.json",
             solution("fused_add_rmsnorm_h64", "add_norm_not_in_place", arguments, "[]",
                      R"("verify": {"arguments": {"eps": {"value": 1e-6}}}, )"));
  (void)exits(0, verify());
}

TEST_F(Judge, JudgesSamplersByTheirLaw) {
  const std::string definition = R"json({
    "name": "top_k_sampling_v50", "op_type": "sampling",
    "axes": {"batch_size": {"type": "var"}, "vocab_size": {"type": "const", "value": 50}},
    "inputs": {"probs": {"shape": ["batch_size", "vocab_size"], "dtype": "float32"},
               "top_k": {"shape": ["batch_size"], "dtype": "int32"}},
    "outputs": {"samples": {"shape": ["batch_size"], "dtype": "int32"}}})json";
  write_text(folder_ / "config/definitions/d.json", definition);
  const auto judge = [&](const char* kernel) {
    write_text(folder_ / "config/solutions/s.json",
               solution("top_k_sampling_v50", kernel,
                        R"(["probs", "top_k", "samples", "seed", "batch_size"])", "[]",
                        R"("verify": {"arguments": {"seed": {"value": 1, "type": "uint64"}}}, )"));
    copy_image();
    return run({"verify", folder_ / "config", "--axis", "batch_size=4"});
  };
  (void)exits(0, judge("sample_right"));
  EXPECT_CONTAINS(exits(1, judge("sample_outside")).out, "which has no probability");
  EXPECT_CONTAINS(exits(1, judge("sample_greedy")).out, "total variation");
}

TEST_F(Judge, ReadsRecordedWorkloads) {
  write_norm("norm_right");
  // [2, 64] of 1.0, and one uuid.
  std::string header = R"({"x":{"dtype":"BF16","shape":[2,64],"data_offsets":[0,256]}})";
  std::string file(8, '\0');
  file[0] = static_cast<char>(header.size());
  file += header;
  for (int i = 0; i < 128; ++i) file += std::string("\x80\x3f", 2);
  write_text(folder_ / "config/blob/x.safetensors", file);
  const std::string line =
      R"({"definition":"rmsnorm_h64","workload":{"axes":{"batch_size":2},"inputs":{"hidden_states":{"type":"safetensors","path":"./blob/x.safetensors","tensor_key":"KEY"},"weight":{"type":"random"}},"uuid":"recorded-1"},"solution":null,"evaluation":null})";
  const auto with_key = [&](const std::string& key) {
    std::string text = line;
    text.replace(text.find("KEY"), 3, key);
    write_text(folder_ / "config/workloads/rmsnorm/rmsnorm_h64.jsonl", text + "\n");
    return verify({"-o", folder_ / "records.jsonl"});
  };
  (void)exits(0, with_key("x"));
  EXPECT_CONTAINS(read_text(folder_ / "records.jsonl"), "\"recorded-1\"");
  std::filesystem::remove(folder_ / "records.jsonl");
  EXPECT_CONTAINS(exits(1, with_key("y")).out, "it has no tensor \"y\"");

  // One whose eps is another than the pattern's is none of its launches.
  const std::string pattern = folder_ / "config/patterns/engine-norm.json";
  write_text(
      folder_ / "config/workloads/rmsnorm/rmsnorm_h64.jsonl",
      R"({"definition":"rmsnorm_h64","workload":{"axes":{"batch_size":2},"inputs":{},"uuid":"recorded-2"},)"
      R"("solution":null,"evaluation":null,"fibshim":{"scalars":{"eps":1e-5}}})"
      "\n");
  EXPECT_CONTAINS(exits(0, verify()).out, "4 cases: 4 passed, 0 failed");
  write_text(pattern, pattern_with_eps("eps5", "1e-5"));
  EXPECT_CONTAINS(exits(0, verify()).out, "4 cases: 4 passed, 0 failed");
  write_text(pattern, pattern_with_eps("eps6", "1e-6"));
  const ProgramResult other = exits(0, verify());
  EXPECT_CONTAINS(other.out, "3 cases: 3 passed, 0 failed, 1 outside what the solution takes");
  EXPECT_CONTAINS(other.err, "\"eps\" of the recorded launch is not the pattern's");
}

TEST_F(Judge, AddsTheRecordOfACaseWhenItHasRun) {
  write_norm("norm_hangs");
  // Counts the records when the first is there; the next case hangs then.
  const ProgramResult first = run_program(
      {"bash", "-c",
       "\"$0\" verify \"$1\" --axis batch_size=1,3,8 --timeout 2 -q -o \"$2\" >/dev/null & "
       "until [ -s \"$2\" ]; do kill -0 $! || exit 1; sleep 0.02; done; wc -l <\"$2\"; kill $!",
       build_path("bin/fibshim"), folder_ / "config", folder_ / "records.jsonl"},
      with_kernels());
  EXPECT_EQ(exits(0, first).out, "1\n");
}

TEST_F(Judge, ResumesWithoutRunningAgain) {
  write_norm("norm_right");
  const std::string file = folder_ / "records.jsonl";
  ASSERT_EQ(run({"verify", folder_ / "config", "--axis", "batch_size=1", "-o", file}).exit_code, 0);
  // An incomplete line, which a killed run leaves.
  write_text(file, read_text(file) + R"({"definition": "rms)");
  const ProgramResult second = exits(0, verify({"-o", file, "--json"}));
  EXPECT_CONTAINS(second.err, "1 cases were recorded before");
  EXPECT_EQ(parse_json(second.out)["records"].size(), 3u);
  const std::string text = read_text(file);
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 3);
  EXPECT_LACKS(text, "\"rms{");
  // Nothing is left to run: even a kernel that would fail is not started for the same image.
  (void)exits(0, verify({"-o", file}));
  EXPECT_EQ(read_text(file), text);
}

TEST_F(Judge, BenchComparesWithABaseline) {
  write_norm("norm_right");
  write_norm("norm_slow", "[]", "", "baseline");
  const std::string file = folder_ / "records.jsonl";
  (void)exits(0, run({"bench", folder_ / "config", "--baseline", folder_ / "baseline", "--axis",
                      "batch_size=64", "--iterations", "5", "--trials", "2", "-o", file}));
  const auto record = parse_json(read_text(file));
  const auto performance = record["evaluation"]["performance"];
  EXPECT_EQ(record["evaluation"]["fibshim"]["baseline"], "by_norm_slow");
  // The baseline does twenty times the work, so noise cannot reverse the result.
  EXPECT_GT(performance["speedup_factor"].get<double>(), 2) << record;
  EXPECT_EQ(record["evaluation"]["fibshim"]["trial_ms"].size(), 2u);
  // x and y, weight, rstd.
  EXPECT_EQ(record["evaluation"]["fibshim"]["bytes"], 2 * 64 * 64 * 2 + 64 * 2 + 64 * 4);
  EXPECT_EQ(
      run({"bench", folder_ / "config", "--graph", "--axis", "batch_size=4", "--iterations", "2"})
          .exit_code,
      0);
}

// `check` judges a solution's sizes by the times that are kept.
TEST_F(Judge, BenchKeepsItsTimesInTheFolder) {
  write_norm("norm_slow");
  write_norm("norm_right", "[]", "", "baseline");
  const std::string file = folder_ / "config/measurements.json";
  const auto bench = [&](const std::string& sizes, std::vector<std::string> more) {
    std::vector<std::string> arguments = {
        "bench",    "--keep", folder_ / "config", "--iterations",       "5",
        "--trials", "1",      "--axis",           "batch_size=" + sizes};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run(std::move(arguments));
  };
  const auto check = [&] { return run_fibshim({"check", folder_ / "config"}); };
  EXPECT_CONTAINS(exits(0, check()).out, "[unmeasured]");
  const std::vector<std::string> beside = {"--baseline", folder_ / "baseline"};
  EXPECT_CONTAINS(exits(0, bench("1,64", beside)).err, "2 times kept in measurements.json\n");
  std::string said = exits(0, check()).out;
  EXPECT_LACKS(said, "[unmeasured]");
  EXPECT_CONTAINS(said, "slower than \"by_norm_right\" on ");
  EXPECT_CONTAINS(said, "batch_size 64 ");
  // Other sizes are added, the same ones replaced. Without a baseline it is another measurement.
  exits(0, bench("2,64", beside));
  exits(0, bench("64", {}));
  const auto measurements = parse_json(read_text(file))["measurements"];
  ASSERT_EQ(measurements.size(), 2u);
  EXPECT_EQ(measurements[0]["original"], "");
  EXPECT_EQ(measurements[0]["times"].size(), 1u);
  const auto& both = measurements[1];
  EXPECT_EQ(both["original"], "by_norm_right");
  EXPECT_EQ(both["sm"], 90);
  EXPECT_EQ(both["mode"], "bench");
  std::vector<int> sizes;
  for (const auto& time : both["times"]) {
    sizes.push_back(time["axes"]["batch_size"].get<int>());
    EXPECT_GT(time["us"].get<double>(), 0) << time;
    EXPECT_GT(time["original_us"].get<double>(), 0) << time;
  }
  EXPECT_EQ(sizes, (std::vector<int>{1, 2, 64}));
  // It does not overwrite a file that it cannot read.
  const std::string broken = "{\"format\": 1}\n";
  write_text(file, broken);
  EXPECT_CONTAINS(exits(1, bench("1", {})).err, "measurements.json:1:1: error: ");
  EXPECT_EQ(read_text(file), broken);
}

// Without a GPU, which another program had.
TEST_F(Judge, BenchKeepsTimesOfOthers) {
  write_norm("norm_right");
  const std::string from = folder_ / "times.json";
  const auto keep = [&](const std::string& solution, const std::string& gpu = "NVIDIA H200") {
    write_text(from,
               R"({"format": 1, "measurements": [{"definition": "rmsnorm_h64", "solution": ")" +
                   solution + R"(", "images": ")" + std::string(64, '0') + R"(", "gpu": ")" + gpu +
                   R"(", "sm": 90, "driver": "13.0",
                         "date": "2026-11-22", "mode": "bench-graph", "original": "engine-norm",
                         "times": [{"axes": {"batch_size": 64}, "us": 9, "p10_us": 8, "p90_us": 10,
                                    "original_us": 3}]}]})");
    return run({"bench", "--keep-from", from, folder_ / "config"});
  };
  EXPECT_CONTAINS(exits(1, keep("by_another")).err,
                  "times.json: the folder has no solution \"by_another\" of \"rmsnorm_h64\"");
  EXPECT_CONTAINS(exits(0, keep("by_norm_right")).err, "1 time kept in measurements.json");
  const std::vector<std::string> command = {"bench", "--keep-from", from, folder_ / "config"};
  const auto with = [&](const std::string& word) {
    std::vector<std::string> words = command;
    words.push_back(word);
    return run(words);
  };
  EXPECT_EQ(parse_json(exits(0, with("--json")).out)["kept"], 1);
  EXPECT_CONTAINS(exits(2, with("layernorm_*")).err,
                  "the folder has no solution for 'layernorm_*'");
  const std::string said = exits(0, run_fibshim({"check", folder_ / "config"})).out;
  EXPECT_LACKS(said, "[unmeasured]");
  EXPECT_CONTAINS(said, "slower than \"engine-norm\" on NVIDIA H200 ");
  // Those of another GPU stand beside them; of what other images took nothing stays.
  const std::string file = folder_ / "config/measurements.json";
  exits(0, keep("by_norm_right", "NVIDIA H100"));
  auto kept = parse_json(read_text(file));
  ASSERT_EQ(kept["measurements"].size(), 2u);
  for (auto& one : kept["measurements"]) one["images"] = std::string(64, 'f');
  write_text(file, kept.dump());
  exits(0, keep("by_norm_right", "NVIDIA H100"));
  kept = parse_json(read_text(file));
  ASSERT_EQ(kept["measurements"].size(), 1u);
  EXPECT_EQ(kept["measurements"][0]["gpu"], "NVIDIA H100");
}

TEST_F(Judge, BenchDoesNotTimeAWrongSolution) {
  write_norm("norm_writes_nan");
  const ProgramResult result =
      exits(1, run({"bench", folder_ / "config", "--axis", "batch_size=2", "--json"}));
  const auto evaluation = parse_json(result.out)["records"][0]["evaluation"];
  EXPECT_EQ(evaluation["status"], "INCORRECT_NUMERICAL");
  EXPECT_TRUE(evaluation["performance"].is_null());
  EXPECT_EQ(evaluation["correctness"]["max_absolute_error"], "Infinity");
}

TEST_F(Judge, BenchWaitsForAnotherUserOfTheGpu) {
  write_norm("norm_right");
  const auto device = parse_json(
      run({"verify", folder_ / "config", "--axis", "batch_size=1", "--json"}).out)["device"];
  const std::string lock = "/tmp/fibshim-" + device["uuid"].get<std::string>() + ".lock";
  const int fd = open(lock.c_str(), O_RDONLY | O_CLOEXEC);
  ASSERT_GE(fd, 0) << lock;
  ASSERT_EQ(flock(fd, LOCK_SH), 0);
  // A shared holder keeps bench out, not verify.
  EXPECT_EQ(run({"verify", folder_ / "config", "--axis", "batch_size=1"}).err, "");
  ProgramOptions options;
  options.environment = {{"LD_LIBRARY_PATH", build_path("sim")}};
  EXPECT_CONTAINS(exits(124, run_program({"timeout", "3", build_path("bin/fibshim"), "bench",
                                          folder_ / "config"},
                                         options))
                      .err,
                  "waiting for another fibshim");
  close(fd);
}

TEST_F(Judge, SaysWhatIsMissing) {
  write_norm("norm_right");
  EXPECT_CONTAINS(exits(2, run({"verify", folder_ / "config", "rmsnorm_h65"})).err,
                  "did you mean 'rmsnorm_h64'?");
  EXPECT_EQ(run({"verify", folder_ / "config", "rmsnorm_h6?", "softmax*"}).exit_code, 2);
  EXPECT_CONTAINS(exits(0, run({"verify", folder_ / "config", "rmsnorm_h6?"})).out, "5 passed");
  const ProgramResult axis = exits(2, run({"verify", folder_ / "config", "--axis", "rows=1"}));
  EXPECT_CONTAINS(axis.err, "there are batch_size");
  EXPECT_EQ(run({"verify", folder_ / "config", "--axis", "batch_size=x"}).exit_code, 2);
  EXPECT_EQ(run({"verify"}).exit_code, 2);
  EXPECT_EQ(run({"verify", folder_ / "nowhere"}).exit_code, 1);
  EXPECT_CONTAINS(exits(1, run({"verify", folder_ / "config", "--device", "7"})).err,
                  "there is no GPU 7");
}

TEST_F(Judge, SaysThatThereIsNoDriver) {
  write_norm("norm_right");
  // This folder comes before the real driver's, if this machine has one.
  write_text(folder_ / "none/libcuda.so.1", "");
  ProgramOptions options;
  options.environment = {{"LD_LIBRARY_PATH", folder_ / "none"}};
  EXPECT_CONTAINS(exits(1, run_fibshim({"verify", folder_ / "config"}, options)).err,
                  "no CUDA driver");
}

TEST_F(Judge, AsksForTheValueOfAnUnknownArgument) {
  write_norm("norm_right");
  std::string text = read_text(folder_ / "config/patterns/engine-norm.json");
  text.replace(text.find("\"eps\""), 5, "\"bias\"");
  write_text(folder_ / "config/patterns/engine-norm.json", text);
  text = read_text(folder_ / "config/solutions/norm.json");
  text.replace(text.find("\"eps\""), 5, "\"bias\"");
  write_text(folder_ / "config/solutions/norm.json", text);
  const ProgramResult result = exits(1, verify());
  EXPECT_CONTAINS(result.out, "give the solution a \"verify\": {\"arguments\": {\"bias\"");
}

// A value that only a launch has: nothing states "flags".
TEST_F(Judge, TakesWhatNothingStatesFromARecordedLaunchAndSaysSo) {
  write_norm("norm_right");
  write_text(
      folder_ / "config/patterns/engine-norm.json",
      norm_pattern(R"("flags": {"arg": 5, "type": "int32"})", R"("flags == 5 || flags == 7")"));
  const ProgramResult without = exits(1, verify());
  EXPECT_CONTAINS(without.err,
                  "the pattern's \"where\" does not hold; nothing states \"flags\": give "
                  "--recording FILE");
  RecordingBuilder builder;
  builder
      .kernel("engine_norm", {{8, {}}, {8, {}}, {8, {}}, {8, {}}, {4, {}}, {4, {{6, 1}, {7, 9}}}},
              10)
      .geometry(4, 64, 10, 0, {});
  write_text(folder_ / "recordings/1-0.recording", builder.bytes());
  const ProgramResult with = exits(0, verify({"--recording", folder_ / "recordings", "--json"}));
  const auto records = parse_json(with.out)["records"];
  ASSERT_EQ(records.size(), 3u);
  EXPECT_EQ(records[0]["evaluation"]["log"], "\"flags\" as in a recorded launch");
  EXPECT_CONTAINS(exits(1, verify({"--recording", folder_ / "nowhere"})).err, "nowhere: ");
}

TEST_F(Judge, ReportDrawsOnePage) {
  write_norm("norm_right");
  ASSERT_EQ(verify({"-o", folder_ / "out"}).exit_code, 0);
  EXPECT_TRUE(std::filesystem::exists(folder_ / "out/traces/tests/rmsnorm/rmsnorm_h64.jsonl"));
  (void)exits(0, run({"report", folder_ / "out", "-o", folder_ / "report.html"}));
  for (const std::vector<std::string>& format : {std::vector<std::string>{}, {"--json"}}) {
    std::vector<std::string> words = {"report", folder_ / "out", "-o", folder_ / "no/such"};
    words.insert(words.end(), format.begin(), format.end());
    EXPECT_CONTAINS(exits(1, run(words)).err, "no/such: cannot write it: ");
  }
  const std::string page = read_text(folder_ / "report.html");
  EXPECT_EQ(page.find("<!DOCTYPE html>"), 0u);
  EXPECT_CONTAINS(page, "3 cases of 1 definition on Simulated GPU (sm_90): 3 passed");
  for (const char* const foreign : {"<script", "http:", "https:", "src=", "@import", "url("}) {
    EXPECT_LACKS(page, foreign) << foreign;
  }
  EXPECT_EQ(run({"report", folder_ / "nothing"}).exit_code, 1);
}

}  // namespace
}  // namespace fibshim::test
