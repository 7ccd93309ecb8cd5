// Reads the keys of one JSON object and reports what is wrong with them.
//
// Every reader returns a valid value, or nothing after reporting why. `what` names the value in
// messages, with quotes if it is a key: "\"benefit\"", "an entry of \"grid\"".
#pragma once

#include "loader/read/json_document.h"

namespace fibshim {

// A name and its place.
struct MarkedName {
  std::string name;
  Mark mark;
};
bool has_name(const std::vector<MarkedName>& names, std::string_view wanted);

// The name of a value in messages: refers to texts, which are put together only where something is
// to be said. Must not outlive them, nor the What that it is made of.
class What {
 public:
  What(const char* text) : text_(text) {}
  What(const std::string& text) : text_(text) {}
  // A text, what stands behind it in quotes, and what follows.
  What(std::string_view text, std::string_view quoted, const What* rest = nullptr)
      : text_(text), quoted_(quoted), rest_(rest) {}

  std::string words() const;

  friend What operator+(const char* text, const What& rest) { return {text, {}, &rest}; }
  friend std::string operator+(const What& what, const std::string& text) {
    return what.words() + text;
  }

 private:
  std::string_view text_, quoted_;  // the latter may have no data: nothing, not even quotes
  const What* rest_ = nullptr;
};

// Returns whether `value` is of that kind; reports wrong-type if it is of another. For a missing
// value returns false and reports nothing.
bool expect_kind(JsonValue value, JsonKind kind, const What& what, Diagnostics* diagnostics);

// Returns false after reporting `limit` if the array or object has more than kMaxEntries entries.
bool check_entry_count(JsonValue value, const What& what, Diagnostics* diagnostics);

// The same for the axes of a shape, with kMaxRank.
bool check_rank(JsonValue shape, const What& what, Diagnostics* diagnostics);

// Returns the member `key`; reports missing-key at the object if there is none. `what` names the
// object.
JsonValue require_member(JsonValue object, std::string_view key, const What& what,
                         Diagnostics* diagnostics);

// Reports every key that is not among `accepted`, with a suggestion.
void accept_only(JsonValue object, const std::vector<std::string_view>& accepted, const What& what,
                 Diagnostics* diagnostics);

// Reads a string that is not empty and contains no NUL.
std::optional<MarkedText> read_text(JsonValue value, const What& what, Diagnostics* diagnostics);

// Reads a name: not empty, shorter than kMaxNameLength, without control characters.
std::optional<MarkedName> read_name(JsonValue value, const What& what, Diagnostics* diagnostics);
bool check_name(std::string_view name, Mark mark, const What& what, Diagnostics* diagnostics);

// Checks that expressions can use the name: an identifier that is not the name of a function.
bool check_identifier(std::string_view name, Mark mark, const What& what, Diagnostics* diagnostics);

std::optional<int64_t> read_integer(JsonValue value, int64_t lowest, int64_t highest,
                                    const What& what, Diagnostics* diagnostics);
std::optional<bool> read_boolean(JsonValue value, const What& what, Diagnostics* diagnostics);

// Returns the name in double quotes.
std::string in_quotes(std::string_view name);

}  // namespace fibshim
