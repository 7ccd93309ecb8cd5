#include "loader/compile/pattern.h"

#include <algorithm>
#include <bitset>
#include <cctype>

namespace fibshim {

bool PatternValue::is_same_place(const PatternValue& other) const {
  const auto shift_of = [](const PatternValue& value) {
    return value.shift ? value.shift->words() : "";
  };
  return source.index == other.source.index && source.offset == other.source.offset &&
         shift_of(*this) == shift_of(other);
}

const PatternValue* PatternSpec::find_value(std::string_view wanted) const {
  const auto at = std::ranges::find(values, wanted, &PatternValue::name);
  return at == values.end() ? nullptr : &*at;
}

PatternSpec::Pin PatternSpec::pin_of(std::string_view wanted) const {
  for (const MarkedExpression& clause : where) {
    for (const Expression::Pin& pin : clause.expression.pins()) {
      if (pin.name != wanted) continue;
      return {true, pin.is_integer ? std::optional<int64_t>(pin.integer) : std::nullopt};
    }
  }
  return {};
}

void PatternSpec::leave_out_equal(std::vector<uint16_t>* indices) const {
  const auto is_left = [&](std::string_view wanted) {
    return std::ranges::any_of(*indices, [&](uint16_t i) { return values[i].name == wanted; });
  };
  for (bool is_settled = indices->empty(); !is_settled;) {
    is_settled = true;
    for (const MarkedExpression& clause : where) {
      for (const Expression::Equality& equality : clause.expression.equalities()) {
        if (!is_left(equality.name) || std::ranges::any_of(equality.others, is_left)) continue;
        std::erase_if(*indices, [&](uint16_t i) { return values[i].name == equality.name; });
        is_settled = false;
      }
    }
  }
}

bool PatternSpec::is_tied_to_name(std::string_view wanted) const {
  std::vector<std::string_view> tied;
  for (const TemplatePart& part : name) {
    if (part.kind == TemplatePart::Kind::key) tied.push_back(part.text);
    if (part.kind == TemplatePart::Kind::capture) {
      const PatternValue* const value = find_value(wanted);
      if (value != nullptr && !value->expression && value->source.kind == Source::Kind::capture &&
          value->source.index == part.index) {
        return true;
      }
    }
  }
  for (size_t i = 0; i < tied.size(); ++i) {
    if (tied[i] == wanted) return true;
    const PatternValue* const value = find_value(tied[i]);
    if (value == nullptr || !value->expression) continue;
    for (const std::string& used : value->expression->expression.names()) {
      if (std::ranges::find(tied, used) == tied.end()) tied.push_back(used);
    }
  }
  return false;
}

std::optional<Scope::Meaning> PatternSpec::find_meaning(std::string_view wanted) const {
  const PatternValue* const value = find_value(wanted);
  if (value == nullptr) return std::nullopt;
  if (value->expression) return Meaning{{}, &value->expression->expression, this};
  if (value->shift) return Meaning{value->source, &value->shift->expression, this, true};
  return Meaning{value->source};
}

std::optional<Scope::Meaning> PatternSpec::find(std::string_view wanted) const {
  if (const auto meaning = find_meaning(wanted)) return meaning;
  const auto capture = std::find(captures.begin(), captures.end(), wanted);
  if (capture == captures.end()) return std::nullopt;
  const auto index = static_cast<uint16_t>(capture - captures.begin());
  return Meaning{{.kind = Source::Kind::capture, .index = index}};
}

std::vector<std::string_view> PatternSpec::names() const {
  std::vector<std::string_view> result;
  for (const PatternValue& value : values) result.push_back(value.name);
  if (symbol != nullptr) {
    for (const std::string& group : symbol->groups()) result.push_back(group);
  }
  return result;
}

std::string_view PatternSpec::name_prefix() const {
  if (name.empty() || name[0].kind != TemplatePart::Kind::text) return {};
  return name[0].text;
}

namespace {

using Ends = std::bitset<kMaxNameLength>;
using FixedValues = PatternSpec::FixedValues;

// True for a capture that need not be a number.
bool is_free_text(const PatternSpec& pattern, const TemplatePart& part) {
  return part.kind == TemplatePart::Kind::capture &&
         (pattern.numeric_captures >> part.index & 1) == 0;
}

// The bytes at which a part of the name can end if it begins at one of those.
Ends ends_of(const PatternSpec& pattern, const TemplatePart& part, std::string_view name,
             const FixedValues& fixed, const Ends& begins) {
  Ends ends;
  std::string number;
  std::string_view literal = part.text;
  bool is_literal = part.kind == TemplatePart::Kind::text;
  if (!is_literal) {
    const auto known = std::ranges::find(fixed, part.text, &FixedValues::value_type::first);
    if (known != fixed.end()) {
      is_literal = true;
      literal = number = std::to_string(known->second);
    }
  }
  for (size_t begin = begins._Find_first(); begin <= name.size();
       begin = begins._Find_next(begin)) {
    if (is_literal) {
      if (name.substr(begin, literal.size()) == literal) ends.set(begin + literal.size());
    } else if (is_free_text(pattern, part)) {
      for (size_t end = begin; end <= name.size(); ++end) ends.set(end);
      break;  // later begins add no further ends
    } else {
      // An integer in canonical decimal: 0, or -?[1-9][0-9]*, within int64's 19 digits.
      size_t digit = begin;
      if (digit < name.size() && name[digit] == '-') ++digit;
      const size_t first = digit;
      while (digit < name.size() && name[digit] >= '0' && name[digit] <= '9' &&
             digit - first < 19) {
        ++digit;
        if (name[first] == '0' && (digit > first + 1 || first > begin)) break;
        ends.set(digit);
      }
    }
  }
  return ends;
}

// True if it is not clear where a part of the name ends, whatever the name is.
bool has_open_end(const PatternSpec& pattern) {
  const std::vector<TemplatePart>& parts = pattern.name;
  for (size_t i = 0; i + 1 < parts.size(); ++i) {
    if (parts[i].kind == TemplatePart::Kind::text) continue;
    const TemplatePart& next = parts[i + 1];
    if (next.kind != TemplatePart::Kind::text || isdigit(static_cast<unsigned char>(next.text[0])))
      return true;
    if (is_free_text(pattern, parts[i])) return true;
  }
  return false;
}

}  // namespace

// Tries all ways to split the name at once: bit i is set if the parts so far can end at byte i.
bool PatternSpec::can_name(std::string_view definition_name, const FixedValues& fixed) const {
  if (definition_name.size() >= kMaxNameLength) return false;
  if (definition_name.substr(0, name_prefix().size()) != name_prefix()) return false;
  Ends ends;
  ends.set(0);
  for (const TemplatePart& part : name) {
    ends = ends_of(*this, part, definition_name, fixed, ends);
    if (ends.none()) return false;
  }
  return ends[definition_name.size()];
}

bool PatternSpec::is_ambiguous(std::string_view definition_name, const FixedValues& fixed) const {
  if (definition_name.size() >= kMaxNameLength || !has_open_end(*this)) return false;
  std::vector<Ends> begins(name.size() + 1);  // of each part, and the end of the last
  begins[0].set(0);
  for (size_t i = 0; i < name.size(); ++i) {
    begins[i + 1] = ends_of(*this, name[i], definition_name, fixed, begins[i]);
  }
  Ends fitting;  // the ends from which the rest of the name follows
  fitting.set(definition_name.size());
  for (size_t i = name.size(); i-- > 0;) {
    size_t ways = 0;
    Ends earlier;
    for (size_t begin = 0; begin <= definition_name.size(); ++begin) {
      if (!begins[i][begin]) continue;
      const Ends ends =
          ends_of(*this, name[i], definition_name, fixed, Ends().set(begin)) & fitting;
      ways += ends.count();
      earlier[begin] = ends.any();
    }
    if (ways > 1 && name[i].kind == TemplatePart::Kind::key) return true;
    fitting = earlier;
  }
  return false;
}

}  // namespace fibshim
