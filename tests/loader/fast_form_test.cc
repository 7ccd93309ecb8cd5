// Tables for the fast form: what it expresses, both sides of each limit, and that it agrees with
// the programs.
#include "loader/compile/fast_form.h"

#include <algorithm>

#include <gtest/gtest.h>

#include "loader/compile/bind.h"
#include "loader/compile/read_pattern.h"

namespace fibshim {
namespace {

// Parameters p0 to p9 are pointers; the others have one name each.
constexpr char kFormPattern[] = R"json({
  "label": "a",
  "match": {"symbol": "k", "params": [8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 4, 4, 8, 2, 16, 4]},
  "axes": {
    "i": {"arg": 10, "type": "int32"},
    "u": {"arg": 11, "type": "uint32"},
    "l": {"arg": 12, "type": "int64"},
    "s": {"arg": 13, "type": "int16"},
    "field0": {"arg": 14, "type": "int32", "offset": 0},
    "field4": {"arg": 14, "type": "int32", "offset": 4},
    "gx": {"grid": "x"}, "gz": {"grid": "z"}, "bz": {"block": "z"}, "cx": {"cluster": "x"},
    "shared": {"shared_mem": true},
    "k": {"value": 6},
    "twice": {"expr": "i * 2"},
    "tiles": {"expr": "ceil_div(i, 128)"}
  },
  "arguments": {@pointers@
    "field8": {"arg": 14, "dtype": "float32", "offset": 8},
    "f": {"arg": 15, "type": "float32"}
  },
  "writes": [],
  "where": [@where@],
  "definition": "@definition@"
})json";

constexpr char kFormDefinition[] = R"json({
  "name": "d", "axes": {}, "inputs": {}, "outputs": {}, "op_type": "x", "reference": ""
})json";

constexpr char kFormSolution[] = R"json({
  "name": "s", "definition": "d",
  "launch": {
    "kernel": "k",
    "images": [{"path": "k.ptx", "sha256":
                "0000000000000000000000000000000000000000000000000000000000000000"}],
    "grid": ["@grid@", "@grid_y@", 1], "block": ["@block@", 1, 1], "cluster": ["@cluster@", 1, 1],
    "shared_mem": "@shared@", "arguments": [@arguments@], "where": [@where@], "pdl": @pdl@,
    "reads_before_wait": [@early@]
  }
})json";

void fill_in(std::string* text, const std::string& mark, const std::string& value) {
  const size_t at = text->find(mark);
  ASSERT_NE(at, std::string::npos) << mark;
  text->replace(at, mark.size(), value);
}

// "a; b" -> "\"a\", \"b\""
std::string quoted_list(const std::string& clauses) {
  std::string result;
  for (size_t begin = 0; begin < clauses.size();) {
    const size_t end = std::min(clauses.find("; ", begin), clauses.size());
    result += (result.empty() ? "\"" : ", \"") + clauses.substr(begin, end - begin) + "\"";
    begin = end + 2;
  }
  return result;
}

struct Row {
  std::string where = {};           // the pattern's
  std::string solution_where = {};  // clauses between semicolons, as above
  std::string grid = "1", grid_y = "1", block = "32", cluster = "1", shared = "0";
  std::string arguments = "p0";
  bool waits_for_previous = false;
  bool reads_before_wait = false;
  std::string definition = "d";
};

class Compiled {
 public:
  explicit Compiled(const Row& row) {
    std::string pattern = kFormPattern;
    std::string pointers;
    for (int i = 0; i < 10; ++i) {
      pointers += "\"p" + std::to_string(i) + "\": {\"arg\": " + std::to_string(i) +
                  ", \"dtype\": \"float32\"}, ";
    }
    fill_in(&pattern, "@pointers@", pointers);
    fill_in(&pattern, "@where@", quoted_list(row.where));
    fill_in(&pattern, "@definition@", row.definition);
    std::string solution = kFormSolution;
    fill_in(&solution, "@grid@", row.grid);
    fill_in(&solution, "@grid_y@", row.grid_y);
    fill_in(&solution, "@block@", row.block);
    fill_in(&solution, "@cluster@", row.cluster);
    fill_in(&solution, "@shared@", row.shared);
    fill_in(&solution, "@arguments@", quoted_list(row.arguments));
    fill_in(&solution, "@where@", quoted_list(row.solution_where));
    fill_in(&solution, "@pdl@", row.waits_for_previous ? "true" : "false");
    fill_in(&solution, "@early@", row.reads_before_wait ? "\"p0\"" : "");
    const auto pattern_json = JsonDocument::parse(pattern, &file_, &diagnostics_);
    const auto solution_json = JsonDocument::parse(solution, &file_, &diagnostics_);
    const auto definition_json = JsonDocument::parse(kFormDefinition, &file_, &diagnostics_);
    pattern_ = read_pattern(pattern_json->root(), &diagnostics_);
    KnownTexts known;
    KnownClauses clauses(&known);
    solution_ = *read_solution(solution_json->root(), "s.json", &known, &diagnostics_);
    const Definition definition = *read_definition(definition_json->root(), &diagnostics_);
    binding_ = fibshim::bind(*pattern_, solution_, definition, {}, &clauses, &diagnostics_);
    EXPECT_EQ(diagnostics_.error_count(), 0u) << first_error();
  }

  const PatternSpec& pattern() const { return *pattern_; }
  const BindingSpec& binding() const { return binding_; }
  FastForm form() const { return make_fast_form(binding_, *pattern_, solution_); }

 private:
  std::string first_error() {
    const auto all = diagnostics_.release();
    return all.empty() ? "" : format_diagnostic(all[0]);
  }

  std::string file_ = "test.json";
  Diagnostics diagnostics_;
  std::unique_ptr<PatternSpec> pattern_;
  SolutionSpec solution_;
  BindingSpec binding_;
};

std::string words_of(const FastChecks& checks) {
  std::string result;
  for (uint32_t i = 0; i < checks.aligned_count; ++i) {
    result += " p" + std::to_string(checks.aligned[i]);
  }
  if (checks.aligned_count != 0) result += " & " + std::to_string(checks.alignment_mask);
  for (uint32_t i = 0; i < checks.not_null_count; ++i) {
    result += " !p" + std::to_string(checks.not_null[i]);
  }
  return result.empty() ? result : result.substr(1);
}

std::string words_of(const FastDimension& dimension) {
  std::string result = std::to_string(dimension.target) +
                       (dimension.source == FastDimension::Source::param ? "=param" : "=geometry") +
                       std::to_string(dimension.at);
  if (dimension.shift != FastDimension::kNotComputed) {
    result += dimension.divisor != 0 ? "/" + std::to_string(dimension.divisor)
                                     : ">>" + std::to_string(dimension.shift);
  }
  if (dimension.most != INT32_MAX) result += "<=" + std::to_string(dimension.most);
  return result;
}

std::string words_of(const FastForm& form) {
  if (form.way == FastWay::slow) return "slow";
  if (form.way == FastWay::clustered) return "clustered";
  std::string result = form.way == FastWay::direct ? "direct" : "computed";
  for (uint32_t i = 0; i < form.dimension_count; ++i) result += " " + words_of(form.dimensions[i]);
  return result;
}

TEST(FastChecks, AreRecognisedByTable) {
  struct Case {
    const char* where;
    const char* checks;
    bool is_whole;
  };
  const Case cases[] = {
      {"", "", true},
      {"p0 % 16 == 0", "p0 p0 & 15", true},
      {"0 == p0 % 16", "p0 p0 & 15", true},
      {"p0 % 16 == 0; p1 % 16 == 0", "p0 p1 & 15", true},
      {"p0 % 16 == 0 && p1 % 16 == 0; p2 % 16 == 0", "p0 p1 p2 p2 & 15", true},
      {"p0 % 16 == 0; p0 % 16 == 0", "p0 p0 & 15", true},
      {"p0 % 1 == 0", "p0 p0 & 0", true},
      {"p0 % (2 * 8) == 0", "p0 p0 & 15", true},
      {"p0 % 256 == 0", "p0 p0 & 255", true},
      {"p0 % 512 == 0", "", false},
      {"p0 % 24 == 0", "", false},
      {"16 % p0 == 0", "", false},
      {"p0 % 16 == 8", "", false},
      {"p0 % 16 != 0", "", false},
      {"p0 % 16 == 0; p1 % 32 == 0", "p0 p0 & 15", false},
      {"p1 % 32 == 0; p0 % 16 == 0; p2 % 32 == 0", "p1 p2 & 31", false},
      {"l % 16 == 0", "", false},
      {"field8 % 16 == 0", "", false},
      {"p0 % 16 == 0; p1 % 16 == 0; p2 % 16 == 0; p3 % 16 == 0; p4 % 16 == 0; p5 % 16 == 0; "
       "p6 % 16 == 0; p7 % 16 == 0",
       "p0 p1 p2 p3 p4 p5 p6 p7 & 15", true},
      {"p0 % 16 == 0; p1 % 16 == 0; p2 % 16 == 0; p3 % 16 == 0; p4 % 16 == 0; p5 % 16 == 0; "
       "p6 % 16 == 0; p7 % 16 == 0; p8 % 16 == 0",
       "p0 p1 p2 p3 p4 p5 p6 p7 & 15", false},
      {"p0 != 0", "!p0", true},
      {"0 != p0", "!p0", true},
      {"p0 != 0; p0 != 0", "!p0", true},
      {"p0 != 1", "", false},
      {"p0 == 0", "", false},
      {"!(p0 == 0)", "", false},
      {"p0 > 0", "", false},
      {"l != 0", "", false},
      {"i != 0", "", false},
      {"field8 != 0", "", false},
      {"p0 != 0; p1 != 0; p2 != 0; p3 != 0; p4 != 0", "!p0 !p1 !p2 !p3 !p4", true},
      {"p0 != 0; p1 != 0; p2 != 0; p3 != 0; p4 != 0; p5 != 0", "!p0 !p1 !p2 !p3 !p4", false},
      {"p0 != 0; p1 % 8 == 0 && p2 != 0", "p1 p1 & 7 !p0 !p2", true},
      {"p0 != 0 || p1 != 0", "", false},
      {"i == 4", "", false},
      {"p0 != 0; i == 4; p1 % 16 == 0", "p1 p1 & 15 !p0", false},
      {"1 == 1", "", true},
      {"k == 6; p0 != 0", "!p0", true},
      {"1 == 2", "", false},
      {"f == 1.5", "", false},
  };
  for (const Case& row : cases) {
    const Compiled compiled({.where = row.where});
    FastChecks checks{};
    EXPECT_EQ(add_fast_checks(compiled.pattern().where_clauses, &checks), row.is_whole)
        << row.where;
    EXPECT_EQ(words_of(checks), row.checks) << row.where;
    EXPECT_EQ(words_of(compiled.form()), row.is_whole ? "direct" : "computed") << row.where;
    EXPECT_EQ(words_of(compiled.form().checks), row.checks) << row.where;
  }
}

TEST(FastChecks, CoverThePatternAndTheSolution) {
  struct Case {
    const char* where;
    const char* solution_where;
    const char* checks;
    const char* way;
  };
  const Case cases[] = {
      {"p0 != 0", "p1 % 16 == 0", "p1 p1 & 15 !p0", "direct"},
      {"p0 % 16 == 0", "p1 % 16 == 0", "p0 p1 & 15", "direct"},
      {"p0 % 16 == 0", "p0 % 16 == 0; p1 % 16 == 0; p2 % 16 == 0", "p0 p1 p2 p2 & 15", "direct"},
      {"p0 % 16 == 0", "p1 % 32 == 0", "p0 p0 & 15", "computed"},
      {"p0 % 16 == 0", "i > 0", "p0 p0 & 15", "computed"},
      {"i > 0", "p0 % 16 == 0", "p0 p0 & 15", "computed"},
      {"p0 != 0; p1 != 0; p2 != 0", "p3 != 0; p4 != 0", "!p0 !p1 !p2 !p3 !p4", "direct"},
      {"p0 != 0; p1 != 0; p2 != 0", "p3 != 0; p4 != 0; p5 != 0", "!p0 !p1 !p2 !p3 !p4", "computed"},
  };
  for (const Case& row : cases) {
    const FastForm form =
        Compiled({.where = row.where, .solution_where = row.solution_where}).form();
    EXPECT_EQ(words_of(form.checks), row.checks) << row.where << " / " << row.solution_where;
    EXPECT_EQ(words_of(form), row.way) << row.where << " / " << row.solution_where;
  }
}

TEST(FastDimension, IsRecognisedByTable) {
  struct Case {
    const char* grid;
    const char* form;
  };
  const Case cases[] = {
      {"7", "direct"},
      {"k", "direct"},
      {"i", "direct 0=param10"},
      {"u", "direct 0=param11"},
      {"gx", "direct 0=geometry0"},
      {"gz", "direct 0=geometry2"},
      {"bz", "direct 0=geometry5"},
      {"field0", "direct 0=param14"},
      {"tiles", "direct 0=param10>>7"},
      {"ceil_div(i, 1)", "direct 0=param10>>0"},
      {"ceil_div(i, 8)", "direct 0=param10>>3"},
      {"ceil_div(gz, 4 * 2)", "direct 0=geometry2>>3"},
      {"ceil_div(u, k)", "direct 0=param11/6"},
      {"ceil_div(i, 1073741824)", "direct 0=param10>>30"},
      {"ceil_div(i, 2147483647)", "direct 0=param10/2147483647"},
      {"min(i, 1)", "direct 0=param10>>0<=1"},
      {"min(1, i)", "direct 0=param10>>0<=1"},
      {"min(i, 2147483646)", "direct 0=param10>>0<=2147483646"},
      {"min(gx, 65535)", "direct 0=geometry0>>0<=65535"},
      {"min(ceil_div(i, 12), 132)", "direct 0=param10/12<=132"},
      {"min(132, tiles)", "direct 0=param10>>7<=132"},
      // Just outside.
      {"cx", "computed"},
      {"shared", "computed"},
      {"l", "computed"},
      {"s", "computed"},
      {"field4", "computed"},
      {"twice", "computed"},
      {"i + 1", "computed"},
      {"i / 8", "computed"},
      {"max(i, 8)", "computed"},
      {"min(i, gx)", "computed"},
      {"min(i, 0)", "computed"},
      {"min(i, -1)", "computed"},
      {"min(i, 2147483648)", "computed"},
      {"min(min(i, 8), 4)", "computed"},
      {"ceil_div(i, -8)", "computed"},
      {"ceil_div(i, 2147483648)", "computed"},
      {"ceil_div(8, i)", "computed"},
      {"ceil_div(i, gx)", "computed"},
      {"ceil_div(min(i, 8), 4)", "computed"},
      {"ceil_div(ceil_div(i, 8), 4)", "computed"},
      {"min(ceil_div(l, 12), 132)", "computed"},
  };
  for (const Case& row : cases) {
    EXPECT_EQ(words_of(Compiled({.grid = row.grid}).form()), row.form) << row.grid;
  }
}

TEST(FastForm, HasRoomForTwoDimensionsAndNoneForSharedMemory) {
  const FastForm two = Compiled({.grid = "i", .block = "ceil_div(u, 4)"}).form();
  EXPECT_EQ(words_of(two), "direct 0=param10 3=param11>>2");
  EXPECT_EQ(two.has_dynamic, 1u << kGridX | 1u << kBlockX);
  const FastForm three = Compiled({.grid = "i", .grid_y = "gx", .block = "u"}).form();
  EXPECT_EQ(words_of(three), "computed");
  EXPECT_EQ(three.has_dynamic, 1u << kGridX | 1u << kGridY | 1u << kBlockX);
  const FastForm shared = Compiled({.grid = "12", .shared = "shared"}).form();
  EXPECT_EQ(words_of(shared), "computed");
  EXPECT_EQ(shared.has_dynamic, 1u << kSharedMem);
  EXPECT_EQ(shared.geometry[0], 12u);
  const FastForm constant = Compiled({.grid = "12", .block = "64", .shared = "4096"}).form();
  EXPECT_EQ(words_of(constant), "direct");
  EXPECT_EQ(constant.has_dynamic, 0u);
  const uint32_t geometry[] = {12, 1, 1, 64, 1, 1, 4096};
  EXPECT_TRUE(std::equal(std::begin(geometry), std::end(geometry), constant.geometry));
}

TEST(FastForm, KnowsClustersAndTooManyArguments) {
  EXPECT_EQ(words_of(Compiled({.cluster = "2"}).form()), "clustered");
  EXPECT_EQ(words_of(Compiled({.cluster = "cx"}).form()), "clustered");
  std::string arguments = "p0";
  for (int i = 1; i < 32; ++i) arguments += "; p" + std::to_string(i % 10);
  EXPECT_EQ(words_of(Compiled({.arguments = arguments}).form()), "direct");
  EXPECT_EQ(Compiled({.arguments = arguments}).form().argument_count, 32);
  EXPECT_EQ(words_of(Compiled({.arguments = arguments + "; p0"}).form()), "slow");
}

TEST(FastForm, OfABindingThatIsNotReadyIsSlow) {
  Compiled compiled({});
  BindingSpec refused = compiled.binding();
  refused.state = BindingState::refused;
  EXPECT_EQ(words_of(make_fast_form(refused, compiled.pattern(), {})), "slow");
}

TEST(FastForm, KnowsArgumentsThatAreWholeParameters) {
  struct Case {
    const char* arguments;
    const char* way;
    std::vector<uint8_t> params;  // padded to a multiple of 8
  };
  const Case cases[] = {
      {"p3; p1; i; f", "direct", {3, 1, 10, 15, 0, 0, 0, 0}},
      {"p0; p1; p2; p3; p4; p5; p6; p7", "direct", {0, 1, 2, 3, 4, 5, 6, 7}},
      {"p0; p1; p2; p3; p4; p5; p6; p7; p8",
       "direct",
       {0, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 0, 0, 0, 0}},
      {"field0", "direct", {14, 0, 0, 0, 0, 0, 0, 0}},
      {"p0; field4", "computed", {}},
      {"p0; field8", "computed", {}},
      {"p0; k", "computed", {}},
      {"p0; gx", "computed", {}},
      {"p0; twice", "computed", {}},
  };
  for (const Case& row : cases) {
    const FastForm form = Compiled({.arguments = row.arguments}).form();
    EXPECT_EQ(words_of(form), row.way) << row.arguments;
    ASSERT_EQ(form.argument_count, row.params.size()) << row.arguments;
    EXPECT_TRUE(std::equal(row.params.begin(), row.params.end(), form.arguments)) << row.arguments;
  }
}

TEST(FastForm, LetsIdenticalParametersThrough) {
  Compiled compiled({});
  BindingSpec identity = compiled.binding();
  identity.is_identity = true;
  const FastForm form = make_fast_form(identity, compiled.pattern(), {});
  EXPECT_EQ(words_of(form), "direct");
  EXPECT_EQ(form.argument_count, 0);
}

TEST(FastForm, TellsWhoWaitsForThePreviousKernel) {
  EXPECT_EQ(Compiled({.waits_for_previous = true}).form().may_begin_early, 1);
  EXPECT_EQ(Compiled({.where = "i > 0", .waits_for_previous = true}).form().may_begin_early, 1);
  EXPECT_EQ(Compiled({}).form().may_begin_early, 0);
  EXPECT_EQ(
      Compiled({.waits_for_previous = true, .reads_before_wait = true}).form().may_begin_early, 0);
}

TEST(FastKey, IsRecognisedByTable) {
  struct Case {
    const char* definition;
    KeyKind kind;
    uint16_t param;
    uint32_t offset;
  };
  const Case cases[] = {
      {"d", KeyKind::none, 0, 0},
      {"d{k}", KeyKind::none, 0, 0},
      {"d{i}", KeyKind::int32, 10, 0},
      {"d{u}", KeyKind::int32, 11, 0},
      {"d{l}", KeyKind::int64, 12, 0},
      {"d{field4}", KeyKind::int32, 14, 4},
      {"d{i}_{i}", KeyKind::int32, 10, 0},
      {"d{i}_{k}", KeyKind::int32, 10, 0},
      {"d{s}", KeyKind::computed, 0, 0},
      {"d{gx}", KeyKind::computed, 0, 0},
      {"d{twice}", KeyKind::computed, 0, 0},
      {"d{i}_{l}", KeyKind::computed, 0, 0},
  };
  for (const Case& row : cases) {
    const FastKey key = make_fast_key(Compiled({.definition = row.definition}).pattern());
    EXPECT_EQ(key.kind, row.kind) << row.definition;
    EXPECT_EQ(key.param, row.param) << row.definition;
    EXPECT_EQ(key.offset, row.offset) << row.definition;
  }
}

// The definition of a dimension (shim/abi/snapshot.h), in plain arithmetic.
int64_t computed(const FastDimension& dimension, int64_t source) {
  if (dimension.shift == FastDimension::kNotComputed) return source;
  const int64_t divisor =
      dimension.divisor != 0 ? dimension.divisor : int64_t{1} << dimension.shift;
  return std::min<int64_t>((source + divisor - 1) / divisor, dimension.most);
}

TEST(FastDimension, IsWhatTheProgramComputes) {
  for (const char* grid : {"i", "ceil_div(i, 1)", "ceil_div(i, 8)", "ceil_div(i, 6)", "min(i, 9)",
                           "min(132, ceil_div(i, 128))", "min(ceil_div(i, 12), 132)"}) {
    const Compiled compiled({.grid = grid});
    const GeometrySpec& spec = compiled.binding().geometry[kGridX];
    ASSERT_NE(spec.value, nullptr) << grid;
    const std::vector<Step>& steps = spec.value->steps;
    const FastForm form = compiled.form();
    ASSERT_EQ(form.dimension_count, 1) << grid;
    for (int32_t near : {2, 6, 8, 12, 128, 1584, 16897, INT32_MAX - 1})
      for (int32_t value : {near - 1, near, near + 1}) {
        void* params[16] = {};
        params[10] = &value;
        int64_t expected = 0;
        ASSERT_TRUE(run_program(steps.data(), static_cast<uint32_t>(steps.size()),
                                {params, nullptr, {}}, &expected));
        EXPECT_EQ(computed(form.dimensions[0], value), expected) << grid << " of " << value;
      }
  }
}

}  // namespace
}  // namespace fibshim
