// JSON that comes from elsewhere, as a tree. nlohmann's own calls trust it in two ways: copying or
// printing a tree that is nested 100,000 deep runs out of stack, and get<uint64_t>() of 1e300 or of -1
// gives some number.
#ifndef FIBSHIM_TOOLS_JSON_INPUT_H_
#define FIBSHIM_TOOLS_JSON_INPUT_H_

#include <stdint.h>

#include <stdexcept>
#include <string_view>
#include <utility>

#include <nlohmann/json.hpp>

namespace fibshim::tools {

inline constexpr int kMaxJsonNesting = 64;

// Discarded (is_discarded()) when the text is no JSON or nested more deeply than that.
template <class Json = nlohmann::json>
Json parse_json(std::string_view text) {
  bool is_too_deep = false;
  const auto look = [&](int depth, typename Json::parse_event_t, Json&) {
    is_too_deep = is_too_deep || depth > kMaxJsonNesting;
    return !is_too_deep;
  };
  Json json = Json::parse(text, look, false);
  return is_too_deep ? Json(Json::value_t::discarded) : json;
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

#endif  // FIBSHIM_TOOLS_JSON_INPUT_H_
