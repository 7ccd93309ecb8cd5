#include "loader/compile/symbol_match.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <string.h>

#include <algorithm>
#include <charconv>
#include <optional>

#include "loader/read/demangle.h"

namespace fibshim {
namespace {

constexpr uint32_t kRegexOptions = PCRE2_ANCHORED | PCRE2_ENDANCHORED | PCRE2_DOLLAR_ENDONLY |
                                   PCRE2_NEVER_UTF | PCRE2_NEVER_UCP | PCRE2_NEVER_BACKSLASH_C;

tl::unexpected<SymbolError> symbol_error(size_t offset, std::string message) {
  return tl::unexpected<SymbolError>(SymbolError{offset, std::move(message)});
}

// Escapes a byte so that it stands for itself in a regular expression, also in a set.
std::string escaped(char c) {
  static constexpr char kDigits[] = "0123456789abcdef";
  const auto byte = static_cast<uint8_t>(c);
  return {'\\', 'x', kDigits[byte >> 4], kDigits[byte & 15]};
}

// Translates the set that begins at the [ at *at, and moves *at to its ].
tl::expected<std::string, SymbolError> regex_of_set(std::string_view glob, size_t* at) {
  const size_t open = *at;
  size_t i = open + 1;
  std::string set = "[";
  if (i < glob.size() && (glob[i] == '!' || glob[i] == '^')) {
    set += '^';
    ++i;
  }
  const size_t first = i;
  for (; i < glob.size() && (glob[i] != ']' || i == first); ++i) {
    if (glob[i] == '\\' && i + 1 < glob.size()) ++i;
    set += escaped(glob[i]);
    if (i + 2 < glob.size() && glob[i + 1] == '-' && glob[i + 2] != ']') {
      if (static_cast<uint8_t>(glob[i + 2]) < static_cast<uint8_t>(glob[i])) {
        return symbol_error(i, "the range in [...] is backwards");
      }
      i += 2;
      set += '-' + escaped(glob[i]);
    }
  }
  if (i >= glob.size()) {
    return symbol_error(open, "this [ is not closed; write \\[ for the character itself");
  }
  *at = i;
  return set + ']';
}

// The part after a star matches at the first possible place and stays there (an atomic group). Only
// the last star is ever widened, so the number of steps is proportional to the text.
// `texts`: gets the texts that every match contains.
tl::expected<std::string, SymbolError> regex_of_glob(std::string_view glob,
                                                     std::vector<std::string>* texts) {
  std::string regex;
  texts->emplace_back();
  std::string part;  // the translation since the last star
  bool has_star = false;
  for (size_t i = 0; i < glob.size(); ++i) {
    if (std::string_view("*?[").find(glob[i]) != std::string_view::npos) texts->emplace_back();
    if (glob[i] == '*') {
      regex += has_star ? "(?>.*?" + part + ')' : part;
      part.clear();
      has_star = true;
    } else if (glob[i] == '?') {
      part += '.';
    } else if (glob[i] == '[') {
      const auto set = regex_of_set(glob, &i);
      if (!set) return tl::unexpected(set.error());
      part += *set;
    } else {
      if (glob[i] == '\\' && ++i == glob.size()) {
        return symbol_error(i - 1, "the glob ends in a lone \\");
      }
      part += escaped(glob[i]);
      texts->back() += glob[i];
    }
  }
  return regex + (has_star ? ".*" : "") + part;
}

std::optional<int64_t> read_number(std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

struct MatchDataDeleter {
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
};
using MatchData = std::unique_ptr<pcre2_match_data, MatchDataDeleter>;

// Returns false if a capture that must be a number is not one.
bool read_captures(const SymbolEntry& entry, std::string_view subject, pcre2_match_data* data,
                   SymbolMatch* out) {
  const PCRE2_SIZE* const bounds = pcre2_get_ovector_pointer(data);
  for (size_t i = 0; i < entry.groups.size(); ++i) {
    const PCRE2_SIZE begin = bounds[2 * entry.groups[i]];
    const PCRE2_SIZE end = bounds[2 * entry.groups[i] + 1];
    SymbolMatch::Capture& capture = out->captures[i];
    std::optional<int64_t> number;
    if (begin != PCRE2_UNSET && end >= begin) {
      capture.begin = static_cast<uint16_t>(begin);
      capture.length = static_cast<uint16_t>(end - begin);
      number = read_number(subject.substr(begin, end - begin));
    }
    capture.value = number.value_or(0);
    if (!number && (entry.numeric_captures >> i & 1) != 0) return false;
  }
  return true;
}

}  // namespace

void SymbolPattern::RegexDeleter::operator()(pcre2_real_code_8* code) const {
  pcre2_code_free(code);
}

void SymbolMatcher::LimitsDeleter::operator()(pcre2_real_match_context_8* limits) const {
  pcre2_match_context_free(limits);
}

// The error's offset counts from the start of the regular expression.
tl::expected<void, SymbolError> SymbolPattern::compile_regex(std::string_view regex,
                                                             uint32_t options) {
  int error = 0;
  PCRE2_SIZE offset = 0;
  regex_.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(regex.data()), regex.size(),
                             kRegexOptions | options, &error, &offset, nullptr));
  if (regex_ == nullptr) {
    char message[256] = "";
    pcre2_get_error_message(error, reinterpret_cast<PCRE2_UCHAR*>(message), sizeof message);
    return symbol_error(offset, std::string("the regular expression: ") + message);
  }
  // If JIT compilation fails (say, no memory may be writable and executable), PCRE2 interprets.
  (void)pcre2_jit_compile(regex_.get(), PCRE2_JIT_COMPLETE);
  uint32_t count = 0;
  uint32_t entry_bytes = 0;
  PCRE2_SPTR table = nullptr;
  pcre2_pattern_info(regex_.get(), PCRE2_INFO_NAMECOUNT, &count);
  pcre2_pattern_info(regex_.get(), PCRE2_INFO_NAMEENTRYSIZE, &entry_bytes);
  pcre2_pattern_info(regex_.get(), PCRE2_INFO_NAMETABLE, &table);
  for (uint32_t i = 0; i < count; ++i, table += entry_bytes) {
    const std::string name = reinterpret_cast<const char*>(table + 2);
    if (std::find(groups_.begin(), groups_.end(), name) != groups_.end()) {
      return symbol_error(0, "the regular expression has two groups named " + name);
    }
    groups_.push_back(name);
    group_numbers_.push_back(static_cast<uint16_t>(table[0] << 8 | table[1]));
  }
  return {};
}

tl::expected<SymbolPattern, SymbolError> SymbolPattern::parse(std::string_view text) {
  SymbolPattern result;
  if (text.empty()) return symbol_error(0, "the symbol is empty");
  if (text.size() > kMaxSymbolPatternLength) {
    return symbol_error(0, "a symbol of " + std::to_string(text.size()) + " bytes; at most " +
                               std::to_string(kMaxSymbolPatternLength) + " are accepted");
  }
  static constexpr std::pair<std::string_view, Kind> kPrefixes[] = {
      {"glob:", Kind::glob}, {"re:", Kind::regex}, {"demangled:", Kind::demangled}};
  size_t skipped = 0;
  for (const auto& [prefix, kind] : kPrefixes) {
    if (!text.starts_with(prefix)) continue;
    result.kind_ = kind;
    skipped = prefix.size();
  }
  const std::string_view body = text.substr(skipped);
  if (body.empty()) return symbol_error(skipped, "nothing follows \"" + std::string(text) + "\"");
  result.text_ = text;
  if (result.kind_ == Kind::exact) {
    const size_t odd = body.find_first_of(" *?()[]:<>\\");
    if (odd == std::string_view::npos) return result;
    return symbol_error(odd, "an exact symbol holds no '" + std::string(1, body[odd]) +
                                 "'; write glob:, re: or demangled: in front of a pattern");
  }
  std::string regex(body);
  if (result.kind_ == Kind::regex) {
    result.texts_ = texts_in_regex(body);
  } else {
    auto translated = regex_of_glob(body, &result.texts_);
    if (!translated)
      return symbol_error(skipped + translated.error().offset, translated.error().message);
    regex = std::move(*translated);
  }
  const auto compiled = result.compile_regex(regex, result.kind_ == Kind::regex ? 0 : PCRE2_DOTALL);
  if (!compiled) return symbol_error(skipped + compiled.error().offset, compiled.error().message);
  return result;
}

uint16_t SymbolPattern::group_number(const std::string& name) const {
  const auto at = std::find(groups_.begin(), groups_.end(), name) - groups_.begin();
  return group_numbers_[static_cast<size_t>(at)];
}

// Limits what one regular expression may cost on one symbol. Beyond that it counts as not fitting.
SymbolMatcher::Limits SymbolMatcher::make_limits(uint32_t steps) {
  Limits limits(pcre2_match_context_create(nullptr));
  if (limits != nullptr) {
    pcre2_set_match_limit(limits.get(), steps);
    pcre2_set_heap_limit(limits.get(), kMaxRegexHeapKib);
  }
  return limits;
}

SymbolMatcher::SymbolMatcher(std::vector<SymbolEntry> entries)
    : entries_(std::move(entries)),
      limits_(make_limits(kMaxRegexSteps)),
      long_symbol_limits_(make_limits(kMaxLongSymbolRegexSteps)) {
  for (uint32_t i = 0; i < entries_.size(); ++i) {
    if (entries_[i].pattern == nullptr) continue;
    const SymbolPattern& pattern = *entries_[i].pattern;
    if (pattern.kind() == SymbolPattern::Kind::exact) {
      exact_[pattern.text()].push_back(i);
    } else {
      others_.add(i, pattern.texts_);
      has_demangled_ = has_demangled_ || pattern.kind() == SymbolPattern::Kind::demangled;
      uint32_t groups = 0;
      pcre2_pattern_info(pattern.regex_.get(), PCRE2_INFO_CAPTURECOUNT, &groups);
      most_groups_ = std::max(most_groups_, groups);
    }
  }
  others_.build();
}

bool SymbolPattern::fits(std::string_view subject) const {
  if (kind_ == Kind::exact) return subject == text_;
  const MatchData data(pcre2_match_data_create(1, nullptr));
  return data != nullptr && fits_regex(subject, nullptr, data.get());
}

bool SymbolPattern::fits_regex(std::string_view subject, pcre2_real_match_context_8* limits,
                               pcre2_real_match_data_8* data) const {
  const auto text = reinterpret_cast<PCRE2_SPTR>(subject.data());
  int count = pcre2_match(regex_.get(), text, subject.size(), 0, 0, data, limits);
  if (count == PCRE2_ERROR_JIT_STACKLIMIT) {
    count = pcre2_match(regex_.get(), text, subject.size(), 0, PCRE2_NO_JIT, data, limits);
  }
  return count >= 0;
}

uint32_t SymbolMatcher::match(std::string_view symbol, SymbolMatch* out,
                              uint32_t capacity) const noexcept {
  try {
    if (symbol.size() > kMaxSymbolLength) return 0;
    uint32_t count = 0;
    const auto add = [&](uint32_t index, const SymbolMatch& match) {
      if (count < capacity) {
        out[count] = match;
        out[count].pattern = index;
      }
      ++count;
    };
    static const std::vector<uint32_t> kNone;
    const auto exact = exact_.find(symbol);
    const std::vector<uint32_t>& same = exact == exact_.end() ? kNone : exact->second;
    auto next = same.begin();
    std::string demangled;
    std::vector<uint32_t> others = others_.always();
    others_.find(symbol, &others);
    const bool is_demangled = has_demangled_ && symbol.size() <= kMaxDemangledLength;
    if (is_demangled) {
      demangled = demangle(std::string(symbol));
      // The symbol of an extern "C" kernel is its own demangled name.
      if (demangled.empty()) demangled = symbol;
      others_.find(demangled, &others);
    }
    std::ranges::sort(others);
    others.erase(std::unique(others.begin(), others.end()), others.end());
    const MatchData data(others.empty() ? nullptr
                                        : pcre2_match_data_create(most_groups_ + 1, nullptr));
    if (data == nullptr && !others.empty()) return 0;
    for (const uint32_t other : others) {
      for (; next != same.end() && *next < other; ++next) add(*next, {});
      const SymbolEntry& entry = entries_[other];
      const SymbolPattern::Kind kind = entry.pattern->kind();
      if (kind == SymbolPattern::Kind::demangled && !is_demangled) continue;
      const std::string_view subject =
          kind == SymbolPattern::Kind::demangled ? std::string_view(demangled) : symbol;
      // A glob needs no limit, since its steps are bounded.
      auto* const limits = kind != SymbolPattern::Kind::regex ? nullptr
                           : symbol.size() > kLongSymbol      ? long_symbol_limits_.get()
                                                              : limits_.get();
      if (!entry.pattern->fits_regex(subject, limits, data.get())) continue;
      SymbolMatch match{};
      if (read_captures(entry, subject, data.get(), &match)) add(other, match);
    }
    for (; next != same.end(); ++next) add(*next, {});
    return count;
  } catch (...) {
    return 0;  // out of memory: the kernel stays untracked
  }
}

}  // namespace fibshim
