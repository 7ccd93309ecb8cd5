// JSON with places: every key and value has its line and column.
#include "loader/read/json_document.h"

#include "loader/read/known_strings.h"

#include "tests/support/text.h"

namespace fibshim {
namespace {

const std::string kFile = "file.json";

std::string place_of(Mark mark) {
  return std::to_string(mark.line) + ":" + std::to_string(mark.column);
}

std::string first_error(std::string_view text) {
  Diagnostics diagnostics;
  (void)JsonDocument::parse(text, &kFile, &diagnostics);
  return diagnostics.all().empty() ? "" : format_diagnostic(diagnostics.all()[0]);
}

TEST(JsonDocument, KnowsThePlaceOfEveryKeyAndValue) {
  const std::string text = R"({
  "a": [1, -2.5, true,
        null, "x\"y"],
  "b": {"c" : {}, "d":[[]]}
})";
  Diagnostics diagnostics;
  const auto document = JsonDocument::parse(text, &kFile, &diagnostics);
  ASSERT_TRUE(document);
  const JsonValue root = document->root();
  EXPECT_EQ(place_of(root.mark()), "1:1");
  const auto elements = root.find("a").elements();
  ASSERT_EQ(elements.size(), 5u);
  EXPECT_EQ(place_of(root.find("a").mark()), "2:8");
  EXPECT_EQ(place_of(elements[0].mark()), "2:9");
  EXPECT_EQ(elements[0].integer(), 1);
  EXPECT_EQ(place_of(elements[1].mark()), "2:12");
  EXPECT_EQ(elements[1].floating(), -2.5);
  EXPECT_EQ(place_of(elements[2].mark()), "2:18");
  EXPECT_TRUE(elements[2].boolean());
  EXPECT_EQ(place_of(elements[3].mark()), "3:9");
  EXPECT_EQ(elements[3].kind(), JsonKind::null);
  EXPECT_EQ(place_of(elements[4].mark()), "3:15");
  EXPECT_EQ(elements[4].string(), "x\"y");
  const auto members = root.find("b").members();
  ASSERT_EQ(members.size(), 2u);
  EXPECT_EQ(members[1].key, "d");
  EXPECT_EQ(place_of(members[1].key_mark), "4:19");
  EXPECT_EQ(place_of(root.find("b").value_of(members[1]).mark()), "4:23");
  EXPECT_FALSE(root.find("c"));
}

TEST(JsonDocument, CountsColumnsInCharacters) {
  const std::string text = "\xef\xbb\xbf{\"\xc3\xa4\xe2\x82\xac\": 1, \"b\": 2}";
  Diagnostics diagnostics;
  const auto document = JsonDocument::parse(text, &kFile, &diagnostics);
  ASSERT_TRUE(document);
  EXPECT_EQ(place_of(document->root().find("b").mark()), "1:16");
}

TEST(JsonDocument, FollowsEscapesInsideStrings) {
  const std::string text = R"(["a\tb\u00e4c\ud83d\ude00d€e"])";
  Diagnostics diagnostics;
  const auto document = JsonDocument::parse(text, &kFile, &diagnostics);
  ASSERT_TRUE(document);
  const MarkedText marked = document->root().elements()[0].marked_string();
  const auto column_of = [&](const char* needle) {
    return marked.at(marked.text.find(needle)).column;
  };
  EXPECT_EQ(column_of("a"), 3u);
  EXPECT_EQ(column_of("b"), 6u);
  EXPECT_EQ(column_of("c"), 13u);
  EXPECT_EQ(column_of("d"), 26u);
  EXPECT_EQ(column_of("e"), 28u);
  EXPECT_EQ(marked.at(marked.text.size()).column, 29u);  // the closing quote
}

TEST(JsonDocument, PointsInsidePlainStrings) {
  const std::string text = "[\"abc\"]";
  Diagnostics diagnostics;
  const auto document = JsonDocument::parse(text, &kFile, &diagnostics);
  const MarkedText marked = document->root().elements()[0].marked_string();
  EXPECT_EQ(marked.at(0).column, 3u);
  EXPECT_EQ(marked.at(2).column, 5u);
  EXPECT_EQ(marked.at(99).column, 6u);
}

TEST(JsonDocument, ReportsSyntaxErrorsWithTheirPlace) {
  EXPECT_EQ(first_error(""), "file.json:1:1: error: the file is empty [json-syntax]");
  EXPECT_EQ(first_error("{\"a\": 1,}").substr(0, 22), "file.json:1:9: error: ");
  EXPECT_EQ(first_error("{\n  \"a\" 1\n}").substr(0, 22), "file.json:2:7: error: ");
  EXPECT_EQ(first_error("[1, 2").substr(0, 22), "file.json:1:6: error: ");
  EXPECT_EQ(first_error("[1] x").substr(0, 22), "file.json:1:5: error: ");
  EXPECT_EQ(first_error("// no\n{}").substr(0, 22), "file.json:1:1: error: ");
  EXPECT_CONTAINS(first_error("[1e999]"), "[json-syntax]");
  EXPECT_CONTAINS(first_error("[\"\xff\"]"), "[json-syntax]");
  EXPECT_EQ(first_error(std::string("[1]\0x", 5)),
            "file.json:1:4: error: a NUL character [json-syntax]");
  EXPECT_LACKS(first_error("[NaN]"), "exception");
}

TEST(JsonDocument, FindsKeysWithEscapes) {
  Diagnostics diagnostics;
  const auto document = JsonDocument::parse(R"({"a\u0062": "x\ny", "c": 2})", &kFile, &diagnostics);
  ASSERT_TRUE(document);
  const JsonValue value = document->root().find("ab");
  EXPECT_EQ(value.string(), "x\ny");
  EXPECT_EQ(value.string().data(), value.string().data()) << "decoded once";
  EXPECT_EQ(document->root().members()[0].key, "ab");
  EXPECT_EQ(first_error(R"({"a\u0062": 1, "ab": 2})"),
            "file.json:1:16: error: key \"ab\" is there twice, first on line 1 [duplicate-key]");
}

TEST(JsonDocument, ReportsEveryDuplicateKey) {
  Diagnostics diagnostics;
  const std::string text = "{\"a\": 1, \"b\": {\"a\": 2, \"a\": 3},\n \"a\": 4, \"a\": 5}";
  const auto document = JsonDocument::parse(text, &kFile, &diagnostics);
  ASSERT_TRUE(document);
  diagnostics.sort();
  ASSERT_EQ(diagnostics.all().size(), 3u);
  EXPECT_EQ(place_of({&kFile, diagnostics.all()[0].place.line, diagnostics.all()[0].place.column}),
            "1:24");
  EXPECT_EQ(diagnostics.all()[1].place.line, 2u);
  EXPECT_EQ(document->root().find("a").integer(), 1);
}

TEST(JsonDocument, KeepsIntegersThatFitInto64BitsOnly) {
  Diagnostics diagnostics;
  const std::string text = "[9223372036854775807, -9223372036854775808, 9223372036854775808, 1.0]";
  const auto document = JsonDocument::parse(text, &kFile, &diagnostics);
  const auto elements = document->root().elements();
  EXPECT_EQ(elements[0].integer(), INT64_MAX);
  EXPECT_EQ(elements[1].integer(), INT64_MIN);
  EXPECT_EQ(elements[2].kind(), JsonKind::floating);
  EXPECT_EQ(elements[3].kind(), JsonKind::floating);
}

// A string that is known from another text changes nothing: neither places nor what is refused.
TEST(JsonDocument, IsTheSameWithKnownStrings) {
  const std::string source = R"(// \"one\"\n\tint\u00e4 = '\\'; €)";
  const std::string first = "{\"a\": \"" + source + "\", \"b\": 1}";
  for (const std::string& text :
       {first, "[\"" + source + "\", \"" + source + "\" , {\"c\": 2}]", "{\"" + source + "\": 3}",
        "[\"" + source + "\", 01]", "[\"" + source + "\"\n x]", "[\"" + source + "\"",
        "[\"" + source + "\\q\"]", "[\"" + source, "[\"" + source + "\n\"]",
        "[\"" + source.substr(0, source.size() - 1) + "\"]", "[\"" + source + " \", 1]"}) {
    KnownStrings known(8);
    Diagnostics of_first, with, without;
    ASSERT_TRUE(JsonDocument::parse(first, &kFile, &of_first, &known));
    const auto one = JsonDocument::parse(text, &kFile, &with, &known);
    const auto other = JsonDocument::parse(text, &kFile, &without);
    ASSERT_EQ(one.has_value(), other.has_value()) << text;
    ASSERT_EQ(with.all().size(), without.all().size()) << text;
    for (size_t i = 0; i < with.all().size(); ++i) {
      EXPECT_EQ(format_diagnostic(with.all()[i]), format_diagnostic(without.all()[i]));
    }
    if (!one || one->root().kind() != JsonKind::array) continue;
    const auto elements = one->root().elements();
    const auto expected = other->root().elements();
    ASSERT_EQ(elements.size(), expected.size());
    for (size_t i = 0; i < elements.size(); ++i) {
      EXPECT_EQ(place_of(elements[i].mark()), place_of(expected[i].mark())) << text;
      if (elements[i].kind() == JsonKind::string) {
        EXPECT_EQ(elements[i].string(), expected[i].string());
      }
    }
  }
}

// Whatever the bytes are, there is a tree or a diagnostic.
TEST(JsonDocument, SurvivesEveryTruncationAndEveryFlippedByte) {
  const std::string text = R"({"a": [1, {"b\u00e4\n": "c\\"}, null], "d": -1.5e3, "e": "€"})";
  for (size_t i = 0; i < text.size(); ++i) {
    for (int change = 0; change < 257; ++change) {
      std::string damaged = text;
      if (change == 256) {
        damaged.resize(i);
      } else {
        damaged[i] = static_cast<char>(change);
      }
      Diagnostics diagnostics;
      const auto document = JsonDocument::parse(damaged, &kFile, &diagnostics);
      ASSERT_TRUE(document || diagnostics.error_count() > 0) << damaged;
      if (!document) continue;
      for (const JsonValue::Member& member : document->root().members()) {
        const JsonValue value = document->root().value_of(member);
        if (value.kind() == JsonKind::string) (void)value.marked_string();
      }
    }
  }
}

}  // namespace
}  // namespace fibshim
