// How the subcommands print to people and to pipes. Text from files or other processes
// passes through printable() before it reaches a terminal: a counters file or a
// config folder may hold anything, escape sequences included.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json_fwd.hpp>

namespace fibshim::tools {

// The version and the exit codes of `fibshim`.
inline constexpr char kVersion[] = "0.1.0";

inline constexpr int kExitFine = 0;
inline constexpr int kExitWrong = 1;
inline constexpr int kExitUsage = 2;
// As in env(1): the command was found but cannot be run; it was not found.
inline constexpr int kExitCannotRun = 126;
inline constexpr int kExitNotFound = 127;

// Writes all of `data`. On failure returns false and sets errno.
[[nodiscard]] bool write_all(int fd, std::string_view data);

// Writes all of `data` to stdout. On failure (disk full) prints a message, returns false.
[[nodiscard]] bool print_data(std::string_view data);

// `text` with each byte that is not UTF-8 replaced by U+FFFD.
std::string valid_utf8(std::string_view text);

// `text` as a JSON string, with its quotes.
std::string json_string(std::string_view text);

// The document as indented JSON, or on one line. Bytes that are not UTF-8 become U+FFFD.
std::string json_text(const nlohmann::ordered_json& document);
std::string json_line(const nlohmann::ordered_json& document);

// print_data() of json_text().
[[nodiscard]] bool print_json(const nlohmann::ordered_json& document);

// For commands that were given --json: from expect_json() on, messages are kept, and fail_as_json()
// prints them as {"version": 1, "error": TEXT} unless data has been printed.
void expect_json();
void fail_as_json();
// Tells that the data has gone to the file that an option named instead of stdout.
void end_expecting_json();

// "fibshim COMMAND: TEXT" on stderr.
void print_message(std::string_view command, std::string_view text);
template <class First, class... Rest>
void print_message(std::string_view command, fmt::format_string<First, Rest...> format,
                   First&& first, Rest&&... rest) {
  print_message(command, std::string_view(fmt::format(format, std::forward<First>(first),
                                                      std::forward<Rest>(rest)...)));
}

// The same, with a pointer to --help. Returns kExitUsage.
int usage_error(std::string_view command, std::string_view text);
template <class First, class... Rest>
int usage_error(std::string_view command, fmt::format_string<First, Rest...> format, First&& first,
                Rest&&... rest) {
  return usage_error(command, std::string_view(fmt::format(format, std::forward<First>(first),
                                                           std::forward<Rest>(rest)...)));
}

// `text` made safe for a terminal: control characters and bytes that are not UTF-8 become \xNN.
std::string printable(std::string_view text);

// "1 file", "3 files". `many` is for plurals that do not just add an "s".
std::string counted(uint64_t count, std::string_view one, std::string_view many = "");

// The parts between separators. A separator at the end adds no empty part.
std::vector<std::string_view> split(std::string_view text, char separator);

// "a=1 b=2", as the axes of a case are shown.
template <class Map>
std::string pairs_words(const Map& map) {
  std::string words;
  for (const auto& [name, value] : map) {
    words += fmt::format("{}{}={}", words.empty() ? "" : " ", name, value);
  }
  return words;
}

// The text as a JSON string; null if it is empty.
nlohmann::ordered_json or_null(const std::string& text);

// The first row whose `member` is `wanted`, or null.
template <class Table, class Member, class Wanted>
auto find_row(Table& table, Member member, const Wanted& wanted) -> decltype(&*std::begin(table)) {
  const auto at = std::ranges::find(table, wanted, member);
  return at == std::ranges::end(table) ? nullptr : &*at;
}

// Number of columns that the text takes, counted as its code points.
size_t display_width(std::string_view text);

// Rows as aligned columns, two blanks apart; the first row is the heading. Columns whose heading
// begins with '>' (dropped) are aligned to the right. No trailing blanks.
std::string format_table(const std::vector<std::vector<std::string>>& rows);

// `text` quoted for a POSIX shell, if it needs to be.
std::string shell_quoted(std::string_view text);

}  // namespace fibshim::tools
