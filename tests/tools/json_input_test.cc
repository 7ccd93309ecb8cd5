// Untrusted JSON: how deep it may be nested, and that brackets in strings do not count.
#include "tools/base/json_input.h"

#include <gtest/gtest.h>

#include <string>

#include <nlohmann/json.hpp>

namespace fibshim::test {
namespace {

using tools::kMaxJsonNesting;
using tools::parse_json;

std::string nested(int depth, const std::string& inner) {
  const auto count = static_cast<size_t>(depth);
  return std::string(count, '[') + inner + std::string(count, ']');
}

TEST(JsonInput, IsNestedOnlySoDeep) {
  EXPECT_FALSE(parse_json(nested(kMaxJsonNesting, "1")).is_discarded());
  EXPECT_TRUE(parse_json(nested(kMaxJsonNesting + 1, "1")).is_discarded());
  EXPECT_TRUE(parse_json(nested(100'000, "")).is_discarded());
  EXPECT_TRUE(parse_json(std::string(100'000, '[')).is_discarded());
  EXPECT_TRUE(parse_json(std::string(100'000, ']')).is_discarded());
  std::string objects;
  for (int i = 0; i <= kMaxJsonNesting; ++i) objects += "{\"a\":";
  EXPECT_TRUE(parse_json(objects + "1" + std::string(kMaxJsonNesting + 1, '}')).is_discarded());
}

TEST(JsonInput, HasAnyBracketsSideBySideAndInTexts) {
  std::string many = "[[]";
  for (int i = 0; i < 1000; ++i) many += ",{},[{}]";
  EXPECT_EQ(parse_json(many + "]").size(), 2001u);
  const std::string text = R"(\"\\)" + std::string(1000, '[') + R"(\\\"{)";
  const auto json = parse_json("[\"" + text + "\"]");
  ASSERT_EQ(json.size(), 1u);
  EXPECT_EQ(json[0].get<std::string>(), "\"\\" + std::string(1000, '[') + "\\\"{");
  // A string may end with an escaped backslash.
  EXPECT_TRUE(parse_json(R"(["\\",)" + nested(kMaxJsonNesting, "1") + "]").is_discarded());
}

}  // namespace
}  // namespace fibshim::test
