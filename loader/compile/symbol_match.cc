#include "loader/compile/symbol_match.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <string.h>

#include <algorithm>

#include "loader/read/demangle.h"

namespace fibshim {
namespace {

// What one regular expression may cost on one symbol before it counts as not fitting.
pcre2_match_context* make_limits(uint32_t steps) {
  pcre2_match_context* const limits = pcre2_match_context_create(nullptr);
  if (limits != nullptr) {
    pcre2_set_match_limit(limits, steps);
    pcre2_set_heap_limit(limits, kMaxRegexHeapKib);
  }
  return limits;
}

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

  result.text_ = text;
  switch (result.kind_) {
    case Kind::exact: {
      const size_t odd = body.find_first_of(" *?()[]:<>\\");
      if (odd != std::string_view::npos) {
        return symbol_error(odd, "an exact symbol holds no '" + std::string(1, body[odd]) +
                                     "'; write glob:, re: or demangled: in front of a pattern");
      }
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
        result.group_numbers_.push_back(static_cast<uint16_t>(table[0] << 8 | table[1]));
      }
      result.literals_ = required_regex_literals(body);
      break;
    }
  }
  return result;
}

uint16_t SymbolPattern::group_number(const std::string& name) const {
  const auto at = std::find(groups_.begin(), groups_.end(), name) - groups_.begin();
  return group_numbers_[static_cast<size_t>(at)];
}

void SymbolPattern::prepare() {
  // Without the JIT (no writable and executable memory, say) the interpreter does the work.
  if (regex_ != nullptr) (void)pcre2_jit_compile(regex_.get(), PCRE2_JIT_COMPLETE);
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

std::vector<SymbolEntry> file_symbols(const std::vector<const SymbolPattern*>& patterns) {
  ChunkCounts<uint64_t> counts8;
  ChunkCounts<uint32_t> counts4;
  for (const SymbolPattern* pattern : patterns) {
    counts8.count(pattern->literals_);
    counts4.count(pattern->literals_);
  }
  std::vector<SymbolEntry> entries;
  for (const SymbolPattern* pattern : patterns) {
    SymbolEntry entry{};
    uint64_t word8 = 0;
    uint32_t word4 = 0;
    if (pattern->kind_ == SymbolPattern::Kind::exact) {
      entry.filing = SymbolEntry::Filing::exact;
    } else if (counts8.rarest(pattern->literals_, &word8)) {
      entry.filing = SymbolEntry::Filing::chunk8;
      entry.chunk = word8;
    } else if (counts4.rarest(pattern->literals_, &word4)) {
      entry.filing = SymbolEntry::Filing::chunk4;
      entry.chunk = word4;
    } else {
      entry.filing = SymbolEntry::Filing::always;
    }
    entries.push_back(entry);
  }
  return entries;
}

SymbolMatcher::SymbolMatcher(const char* texts, const SymbolEntry* entries, uint32_t count)
    : texts_(texts),
      entries_(entries),
      count_(count),
      patterns_(count),
      limits_(make_limits(kMaxRegexSteps)),
      long_symbol_limits_(make_limits(kMaxLongSymbolRegexSteps)) {
  for (uint32_t i = 0; i < count_; ++i) {
    const SymbolEntry& entry = entries_[i];
    switch (entry.filing) {
      case SymbolEntry::Filing::exact: exact_[texts_ + entry.text].push_back(i); break;
      case SymbolEntry::Filing::chunk8: chunks8_.add(entry.chunk, i); break;
      case SymbolEntry::Filing::chunk4: chunks4_.add(static_cast<uint32_t>(entry.chunk), i); break;
      case SymbolEntry::Filing::always: always_.push_back(i); break;
    }
  }
}

SymbolMatcher::~SymbolMatcher() {
  for (const auto& pattern : patterns_) delete pattern.load(std::memory_order_relaxed);
  pcre2_match_context_free(limits_);
  pcre2_match_context_free(long_symbol_limits_);
}

// Compiled by the first thread that asks; of two that ask at once, one throws its work away.
const SymbolPattern* SymbolMatcher::pattern(uint32_t index) const {
  auto& place = patterns_[index];
  if (const SymbolPattern* known = place.load(std::memory_order_acquire)) return known;
  auto parsed = SymbolPattern::parse(texts_ + entries_[index].text);
  if (!parsed) return nullptr;  // it could be compiled when the folder was checked: no memory
  auto compiled = std::make_unique<SymbolPattern>(std::move(*parsed));
  compiled->prepare();
  const SymbolPattern* known = nullptr;
  // Release: who sees the pointer sees what it points to.
  if (place.compare_exchange_strong(known, compiled.get(), std::memory_order_acq_rel)) {
    return compiled.release();
  }
  return known;
}

bool SymbolPattern::fits_regex(std::string_view symbol, const SymbolEntry& entry,
                               pcre2_real_match_context_8* limits, SymbolMatch* out) const {
  const pcre2_code* const regex = regex_.get();
  pcre2_match_data* const data = pcre2_match_data_create_from_pattern(regex, nullptr);
  if (data == nullptr) return false;
  const auto subject = reinterpret_cast<PCRE2_SPTR>(symbol.data());
  int count = pcre2_match(regex, subject, symbol.size(), 0, 0, data, limits);
  if (count == PCRE2_ERROR_JIT_STACKLIMIT) {
    count = pcre2_match(regex, subject, symbol.size(), 0, PCRE2_NO_JIT, data, limits);
  }
  bool is_fit = count >= 0;
  const PCRE2_SIZE* const bounds = pcre2_get_ovector_pointer(data);
  const uint32_t pairs = pcre2_get_ovector_count(data);
  for (size_t i = 0; is_fit && i < entry.capture_count; ++i) {
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

bool SymbolPattern::fits(std::string_view symbol, const std::string& demangled,
                         const SymbolEntry& entry, pcre2_real_match_context_8* limits,
                         SymbolMatch* out) const {
  for (const std::string& literal : literals_) {
    if (memmem(symbol.data(), symbol.size(), literal.data(), literal.size()) == nullptr) {
      return false;
    }
  }
  switch (kind_) {
    case Kind::exact: return symbol == text_;
    case Kind::glob: return glob_.matches(symbol);
    case Kind::demangled: return !demangled.empty() && glob_.matches(demangled);
    case Kind::regex: return fits_regex(symbol, entry, limits, out);
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
      SymbolMatch match{};
      match.pattern = candidate;
      const SymbolEntry& entry = entries_[candidate];
      if (entry.filing == SymbolEntry::Filing::exact) {  // the map compared all of it
        if (count < capacity) out[count] = match;
        ++count;
        continue;
      }
      const SymbolPattern* const compiled = pattern(candidate);
      if (compiled == nullptr) continue;
      if (compiled->kind() == SymbolPattern::Kind::demangled && !has_demangled &&
          symbol.size() <= kMaxDemangledLength) {
        has_demangled = true;
        demangled = demangle(std::string(symbol));
        // An extern "C" kernel is its own demangled name.
        if (demangled.empty()) demangled = symbol;
      }
      auto* const limits = symbol.size() > kLongSymbol ? long_symbol_limits_ : limits_;
      if (!compiled->fits(symbol, demangled, entry, limits, &match)) continue;
      if (count < capacity) out[count] = match;
      ++count;
    }
    return count;
  } catch (...) {
    return 0;  // no memory: the kernel stays untracked
  }
}

}  // namespace fibshim
