#include "loader/read/fields.h"

#include <algorithm>

namespace fibshim {

std::string in_quotes(std::string_view name) {
  std::string quoted;
  quoted.reserve(name.size() + 2);
  return quoted.append(1, '"').append(name).append(1, '"');
}

std::string What::words() const {
  std::string words(text_);
  if (quoted_.data() != nullptr) words += in_quotes(quoted_);
  return rest_ == nullptr ? words : words + rest_->words();
}

bool has_name(const std::vector<MarkedName>& names, std::string_view wanted) {
  return std::ranges::find(names, wanted, &MarkedName::name) != names.end();
}

bool expect_kind(JsonValue value, JsonKind kind, const What& what, Diagnostics* diagnostics) {
  if (!value) return false;
  if (value.kind() == kind) return true;
  diagnostics->add(
      Rule::wrong_type, value.mark(),
      what + " must be " + json_kind_words(kind) + ", not " + json_kind_words(value.kind()));
  return false;
}

static bool check_count(JsonValue value, size_t most, const What& what, Diagnostics* diagnostics) {
  const size_t count = value.size();
  if (count <= most) return true;
  diagnostics->add(Rule::limit, value.mark(),
                   what + " has " + std::to_string(count) + " entries; at most " +
                       std::to_string(most) + " are accepted");
  return false;
}

bool check_entry_count(JsonValue value, const What& what, Diagnostics* diagnostics) {
  return check_count(value, kMaxEntries, what, diagnostics);
}

bool check_rank(JsonValue shape, const What& what, Diagnostics* diagnostics) {
  return check_count(shape, kMaxRank, what, diagnostics);
}

JsonValue require_member(JsonValue object, std::string_view key, const What& what,
                         Diagnostics* diagnostics) {
  const JsonValue value = object.find(key);
  if (!value) {
    std::vector<std::string_view> given;
    for (const JsonValue::Member& member : object.members()) given.push_back(member.key);
    const std::string_view meant = nearest_word(key, given);
    // Do not report a key as missing if its misspelling has been reported as unknown.
    for (const JsonValue::Member& member : object.members()) {
      if (member.key == meant && diagnostics->has(Rule::unknown_key, member.key_mark)) return value;
    }
    diagnostics->add(Rule::missing_key, object.mark(), what + " has no " + in_quotes(key),
                     meant.empty() ? "" : "is " + in_quotes(meant) + " meant to be that?");
  }
  return value;
}

void accept_only(JsonValue object, const std::vector<std::string_view>& accepted, const What& what,
                 Diagnostics* diagnostics) {
  if (object.has_only(accepted)) return;
  for (const JsonValue::Member& member : object.members()) {
    if (std::find(accepted.begin(), accepted.end(), member.key) != accepted.end()) continue;
    if (diagnostics->is_full()) {
      diagnostics->add(Rule::unknown_key, {}, "");  // only counted
      continue;
    }
    const std::string hint = diagnostics->suggestion(member.key, accepted);
    std::string_view meant;
    if (!hint.empty()) meant = only_word(member.key, accepted);
    if (object.find(meant)) meant = {};  // the object has that key already
    diagnostics->add(Rule::unknown_key, member.key_mark,
                     "unknown key " + in_quotes(member.key) + " in " + what.words() +
                         "; accepted are " + list_words(accepted),
                     hint, meant);
  }
}

std::optional<MarkedText> read_text(JsonValue value, const What& what, Diagnostics* diagnostics) {
  if (!expect_kind(value, JsonKind::string, what, diagnostics)) return std::nullopt;
  MarkedText text = value.marked_string();
  if (text.text.empty()) {
    diagnostics->add(Rule::bad_value, value.mark(), what + " is empty");
    return std::nullopt;
  }
  const size_t nul = text.text.find('\0');
  if (nul != std::string::npos) {
    diagnostics->add(Rule::bad_value, text.at(nul), what + " holds a NUL character");
    return std::nullopt;
  }
  return text;
}

bool check_name(std::string_view name, Mark mark, const What& what, Diagnostics* diagnostics) {
  const char* fault = nullptr;
  if (name.empty()) {
    fault = " is empty";
  } else if (name.size() >= kMaxNameLength) {
    fault = " is longer than 511 bytes";
  } else if (std::any_of(name.begin(), name.end(),
                         [](char c) { return static_cast<uint8_t>(c) < 0x20 || c == 0x7f; })) {
    fault = " holds a control character";
  }
  static_assert(kMaxNameLength == 512, "the message above says so");
  if (fault == nullptr) return true;
  diagnostics->add(Rule::bad_name, mark, what + fault);
  return false;
}

std::optional<MarkedName> read_name(JsonValue value, const What& what, Diagnostics* diagnostics) {
  if (!expect_kind(value, JsonKind::string, what, diagnostics)) return std::nullopt;
  if (!check_name(value.string(), value.mark(), what, diagnostics)) return std::nullopt;
  return MarkedName{std::string(value.string()), value.mark()};
}

bool check_identifier(std::string_view name, Mark mark, const What& what,
                      Diagnostics* diagnostics) {
  if (!check_name(name, mark, what, diagnostics)) return false;
  const auto is_word = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
  };
  const bool is_identifier =
      std::all_of(name.begin(), name.end(), is_word) && !(name[0] >= '0' && name[0] <= '9');
  if (!is_identifier) {
    diagnostics->add(Rule::bad_name, mark, what + " " + in_quotes(name) + " is not an identifier",
                     "use letters, digits and _, beginning with no digit");
    return false;
  }
  if (name == "min" || name == "max" || name == "ceil_div") {
    diagnostics->add(Rule::bad_name, mark,
                     what + " " + in_quotes(name) + " has the name of a function");
    return false;
  }
  return true;
}

std::optional<int64_t> read_integer(JsonValue value, int64_t lowest, int64_t highest,
                                    const What& what, Diagnostics* diagnostics) {
  if (!expect_kind(value, JsonKind::integer, what, diagnostics)) return std::nullopt;
  if (value.integer() < lowest || value.integer() > highest) {
    diagnostics->add(Rule::bad_value, value.mark(),
                     what + " is " + std::to_string(value.integer()) + "; it must be from " +
                         std::to_string(lowest) + " to " + std::to_string(highest));
    return std::nullopt;
  }
  return value.integer();
}

std::optional<bool> read_boolean(JsonValue value, const What& what, Diagnostics* diagnostics) {
  if (!expect_kind(value, JsonKind::boolean, what, diagnostics)) return std::nullopt;
  return value.boolean();
}

}  // namespace fibshim
