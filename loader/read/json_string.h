// The strings of JSON: finds where one ends, and decodes its escapes.
#pragma once

#include <stdint.h>

#include <string>
#include <string_view>

namespace fibshim {

inline bool is_continuation_byte(char c) { return (static_cast<uint8_t>(c) & 0xc0) == 0x80; }

struct JsonString {
  const char* end;  // its closing quote; null if the text is no string (RFC 8259)
  bool has_escapes;
  uint32_t continuation_bytes;  // bytes beyond the first of UTF-8 characters
};

// `at`: behind the opening quote.
JsonString read_json_string(const char* at, const char* end);

// `raw`: what read_json_string() found between the quotes.
std::string decode_json_string(std::string_view raw);

}  // namespace fibshim
