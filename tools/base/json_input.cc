#include "tools/base/json_input.h"

#include <math.h>
#include <stdint.h>

#include <stdexcept>
#include <utility>

#include <nlohmann/json.hpp>

namespace fibshim::tools {
namespace {

// True if JSON is nested more deeply than kMaxJsonNesting. Meaningless for other text.
bool is_nested_too_deep(std::string_view text) {
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

}  // namespace

// Checks the depth first, since nlohmann's parser with a callback, which could check it, takes
// quadratic time.
template <class Json>
Json parse_json(std::string_view text) {
  if (is_nested_too_deep(text)) return Json(Json::value_t::discarded);
  return Json::parse(text, nullptr, false);
}
template nlohmann::json parse_json(std::string_view);
template nlohmann::ordered_json parse_json(std::string_view);

const nlohmann::ordered_json* find_at(const nlohmann::ordered_json& json, const char* path) {
  const nlohmann::ordered_json::json_pointer pointer(path);
  return json.contains(pointer) ? &json.at(pointer) : nullptr;
}

std::string text_at(const nlohmann::ordered_json& json, const char* path) {
  const auto* const value = find_at(json, path);
  return value != nullptr && value->is_string() ? value->get<std::string>() : "";
}

double number_at(const nlohmann::ordered_json& json, const char* path) {
  const auto* const value = find_at(json, path);
  if (value == nullptr) return 0;
  if (value->is_string()) return *value == "NaN" ? NAN : INFINITY;
  return value->is_number() ? value->get<double>() : 0;
}

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
template uint32_t integer_of(const nlohmann::json&);
template int64_t integer_of(const nlohmann::json&);
template uint64_t integer_of(const nlohmann::json&);
template int64_t integer_of(const nlohmann::ordered_json&);
template uint64_t integer_of(const nlohmann::ordered_json&);

}  // namespace fibshim::tools
