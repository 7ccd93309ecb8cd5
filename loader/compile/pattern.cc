#include "loader/compile/pattern.h"

#include <algorithm>
#include <bitset>

namespace fibshim {

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

bool PatternSpec::is_tied_to_name(std::string_view wanted) const {
  std::vector<std::string> open;
  for (const TemplatePart& part : name) {
    if (part.kind == TemplatePart::Kind::key) open.push_back(part.text);
    if (part.kind == TemplatePart::Kind::capture) {
      const PatternValue* const value = find_value(wanted);
      if (value != nullptr && !value->expression && value->source.kind == Source::Kind::capture &&
          value->source.index == part.index) {
        return true;
      }
    }
  }
  std::vector<std::string> seen;
  while (!open.empty()) {
    const std::string current = std::move(open.back());
    open.pop_back();
    if (current == wanted) return true;
    if (std::find(seen.begin(), seen.end(), current) != seen.end()) continue;
    seen.push_back(current);
    const PatternValue* const value = find_value(current);
    if (value == nullptr || !value->expression) continue;
    for (const std::string& used : value->expression->expression.names()) open.push_back(used);
  }
  return false;
}

std::optional<Scope::Meaning> PatternSpec::find(std::string_view wanted) const {
  if (const PatternValue* const value = find_value(wanted)) {
    if (value->expression) return Meaning{{}, &value->expression->expression, this};
    return Meaning{value->source};
  }
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

// Tries all ways to split the name at once: bit i is set if the parts so far can end at byte i.
bool PatternSpec::can_name(std::string_view definition_name,
                           const std::map<std::string, int64_t, std::less<>>& fixed) const {
  if (definition_name.size() >= kMaxNameLength) return false;
  if (definition_name.substr(0, name_prefix().size()) != name_prefix()) return false;
  using Ends = std::bitset<kMaxNameLength>;
  Ends ends;
  ends.set(0);
  for (const TemplatePart& part : name) {
    Ends next;
    std::string literal = part.text;
    bool is_literal = part.kind == TemplatePart::Kind::text;
    if (!is_literal) {
      const auto known = fixed.find(part.text);
      if (known != fixed.end()) {
        is_literal = true;
        literal = std::to_string(known->second);
      }
    }
    for (size_t begin = 0; begin <= definition_name.size(); ++begin) {
      if (!ends[begin]) continue;
      if (is_literal) {
        if (definition_name.substr(begin, literal.size()) == literal) {
          next.set(begin + literal.size());
        }
      } else if (part.kind == TemplatePart::Kind::capture &&
                 (numeric_captures >> part.index & 1) == 0) {
        for (size_t end = begin; end <= definition_name.size(); ++end) next.set(end);
        break;  // later begins add no further ends
      } else {
        // An integer in canonical decimal: 0, or -?[1-9][0-9]*, within int64's 19 digits.
        size_t digit = begin;
        if (digit < definition_name.size() && definition_name[digit] == '-') ++digit;
        const size_t first = digit;
        while (digit < definition_name.size() && definition_name[digit] >= '0' &&
               definition_name[digit] <= '9' && digit - first < 19) {
          ++digit;
          if (definition_name[first] == '0' && (digit > first + 1 || first > begin)) break;
          next.set(digit);
        }
      }
    }
    ends = next;
    if (ends.none()) return false;
  }
  return ends[definition_name.size()];
}

}  // namespace fibshim
