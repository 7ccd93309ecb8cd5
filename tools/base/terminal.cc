#include "tools/base/terminal.h"

#include <errno.h>
#include <locale.h>
#include <string.h>
#include <wchar.h>
#include <unistd.h>

#include <cstdio>

#include <nlohmann/json.hpp>

#include "tools/base/json_input.h"

namespace fibshim::tools {
namespace {

// Length of the well-formed UTF-8 sequence that `text` begins with; 0 if there is none.
size_t utf8_length(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return 1;
  const size_t length = lead >= 0xc2 && lead < 0xe0   ? 2
                        : lead >= 0xe0 && lead < 0xf0 ? 3
                        : lead >= 0xf0 && lead < 0xf5 ? 4
                                                      : 0;
  if (length == 0 || text.size() < length) return 0;
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
  }
  // Refuse overlong forms, surrogates, and code points beyond U+10FFFF.
  if (lead == 0xe0 && byte(1) < 0xa0) return 0;
  if (lead == 0xed && byte(1) >= 0xa0) return 0;
  if (lead == 0xf0 && byte(1) < 0x90) return 0;
  if (lead == 0xf4 && byte(1) >= 0x90) return 0;
  return length;
}

// Whether --json still has to print a document, and the messages to print if the command fails.
bool g_is_json_expected = false;
std::string g_json_error;

}  // namespace

void expect_json() { g_is_json_expected = true; }
void end_expecting_json() { g_is_json_expected = false; }
void fail_as_json() {
  if (g_is_json_expected) (void)print_json({{"version", 1}, {"error", g_json_error}});
}

bool write_all(int fd, std::string_view data) {
  while (!data.empty()) {
    const ssize_t written = write(fd, data.data(), data.size());
    if (written < 0) {
      if (errno == EINTR) continue;
      return false;
    }
    data.remove_prefix(static_cast<size_t>(written));
  }
  return true;
}

bool print_data(std::string_view data) {
  end_expecting_json();
  if (write_all(STDOUT_FILENO, data)) return true;
  const int reason = errno;
  (void)write_all(STDERR_FILENO,
                  fmt::format("fibshim: cannot write to stdout: {}\n", strerror(reason)));
  return false;
}

std::string json_text(const nlohmann::ordered_json& document) {
  return document.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

std::string json_line(const nlohmann::ordered_json& document) {
  return document.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string json_string(std::string_view text) { return json_line(nlohmann::ordered_json(text)); }

// The JSON writer replaces bytes that are not UTF-8.
std::string valid_utf8(std::string_view text) {
  return parse_json(json_string(text)).get<std::string>();
}

bool print_json(const nlohmann::ordered_json& document) { return print_data(json_text(document)); }

void print_message(std::string_view command, std::string_view text) {
  const std::string_view blank = command.empty() ? "" : " ";
  if (g_is_json_expected)
    g_json_error += fmt::format("{}{}", g_json_error.empty() ? "" : "\n", text);
  // One write for each message, so that lines of several processes on one terminal do not mix.
  (void)write_all(STDERR_FILENO, fmt::format("fibshim{}{}: {}\n", blank, command, text));
}

int usage_error(std::string_view command, std::string_view text) {
  print_message(command, text);
  const std::string_view blank = command.empty() ? "" : " ";
  (void)write_all(STDERR_FILENO, fmt::format("Try 'fibshim{}{} --help'.\n", blank, command));
  return kExitUsage;
}

std::string printable(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const size_t length = utf8_length(text);
    const unsigned char lead = static_cast<unsigned char>(text[0]);
    // C1 controls (U+0080 to U+009F) drive some terminals too.
    const bool is_c1 = length == 2 && lead == 0xc2 && static_cast<unsigned char>(text[1]) < 0xa0;
    if (length == 0 || lead < 0x20 || lead == 0x7f || is_c1) {
      for (size_t i = 0; i < std::max<size_t>(length, 1); ++i) {
        out += fmt::format("\\x{:02x}", static_cast<unsigned char>(text[i]));
      }
    } else {
      out += text.substr(0, length);
    }
    text.remove_prefix(std::max<size_t>(length, 1));
  }
  return out;
}

std::string counted(uint64_t count, std::string_view one, std::string_view many) {
  if (count == 1) return fmt::format("1 {}", one);
  return many.empty() ? fmt::format("{} {}s", count, one) : fmt::format("{} {}", count, many);
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (!text.empty()) {
    parts.push_back(text.substr(0, text.find(separator)));
    text.remove_prefix(std::min(text.size(), parts.back().size() + 1));
  }
  return parts;
}

nlohmann::ordered_json or_null(const std::string& text) {
  return text.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(text);
}

size_t display_width(std::string_view text) {
  // The C library knows the width of characters, in a locale that contains them.
  static const locale_t utf8 = newlocale(LC_CTYPE_MASK, "C.UTF-8", nullptr);
  const locale_t before = utf8 == nullptr ? nullptr : uselocale(utf8);
  size_t width = 0;
  mbstate_t state{};
  for (size_t at = 0; at < text.size();) {
    wchar_t character = 0;
    const size_t bytes = mbrtowc(&character, text.data() + at, text.size() - at, &state);
    const bool is_character = bytes > 0 && bytes <= text.size() - at;
    const int columns = is_character ? wcwidth(character) : 1;
    width += columns < 0 ? 1 : static_cast<size_t>(columns);
    at += is_character ? bytes : 1;
    if (!is_character) state = {};
  }
  if (before != nullptr) uselocale(before);
  return width;
}

std::string format_table(const std::vector<std::vector<std::string>>& rows) {
  if (rows.empty()) return "";
  std::vector<bool> is_right;
  std::vector<std::vector<std::string>> cells = rows;
  for (std::string& heading : cells[0]) {
    is_right.push_back(!heading.empty() && heading[0] == '>');
    if (is_right.back()) heading.erase(0, 1);
  }
  std::vector<size_t> width(is_right.size(), 0);
  for (const auto& row : cells) {
    for (size_t i = 0; i < row.size() && i < width.size(); ++i) {
      width[i] = std::max(width[i], display_width(row[i]));
    }
  }
  std::string out;
  for (const auto& row : cells) {
    std::string line;
    for (size_t i = 0; i < row.size() && i < width.size(); ++i) {
      const std::string fill(width[i] - display_width(row[i]), ' ');
      line += i == 0 ? "" : "  ";
      line += is_right[i] ? fill + row[i] : row[i] + fill;
    }
    line.erase(line.find_last_not_of(' ') + 1);
    out += line + "\n";
  }
  return out;
}

std::string shell_quoted(std::string_view text) {
  const auto is_plain = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           strchr("_-./:=,+@%", c) != nullptr;
  };
  if (!text.empty() && std::ranges::all_of(text, is_plain)) return std::string(text);
  std::string out = "'";
  for (const char c : text) {
    if (c == '\'') {
      out += "'\\''";
    } else {
      out += c;
    }
  }
  return out + "'";
}

}  // namespace fibshim::tools
