// JSON that comes from elsewhere, as a tree. nlohmann's own calls trust it in two ways: copying or
// printing a tree that is nested 100,000 deep runs out of stack, and get<uint64_t>() of 1e300 or of -1
// gives some number.
#pragma once

#include <math.h>
#include <stddef.h>
#include <stdint.h>

#include <stdexcept>
#include <string_view>
#include <utility>

#include <nlohmann/json.hpp>

namespace fibshim::tools {

inline constexpr int kMaxJsonNesting = 64;

// Whether JSON opens more objects and arrays within each other than that. Of other text it says anything.
inline bool is_nested_too_deep(std::string_view text) {
  int depth = 0;
  bool is_in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    switch (text[i]) {
      case '\\': i += is_in_string ? 1 : 0; break;
      case '"': is_in_string = !is_in_string; break;
      case '[':
      case '{':
        if (!is_in_string && ++depth > kMaxJsonNesting) return true;
        break;
      case ']':
      case '}': depth -= is_in_string ? 0 : 1; break;
      default: break;
    }
  }
  return false;
}

// Discarded (is_discarded()) when the text is no JSON or nested more deeply than that. The depth is
// looked at first: nlohmann's parser with a callback takes quadratic time.
template <class Json = nlohmann::json>
Json parse_json(std::string_view text) {
  if (is_nested_too_deep(text)) return Json(Json::value_t::discarded);
  return Json::parse(text, nullptr, false);
}

// The member at a JSON pointer, such as "/workload/axes"; null where a part of the way is missing or
// of another kind.
template <class Json>
const Json* find_at(const Json& json, const char* path) {
  const typename Json::json_pointer pointer(path);
  return json.contains(pointer) ? &json.at(pointer) : nullptr;
}

// The text there; "" where there is none.
template <class Json>
std::string text_at(const Json& json, const char* path) {
  const Json* const value = find_at(json, path);
  return value != nullptr && value->is_string() ? value->template get<std::string>() : "";
}

// The number there; those that JSON has no way to write are strings. 0 where there is none.
template <class Json>
double number_at(const Json& json, const char* path) {
  const Json* const value = find_at(json, path);
  if (value == nullptr) return 0;
  if (value->is_string()) return *value == "NaN" ? NAN : INFINITY;
  return value->is_number() ? value->template get<double>() : 0;
}

// The number, exactly. Throws std::range_error, as nlohmann does where the type is another.
template <class Integer, class Json>
Integer integer_of(const Json& json) {
  if (json.is_number_unsigned()) {
    const auto value = json.template get<uint64_t>();
    if (std::in_range<Integer>(value)) return static_cast<Integer>(value);
  } else if (json.is_number_integer()) {
    const auto value = json.template get<int64_t>();
    if (std::in_range<Integer>(value)) return static_cast<Integer>(value);
  }
  throw std::range_error("a number is out of range, or no integer");
}

}  // namespace fibshim::tools
