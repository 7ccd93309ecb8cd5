// Parses JSON from untrusted sources into a tree. nlohmann's own calls trust their input in two
// ways: copying or printing a tree that is nested 100,000 deep overflows the stack, and
// get<uint64_t>() of 1e300 or of -1 returns an arbitrary number.
//
// For nlohmann::json and ordered_json. Only json_input.cc includes their parser, which takes longer
// to compile than most files that need it.
#pragma once

#include <string>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

namespace fibshim::tools {

inline constexpr int kMaxJsonNesting = 64;

// Returns a discarded value (is_discarded()) if the text is not JSON or is nested more deeply than
// kMaxJsonNesting.
template <class Json = nlohmann::json>
Json parse_json(std::string_view text);

// The member at a JSON pointer, such as "/workload/axes"; null if a part of the path is missing or
// has another type.
const nlohmann::ordered_json* find_at(const nlohmann::ordered_json& json, const char* path);

// The string at that path; "" if there is none.
std::string text_at(const nlohmann::ordered_json& json, const char* path);

// The number at that path; 0 if there is none. NaN and infinity, which JSON cannot express, are
// read from strings.
double number_at(const nlohmann::ordered_json& json, const char* path);

// The exact integer. Throws std::range_error if `json` is no integer or does not fit. json_input.cc
// lists the types.
template <class Integer, class Json>
Integer integer_of(const Json& json);

}  // namespace fibshim::tools
