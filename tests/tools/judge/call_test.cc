// How solutions are launched: without a driver, from a folder that the loader has read. Calls
// follow the snapshot, which some tests change: the compiled binding decides, not the JSON.

#include <filesystem>

#include "tests/support/text.h"
#include "tests/tools/judge/judged_folder.h"
#include "tools/judge/call.h"
#include "tools/judge/made_pattern.h"
#include "tools/judge/references.h"
#include "tools/judge/stated_values.h"

namespace fibshim::judge {
namespace {

using test::build_path;
using test::norm_pattern;
using test::write_text;

constexpr uint64_t kAddress = 0x7f0000000000;

class Calls : public ::testing::Test {
 protected:
  // `pattern`: "" for none. `where`: of the solution.
  void write(const std::string& pattern, const std::string& where = test::kAligned,
             const std::string& more = "") {
    write_text(folder_ / "definitions/rmsnorm_h64.json", test::kNormDefinition);
    if (!pattern.empty()) write_text(folder_ / "patterns/p.json", pattern);
    write_text(folder_ / "solutions/norm.json",
               test::solution("rmsnorm_h64", "norm_right", test::kNormArguments, where, more));
    std::filesystem::copy_file(build_path(test::kImage),
                               folder_ / "solutions/judged_kernels.sm_90.cubin",
                               std::filesystem::copy_options::overwrite_existing);
  }

  // Writes a folder in which the output is written into an input; the solution takes these
  // arguments.
  void write_in_place(const std::string& arguments) {
    write("");
    std::string definition = test::kNormDefinition;
    const std::string cache =
        R"("cache": {"shape": ["batch_size", "hidden_size"], "dtype": "bfloat16"}, "weight")";
    definition.replace(definition.find("\"weight\""), 8, cache);
    const std::string shape = R"("output": {)";
    definition.insert(definition.find(shape) + shape.size(), R"("param": "cache", )");
    write_text(folder_ / "definitions/rmsnorm_h64.json", definition);
    write_text(
        folder_ / "solutions/norm.json",
        test::solution(
            "rmsnorm_h64", "norm_right", arguments, test::kAligned,
            R"("verify": {"arguments": {"eps": {"value": 1e-6, "type": "float32"}, "rstd": {"shape": ["batch_size"], "dtype": "float32"}}}, )"));
  }

  // The input whose memory the output shares.
  std::string shared_by_output() {
    open();
    const SolutionSpec& solution = model_.solutions[solution_];
    const Subject subject{definition_, &solution, &verify_blocks_.of(solution), "rmsnorm"};
    const auto specs = Call(subject, variant_, *report_.snapshot, recorded_)
                           .buffers({{"batch_size", 3}, {"hidden_size", 64}});
    if (!specs) return specs.error().message;
    for (const BufferSpec& spec : *specs) {
      if (spec.name == "output") return spec.shares;
    }
    return "there is none";
  }

  // Reads the folder. Judges the solution of rmsnorm_h64.
  void open() {
    CheckOptions options;
    options.model = &model_;
    options.lint = &verify_blocks_;
    report_ = check_folder(folder_.path(), options);
    ASSERT_NE(report_.snapshot, nullptr)
        << (report_.diagnostics.empty() ? "" : report_.diagnostics[0].message);
    ASSERT_TRUE(add_missing_patterns(verify_blocks_, &model_, &report_.snapshot));
    while (model_.solutions[solution_].definition.name != "rmsnorm_h64") ++solution_;
    for (const Definition& one : model_.definitions) {
      if (one.name.name == "rmsnorm_h64") definition_ = &one;
    }
    const auto variants = find_variants(model_, solution_);
    ASSERT_EQ(variants.size(), 1u) << model_.solutions[solution_].error_message;
    variant_ = variants[0];
  }

  // The launch for a batch. If there is none, outcome_ is the error or the reason.
  std::optional<Launch> launch(int64_t batch, uint64_t misaligned_by = 0) {
    const SolutionSpec& solution = model_.solutions[solution_];
    const Subject subject{definition_, &solution, &verify_blocks_.of(solution), "rmsnorm"};
    const Call call(subject, variant_, *report_.snapshot, recorded_);
    CaseData data;
    data.axes = {{"batch_size", batch}, {"hidden_size", 64}};
    call.add_scalars(0, &data);
    const auto specs = call.buffers(data.axes);
    EXPECT_TRUE(specs) << specs.error().message;
    std::map<std::string, uint64_t> addresses;
    for (const BufferSpec& spec : *specs) {
      addresses[spec.name] = kAddress + addresses.size() * 4096 + misaligned_by;
    }
    addresses_ = addresses;
    outcome_.clear();
    const auto launched = call.resolve(data, addresses, &outcome_);
    note_ = call.recorded_values();
    if (launched) return *launched;
    outcome_ = "error: " + launched.error().message;
    return std::nullopt;
  }

  Binding& binding() {
    const Snapshot& snapshot = *report_.snapshot;
    return const_cast<Binding&>(snapshot.begin(snapshot.bindings)[variant_.binding]);
  }

  static uint64_t value(const Launch& launch, size_t argument) {
    uint64_t bits = 0;
    memcpy(&bits, launch.params[argument].data(), sizeof bits);
    return bits;
  }

  test::TemporaryFolder folder_;
  FolderModel model_;
  VerifyBlocks verify_blocks_;
  CheckReport report_;
  uint32_t solution_ = 0;
  const Definition* definition_ = nullptr;
  Variant variant_;
  std::vector<tools::KernelRecord> recorded_;
  std::map<std::string, uint64_t> addresses_;
  std::string outcome_, note_, why_;
};

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  text.replace(text.find(from), from.size(), to);
  return text;
}

// A pattern whose binding needs no expressions, with two arguments in another order.
std::string reordered_pattern() {
  std::string text = norm_pattern(R"("spare": {"block": "y"})", "");
  text = replaced(text, R"({"grid": "x"})", R"({"arg": 5, "type": "int32"})");
  text = replaced(text, R"("hidden_states": {"arg": 0)", R"("hidden_states": {"arg": 1)");
  return replaced(text, R"("weight": {"arg": 1)", R"("weight": {"arg": 0)");
}

TEST_F(Calls, KnowWhatThePatternLeavesNoChoiceOf) {
  write(norm_pattern(
      R"("spare": {"block": "y"}, "fixed": {"value": -1}, "twice": {"expr": "2 * spare"})",
      "\"spare == 7\""));
  open();
  const Subject subject{definition_, &model_.solutions[solution_],
                        &verify_blocks_.of(model_.solutions[solution_]), "rmsnorm"};
  const Call call(subject, variant_, *report_.snapshot, recorded_);
  EXPECT_EQ(call.only_value("fixed"), -1);
  EXPECT_EQ(call.only_value("spare"), 7);
  for (const char* const open : {"twice", "batch_size", "nobody"})
    EXPECT_EQ(call.only_value(open), std::nullopt) << open;
}

TEST_F(Calls, KnowWhatThePatternStates) {
  write(replaced(
      norm_pattern(R"("spare": {"block": "y"}, "fixed": {"value": -1})", R"("eps == 0.5")"),
      R"("eps": {)", R"("small": {"value": 1e-5}, "eps": {)"));
  open();
  const Subject subject{definition_, &model_.solutions[solution_],
                        &verify_blocks_.of(model_.solutions[solution_]), "rmsnorm"};
  const Call call(subject, variant_, *report_.snapshot, recorded_);
  for (const char* const name : {"fixed", "small", "eps"}) EXPECT_TRUE(call.is_fixed(name)) << name;
  for (const char* const name : {"spare", "nobody"}) EXPECT_FALSE(call.is_fixed(name)) << name;
  const PatternSpec& pattern = *variant_.pattern;
  EXPECT_EQ(find_contradiction(pattern, {{"fixed", -1}, {"small", 1e-5f}, {"spare", 7}}), "");
  EXPECT_EQ(find_contradiction(pattern, {{"fixed", -1}, {"small", 1e-6}}),
            "\"small\" of the recorded launch is not the pattern's");
  CaseData data;
  data.axes = {{"batch_size", 1}, {"hidden_size", 64}};
  data.scalars = {{"small", 3}, {"spare", 7}};
  call.add_scalars(0, &data);
  EXPECT_EQ(data.scalars.at("small"), 1e-5);
  EXPECT_EQ(data.scalars.at("spare"), 7);
}

TEST_F(Calls, HaveTheNameOfThePatternMadeForTheDefinition) {
  const auto labelled = [](const std::string& label) {
    return replaced(test::kNormPattern, "\"engine-norm\"", "\"" + label + "\"");
  };
  write(labelled("engine-norm-h32"));
  write_text(folder_ / "patterns/q.json", labelled("engine-norm-h64"));
  write_text(folder_ / "patterns/r.json", labelled("engine-norm-h128"));
  open();
  EXPECT_EQ(variant_.name, "engine-norm-h64");
  ASSERT_EQ(variant_.twins.size(), 2u);
  EXPECT_EQ(variant_.twins[0].name, "engine-norm-h128");  // in the order of their labels
  EXPECT_EQ(variant_.twins[1].name, "engine-norm-h32");
  EXPECT_TRUE(launch(3)) << outcome_;
}

TEST_F(Calls, LayOutOutputsAsThePatternSays) {
  const auto laid_out = [this](const std::string& name, const std::string& layout, int64_t rows) {
    write(replaced(test::kNormPattern, "\"" + name + R"(": {)",
                   "\"" + name + R"(": {"layout": )" + layout + ", "));
    model_ = {};
    solution_ = 0;
    open();
    const Subject subject{definition_, &model_.solutions[solution_],
                          &verify_blocks_.of(model_.solutions[solution_]), "rmsnorm"};
    const Call call(subject, variant_, *report_.snapshot, recorded_);
    CaseData data;
    data.axes = {{"batch_size", rows}, {"hidden_size", 64}};
    std::vector<BufferSpec> specs = *call.buffers(data.axes);
    why_ = call.lay_out(data, &specs);
    return std::ranges::find(specs, name, &BufferSpec::name)->strides;
  };
  const std::string by_columns = R"([["batch_size", 1], [64, "batch_size"]])";
  EXPECT_EQ(laid_out("output", by_columns, 3), (std::vector<int64_t>{1, 3}));
  EXPECT_EQ(why_, "");
  EXPECT_EQ(laid_out("output", by_columns, 1), std::vector<int64_t>());
  EXPECT_EQ(laid_out("output", R"([["batch_size", 64], [64, 1]])", 3), std::vector<int64_t>());
  EXPECT_EQ(why_, "");
  laid_out("hidden_states", by_columns, 3);
  EXPECT_EQ(why_, "\"hidden_states\" cannot be laid out as pattern \"engine-norm\" says");
}

TEST_F(Calls, LaunchWhatTheBindingSaysWhateverTheJsonSays) {
  write(test::kNormPattern);
  open();
  auto made = launch(3);
  ASSERT_TRUE(made) << outcome_;
  EXPECT_EQ(value(*made, 0), addresses_["hidden_states"]);
  EXPECT_EQ(value(*made, 1), addresses_["weight"]);
  EXPECT_EQ(value(*made, 5), 3u);
  EXPECT_EQ(made->geometry[kGridX], 3u);
  EXPECT_EQ(made->geometry[kBlockX], 64u);

  Binding& changed = binding();
  auto* const arguments = const_cast<ArgumentMap*>(report_.snapshot->begin(changed.arguments));
  std::swap(arguments[0], arguments[1]);
  changed.geometry[kBlockX].constant = 32;
  made = launch(3);
  ASSERT_TRUE(made) << outcome_;
  EXPECT_EQ(value(*made, 0), addresses_["weight"]);
  EXPECT_EQ(value(*made, 1), addresses_["hidden_states"]);
  EXPECT_EQ(made->geometry[kBlockX], 32u);
}

TEST_F(Calls, ComputeWhatThePatternsExpressionsImply) {
  write(
      norm_pattern(R"("width": {"arg": 5, "type": "int32"}, "hidden_size": {"expr": "2 * width"})",
                   R"("width % 32 == 0")", "rmsnorm_h{hidden_size}"));
  open();
  EXPECT_TRUE(launch(3)) << outcome_;
}

TEST_F(Calls, KnowWhatAWhereTiesToTheRest) {
  std::string pattern =
      norm_pattern(R"("batches": {"arg": 5, "type": "int32"})",
                   R"("weight_again == weight", "batches == ceil_div(batch_size, 2) + 1")");
  pattern = replaced(pattern, "8, 4, 4]", "8, 4, 4, 8]");
  pattern =
      replaced(pattern, R"("eps": {)", R"("weight_again": {"arg": 6, "type": "int64"}, "eps": {)");
  write(pattern);
  open();
  EXPECT_TRUE(launch(3)) << outcome_;
}

TEST_F(Calls, KnowWhatAFloatAndAProductInAWhereTie) {
  std::string pattern = norm_pattern(R"("width": {"arg": 5, "type": "int32"})",
                                     R"("alpha == 1.0", "3 * width == batch_size", "0.5 == beta")");
  pattern = replaced(pattern, "8, 4, 4]", "8, 4, 4, 4, 8]");
  pattern = replaced(
      pattern, R"("eps": {)",
      R"("alpha": {"arg": 6, "type": "float32"}, "beta": {"arg": 7, "type": "float64"}, "eps": {)");
  write(pattern);
  open();
  EXPECT_TRUE(launch(3)) << outcome_;
}

// cuBLAS adds a product to a matrix where that lies.
TEST_F(Calls, WriteIntoAnInputThatAWhereSaysIsTheSame) {
  std::string pattern =
      norm_pattern(R"("x_again": {"arg": 0, "type": "int64"})", R"("x_again == output")");
  write(pattern);
  EXPECT_EQ(shared_by_output(), "hidden_states");
}

// The buffer is where the host's pointer and the shift lead to, in the solution's launch and the original's.
TEST_F(Calls, TakeAShiftOffAnAddress) {
  std::string pattern =
      norm_pattern(R"("spare": {"block": "y"})", R"("hidden_states == base + 128 * batch_size")");
  pattern = replaced(pattern, R"("hidden_states": {"arg": 0)",
                     R"("base": {"arg": 0, "type": "int64"},
                "hidden_states": {"shift": "128 * batch_size", "arg": 0)");
  write(pattern);
  open();
  const auto made = launch(3);
  ASSERT_TRUE(made) << outcome_;
  EXPECT_EQ(value(*made, 0), addresses_["hidden_states"]);
}

TEST_F(Calls, GivePointersOfOnePlaceBuffersOfTheirOwnIfTheirShiftsDiffer) {
  write(replaced(norm_pattern(R"("spare": {"block": "y"})", ""), R"("output": {"arg": 2)",
                 R"("output": {"shift": 16384, "arg": 0)"));
  EXPECT_EQ(shared_by_output(), "");
}

TEST_F(Calls, FillWhatTheVerifyBlockGivesElements) {
  write(
      norm_pattern(R"("spare": {"block": "y"})", ""), test::kAligned,
      R"("verify": {"arguments": {"rstd": {"shape": ["2 * batch_size + 1"], "dtype": "float32", "elements": "hidden_size - 3 * index"}, "hidden_states": {"elements": "index % hidden_size"}}}, )");
  open();
  const SolutionSpec& solution = model_.solutions[solution_];
  const Subject subject{definition_, &solution, &verify_blocks_.of(solution), "rmsnorm"};
  CaseData data;
  data.axes = {{"batch_size", 3}, {"hidden_size", 64}};
  const auto added = add_stated(subject, &data);
  ASSERT_TRUE(added) << added.error().message;
  EXPECT_EQ(data.tensors.at("hidden_states").at(65), 1);
  EXPECT_EQ(data.tensors.at("rstd").shape, (std::vector<int64_t>{7}));
  EXPECT_EQ(data.tensors.at("rstd").at(6), 46);
  const auto specs = Call(subject, variant_, *report_.snapshot, recorded_).buffers(data.axes);
  ASSERT_TRUE(specs) << specs.error().message;
  for (const BufferSpec& spec : *specs) {
    EXPECT_EQ(spec.is_output, spec.name == "output") << spec.name;
  }
}

TEST_F(Calls, MakeCapturesUpFromTheDefinitionsName) {
  std::string pattern =
      norm_pattern(R"("spare": {"block": "y"})", R"("h > 32 && h < 65")", "{kind}_h{h}");
  pattern = replaced(pattern, "\"engine_norm\"", R"r("re:engine_(?<kind>[a-z]+)_(?<h>\\d+)")r");
  write(pattern);
  open();
  EXPECT_TRUE(launch(3)) << outcome_;
}

TEST_F(Calls, SayWhyTheShimWouldRunTheOriginal) {
  write(norm_pattern(R"("width": {"expr": "batch_size * 8"})", R"("batch_size > 2")",
                     "rmsnorm_h{width}"));
  open();
  EXPECT_TRUE(launch(8)) << outcome_;
  EXPECT_FALSE(launch(2));
  EXPECT_EQ(outcome_, "the pattern's \"where\" does not hold");
  EXPECT_FALSE(launch(3));
  EXPECT_EQ(outcome_, "it leads to definition \"rmsnorm_h24\", which nothing solves");
  EXPECT_FALSE(launch(8, 2));
  EXPECT_EQ(outcome_, "its \"where\" does not hold");
  EXPECT_FALSE(launch(int64_t{1} << 31));
  EXPECT_EQ(outcome_.find("there is no such launch: grid x is 2147483648"), 0u) << outcome_;
  Binding& refused = binding();
  refused.state = BindingState::refused;
  refused.reason = report_.snapshot->begin(report_.snapshot->patterns)[refused.pattern].label;
  EXPECT_FALSE(launch(8));
  EXPECT_EQ(outcome_, "refused: engine-norm");
}

TEST_F(Calls, FailWhereTheLaunchLeadsToAnotherSolution) {
  write(norm_pattern(R"("width": {"expr": "batch_size * 8"})", "", "rmsnorm_h{width}"));
  write_text(folder_ / "definitions/rmsnorm_h32.json",
             replaced(replaced(test::kNormDefinition, "rmsnorm_h64", "rmsnorm_h32"),
                      "\"value\": 64", "\"value\": 32"));
  write_text(folder_ / "solutions/other.json",
             replaced(test::solution("rmsnorm_h32", "norm_right", test::kNormArguments, "[]"),
                      "by_norm_right", "another"));
  open();
  EXPECT_TRUE(launch(8)) << outcome_;
  EXPECT_FALSE(launch(4));
  EXPECT_EQ(
      outcome_,
      "error: a launch as pattern \"engine-norm\" describes it leads to solution \"another\" of "
      "definition \"rmsnorm_h32\"");
}

TEST_F(Calls, PlanEachOfThePatternsThatCallASolutionAlike) {
  write(test::kNormPattern);
  write_text(folder_ / "patterns/second.json",
             replaced(norm_pattern(R"("spare": {"block": "y"})", R"("batch_size > 4")"),
                      "engine-norm", "second"));
  open();
  ASSERT_EQ(variant_.twins.size(), 1u);
  EXPECT_TRUE(launch(3)) << outcome_;
  EXPECT_TRUE(launch(5)) << outcome_;
  // A twin's launch is compared if its "where" holds.
  variant_.binding = variant_.twins[0].binding;
  Binding& second = binding();
  second.geometry[kBlockX].constant = second.fast.geometry[kBlockX] = 32;
  variant_ = find_variants(model_, solution_)[0];
  EXPECT_TRUE(launch(3)) << outcome_;
  EXPECT_FALSE(launch(5));
  EXPECT_EQ(
      outcome_,
      "error: patterns \"engine-norm\" and \"second\" call it alike, but their launches differ");
}

TEST_F(Calls, ReportAFastFormThatDoesOtherwise) {
  write(reordered_pattern(), R"(["output % 16 == 0"])");
  open();
  FastForm& form = binding().fast;
  ASSERT_EQ(form.way, FastWay::direct);
  ASSERT_NE(form.argument_count, 0);
  ASSERT_TRUE(launch(3)) << outcome_;
  const FastForm right = form;
  const std::string fault = "error: internal error: the fast form of pattern \"engine-norm\" ";

  form.arguments[1] = form.arguments[0];
  EXPECT_FALSE(launch(3));
  EXPECT_EQ(outcome_, fault + "passes another argument 1");
  form = right;
  form.geometry[kBlockX] = 32;
  EXPECT_FALSE(launch(3));
  EXPECT_EQ(outcome_, fault + "makes block x 32, not 64");
  form = right;
  form.checks.alignment_mask = 0;
  EXPECT_TRUE(launch(3)) << outcome_;
  EXPECT_FALSE(launch(3, 2));
  EXPECT_EQ(outcome_, fault + "launches what the plan does not");
  form = right;
  form.checks.alignment_mask = 255;
  EXPECT_FALSE(launch(3, 16));
  EXPECT_EQ(outcome_, fault + "does not launch what the plan does");
}

TEST_F(Calls, TakeFromARecordedLaunchOnlyWhatNothingStates) {
  write(norm_pattern(R"("flags": {"arg": 5, "type": "int32"})", R"("flags == 5 || flags == 7")"));
  open();
  EXPECT_FALSE(launch(3));
  EXPECT_EQ(
      outcome_,
      "the pattern's \"where\" does not hold; nothing states \"flags\": give --recording FILE "
      "with such a launch");
  tools::KernelRecord kernel;
  kernel.symbol = "engine_norm";
  kernel.has_params = true;
  for (uint32_t i = 0; i < 6; ++i) kernel.params.push_back({i * 8, i < 4 ? 8u : 4u, 0, 0, {}});
  kernel.params[4].values = {{0x40000000, 10}};  // eps is stated
  kernel.params[5].values = {{6, 1}, {7, 9}};
  kernel.geometries[{100, 1, 1, 64, 1, 1, 1, 1, 1, 0}].launches = 10;
  recorded_ = {kernel};
  const auto made = launch(3);
  ASSERT_TRUE(made) << outcome_;
  EXPECT_EQ(made->geometry[kGridX], 3u);
  EXPECT_NE(value(*made, 4), 0x40000000u);
  EXPECT_EQ(note_, "\"flags\" as in a recorded launch");
  recorded_[0].params[5].values = {{6, 9}, {7, 1}};
  EXPECT_FALSE(launch(3));
  EXPECT_EQ(outcome_, "the pattern's \"where\" does not hold");
  recorded_[0].params.pop_back();  // another layout, which the pattern does not fit
  EXPECT_FALSE(launch(3));
  EXPECT_CONTAINS(outcome_, "give --recording");
}

TEST_F(Calls, GoThroughAMadePatternWhereNoneLeadsToTheSolution) {
  write(
      "", test::kAligned,
      R"("verify": {"arguments": {"eps": {"value": 0.5}, "rstd": {"shape": ["batch_size"], "dtype": "float32"}}}, )");
  open();
  EXPECT_EQ(variant_.name, "made for rmsnorm_h64");
  const auto made = launch(3);
  ASSERT_TRUE(made) << outcome_;
  ASSERT_EQ(made->params.size(), 6u);
  EXPECT_EQ(value(*made, 0), addresses_["hidden_states"]);
  EXPECT_EQ(value(*made, 3), addresses_["rstd"]);
  EXPECT_EQ(value(*made, 4), 0x3f000000u);
  EXPECT_EQ(value(*made, 5), 3u);
  EXPECT_FALSE(launch(3, 2));
  EXPECT_EQ(outcome_, "its \"where\" does not hold");
}

// A launch of one kernel cannot express how the kernels of a rewrite belong together.
TEST_F(Calls, GoThroughAMadePatternWhereARewriteLeadsToTheSolution) {
  write(
      R"({"label": "rewrite", "match": [{"symbol": "norm", "params": [8, 8, 8, 8, 4]}, {"symbol": "next", "params": [8]}],
            "axes": {"batch_size": {"grid": "x"}},
            "arguments": {"hidden_states": {"arg": 0, "dtype": "bfloat16", "bytes": "128 * batch_size"},
                          "weight": {"arg": 1, "dtype": "bfloat16", "bytes": "128"},
                          "output": {"arg": 2, "dtype": "bfloat16", "bytes": "128 * batch_size"},
                          "rstd": {"arg": 3, "dtype": "float32", "bytes": "4 * batch_size"},
                          "eps": {"arg": 4, "type": "float32"},
                          "again": {"kernel": 1, "arg": 0, "dtype": "bfloat16", "bytes": "128 * batch_size"}},
            "writes": ["output", "rstd"], "where": ["again == output"], "definition": "rmsnorm_h64"})",
      test::kAligned,
      R"("verify": {"arguments": {"rstd": {"shape": ["batch_size"], "dtype": "float32"}}}, )");
  open();
  EXPECT_EQ(variant_.name, "made for rmsnorm_h64");
  EXPECT_TRUE(launch(3)) << outcome_;
}

// Elements that the solution does not write keep their old values.
TEST_F(Calls, WriteIntoAnInputThatTheSolutionDoesNotTake) {
  write_in_place(test::kNormArguments);
  EXPECT_EQ(shared_by_output(), "cache");
}

TEST_F(Calls, WriteBesideAnInputThatTheSolutionTakes) {
  write_in_place(R"(["hidden_states", "cache", "output", "rstd", "eps", "batch_size"])");
  EXPECT_EQ(shared_by_output(), "");
}

}  // namespace
}  // namespace fibshim::judge
