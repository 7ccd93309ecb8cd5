#include "loader/symbol_match.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <cxxabi.h>
#include <stdlib.h>
#include <string.h>

#include <algorithm>

namespace fibshim {
namespace {

// What one regular expression may cost on one symbol before it counts as not fitting: a hostile one
// gives up after about a millisecond.
constexpr uint32_t kRegexMatchLimit = 100000;
constexpr uint32_t kRegexHeapLimitKib = 1024;

tl::unexpected<SymbolError> symbol_error(size_t offset, std::string message) {
  return tl::unexpected<SymbolError>(SymbolError{offset, std::move(message)});
}

bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_word(char c) { return is_letter(c) || is_digit(c) || c == '_'; }

// Collects runs of characters that must stand side by side.
class LiteralRuns {
 public:
  void push(char c) { run_ += c; }
  void drop_last() {
    if (!run_.empty()) run_.pop_back();
  }
  void cut() {
    if (!run_.empty()) runs_.push_back(std::move(run_));
    run_.clear();
  }
  std::vector<std::string> take() {
    cut();
    return std::move(runs_);
  }

 private:
  std::string run_;
  std::vector<std::string> runs_;
};

// Words that a demangler writes without their being in the mangled name.
constexpr const char* kDemanglerWords[] = {"unsigned",
                                           "signed",
                                           "short",
                                           "long",
                                           "char",
                                           "wchar_t",
                                           "char8_t",
                                           "char16_t",
                                           "char32_t",
                                           "bool",
                                           "void",
                                           "float",
                                           "double",
                                           "__float128",
                                           "__int128",
                                           "_Float",
                                           "bfloat16_t",
                                           "float16_t",
                                           "float32_t",
                                           "float64_t",
                                           "float128_t",
                                           "decimal",
                                           "auto",
                                           "decltype",
                                           "nullptr_t",
                                           "nullptr",
                                           "std",
                                           "allocator",
                                           "basic_string",
                                           "char_traits",
                                           "basic_istream",
                                           "basic_ostream",
                                           "basic_iostream",
                                           "string",
                                           "istream",
                                           "ostream",
                                           "iostream",
                                           "anonymous",
                                           "namespace",
                                           "operator",
                                           "lambda",
                                           "unnamed",
                                           "type",
                                           "vtable",
                                           "typeinfo",
                                           "name",
                                           "guard",
                                           "variable",
                                           "construction",
                                           "virtual",
                                           "thunk",
                                           "covariant",
                                           "return",
                                           "initializer",
                                           "transaction",
                                           "clone",
                                           "template",
                                           "parameter",
                                           "object",
                                           "initialization",
                                           "function",
                                           "wrapper",
                                           "default",
                                           "reference",
                                           "temporary",
                                           "hidden",
                                           "alias",
                                           "const",
                                           "volatile",
                                           "restrict",
                                           "__restrict",
                                           "noexcept",
                                           "throw",
                                           "sizeof",
                                           "alignof",
                                           "typeid",
                                           "dynamic_cast",
                                           "static_cast",
                                           "const_cast",
                                           "reinterpret_cast",
                                           "delete",
                                           "delete[]",
                                           "co_await",
                                           "requires",
                                           "_Complex",
                                           "_Imaginary",
                                           "complex",
                                           "imaginary",
                                           "__vector",
                                           "false",
                                           "true",
                                           "this",
                                           "structured",
                                           "binding",
                                           "module",
                                           "friend",
                                           "concept",
                                           "typename",
                                           "enable_if",
                                           "string literal",
                                           "direct",
                                           "safe",
                                           "accessor",
                                           "local",
                                           "descriptor",
                                           "vtordisp",
                                           "substitution",
                                           "java",
                                           "resource",
                                           "constructor",
                                           "destructor",
                                           "global",
                                           "constructors",
                                           "destructors",
                                           "keyed",
                                           "init",
                                           "TLS",
                                           "non",
                                           "symbol"};

// A demangled name's identifiers stand in the mangled one too, but for the demangler's own words.
std::vector<std::string> literals_in_mangled_name(const std::vector<std::string>& literals) {
  std::vector<std::string> result;
  for (const std::string& literal : literals) {
    for (size_t begin = 0; begin < literal.size();) {
      if (!is_word(literal[begin])) {
        ++begin;
        continue;
      }
      size_t end = begin;
      while (end < literal.size() && is_word(literal[end])) ++end;
      const std::string word = literal.substr(begin, end - begin);
      begin = end;
      const bool is_own =
          std::any_of(std::begin(kDemanglerWords), std::end(kDemanglerWords), [&](const char* own) {
            return std::string_view(own).find(word) != std::string_view::npos;
          });
      if (!is_own && std::count_if(word.begin(), word.end(), is_letter) >= 5) {
        result.push_back(word);
      }
    }
  }
  return result;
}

}  // namespace

tl::expected<Glob, SymbolError> Glob::parse(std::string_view text) {
  Glob glob;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '*') {
      // Two stars in a row say no more than one.
      if (glob.tokens_.empty() || glob.tokens_.back().kind != Token::Kind::star) {
        glob.tokens_.push_back({Token::Kind::star, 0, 0});
      }
    } else if (c == '?') {
      glob.tokens_.push_back({Token::Kind::any, 0, 0});
    } else if (c == '\\') {
      if (++i == text.size()) return symbol_error(i - 1, "the glob ends in a lone \\");
      glob.tokens_.push_back({Token::Kind::literal, text[i], 0});
    } else if (c == '[') {
      const size_t open = i++;
      std::bitset<256> set;
      const bool is_negated = i < text.size() && (text[i] == '!' || text[i] == '^');
      if (is_negated) ++i;
      const size_t first = i;
      while (i < text.size() && (text[i] != ']' || i == first)) {
        if (text[i] == '\\' && i + 1 < text.size()) ++i;
        const auto low = static_cast<uint8_t>(text[i]);
        auto high = low;
        if (i + 2 < text.size() && text[i + 1] == '-' && text[i + 2] != ']') {
          high = static_cast<uint8_t>(text[i + 2]);
          if (high < low) return symbol_error(i, "the range in [...] is backwards");
          i += 2;
        }
        for (int member = low; member <= high; ++member) set.set(static_cast<size_t>(member));
        ++i;
      }
      if (i == text.size()) {
        return symbol_error(open, "this [ is not closed; write \\[ for the character itself");
      }
      if (is_negated) set.flip();
      glob.tokens_.push_back({Token::Kind::set, 0, static_cast<uint32_t>(glob.sets_.size())});
      glob.sets_.push_back(set);
    } else {
      glob.tokens_.push_back({Token::Kind::literal, c, 0});
    }
  }
  return glob;
}

bool Glob::fits(const Token& token, char c) const {
  switch (token.kind) {
    case Token::Kind::literal: return token.c == c;
    case Token::Kind::any: return true;
    case Token::Kind::set: return sets_[token.set][static_cast<uint8_t>(c)];
    case Token::Kind::star: return false;
  }
  return false;
}

// Only the last star is ever widened, so this ends after tokens x characters steps.
bool Glob::matches(std::string_view text) const {
  constexpr size_t kNone = SIZE_MAX;
  size_t token = 0;
  size_t at = 0;
  size_t star = kNone;
  size_t star_at = 0;
  while (at < text.size()) {
    if (token < tokens_.size() && tokens_[token].kind == Token::Kind::star) {
      star = token++;
      star_at = at;
    } else if (token < tokens_.size() && fits(tokens_[token], text[at])) {
      ++token;
      ++at;
    } else if (star != kNone) {
      token = star + 1;
      at = ++star_at;
    } else {
      return false;
    }
  }
  while (token < tokens_.size() && tokens_[token].kind == Token::Kind::star) ++token;
  return token == tokens_.size();
}

std::vector<std::string> Glob::required_literals() const {
  LiteralRuns runs;
  for (const Token& token : tokens_) {
    if (token.kind == Token::Kind::literal) {
      runs.push(token.c);
    } else {
      runs.cut();
    }
  }
  return runs.take();
}

std::vector<std::string> required_regex_literals(std::string_view regex) {
  LiteralRuns runs;
  if (regex.substr(0, 2) == "(*") return {};  // verbs may change what everything means
  // The index past the class, or npos.
  const auto skip_class = [&](size_t at) {
    ++at;
    if (at < regex.size() && regex[at] == '^') ++at;
    if (at < regex.size() && regex[at] == ']') ++at;
    while (at < regex.size() && regex[at] != ']') {
      if (regex[at] == '\\') {
        if (at + 1 < regex.size() && regex[at + 1] == 'Q') return std::string_view::npos;
        ++at;
      } else if (regex.substr(at, 2) == "[:") {
        const size_t end = regex.find(":]", at);
        if (end != std::string_view::npos) at = end + 1;
      }
      ++at;
    }
    return at < regex.size() ? at + 1 : std::string_view::npos;
  };
  const auto skip_group = [&](size_t at) {
    uint32_t depth = 0;
    while (at < regex.size()) {
      const char c = regex[at];
      if (c == '\\') {
        if (at + 1 < regex.size() && regex[at + 1] == 'Q') return std::string_view::npos;
        at += 2;
      } else if (c == '[') {
        at = skip_class(at);
        if (at == std::string_view::npos) return at;
      } else {
        if (c == '(') {
          ++depth;
          // Options could reach beyond the group, comments hold unbalanced brackets.
          if (regex.substr(at, 2) == "(*" || regex.substr(at, 3) == "(?#") {
            return std::string_view::npos;
          }
        }
        ++at;
        if (c == ')' && --depth == 0) return at;
      }
    }
    return std::string_view::npos;
  };

  for (size_t i = 0; i < regex.size();) {
    const char c = regex[i];
    bool is_literal = false;
    char literal = c;
    size_t next = i + 1;
    if (c == '|') return {};  // either side will do
    if (c == '\\') {
      if (next >= regex.size()) return {};
      literal = regex[next++];
      if (!is_letter(literal) && !is_digit(literal)) {
        is_literal = true;
      } else if (strchr("dDwWsSvVhHRbBAzZGX", literal) == nullptr) {
        return {};  // an escape with an argument, or one that changes what follows
      }
    } else if (c == '[') {
      next = skip_class(i);
    } else if (c == '(') {
      const std::string_view rest = regex.substr(i);
      if (rest.substr(0, 2) == "(?" && rest.size() > 2 && strchr(":P<'=!>|", rest[2]) == nullptr) {
        return {};  // options such as (?i), conditions, calls
      }
      next = skip_group(i);
    } else if (c == ')' || c == '#' || static_cast<uint8_t>(c) <= ' ') {
      return {};
    } else {
      is_literal = strchr(".^$", c) == nullptr;
    }
    if (next == std::string_view::npos) return {};

    // A quantifier belongs to what was just read.
    const char quantifier = next < regex.size() ? regex[next] : '\0';
    const bool is_counted = quantifier == '{' && next + 1 < regex.size() &&
                            (is_digit(regex[next + 1]) || regex[next + 1] == ',');
    if (is_literal) runs.push(literal);
    if (quantifier == '*' || quantifier == '?' || is_counted) {
      if (is_literal) runs.drop_last();
      runs.cut();
    } else if (quantifier == '+' || !is_literal) {
      runs.cut();
    }
    if (is_counted) {
      next = regex.find('}', next);
      if (next == std::string_view::npos) return {};
      ++next;
    } else if (quantifier == '*' || quantifier == '?' || quantifier == '+') {
      ++next;
    }
    // Lazy or possessive.
    if (next > i + 1 && next < regex.size() && (regex[next] == '?' || regex[next] == '+') &&
        (is_counted || quantifier == '*' || quantifier == '?' || quantifier == '+')) {
      ++next;
    }
    i = next;
  }
  return runs.take();
}

void SymbolPattern::RegexDeleter::operator()(pcre2_real_code_8* code) const {
  pcre2_code_free(code);
}

tl::expected<SymbolPattern, SymbolError> SymbolPattern::parse(std::string_view text) {
  SymbolPattern result;
  if (text.empty()) return symbol_error(0, "the symbol is empty");
  if (text.size() > kMaxSymbolPatternLength) {
    return symbol_error(0, "a symbol of " + std::to_string(text.size()) + " bytes; at most " +
                               std::to_string(kMaxSymbolPatternLength) + " are accepted");
  }
  struct Prefix {
    const char* text;
    Kind kind;
  };
  static constexpr Prefix kPrefixes[] = {
      {"glob:", Kind::glob}, {"re:", Kind::regex}, {"demangled:", Kind::demangled}};
  size_t skipped = 0;
  for (const Prefix& prefix : kPrefixes) {
    if (text.substr(0, strlen(prefix.text)) == prefix.text) {
      result.kind_ = prefix.kind;
      skipped = strlen(prefix.text);
    }
  }
  const std::string_view body = text.substr(skipped);
  if (body.empty()) return symbol_error(skipped, "nothing follows \"" + std::string(text) + "\"");

  switch (result.kind_) {
    case Kind::exact: {
      const size_t odd = body.find_first_of(" *?()[]:<>\\");
      if (odd != std::string_view::npos) {
        return symbol_error(odd, "an exact symbol holds no '" + std::string(1, body[odd]) +
                                     "'; write glob:, re: or demangled: in front of a pattern");
      }
      result.exact_ = body;
      break;
    }
    case Kind::glob:
    case Kind::demangled: {
      auto glob = Glob::parse(body);
      if (!glob) return symbol_error(skipped + glob.error().offset, glob.error().message);
      result.glob_ = std::move(*glob);
      result.literals_ = result.glob_.required_literals();
      if (result.kind_ == Kind::demangled) {
        result.literals_ = literals_in_mangled_name(result.literals_);
      }
      break;
    }
    case Kind::regex: {
      int error = 0;
      PCRE2_SIZE offset = 0;
      result.regex_.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(body.data()), body.size(),
                                        PCRE2_ANCHORED | PCRE2_ENDANCHORED | PCRE2_DOLLAR_ENDONLY |
                                            PCRE2_NEVER_UTF | PCRE2_NEVER_UCP |
                                            PCRE2_NEVER_BACKSLASH_C,
                                        &error, &offset, nullptr));
      if (result.regex_ == nullptr) {
        char message[256] = "";
        pcre2_get_error_message(error, reinterpret_cast<PCRE2_UCHAR*>(message), sizeof message);
        return symbol_error(skipped + offset, std::string("the regular expression: ") + message);
      }
      uint32_t count = 0;
      uint32_t entry_bytes = 0;
      PCRE2_SPTR table = nullptr;
      pcre2_pattern_info(result.regex_.get(), PCRE2_INFO_NAMECOUNT, &count);
      pcre2_pattern_info(result.regex_.get(), PCRE2_INFO_NAMEENTRYSIZE, &entry_bytes);
      pcre2_pattern_info(result.regex_.get(), PCRE2_INFO_NAMETABLE, &table);
      for (uint32_t i = 0; i < count; ++i, table += entry_bytes) {
        const std::string name = reinterpret_cast<const char*>(table + 2);
        if (std::find(result.groups_.begin(), result.groups_.end(), name) != result.groups_.end()) {
          return symbol_error(skipped, "the regular expression has two groups named " + name);
        }
        result.groups_.push_back(name);
        result.group_numbers_.push_back(static_cast<uint32_t>(table[0]) << 8 | table[1]);
      }
      // Without the JIT (no writable and executable memory, say) the interpreter does the work.
      (void)pcre2_jit_compile(result.regex_.get(), PCRE2_JIT_COMPLETE);
      result.literals_ = required_regex_literals(body);
      break;
    }
  }
  return result;
}

SymbolMatcher::SymbolMatcher() : limits_(pcre2_match_context_create(nullptr)) {
  if (limits_ != nullptr) {
    pcre2_set_match_limit(limits_, kRegexMatchLimit);
    pcre2_set_heap_limit(limits_, kRegexHeapLimitKib);
  }
}

SymbolMatcher::~SymbolMatcher() { pcre2_match_context_free(limits_); }

void SymbolMatcher::add(SymbolPattern pattern, const std::vector<std::string>& captures,
                        uint32_t numeric_captures) {
  Entry entry{std::move(pattern), {}, numeric_captures};
  for (const std::string& capture : captures) {
    const auto& groups = entry.pattern.groups_;
    const auto at = std::find(groups.begin(), groups.end(), capture) - groups.begin();
    entry.capture_groups.push_back(entry.pattern.group_numbers_[static_cast<size_t>(at)]);
  }
  entries_.push_back(std::move(entry));
}

template <class Word>
uint32_t SymbolMatcher::ChunkIndex<Word>::slot(Word word) {
  // Fibonacci hashing: the high bits of the product depend on every byte.
  return static_cast<uint32_t>((static_cast<uint64_t>(word) * 0x9e3779b97f4a7c15u) >> (64 - kBits));
}

template <class Word>
void SymbolMatcher::ChunkIndex<Word>::add(Word word, uint32_t pattern) {
  bits.resize((size_t{1} << kBits) / 64);
  bits[slot(word) / 64] |= uint64_t{1} << (slot(word) % 64);
  patterns[word].push_back(pattern);
}

template <class Word>
void SymbolMatcher::ChunkIndex<Word>::collect(std::string_view symbol,
                                              std::vector<uint32_t>* candidates) const {
  if (bits.empty() || symbol.size() < sizeof(Word)) return;
  const char* at = symbol.data();
  const char* const last = at + symbol.size() - sizeof(Word);
  for (; at <= last; ++at) {
    Word word;
    memcpy(&word, at, sizeof word);
    const uint32_t bit = slot(word);
    if ((bits[bit / 64] >> (bit % 64) & 1) == 0) continue;
    const auto found = patterns.find(word);
    if (found != patterns.end()) {
      candidates->insert(candidates->end(), found->second.begin(), found->second.end());
    }
  }
}

namespace {

template <class Word>
void for_each_chunk(const std::vector<std::string>& literals, const auto& visit) {
  for (const std::string& literal : literals) {
    for (size_t at = 0; at + sizeof(Word) <= literal.size(); ++at) {
      Word word;
      memcpy(&word, literal.data() + at, sizeof word);
      visit(word);
    }
  }
}

// In how many patterns each chunk stands: the rarer, the better it tells patterns apart.
template <class Word>
class ChunkCounts {
 public:
  void count(const std::vector<std::string>& literals) {
    ++pattern_;
    for_each_chunk<Word>(literals, [&](Word word) {
      auto& entry = counts_[word];
      if (entry.last_pattern == pattern_) return;
      entry.last_pattern = pattern_;
      ++entry.count;
    });
  }
  bool rarest(const std::vector<std::string>& literals, Word* out) const {
    uint32_t fewest = UINT32_MAX;
    for_each_chunk<Word>(literals, [&](Word word) {
      const uint32_t count = counts_.at(word).count;
      if (count < fewest) {
        fewest = count;
        *out = word;
      }
    });
    return fewest != UINT32_MAX;
  }

 private:
  struct Count {
    uint32_t count = 0;
    uint32_t last_pattern = 0;
  };
  std::unordered_map<Word, Count> counts_;
  uint32_t pattern_ = 0;
};

}  // namespace

void SymbolMatcher::finish() {
  ChunkCounts<uint64_t> counts8;
  ChunkCounts<uint32_t> counts4;
  for (const Entry& entry : entries_) {
    counts8.count(entry.pattern.literals_);
    counts4.count(entry.pattern.literals_);
  }
  for (uint32_t i = 0; i < entries_.size(); ++i) {
    const SymbolPattern& pattern = entries_[i].pattern;
    uint64_t word8 = 0;
    uint32_t word4 = 0;
    if (pattern.kind_ == SymbolPattern::Kind::exact) {
      exact_[pattern.exact_].push_back(i);
    } else if (counts8.rarest(pattern.literals_, &word8)) {
      chunks8_.add(word8, i);
    } else if (counts4.rarest(pattern.literals_, &word4)) {
      chunks4_.add(word4, i);
    } else {
      always_.push_back(i);
    }
  }
}

bool SymbolMatcher::fits_regex(const Entry& entry, std::string_view symbol,
                               SymbolMatch* out) const {
  const pcre2_code* const regex = entry.pattern.regex_.get();
  pcre2_match_data* const data = pcre2_match_data_create_from_pattern(regex, nullptr);
  if (data == nullptr) return false;
  const auto subject = reinterpret_cast<PCRE2_SPTR>(symbol.data());
  int count = pcre2_match(regex, subject, symbol.size(), 0, 0, data, limits_);
  if (count == PCRE2_ERROR_JIT_STACKLIMIT) {
    count = pcre2_match(regex, subject, symbol.size(), 0, PCRE2_NO_JIT, data, limits_);
  }
  bool is_fit = count >= 0;
  const PCRE2_SIZE* const bounds = pcre2_get_ovector_pointer(data);
  const uint32_t pairs = pcre2_get_ovector_count(data);
  for (size_t i = 0; is_fit && i < entry.capture_groups.size(); ++i) {
    const uint32_t group = entry.capture_groups[i];
    SymbolMatch::Capture& capture = out->captures[i];
    if (group >= pairs || bounds[2 * group] == PCRE2_UNSET ||
        bounds[2 * group + 1] < bounds[2 * group]) {
      is_fit = (entry.numeric_captures >> i & 1) == 0;
      continue;
    }
    capture.begin = static_cast<uint16_t>(bounds[2 * group]);
    capture.length = static_cast<uint16_t>(bounds[2 * group + 1] - bounds[2 * group]);
    const std::string_view text = symbol.substr(capture.begin, capture.length);
    const bool is_negative = !text.empty() && text[0] == '-';
    uint64_t magnitude = 0;
    bool is_number = text.size() > (is_negative ? 1 : 0);
    for (size_t at = is_negative ? 1 : 0; is_number && at < text.size(); ++at) {
      is_number = is_digit(text[at]) && !__builtin_mul_overflow(magnitude, 10, &magnitude) &&
                  !__builtin_add_overflow(magnitude, text[at] - '0', &magnitude) &&
                  magnitude <= INT64_MAX;
    }
    if (is_number) {
      capture.value = static_cast<int64_t>(is_negative ? 0 - magnitude : magnitude);
    } else {
      is_fit = (entry.numeric_captures >> i & 1) == 0;
    }
  }
  pcre2_match_data_free(data);
  return is_fit;
}

bool SymbolMatcher::fits(const Entry& entry, std::string_view symbol, const std::string& demangled,
                         SymbolMatch* out) const {
  const SymbolPattern& pattern = entry.pattern;
  for (const std::string& literal : pattern.literals_) {
    if (memmem(symbol.data(), symbol.size(), literal.data(), literal.size()) == nullptr) {
      return false;
    }
  }
  switch (pattern.kind_) {
    case SymbolPattern::Kind::exact: return true;
    case SymbolPattern::Kind::glob: return pattern.glob_.matches(symbol);
    case SymbolPattern::Kind::demangled:
      return !demangled.empty() && pattern.glob_.matches(demangled);
    case SymbolPattern::Kind::regex: return fits_regex(entry, symbol, out);
  }
  return false;
}

uint32_t SymbolMatcher::match(std::string_view symbol, SymbolMatch* out,
                              uint32_t capacity) const noexcept {
  try {
    if (symbol.size() > kMaxSymbolLength) return 0;
    std::vector<uint32_t> candidates = always_;
    if (!exact_.empty()) {
      const auto exact = exact_.find(symbol);
      if (exact != exact_.end()) {
        candidates.insert(candidates.end(), exact->second.begin(), exact->second.end());
      }
    }
    chunks8_.collect(symbol, &candidates);
    chunks4_.collect(symbol, &candidates);
    std::sort(candidates.begin(), candidates.end());
    candidates.erase(std::unique(candidates.begin(), candidates.end()), candidates.end());

    uint32_t count = 0;
    std::string demangled;
    bool has_demangled = false;
    for (const uint32_t candidate : candidates) {
      const Entry& entry = entries_[candidate];
      if (entry.pattern.kind_ == SymbolPattern::Kind::demangled && !has_demangled &&
          symbol.size() <= kMaxDemangledLength) {
        has_demangled = true;
        int status = 0;
        char* const text =
            abi::__cxa_demangle(std::string(symbol).c_str(), nullptr, nullptr, &status);
        if (text != nullptr) demangled = text;
        free(text);
        // An extern "C" kernel is its own demangled name.
        if (demangled.empty()) demangled = symbol;
      }
      SymbolMatch match{};
      match.pattern = candidate;
      if (!fits(entry, symbol, demangled, &match)) continue;
      if (count < capacity) out[count] = match;
      ++count;
    }
    return count;
  } catch (...) {
    return 0;  // no memory: the kernel stays untracked
  }
}

}  // namespace fibshim
