// JSON that comes from elsewhere, as a tree. nlohmann's own calls trust it in two ways: copying or
// printing a tree that is nested 100,000 deep runs out of stack, and get<uint64_t>() of 1e300 or of -1
// gives some number.
//
// For nlohmann::json and ordered_json. Their parser takes longer to compile than most files that need it: only
// json_input.cc does.
#pragma once

#include <string>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

namespace fibshim::tools {

inline constexpr int kMaxJsonNesting = 64;

// Discarded (is_discarded()) when the text is no JSON or nested more deeply than that.
template <class Json = nlohmann::json>
Json parse_json(std::string_view text);

// The member at a JSON pointer, such as "/workload/axes"; null where a part of the way is missing or
// of another kind.
const nlohmann::ordered_json* find_at(const nlohmann::ordered_json& json, const char* path);

// The text there; "" where there is none.
std::string text_at(const nlohmann::ordered_json& json, const char* path);

// The number there; those that JSON has no way to write are strings. 0 where there is none.
double number_at(const nlohmann::ordered_json& json, const char* path);

// The number, exactly. Throws std::range_error, as nlohmann does where the type is another. json_input.cc lists the types.
template <class Integer, class Json>
Integer integer_of(const Json& json);

}  // namespace fibshim::tools
