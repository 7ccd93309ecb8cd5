#include "loader/read/json_string.h"

#include <string.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>

namespace fibshim {
namespace {

enum class CharClass : uint8_t { plain, quote, escape, control, multibyte };

// The meaning of each byte within a string.
constexpr auto kCharClasses = [] {
  std::array<CharClass, 256> classes{};
  for (size_t i = 0; i < 0x20; ++i) classes[i] = CharClass::control;
  for (size_t i = 0x80; i < 256; ++i) classes[i] = CharClass::multibyte;
  classes['"'] = CharClass::quote;
  classes['\\'] = CharClass::escape;
  return classes;
}();

// True if the eight bytes at `at` are all CharClass::plain.
bool are_plain(const char* at) {
  constexpr uint64_t kOnes = ~uint64_t{0} / 0xff, kHighBits = kOnes << 7;
  uint64_t bytes;
  memcpy(&bytes, at, sizeof bytes);
  // Sets the high bit of bytes below `limit`, and perhaps of others behind one of those.
  const auto below = [](uint64_t of, uint64_t limit) { return (of - kOnes * limit) & ~of; };
  const uint64_t other =
      below(bytes, 0x20) | below(bytes ^ kOnes * '"', 1) | below(bytes ^ kOnes * '\\', 1) | bytes;
  return (other & kHighBits) == 0;
}

// Returns the length in bytes of the character at `at`, or 0 if it is not UTF-8.
uint32_t utf8_length(const char* at, const char* end) {
  static constexpr uint32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
  const auto lead = static_cast<uint8_t>(*at);
  const uint32_t length = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if (lead < 0xc2 || lead > 0xf4 || end - at < static_cast<ptrdiff_t>(length)) return 0;
  uint32_t code = lead & (0x7fu >> length);
  for (uint32_t i = 1; i < length; ++i) {
    if (!is_continuation_byte(at[i])) return 0;
    code = code << 6 | (static_cast<uint8_t>(at[i]) & 0x3f);
  }
  const bool is_surrogate = code >= 0xd800 && code <= 0xdfff;
  return code < kLeast[length] || code > 0x10ffff || is_surrogate ? 0 : length;
}

// The meaning of the character after a backslash, or 0.
constexpr auto kEscapes = [] {
  std::array<char, 256> meanings{};
  for (const char same : {'"', '\\', '/'}) meanings[static_cast<uint8_t>(same)] = same;
  meanings['b'] = '\b';
  meanings['f'] = '\f';
  meanings['n'] = '\n';
  meanings['r'] = '\r';
  meanings['t'] = '\t';
  return meanings;
}();

// Reads the four digits of \uXXXX.
bool read_code_unit(const char** at, const char* end, uint32_t* out) {
  if (end - *at < 4) return false;
  const auto parsed = std::from_chars(*at, *at + 4, *out, 16);
  *at += 4;
  return parsed.ec == std::errc() && parsed.ptr == *at;
}

// Moves *at behind the escape that begins there. Returns the character, or nullopt if it is none.
std::optional<uint32_t> read_escape(const char** at, const char* end) {
  if (end - *at < 2) return std::nullopt;
  const char c = (*at)[1];
  *at += 2;
  if (const char meaning = kEscapes[static_cast<uint8_t>(c)]) return meaning;
  uint32_t code = 0;
  if (c != 'u' || !read_code_unit(at, end, &code) || (code >= 0xdc00 && code <= 0xdfff)) {
    return std::nullopt;
  }
  if (code < 0xd800 || code > 0xdbff) return code;
  uint32_t low = 0;
  if (end - *at < 2 || (*at)[0] != '\\' || (*at)[1] != 'u') return std::nullopt;
  *at += 2;
  if (!read_code_unit(at, end, &low) || low < 0xdc00 || low > 0xdfff) return std::nullopt;
  return 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
}

void append_utf8(uint32_t code, std::string* out) {
  const uint32_t length = code < 0x80 ? 1 : code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
  static constexpr uint32_t kLead[] = {0, 0, 0xc0, 0xe0, 0xf0};
  for (uint32_t i = length; i-- > 0;) {
    const uint32_t bits = code >> (6 * i);
    *out += static_cast<char>(i + 1 < length ? 0x80 | (bits & 0x3f) : kLead[length] | bits);
  }
}

}  // namespace

JsonString read_json_string(const char* at, const char* end) {
  const auto class_of = [](char c) { return kCharClasses[static_cast<uint8_t>(c)]; };
  JsonString string{nullptr, false, 0};
  while (true) {
    while (end - at >= 8 && are_plain(at)) at += 8;
    while (at < end && class_of(*at) == CharClass::plain) ++at;
    if (at == end || class_of(*at) == CharClass::control) return string;
    if (class_of(*at) == CharClass::quote) break;
    if (class_of(*at) == CharClass::escape) {
      string.has_escapes = true;
      if (!read_escape(&at, end)) return string;
      continue;
    }
    const uint32_t length = utf8_length(at, end);
    if (length == 0) return string;
    string.continuation_bytes += length - 1;
    at += length;
  }
  string.end = at;
  return string;
}

std::string decode_json_string(std::string_view raw) {
  std::string text;
  const char* const end = raw.data() + raw.size();
  for (const char* at = raw.data(); at != end;) {
    const char* const run = at;
    at = std::find(at, end, '\\');
    text.append(run, at);
    if (at != end) append_utf8(*read_escape(&at, end), &text);
  }
  return text;
}

}  // namespace fibshim
