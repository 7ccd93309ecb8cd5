// For tests: expectations on the output and exit code of programs, which print all output on
// failure; names of rows.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <string_view>

namespace fibshim {

inline testing::AssertionResult holds_text(std::string_view text, std::string_view part,
                                           bool is_wanted) {
  if ((text.find(part) != std::string_view::npos) == is_wanted) return testing::AssertionSuccess();
  return testing::AssertionFailure()
         << (is_wanted ? "not found: " : "found: ") << part << "\nin: " << text;
}

#define EXPECT_CONTAINS(text, part) EXPECT_TRUE(::fibshim::holds_text(text, part, true))
#define EXPECT_LACKS(text, part) EXPECT_TRUE(::fibshim::holds_text(text, part, false))

// Expects that exit code, and returns the result.
template <class Result>
Result exits(int code, Result result, const char* file = __builtin_FILE(),
             int line = __builtin_LINE()) {
  const testing::ScopedTrace trace(file, line, "called");
  EXPECT_EQ(result.exit_code, code) << result.out << result.err;
  return result;
}

// Names the instances of a suite by their rows' `name`.
inline constexpr auto kByName = [](const auto& row) { return std::string(row.param.name); };
// The same if a row is its own name.
inline constexpr auto kByItself = [](const auto& row) { return std::string(row.param); };

}  // namespace fibshim
