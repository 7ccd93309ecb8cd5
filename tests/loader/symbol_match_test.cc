// Which patterns fit a symbol, in which order, with which captures, and at what cost.
#include "loader/compile/symbol_match.h"

#include "tests/support/text.h"

namespace fibshim {
namespace {

constexpr char kTorchSymbol[] =
    "_ZN2at6native53_GLOBAL__N__0a1b2c3d_20_layer_norm_kernel_cu_9f8e7d6c28vectorized_layer_norm_"
    "kernelIN3c108BFloat16EfLb1EEEviT0_PKT_S8_S8_PS5_S9_PS6_";
constexpr char kTorchRegex[] =
    R"(re:_ZN2at6native\d+_GLOBAL__N__[0-9a-f]{8}_\d+_layer_norm_kernel_cu_[0-9a-f]{8}28vectorized_layer_norm_kernelIN3c108BFloat16EfLb1EEEviT0_PKT_S8_S8_PS5_S9_PS6_)";

SymbolPattern parse(const std::string& text) {
  auto pattern = SymbolPattern::parse(text);
  EXPECT_TRUE(pattern) << text << ": " << pattern.error().message;
  return std::move(*pattern);
}

// A matcher for patterns without a snapshot.
class Patterns {
 public:
  void add(const std::string& text, const std::vector<std::string>& captures,
           uint16_t numeric_captures) {
    SymbolEntry entry{std::make_shared<SymbolPattern>(parse(text)), {}, numeric_captures};
    for (const std::string& capture : captures) {
      entry.groups.push_back(entry.pattern->group_number(capture));
    }
    entries_.push_back(std::move(entry));
  }
  void finish() { matcher_ = std::make_unique<SymbolMatcher>(entries_); }
  uint32_t match(std::string_view symbol, SymbolMatch* out, uint32_t capacity) const {
    return matcher_->match(symbol, out, capacity);
  }

 private:
  std::vector<SymbolEntry> entries_;
  std::unique_ptr<SymbolMatcher> matcher_;
};

bool fits(const std::string& pattern, std::string_view symbol) {
  Patterns matcher;
  matcher.add(pattern, {}, 0);
  matcher.finish();
  SymbolMatch match;
  return matcher.match(symbol, &match, 1) == 1;
}

TEST(SymbolMatch, ExactNamesFitThemselves) {
  EXPECT_TRUE(fits("_Z3foov", "_Z3foov"));
  EXPECT_FALSE(fits("_Z3foov", "_Z3foovx"));
  EXPECT_FALSE(fits("_Z3foov", "_Z3foo"));
  EXPECT_FALSE(fits("_Z3foov", ""));
}

TEST(SymbolMatch, GlobsFitTheWholeSymbol) {
  EXPECT_TRUE(fits("glob:_Z*kernel*", "_Z6kernelv"));
  EXPECT_TRUE(fits("glob:*", "x"));
  EXPECT_TRUE(fits("glob:*", ""));
  EXPECT_TRUE(fits("glob:a?c", "abc"));
  EXPECT_FALSE(fits("glob:a?c", "ac"));
  EXPECT_FALSE(fits("glob:a?c", "abcd"));
  EXPECT_TRUE(fits("glob:a[b-d]e", "ace"));
  EXPECT_FALSE(fits("glob:a[!b-d]e", "ace"));
  EXPECT_TRUE(fits("glob:a[]x]", "a]"));
  EXPECT_TRUE(fits("glob:a\\*b", "a*b"));
  EXPECT_FALSE(fits("glob:a\\*b", "axb"));
  EXPECT_TRUE(fits("glob:*a*b*c*", "xxaxxbxxcxx"));
  EXPECT_FALSE(fits("glob:*a*b*c*", "xxcxxbxxaxx"));
}

TEST(SymbolMatch, RegexesFitTheWholeSymbol) {
  EXPECT_TRUE(fits(kTorchRegex, kTorchSymbol));
  EXPECT_FALSE(fits(kTorchRegex, std::string(kTorchSymbol) + "x"));
  EXPECT_FALSE(fits("re:kernel", "my_kernel"));
  EXPECT_TRUE(fits("re:a|b|kernel", "kernel"));
  EXPECT_FALSE(fits("re:a|b", "ab"));
  EXPECT_FALSE(fits("re:kernel$", "kernel\n"));
  EXPECT_TRUE(fits("re:(?i)KERNEL", "kernel"));
  EXPECT_TRUE(fits("re:.*", ""));
}

TEST(SymbolMatch, DemangledGlobsSeeTheDemangledName) {
  EXPECT_TRUE(
      fits("demangled:void at::native::*vectorized_layer_norm_kernel<c10::BFloat16, float, "
           "true>(*",
           kTorchSymbol));
  EXPECT_FALSE(fits("demangled:*vectorized_layer_norm_kernel<c10::Half*", kTorchSymbol));
  EXPECT_TRUE(fits("demangled:*(anonymous namespace)*", kTorchSymbol));
  EXPECT_TRUE(fits("demangled:*unsigned long*", "_Z3foom"));
  EXPECT_TRUE(fits("demangled:std::basic_string<char*", "_ZNSs4swapERSs") ||
              fits("demangled:std::string*", "_ZNSs4swapERSs"));
  EXPECT_TRUE(fits("demangled:plain_c_kernel", "plain_c_kernel"));
}

TEST(SymbolMatch, ComeInTheOrderOfTrial) {
  Patterns matcher;
  matcher.add("glob:*kernel*", {}, 0);
  matcher.add("other", {}, 0);
  matcher.add("re:my_kernel_[0-9]+", {}, 0);
  matcher.add("my_kernel_1", {}, 0);
  matcher.add("glob:*", {}, 0);
  matcher.add("demangled:my_kernel*", {}, 0);
  matcher.finish();
  SymbolMatch matches[8];
  ASSERT_EQ(matcher.match("my_kernel_1", matches, 8), 5u);
  EXPECT_EQ(matches[0].pattern, 0u);
  EXPECT_EQ(matches[1].pattern, 2u);
  EXPECT_EQ(matches[2].pattern, 3u);
  EXPECT_EQ(matches[3].pattern, 4u);
  EXPECT_EQ(matches[4].pattern, 5u);
  // A short array gets the first matches; the return value is the number of all.
  matches[1].pattern = 99;
  EXPECT_EQ(matcher.match("my_kernel_1", matches, 1), 5u);
  EXPECT_EQ(matches[0].pattern, 0u);
  EXPECT_EQ(matches[1].pattern, 99u);
}

TEST(SymbolMatch, CapturesByName) {
  Patterns matcher;
  matcher.add("re:k_(?<type>[a-z]+)_(?P<size>-?[0-9]+)(?:_(?<rest>x))?", {"size", "type", "rest"},
              1);
  matcher.finish();
  SymbolMatch match;
  ASSERT_EQ(matcher.match("k_bf_128", &match, 1), 1u);
  EXPECT_EQ(match.captures[0].value, 128);
  EXPECT_EQ(match.captures[0].begin, 5);
  EXPECT_EQ(match.captures[0].length, 3);
  EXPECT_EQ(match.captures[1].begin, 2);
  EXPECT_EQ(match.captures[1].length, 2);
  EXPECT_EQ(match.captures[1].value, 0);
  EXPECT_EQ(match.captures[2].length, 0);
  ASSERT_EQ(matcher.match("k_bf_-7_x", &match, 1), 1u);
  EXPECT_EQ(match.captures[0].value, -7);
  EXPECT_EQ(match.captures[2].length, 1);
}

TEST(SymbolMatch, ANumberThatDoesNotFitIsNoMatch) {
  Patterns matcher;
  matcher.add("re:k(?<n>.*)", {"n"}, 1);
  matcher.finish();
  SymbolMatch match;
  EXPECT_EQ(matcher.match("k9223372036854775807", &match, 1), 1u);
  EXPECT_EQ(match.captures[0].value, INT64_MAX);
  EXPECT_EQ(matcher.match("k9223372036854775808", &match, 1), 0u);
  EXPECT_EQ(matcher.match("kx", &match, 1), 0u);
  EXPECT_EQ(matcher.match("k", &match, 1), 0u);
  EXPECT_EQ(matcher.match("k-", &match, 1), 0u);
}

TEST(SymbolMatch, AHostileRegexGivesUp) {
  Patterns matcher;
  matcher.add("re:(a+)+(b|a+)*c", {}, 0);
  matcher.add("re:(?:(?:a*)*)*d", {}, 0);
  matcher.add("re:(?:(?=(?:(?=.*+x)|.)*+y)|.)*", {}, 0);
  matcher.finish();
  SymbolMatch matches[3];
  EXPECT_EQ(matcher.match(std::string(16384, 'a'), matches, 3), 0u);
}

TEST(SymbolMatch, DoesNotLookAtEndlessSymbols) {
  EXPECT_TRUE(fits("glob:*", std::string(16384, 'a')));
  EXPECT_FALSE(fits("glob:*", std::string(16385, 'a')));
}

TEST(SymbolMatch, RejectsWhatItCannotCompile) {
  const auto error_of = [](const std::string& text) {
    const auto pattern = SymbolPattern::parse(text);
    EXPECT_FALSE(pattern) << text;
    return pattern ? SIZE_MAX : pattern.error().offset;
  };
  EXPECT_EQ(error_of(""), 0u);
  EXPECT_EQ(error_of("glob:"), 5u);
  EXPECT_EQ(error_of("re:a("), 5u);
  EXPECT_EQ(error_of("re:a\\Cb"), 6u);
  EXPECT_EQ(error_of("glob:a[bc"), 6u);
  EXPECT_EQ(error_of("glob:a\\"), 6u);
  EXPECT_EQ(error_of("glob:[z-a]"), 6u);
  EXPECT_EQ(error_of("regex:.*"), 5u);
  EXPECT_EQ(error_of("a b"), 1u);
  EXPECT_EQ(error_of("re:(?J)(?<a>x)(?<a>y)"), 3u);
  EXPECT_EQ(error_of("re:" + std::string(5000, 'a')), 0u);
}

// Each further "a" doubles the cost of the first alternative before the second one fits.
TEST(SymbolMatch, GivesUpWhereARegexCostsTooMuch) {
  const char* const regex = "re:(?:(a+)+b|.*z)";
  EXPECT_TRUE(fits(regex, std::string(3, 'a') + "z"));
  EXPECT_FALSE(fits(regex, std::string(20, 'a') + "z"));
}

TEST(SymbolMatch, RegexesMayLeaveOutWhatLooksLiteral) {
  const struct {
    const char* regex;
    const char* text;
  } rows[] = {
      {"ab?c", "ac"},
      {"ab{0}c", "ac"},
      {"a(b|c)d", "acd"},
      {"a[bc]{2,3}d", "abcd"},
      {"(?:ab)?cd", "cd"},
      {"a\\-b", "a-b"},
      {"a\\bb?", "a"},
      {"x(?#comment ( )y", "xy"},
      {"(?x) a b c", "abc"},
      {"a(?i)B", "ab"},
      {"a(?i:B)c", "abc"},
      {"(a)\\1", "aa"},
      {"a\\x62c", "abc"},
      {"a\\142c", "abc"},
      {"a\\Kb", "ab"},
      {"a++b", "ab"},
      {"a*+b", "b"},
      {"a\\{2}b", "a{2}b"},
      {"a{x}b", "a{x}b"},
      {"(?(DEFINE)(?<q>b))a(?&q)", "ab"},
      {"[\\]a]b", "]b"},
      {"a(?!c)b", "ab"},
      {"ab|cd", "cd"},
      {"ab(?:x|y)|cd", "cd"},
      {"a[(]|b", "b"},
      {"a[^](]|b", "b"},
      {"a[\\](]|b", "b"},
      {"a[[:alpha:](]|b", "b"},
      {"a\\(|b", "b"},
      {"a\\Q(\\E|b", "b"},
      {"a(?#()|b", "b"},
      {"a(?x)#(\n|b", "b"},
      {"abc(?#x)*", "ab"},
      {"abc\\E*", "ab"},
      {"a(?:b|c)", "ac"},
      {"a(?<n>b|c)", "ac"},
      {"kernel?", "kerne"},
      {"kernels{0,1}", "kernel"},
      {"kernel*\\d", "kerne1"},
      {"kernel_a|kernel_b", "kernel_b"},
      {"(?:kernel)?_norms", "_norms"},
      {"(kernel|norms)_a", "norms_a"},
      {"kernel+", "kernelll"},
      {"kern[^e]els", "kernxels"},
  };
  for (const auto& row : rows) {
    EXPECT_TRUE(fits(std::string("re:") + row.regex, row.text)) << row.regex;
    for (const std::string& text : texts_in_regex(row.regex)) {
      EXPECT_NE(std::string_view(row.text).find(text), std::string_view::npos) << row.regex;
    }
  }
}

TEST(SymbolMatch, KnowsWhatARegexRequires) {
  using Texts = std::vector<std::string>;
  EXPECT_EQ(
      texts_in_regex(std::string_view(kTorchRegex).substr(3)),
      (Texts{"_ZN2at6native", "_GLOBAL__N__", "_", "_layer_norm_kernel_cu_",
             "28vectorized_layer_norm_kernelIN3c108BFloat16EfLb1EEEviT0_PKT_S8_S8_PS5_S9_PS6_"}));
  EXPECT_EQ(texts_in_regex("ab?c(?:d|e)+f\\.g.*hi+j"), (Texts{"a", "c", "f.g", "hi", "j"}));
  EXPECT_EQ(texts_in_regex("[a-z]+ab\\d{2}cd$"), (Texts{"ab", "cd"}));
}

// Patterns without a text that is long enough are tried with every symbol.
TEST(SymbolMatch, FindsPatternsByAnyOfTheirTexts) {
  Patterns matcher;
  const std::vector<std::string> texts = {"glob:*norm*",
                                          "re:.*",
                                          "re:_Z.*rms_norm_kernel\\d+",
                                          "glob:_Z*[r]ms_norm?kernel7",
                                          "demangled:rms_norm_kernel7",
                                          "glob:*layer_norm_kernel*"};
  for (const std::string& text : texts) matcher.add(text, {}, 0);
  matcher.finish();
  SymbolMatch matches[8];
  ASSERT_EQ(matcher.match("_Z15rms_norm_kernel7", matches, 8), 4u);
  for (uint32_t i = 0; i < 4; ++i) EXPECT_EQ(matches[i].pattern, i);
  ASSERT_EQ(matcher.match("rms_norm_kernel7", matches, 8), 3u);
  EXPECT_EQ(matches[2].pattern, 4u);
}

std::string torch_like_symbol(int i) {
  return "_ZN2at6native61_GLOBAL__N__0a1b2c3d_20_some_other_kernel_cu_9f8e7d6c29vectorized_"
         "elementwise_kernel_" +
         std::to_string(i) +
         "ILi4ENS0_15CUDAFunctor_addIN3c108BFloat16EEESt5arrayIPcLm3EEEEviT0_T1_NS0_6memory8"
         "policiesE10unroll_baseILi512ELi4EEE";
}

TEST(SymbolMatch, AThousandPatternsFindTheirOwnSymbolsAndNoOthers) {
  Patterns matcher;
  for (int i = 0; i < 250; ++i) {
    const std::string number = std::to_string(i);
    matcher.add("_ZN4vllm15rms_norm_kernel_" + number + "IN3c108BFloat16EEEvPT_PKS3_", {}, 0);
    matcher.add(std::string(kTorchRegex) + "_" + number + "(?<n>\\d+)", {"n"}, 1);
    matcher.add("glob:_ZN10flashinfer4norm13RMSNormKernel_" + number + "_ILj8E*", {}, 0);
    matcher.add("demangled:*flashinfer::activation::act_and_mul_kernel_" + number + "<*", {}, 0);
  }
  matcher.finish();
  std::vector<std::string> symbols;
  for (int i = 0; i < 200; ++i) symbols.push_back(torch_like_symbol(i));
  SymbolMatch match;
  uint32_t fitting = 0;
  for (const std::string& symbol : symbols) fitting += matcher.match(symbol, &match, 1);
  EXPECT_EQ(fitting, 0u);
  ASSERT_EQ(
      matcher.match("_ZN10flashinfer4norm13RMSNormKernel_7_ILj8E13__nv_bfloat16EEv", &match, 1),
      1u);
  EXPECT_EQ(match.pattern, 7u * 4 + 2);
}

}  // namespace
}  // namespace fibshim
