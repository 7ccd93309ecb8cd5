// Patterns against symbols: the matcher must find what fnmatch and PCRE2's interpreter find for each
// pattern alone.
//
// Input: patterns, one a line, and the symbol on the last one.
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <fnmatch.h>
#include <string.h>

#include <memory>
#include <string>
#include <vector>

#include "loader/read/demangle.h"
#include "loader/compile/symbol_match.h"
#include "tests/fuzz/fuzz.h"

namespace fibshim::fuzz {
namespace {

constexpr size_t kMaxPatterns = 8;

bool is_alnum(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

// Globs that POSIX and we read alike: of sets, those of letters and digits and whole ranges of them.
bool is_common_glob(const std::string& glob) {
  for (size_t i = 0; i < glob.size(); ++i) {
    if (glob[i] == '\\') {
      ++i;
      continue;
    }
    if (glob[i] != '[') continue;
    ++i;
    if (i < glob.size() && glob[i] == '!') ++i;
    const size_t first = i;
    for (; i < glob.size() && glob[i] != ']'; ++i) {
      const bool is_range = glob[i] == '-' && i > first && i + 1 < glob.size() &&
                            is_alnum(glob[i - 1]) && is_alnum(glob[i + 1]);
      if (!is_alnum(glob[i]) && !is_range) return false;
      if (is_range && i + 2 < glob.size() && glob[i + 2] == '-') return false;
    }
    if (i == glob.size() || i == first) return false;
  }
  return true;
}

enum class Answer { no, yes, unknown };

Answer glob_fits(const std::string& glob, const std::string& text) {
  if (!is_common_glob(glob)) return Answer::unknown;
  return fnmatch(glob.c_str(), text.c_str(), 0) == 0 ? Answer::yes : Answer::no;
}

// Without JIT, without anything left out for being impossible.
Answer regex_fits(std::string_view regex, const std::string& symbol) {
  int error = 0;
  PCRE2_SIZE offset = 0;
  const std::unique_ptr<pcre2_code, decltype(&pcre2_code_free)> code(
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(regex.data()), regex.size(),
                    PCRE2_ANCHORED | PCRE2_ENDANCHORED | PCRE2_DOLLAR_ENDONLY | PCRE2_NEVER_UTF |
                        PCRE2_NEVER_UCP | PCRE2_NEVER_BACKSLASH_C | PCRE2_NO_START_OPTIMIZE |
                        PCRE2_NO_AUTO_POSSESS,
                    &error, &offset, nullptr),
      pcre2_code_free);
  if (code == nullptr) return Answer::unknown;
  const std::unique_ptr<pcre2_match_data, decltype(&pcre2_match_data_free)> data(
      pcre2_match_data_create_from_pattern(code.get(), nullptr), pcre2_match_data_free);
  const std::unique_ptr<pcre2_match_context, decltype(&pcre2_match_context_free)> limits(
      pcre2_match_context_create(nullptr), pcre2_match_context_free);
  // What the matcher may give up on is not told from what does not fit.
  pcre2_set_match_limit(limits.get(), kMaxLongSymbolRegexSteps / 4);
  const int count = pcre2_match(code.get(), reinterpret_cast<PCRE2_SPTR>(symbol.data()),
                                symbol.size(), 0, 0, data.get(), limits.get());
  if (count == PCRE2_ERROR_NOMATCH) return Answer::no;
  return count >= 0 ? Answer::yes : Answer::unknown;
}

Answer fits(const SymbolPattern& pattern, const std::string& symbol) {
  if (symbol.size() > kMaxSymbolLength) return Answer::no;
  const std::string_view text = pattern.text();
  const std::string body(text.substr(std::min(text.find(':'), text.size() - 1) + 1));
  switch (pattern.kind()) {
    case SymbolPattern::Kind::exact: return text == symbol ? Answer::yes : Answer::no;
    case SymbolPattern::Kind::glob: return glob_fits(body, symbol);
    case SymbolPattern::Kind::regex: {
      const Answer answer = regex_fits(body, symbol);
      for (const std::string& required : texts_in_regex(body)) {
        require(answer != Answer::yes || symbol.find(required) != std::string::npos,
                "what fits contains what the regular expression requires");
      }
      return answer;
    }
    case SymbolPattern::Kind::demangled: {
      if (symbol.size() > kMaxDemangledLength) return Answer::no;
      const std::string readable = demangle(symbol);
      return glob_fits(body, readable.empty() ? symbol : readable);
    }
  }
  return Answer::unknown;
}

// What the regular expression's groups captured is a part of the symbol, and numbers are its digits.
void check_captures(const SymbolMatch& match, const SymbolEntry& entry, const std::string& symbol) {
  for (uint32_t i = 0; i < entry.groups.size(); ++i) {
    const SymbolMatch::Capture& capture = match.captures[i];
    require(capture.begin + capture.length <= symbol.size(), "a capture is a part of the symbol");
    const std::string digits = symbol.substr(capture.begin, capture.length);
    if ((entry.numeric_captures >> i & 1) == 0) continue;
    char* end = nullptr;
    require(!digits.empty() && strtoll(digits.c_str(), &end, 10) == capture.value && *end == '\0',
            "a numeric capture has the value of its digits");
  }
}

}  // namespace

FUZZ_TARGET(symbols) {
  std::string_view rest = as_text(data, size);
  std::vector<std::string_view> lines;
  while (!rest.empty() && lines.size() <= kMaxPatterns) lines.push_back(take_until(&rest, '\n'));
  if (lines.empty()) return 0;
  // A symbol comes as a C string.
  const std::string symbol(lines.back().substr(0, lines.back().find('\0')));
  lines.pop_back();
  if (symbol.empty()) return 0;  // no kernel is named so

  std::vector<SymbolEntry> entries;
  for (const std::string_view line : lines) {
    // As the folder's reader has it.
    if (line.find('\0') != std::string_view::npos) continue;
    auto pattern = SymbolPattern::parse(line);
    if (!pattern) continue;
    SymbolEntry entry{std::make_shared<SymbolPattern>(std::move(*pattern)), {}, 0};
    for (const std::string& group : entry.pattern->groups()) {
      if (entry.groups.size() == kMaxCaptures) break;
      entry.groups.push_back(entry.pattern->group_number(group));
    }
    // Every other pattern takes its captures for numbers.
    if (entries.size() % 2 != 0) entry.numeric_captures = (1u << entry.groups.size()) - 1;
    entries.push_back(std::move(entry));
  }
  const SymbolMatcher matcher(entries);
  SymbolMatch found[kMaxPatterns];
  const uint32_t count = matcher.match(symbol, found, kMaxPatterns);
  require(count <= entries.size(), "a pattern fits once");

  std::vector<bool> is_found(entries.size());
  for (uint32_t i = 0; i < count; ++i) {
    require(i == 0 || found[i - 1].pattern < found[i].pattern,
            "patterns fit in the order of trial");
    is_found[found[i].pattern] = true;
    check_captures(found[i], entries[found[i].pattern], symbol);
  }
  for (size_t i = 0; i < entries.size(); ++i) {
    const Answer answer = fits(*entries[i].pattern, symbol);
    if (answer == Answer::no) require(!is_found[i], "what is found fits");
    // Captures that are no numbers keep a symbol that fits out.
    if (answer == Answer::yes && entries[i].numeric_captures == 0) {
      require(is_found[i], "what fits is found");
    }
  }
  return 0;
}

}  // namespace fibshim::fuzz
