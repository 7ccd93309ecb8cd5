// A string that is known is what it would be if it were read.
#include "loader/read/known_strings.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace fibshim {
namespace {

constexpr ptrdiff_t kNone = -1;

// Reads the text both ways, and returns how long the string is.
ptrdiff_t length_both_ways(KnownStrings* known, const std::string& text) {
  const char* const end = text.data() + text.size();
  const JsonString one = known->read(text.data(), end);
  const JsonString other = read_json_string(text.data(), end);
  EXPECT_EQ(one.end, other.end) << text;
  if (one.end == nullptr) return kNone;
  EXPECT_EQ(one.has_escapes, other.has_escapes) << text;
  EXPECT_EQ(one.continuation_bytes, other.continuation_bytes) << text;
  return one.end - text.data();
}

TEST(KnownStrings, AreEqualInEveryByte) {
  const std::string source = R"(int main() { return \"a\u00e4€\"[0]; }\n)";
  const auto length = static_cast<ptrdiff_t>(source.size());
  KnownStrings known(8);
  for (int turn = 0; turn < 2; ++turn) {
    EXPECT_EQ(length_both_ways(&known, source + "\""), length);
    EXPECT_EQ(length_both_ways(&known, source + "\", 1"), length);
    EXPECT_EQ(length_both_ways(&known, source), kNone);
    EXPECT_EQ(length_both_ways(&known, source + "\\\""), kNone);
    EXPECT_EQ(length_both_ways(&known, source + "\\\"\""), length + 2);
    EXPECT_EQ(length_both_ways(&known, source + "\n\""), kNone);
    EXPECT_EQ(length_both_ways(&known, source.substr(0, 12) + "\""), 12);
  }
  for (size_t place = 0; place < source.size(); ++place) {
    for (unsigned byte = 0; byte < 256; ++byte) {
      std::string text = source + "\"";
      text[place] = static_cast<char>(byte);
      length_both_ways(&known, text);
    }
  }
}

TEST(KnownStrings, EndWhereTheTextEnds) {
  const std::string text = R"(a long string with \"quotes\" in it")";
  KnownStrings known(8);
  EXPECT_NE(length_both_ways(&known, text), kNone);
  for (size_t size = 0; size < text.size(); ++size) {
    EXPECT_EQ(length_both_ways(&known, text.substr(0, size)), kNone) << size;
  }
}

// Beyond the limits strings are read, and what was known stays so.
TEST(KnownStrings, AreLimited) {
  KnownStrings known(8);
  for (int turn = 0; turn < 2; ++turn) {
    for (size_t i = 0; i < 2 * KnownStrings::kMostStrings; ++i) {
      const std::string text = "the same head " + std::to_string(i) + "\"";
      EXPECT_EQ(length_both_ways(&known, text), static_cast<ptrdiff_t>(text.size() - 1));
    }
  }
  KnownStrings large;
  for (int turn = 0; turn < 2; ++turn) {
    for (const size_t size : {size_t{10}, KnownStrings::kMostBytes / 2, KnownStrings::kMostBytes,
                              KnownStrings::kMostBytes + 1}) {
      EXPECT_EQ(length_both_ways(&large, std::string(size, 'a') + "\""),
                static_cast<ptrdiff_t>(size));
    }
  }
}

TEST(KnownStrings, MayBeReadByManyThreads) {
  KnownStrings known(8);
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&known] {
      for (int k = 0; k < 2000; ++k) {
        const std::string text = "a string of many files " + std::to_string(k % 100) + "\"";
        EXPECT_EQ(length_both_ways(&known, text), static_cast<ptrdiff_t>(text.size() - 1));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace fibshim
