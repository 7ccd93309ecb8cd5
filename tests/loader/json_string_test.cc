// Strings of JSON are read eight bytes at a time: each character is found wherever it stands.
#include "loader/read/json_string.h"

#include <gtest/gtest.h>

namespace fibshim {
namespace {

constexpr ptrdiff_t kNoString = -1;

// How long the string is that begins with the text, or kNoString.
ptrdiff_t length_of(std::string_view text) {
  const JsonString string = read_json_string(text.data(), text.data() + text.size());
  return string.end == nullptr ? kNoString : string.end - text.data();
}

TEST(JsonString, FindsEachCharacterAtEachPlace) {
  const std::string plain(19, 'a');
  for (size_t place = 0; place < plain.size(); ++place) {
    for (unsigned byte = 0; byte < 256; ++byte) {
      std::string text = plain + "\"behind";
      text[place] = static_cast<char>(byte);
      const bool is_refused = byte < 0x20 || byte >= 0x80 || byte == '\\';  // \a is no escape
      const auto expected = static_cast<ptrdiff_t>(byte == '"' ? place : plain.size());
      EXPECT_EQ(length_of(text), is_refused ? kNoString : expected) << byte << " at " << place;
    }
  }
}

TEST(JsonString, EndsNowhereWithoutItsQuote) {
  for (size_t length = 0; length < 20; ++length) {
    EXPECT_EQ(length_of(std::string(length, 'a')), kNoString);
    EXPECT_EQ(length_of(std::string(length, 'a') + '\\'), kNoString);
    EXPECT_EQ(length_of(std::string(length, 'a') + "\\\""), kNoString);
  }
}

TEST(JsonString, CountsCharactersAtEachPlace) {
  for (size_t place = 0; place < 17; ++place) {
    const std::string text = std::string(place, 'a') + "\u00e9\u20ac\U0001f600b\"";
    const JsonString string = read_json_string(text.data(), text.data() + text.size());
    ASSERT_EQ(string.end, text.data() + text.size() - 1);
    EXPECT_EQ(string.continuation_bytes, 6u);
    EXPECT_FALSE(string.has_escapes);
  }
}

TEST(JsonString, DecodesEscapesAtEachPlace) {
  const std::string raw = R"(\"\\\/\b\f\n\r\t\u0041\u00e9\u20ac\ud83d\ude00)";
  for (size_t place = 0; place < 17; ++place) {
    const std::string before(place, 'a');
    const std::string text = before + raw + "b\"";
    const JsonString string = read_json_string(text.data(), text.data() + text.size());
    ASSERT_EQ(string.end, text.data() + text.size() - 1);
    EXPECT_TRUE(string.has_escapes);
    EXPECT_EQ(decode_json_string({text.data(), text.size() - 1}),
              before + "\"\\/\b\f\n\r\tA\u00e9\u20ac\U0001f600b");
  }
}

TEST(JsonString, RefusesWhatIsNoEscape) {
  for (const char* text : {R"(\x41")", R"(\u12")", R"(\u12g4")", R"(\ud83d")", R"(\ud83dx")",
                           R"(\ud83d\n")", R"(\ud83d\u0041")", R"(\ude00")", R"(\u-123")"}) {
    EXPECT_EQ(length_of(text), kNoString) << text;
  }
}

}  // namespace
}  // namespace fibshim
