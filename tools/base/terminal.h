// What the subcommands share in talking to people and to pipes. Text that comes from files or
// other processes passes through `printable` before it reaches a terminal: a counters file or a
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
// As env(1): the command was found but cannot be run; it was not found.
inline constexpr int kExitCannotRun = 126;
inline constexpr int kExitNotFound = 127;

// Writes all of `data`. False, with errno, when that fails.
[[nodiscard]] bool write_all(int fd, std::string_view data);

// Writes all of `data` to stdout. False, with a message on stderr, when that fails (disk full).
[[nodiscard]] bool print_data(std::string_view data);

// `text` with each byte that is no UTF-8 as U+FFFD.
std::string valid_utf8(std::string_view text);

// `text` as a JSON string, with its quotes.
std::string json_string(std::string_view text);

// An indented JSON document, or one without a line break. Bytes that are no UTF-8 become U+FFFD.
std::string json_text(const nlohmann::ordered_json& document);
std::string json_line(const nlohmann::ordered_json& document);

// print_data of it.
[[nodiscard]] bool print_json(const nlohmann::ordered_json& document);

// For commands that were given --json: from here on messages are kept, and fail_as_json() prints them as
// {"version": 1, "error": TEXT}, unless there have been data.
void expect_json();
void fail_as_json();
// Data went where an option wanted them, in place of stdout.
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

// `text` as it may go to a terminal: control characters and bytes that are no UTF-8 as \xNN.
std::string printable(std::string_view text);

// "1 file", "3 files". `many` is for plurals that are not made with an "s".
std::string counted(uint64_t count, std::string_view one, std::string_view many = "");

// The parts between separators; after a last one there is no empty part.
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

// The text as JSON; null for an empty one.
nlohmann::ordered_json or_null(const std::string& text);

// The first row whose `member` is `wanted`, or null.
template <class Table, class Member, class Wanted>
auto find_row(Table& table, Member member, const Wanted& wanted) -> decltype(&*std::begin(table)) {
  const auto at = std::ranges::find(table, wanted, member);
  return at == std::ranges::end(table) ? nullptr : &*at;
}

// Columns that the text takes: its code points.
size_t display_width(std::string_view text);

// Rows as aligned columns, two blanks apart; the first row is the heading. Columns whose heading
// begins with '>' (dropped) are aligned to the right. No trailing blanks.
std::string format_table(const std::vector<std::vector<std::string>>& rows);

// `text` quoted for a POSIX shell, if it needs to be.
std::string shell_quoted(std::string_view text);

}  // namespace fibshim::tools
