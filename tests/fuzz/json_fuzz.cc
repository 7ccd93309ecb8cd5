// JSON texts whose strings may be known from another: the second text is the same tree, or refused with
// the same words, whether the first has been read or not.
//
// Input: two texts with a NUL between them.
#include <optional>
#include <string>

#include "loader/read/json_document.h"
#include "loader/read/known_strings.h"
#include "tests/fuzz/fuzz.h"

namespace fibshim::fuzz {
namespace {

bool is_same(Mark one, Mark other) { return one.line == other.line && one.column == other.column; }

void compare(JsonValue one, JsonValue other) {
  require(one.kind() == other.kind() && is_same(one.mark(), other.mark()),
          "a value is what and where it is");
  if (one.kind() == JsonKind::string) {
    const MarkedText text = one.marked_string();
    const MarkedText expected = other.marked_string();
    require(text.text == expected.text && text.columns == expected.columns, "a string is the same");
  } else if (one.kind() == JsonKind::array) {
    const auto elements = one.elements();
    const auto expected = other.elements();
    require(elements.size() == expected.size(), "an array has its elements");
    for (size_t i = 0; i < elements.size(); ++i) compare(elements[i], expected[i]);
  } else if (one.kind() == JsonKind::object) {
    const auto members = one.members();
    const auto expected = other.members();
    require(members.size() == expected.size(), "an object has its members");
    for (size_t i = 0; i < members.size(); ++i) {
      require(
          members[i].key == expected[i].key && is_same(members[i].key_mark, expected[i].key_mark),
          "a key is what and where it is");
      compare(one.value_of(members[i]), other.value_of(expected[i]));
    }
  }
}

std::string words_of(const Diagnostics& diagnostics) {
  std::string words;
  for (const Diagnostic& diagnostic : diagnostics.all()) words += format_diagnostic(diagnostic);
  return words;
}

}  // namespace

FUZZ_TARGET(json) {
  static const std::string kFile = "file.json";
  std::string_view second = as_text(data, size);
  const std::string_view first = take_until(&second, '\0');
  Diagnostics of_first, with, without;
  KnownStrings known(8);
  (void)JsonDocument::parse(first, &kFile, &of_first, &known);
  const auto one = JsonDocument::parse(second, &kFile, &with, &known);
  const auto other = JsonDocument::parse(second, &kFile, &without);
  require(words_of(with) == words_of(without), "what is said is the same");
  require(one.has_value() == other.has_value(), "a text is JSON or not");
  if (one) compare(one->root(), other->root());
  return 0;
}

}  // namespace fibshim::fuzz
