// Reads the keys of one JSON object and says what is wrong with them.
//
// Every reader returns a value that can be used, or nothing after having reported why. `what` names
// the thing in messages, quotes included where it is a key: "\"benefit\"", "an entry of \"grid\"".
#pragma once

#include "loader/read/json_document.h"

namespace fibshim {

// A name and where it stands.
struct MarkedName {
  std::string name;
  Mark mark;
};
bool has_name(const std::vector<MarkedName>& names, std::string_view wanted);

// Reports a wrong-type unless `value` is of that kind. A missing value is reported by nobody here.
bool expect_kind(JsonValue value, JsonKind kind, const std::string& what, Diagnostics* diagnostics);

// Reports a limit when the array or object has more than kMaxEntries entries.
bool check_entry_count(JsonValue value, const std::string& what, Diagnostics* diagnostics);

// The same of the axes of a shape, and kMaxRank.
bool check_rank(JsonValue shape, const std::string& what, Diagnostics* diagnostics);

// The member `key`; reports missing-key at the object when there is none. `what` names the object.
JsonValue require_member(JsonValue object, std::string_view key, const std::string& what,
                         Diagnostics* diagnostics);

// Reports every key that is not among `accepted`, with a suggestion.
void accept_only(JsonValue object, const std::vector<std::string_view>& accepted,
                 const std::string& what, Diagnostics* diagnostics);

// A string without NULs, not empty.
std::optional<MarkedText> read_text(JsonValue value, const std::string& what,
                                    Diagnostics* diagnostics);

// A name: not empty, shorter than kMaxNameLength, no control characters.
std::optional<MarkedName> read_name(JsonValue value, const std::string& what,
                                    Diagnostics* diagnostics);
bool check_name(std::string_view name, Mark mark, const std::string& what,
                Diagnostics* diagnostics);

// A name that expressions can use.
bool check_identifier(std::string_view name, Mark mark, const std::string& what,
                      Diagnostics* diagnostics);

std::optional<int64_t> read_integer(JsonValue value, int64_t lowest, int64_t highest,
                                    const std::string& what, Diagnostics* diagnostics);
std::optional<bool> read_boolean(JsonValue value, const std::string& what,
                                 Diagnostics* diagnostics);

// "name" in double quotes.
std::string in_quotes(std::string_view name);

}  // namespace fibshim
