// How findings are kept, ordered and written.
#include "loader/read/diagnostics.h"

#include <gtest/gtest.h>

namespace fibshim {
namespace {

TEST(Diagnostics, AreWrittenLikeACompilersWithTheirRule) {
  Diagnostics diagnostics;
  diagnostics.add(Rule::unknown_key, {"a.json", 3, 7}, "unknown key \"x\"", "did you mean \"y\"?");
  diagnostics.add(Rule::unreachable_solution, {"a.json", 3, 0}, "nobody comes");
  diagnostics.add(Rule::folder, {"config", 0, 0}, "not a folder");
  EXPECT_EQ(format_diagnostic(diagnostics.all()[0]),
            "a.json:3:7: error: unknown key \"x\"; did you mean \"y\"? [unknown-key]");
  EXPECT_EQ(format_diagnostic(diagnostics.all()[1]),
            "a.json:3: warning: nobody comes [unreachable-solution]");
  EXPECT_EQ(format_diagnostic(diagnostics.all()[2]), "config: error: not a folder [folder]");
  EXPECT_EQ(diagnostics.error_count(), 2u);
}

TEST(Diagnostics, CountWhatForbidsTheFolder) {
  Diagnostics diagnostics;
  diagnostics.add(Rule::image_missing, {}, "");
  EXPECT_EQ(diagnostics.error_count(), 1u);
  EXPECT_EQ(diagnostics.invalid_count(), 0u);
  diagnostics.add(Rule::json_syntax, {}, "");
  EXPECT_EQ(diagnostics.invalid_count(), 1u);
}

TEST(Diagnostics, TakeWhatOthersFoundAndCountWhatIsTooMuch) {
  Diagnostics all;
  all.add(Rule::bad_value, {"a", 1, 1}, "first");
  for (const size_t count : {size_t{1}, kMaxFindings - 3, size_t{3}}) {
    Diagnostics others;
    for (size_t i = 0; i < count; ++i) others.add(Rule::refused_axis, {"b", 1, 1}, "more");
    all.add_all(std::move(others));
  }
  EXPECT_EQ(all.error_count(), 1u);
  EXPECT_EQ(all.warning_count(), kMaxFindings + 1);
  const auto found = all.release();
  ASSERT_EQ(found.size(), kMaxFindings + 1);
  EXPECT_EQ(found[0].message, "first");
  EXPECT_EQ(found.back().message.substr(0, 15), "2 more findings");
}

TEST(Diagnostics, SortByPlaceAndKeepTheOrderOfEquals) {
  Diagnostics diagnostics;
  diagnostics.add(Rule::bad_value, {"b", 1, 1}, "4");
  diagnostics.add(Rule::bad_value, {"a", 10, 1}, "3");
  diagnostics.add(Rule::bad_value, {"a", 2, 9}, "1");
  diagnostics.add(Rule::bad_name, {"a", 2, 9}, "2");
  diagnostics.add(Rule::bad_value, {"a", 2, 1}, "0");
  diagnostics.sort();
  std::string order;
  for (const Diagnostic& diagnostic : diagnostics.all()) order += diagnostic.message;
  EXPECT_EQ(order, "01234");
}

TEST(Diagnostics, NeitherSteerTheTerminalNorFillIt) {
  Diagnostics diagnostics;
  diagnostics.add(Rule::bad_value, {"a", 1, 1}, "red \x1b[31m\n");
  diagnostics.add(Rule::bad_value, {"a", 1, 1}, std::string(999, 'x') + "\xc3\xa4" + "yyyy");
  EXPECT_EQ(diagnostics.all()[0].message, "red \\x1b[31m\\x0a");
  EXPECT_EQ(diagnostics.all()[1].message, std::string(999, 'x') + "...");
}

TEST(Rules, HaveNamesOfTheirOwnAndExplanations) {
  for (const RuleInfo& rule : kRules) {
    EXPECT_EQ(find_rule(rule.name), &rule) << rule.name;
    EXPECT_GT(std::string_view(rule.explanation).size(), 20u) << rule.name;
    EXPECT_EQ(
        std::string_view(rule.name).find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789-"),
        std::string_view::npos)
        << rule.name;
  }
  EXPECT_EQ(find_rule("nonsense"), nullptr);
}

TEST(NearestWord, IsWhatWasProbablyMeant) {
  EXPECT_EQ(nearest_word("wher", {"label", "where", "writes"}), "where");
  EXPECT_EQ(nearest_word("hiden_states", {"hidden_states", "output"}), "hidden_states");
  EXPECT_EQ(nearest_word("xyz", {"label", "where"}), "");
  EXPECT_EQ(nearest_word("", {"a"}), "");
  EXPECT_EQ(nearest_word(std::string(1 << 20, 'a'), {"a"}), "");
}

TEST(ListWords, ReadsAsASentence) {
  EXPECT_EQ(list_words({}), "");
  EXPECT_EQ(list_words({"a"}), "\"a\"");
  EXPECT_EQ(list_words({"a", "b", "c"}, "or"), "\"a\", \"b\" or \"c\"");
}

}  // namespace
}  // namespace fibshim
