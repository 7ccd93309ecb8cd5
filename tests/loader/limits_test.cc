// A folder one step beyond each limit of loader/read/limits.h is refused by the rule that its row
// names, quickly and without using the memory that it asks for.

#include <algorithm>
#include <functional>

#include "loader/check/check.h"
#include "tests/loader/test_folder.h"
#include "tests/support/text.h"

namespace fibshim {
namespace {

// Makes a sparse file of that size.
void make_huge(const TestFolder& folder, const std::string& path, uint64_t size) {
  folder.write(path, "");
  ASSERT_EQ(truncate(folder.path(path).c_str(), static_cast<off_t>(size)), 0);
}

std::string repeated(const std::string& text, size_t count) {
  std::string out;
  for (size_t i = 0; i < count; ++i) out += text;
  return out;
}

void set_where(const TestFolder& folder, const std::string& expression) {
  folder.change(kPatternPath, "\"x != 0\"", "\"" + expression + "\"");
}

// Makes more than `count` files below `top`, most of them through links: each path to a file
// counts.
void make_many(const TestFolder& folder, const std::string& top, uint64_t count) {
  constexpr uint64_t kFiles = 512;
  for (uint64_t i = 0; i < kFiles; ++i) {
    folder.write(top + "/many/" + std::to_string(i) + ".json", "");
  }
  for (uint64_t i = 0; i * kFiles < count; ++i) {
    std::filesystem::create_directory_symlink("many", folder.path(top + "/" + std::to_string(i)));
  }
}

// Makes patterns and solutions. If `is_equal`, every pattern can name the definition of every
// solution.
void make_pairs(const TestFolder& folder, size_t patterns, size_t solutions, bool is_equal) {
  folder.remove("definitions");
  folder.remove(kSolutionPath);
  folder.remove("patterns");
  for (size_t i = 0; i < solutions; ++i) {
    const std::string name = is_equal ? "scale" + std::to_string(i) : "x" + std::to_string(i);
    folder.write("definitions/" + name + ".json", replaced(kDefinition, "scale_n64", name));
    folder.write("solutions/me/" + name + ".json",
                 R"({"name": ")" + name + R"(", "definition": ")" + name +
                     R"(", "launch": {"kernel": "scale", "images": [{"path": "scale.sm_90.cubin",
                     "sha256": ")" +
                     sha256_hex(sha256(folder.read(kImagePath))) +
                     R"("}], "grid": [1, 1, 1], "block": [64, 1, 1],
                     "arguments": ["x", "y", "rows", "factor"]}})");
  }
  // The captured letter comes first, so the name has no literal prefix.
  std::string pattern =
      replaced(kPattern, "\"definition\": \"scale_n{n}\"",
               is_equal ? "\"definition\": \"scale{rows}\"" : "\"definition\": \"{T}none\"");
  for (size_t i = 0; i < patterns; ++i) {
    folder.write("patterns/" + std::to_string(i) + ".json",
                 replaced(pattern, "\"engine-scale\"", "\"p" + std::to_string(i) + "\""));
  }
}

using Exceed = std::function<void(const TestFolder&, uint64_t limit)>;

const std::map<std::string, Exceed> kCases = {
    {"JsonBytes", [](const TestFolder& f, uint64_t n) { make_huge(f, "patterns/x.json", n + 1); }},
    {"JsonDepth",
     [](const TestFolder& f, uint64_t n) { f.write("patterns/x.json", std::string(n + 1, '[')); }},
    {"JsonNodes",
     [](const TestFolder& f, uint64_t n) {
       f.write("patterns/x.json", "[0" + repeated(",0", n - 1) + "]");
     }},
    {"ImageBytes", [](const TestFolder& f, uint64_t n) { make_huge(f, kImagePath, n + 1); }},
    {"FolderBytes",
     [](const TestFolder& f, uint64_t n) {
       std::string images;
       for (uint64_t i = 0; i * kMaxImageBytes <= n; ++i) {
         const std::string name = std::to_string(i) + ".cubin";
         make_huge(f, "solutions/me/" + name, kMaxImageBytes);
         images += (i == 0 ? "" : ", ") + std::string("{\"path\": \"") + name +
                   "\", \"sha256\": \"" + std::string(64, '0') + "\"}";
       }
       const std::string text = f.read(kSolutionPath);
       const size_t at = text.find("[\n      {\"path\"");
       f.write(kSolutionPath,
               text.substr(0, at) + "[" + images + "]" + text.substr(text.find("],", at) + 1));
     }},
    {"FolderFiles", [](const TestFolder& f, uint64_t n) { make_many(f, "solutions", n); }},
    {"FolderDepth",
     [](const TestFolder& f, uint64_t n) {
       std::filesystem::create_directories(f.path("patterns" + repeated("/d", n)));
     }},
    {"Patterns", [](const TestFolder& f, uint64_t n) { make_many(f, "patterns", n); }},
    {"ComparedPairs",
     [](const TestFolder& f, uint64_t n) { make_pairs(f, n / 1024 + 1, 1024, false); }},
    {"Bindings", [](const TestFolder& f, uint64_t n) { make_pairs(f, n / 362 + 1, 362, true); }},
    {"Choices",
     [](const TestFolder& f, uint64_t n) {
       for (uint64_t i = 1; i <= n; ++i) {
         const std::string name = "other" + std::to_string(i);
         f.write_solution(replaced(replaced(kSolution, "my-scale", name), "\"kernel\"",
                                   "\"benefit\": " + std::to_string(i) + ", \"kernel\""),
                          "solutions/me/" + name + ".json");
       }
     }},
    {"Findings",
     [](const TestFolder& f, uint64_t n) {
       std::string keys;
       for (uint64_t i = 0; i <= n; ++i) keys += "\"k" + std::to_string(i) + "\": 0, ";
       f.change(kPatternPath, "\"label\"", keys + "\"label\"");
     }},
    {"Entries",
     [](const TestFolder& f, uint64_t n) {
       f.change(kPatternPath, "\"x != 0\"", "\"x != 0\"" + repeated(", \"x != 0\"", n));
     }},
    {"Rank",
     [](const TestFolder& f, uint64_t n) {
       f.change(kDefinitionPath, "\"x\": {\"shape\": [",
                "\"x\": {\"shape\": [" + repeated("\"n\", ", n));
     }},
    {"NameBytes",
     [](const TestFolder& f, uint64_t n) {
       f.change(kPatternPath, "engine-scale", std::string(n + 1, 'a'));
     }},
    {"SymbolPatternBytes",
     [](const TestFolder& f, uint64_t n) {
       f.change(kPatternPath, "re:_Z12", "re:" + std::string(n, 'a'));
     }},
    {"ExpressionBytes",
     [](const TestFolder& f, uint64_t n) { set_where(f, "x != 0" + std::string(n - 5, ' ')); }},
    {"ExpressionNodes",
     [](const TestFolder& f, uint64_t n) { set_where(f, "1" + repeated("+1", n / 2)); }},
    {"ExpressionNesting",
     [](const TestFolder& f, uint64_t n) {
       set_where(f, std::string(n + 1, '(') + "rows" + std::string(n + 1, ')') + " > 0");
     }},
    {"StackDepth",
     [](const TestFolder& f, uint64_t n) {
       set_where(f, repeated("n - (", n) + "rows" + std::string(n, ')') + " > 0");
     }},
    {"Params",
     [](const TestFolder& f, uint64_t n) {
       f.change(kPatternPath, "[8, 8, 4, 4, 4]", "[4" + repeated(", 4", n) + "]");
     }},
    {"KeyParts",
     [](const TestFolder& f, uint64_t n) {
       std::string axes, name;
       for (uint64_t i = 0; i <= n; ++i) {
         axes += "\"a" + std::to_string(i) + "\": {\"arg\": 2, \"type\": \"int32\"}, ";
         name += "_{a" + std::to_string(i) + "}";
       }
       f.change(kPatternPath, "\"axes\": {", "\"axes\": {" + axes);
       f.change(kPatternPath, "scale_n{n}", "scale" + name);
     }},
    {"Captures",
     [](const TestFolder& f, uint64_t n) {
       std::string groups, name;
       for (uint64_t i = 0; i <= n; ++i) {
         groups += "(?<g" + std::to_string(i) + ">x)";
         name += "{g" + std::to_string(i) + "}";
       }
       f.change(kPatternPath, "re:_Z12", "re:" + groups + "_Z12");
       f.change(kPatternPath, "scale_n{n}", "scale" + name);
     }},
};

bool is_rule(const LimitInfo& limit) { return find_rule(limit.beyond) != nullptr; }

// The limits with a test of their own below.
const char* const kOthers[] = {"ManifestBytes", "SymbolBytes", "DemangledBytes", "RegexSteps",
                               "LongSymbolRegexSteps"};

TEST(Limits, HaveATestEach) {
  for (const LimitInfo& limit : kLimits) {
    const bool is_other =
        std::count(std::begin(kOthers), std::end(kOthers), std::string_view(limit.name)) != 0;
    EXPECT_EQ(kCases.count(limit.name), is_other ? 0u : 1u) << limit.name;
    EXPECT_TRUE(is_other || is_rule(limit)) << limit.name;
  }
  EXPECT_EQ(kCases.size() + std::size(kOthers), std::size(kLimits));
}

class Limit : public testing::TestWithParam<std::string> {};

TEST_P(Limit, RefusesAFolderBeyond) {
  const LimitInfo* limit = nullptr;
  for (const LimitInfo& info : kLimits) {
    if (info.name == GetParam()) limit = &info;
  }
  ASSERT_NE(limit, nullptr);
  const TestFolder folder;
  kCases.at(limit->name)(folder, limit->value);
  const CheckReport report = check_folder(folder.path());
  std::string found;
  for (const Diagnostic& diagnostic : report.diagnostics) {
    if (found.size() < 2000) found += format_diagnostic(diagnostic) + "\n";
  }
  bool is_found = false;
  for (const Diagnostic& diagnostic : report.diagnostics) {
    is_found = is_found || rule_info(diagnostic.rule).name == std::string_view(limit->beyond);
  }
  EXPECT_TRUE(is_found) << found;
  EXPECT_GT(report.error_count, 0u) << found;
  const bool is_broken_only = std::string_view(limit->beyond) == "image-missing";
  EXPECT_EQ(report.snapshot != nullptr, is_broken_only) << found;
  EXPECT_LE(report.diagnostics.size(), kMaxFindings + 1);
}

std::vector<std::string> case_names() {
  std::vector<std::string> names;
  for (const auto& [name, exceed] : kCases) names.push_back(name);
  return names;
}
INSTANTIATE_TEST_SUITE_P(Folder, Limit, testing::ValuesIn(case_names()),
                         [](const auto& test) { return test.param; });

TEST(Limits, StateTheNumberOfFindingsThatAreNotListed) {
  const TestFolder folder;
  kCases.at("Findings")(folder, kMaxFindings + 4);
  const CheckReport report = check_folder(folder.path());
  EXPECT_EQ(report.error_count, kMaxFindings + 5);
  ASSERT_EQ(report.diagnostics.size(), kMaxFindings + 1);
  EXPECT_EQ(report.diagnostics.back().message, "5 more findings; 10000 are listed");
}

TEST(Limits, PairsThatAreBoundAheadLoseNoFindings) {
  const TestFolder folder;
  constexpr size_t kPatterns = 40, kSolutions = 5;
  make_pairs(folder, kPatterns, kSolutions, true);
  size_t expected = 0;
  for (size_t i = 0; i < kPatterns; ++i) {
    const size_t count = i % 2 == 0 ? 3 : 40;
    std::string arguments, names;
    for (size_t k = 0; k < count; ++k) {
      const std::string name = "\"scratch" + std::to_string(k) + "\"";
      arguments += name + ": {\"grid\": \"x\"}, ";
      names += ", " + name;
    }
    const std::string path = "patterns/" + std::to_string(i) + ".json";
    folder.change(path, "\"factor\": {", arguments + "\"factor\": {");
    folder.change(path, "[\"y\"]", "[\"y\"" + names + "]");
    expected += count * kSolutions;
  }
  const CheckReport report = check_folder(folder.path());
  const auto of_writes =
      std::ranges::count(report.diagnostics, Rule::refused_writes, &Diagnostic::rule);
  EXPECT_EQ(static_cast<size_t>(of_writes), expected);
  EXPECT_EQ(report.refused_binding_count, kPatterns * kSolutions);
}

TEST(Limits, OfAManifestMakeTheFolderUnsigned) {
  const TestFolder folder;
  make_huge(folder, kManifestFile, kMaxManifestBytes + 1);
  CheckOptions options;
  options.required_key = "RWSN0sy/ISUuzupI8wk/qWADpKMqx5XkWuTX8+zY1ogc/6INCgd0WPBw";
  const CheckReport report = check_folder(folder.path(), options);
  ASSERT_EQ(report.diagnostics.size(), 1u);
  EXPECT_CONTAINS(format_diagnostic(report.diagnostics[0]),
                  "larger than 67108864 bytes [signature]");
}

uint32_t match_count(const std::string& pattern, const std::string& symbol) {
  const TestFolder folder(kPatternPath, "re:_Z12engine_scaleI(?<T>[a-z])EvPT_PKT_iif", pattern);
  const LoaderApi& api = *fibloader_api(kLoaderApiVersion);
  char message[1024];
  const Snapshot* const snapshot = api.open(folder.path().c_str(), {}, message, sizeof message);
  EXPECT_NE(snapshot, nullptr) << message;
  if (snapshot == nullptr) return 0;
  SymbolMatch match;
  const uint32_t count = api.match(snapshot, symbol.c_str(), &match, 1);
  api.close(snapshot);
  return count;
}

TEST(Limits, OfSymbolsLeaveLongerOnesAlone) {
  EXPECT_EQ(match_count("re:a+", std::string(kMaxSymbolLength, 'a')), 1u);
  EXPECT_EQ(match_count("re:a+", std::string(kMaxSymbolLength + 1, 'a')), 0u);
  EXPECT_EQ(match_count("demangled:a*", std::string(kMaxDemangledLength, 'a')), 1u);
  EXPECT_EQ(match_count("demangled:a*", std::string(kMaxDemangledLength + 1, 'a')), 0u);
}

// Each would take far too long if the steps were not limited.
TEST(Limits, OfRegularExpressionsHoldForHostileOnes) {
  for (const char* pattern :
       {"re:(a+)+b", "re:(a|a)*b", "re:(a|aa)+b", "re:(.*)*b", "re:(.*a){20}b", "re:(a*)*(a*)*b",
        "re:(?:a?){64}a{64}b", "re:.*.*.*.*.*.*.*.*b", "re:((a{0,9}){0,9}){0,9}b",
        "re:(?=(a+))\\\\1*b", "re:(a+)+\\\\1b", "re:(?R)?a*b"}) {
    EXPECT_EQ(match_count(pattern, std::string(kLongSymbol, 'a')), 0u) << pattern;
    EXPECT_EQ(match_count(pattern, std::string(2 * kLongSymbol, 'a')), 0u) << pattern;
  }
}

}  // namespace
}  // namespace fibshim
