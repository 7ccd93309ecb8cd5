// Finds the patterns that fit a kernel's symbol.
//
// Runs once per handle that the driver returns, so 10,000 times for an engine with 10,000 kernels.
// Exact names, the most frequent kind, are in a hash map. Globs and regular expressions are tried
// one by one, but only if the symbol contains a text that they require. Globs are matched as
// regular expressions. match() is thread-safe and never throws.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include <tl/expected.hpp>

#include "loader/compile/required_texts.h"
#include "loader/read/limits.h"

// PCRE2's types, without its header.
struct pcre2_real_code_8;
struct pcre2_real_match_context_8;
struct pcre2_real_match_data_8;

namespace fibshim {

struct SymbolError {
  size_t offset;  // byte of the symbol's text
  std::string message;
};

// The "symbol" of one pattern.
class SymbolPattern {
 public:
  // A glob has * ? [abc] [a-z] [!a], and \ before a character that stands for itself. `demangled`
  // is a glob over the demangled name.
  enum class Kind : uint8_t { exact, glob, regex, demangled };

  static tl::expected<SymbolPattern, SymbolError> parse(std::string_view text);

  const std::string& text() const { return text_; }
  Kind kind() const { return kind_; }
  const std::vector<std::string>& groups() const { return groups_; }  // named groups, by number
  uint16_t group_number(const std::string& name) const;               // requires one of groups()

  // `subject`: the symbol or, for Kind::demangled, the demangled name.
  bool fits(std::string_view subject) const;

 private:
  friend class SymbolMatcher;
  struct RegexDeleter {
    void operator()(pcre2_real_code_8* code) const;
  };
  bool fits_regex(std::string_view subject, pcre2_real_match_context_8* limits,
                  pcre2_real_match_data_8* data) const;
  tl::expected<void, SymbolError> compile_regex(std::string_view regex, uint32_t options);

  std::string text_;
  std::vector<std::string> texts_;  // every subject that fits contains them; none if exact
  Kind kind_ = Kind::exact;
  std::unique_ptr<pcre2_real_code_8, RegexDeleter> regex_;  // null for Kind::exact
  std::vector<std::string> groups_;
  std::vector<uint16_t> group_numbers_;
};

// One pattern of a matcher, and the groups that a match returns.
struct SymbolEntry {
  std::shared_ptr<const SymbolPattern> pattern;  // null: the entry fits no symbol
  std::vector<uint16_t> groups;   // numbers of the groups, in the order of SymbolMatch::captures
  uint32_t numeric_captures = 0;  // bit i: capture i must be a decimal number
};

class SymbolMatcher {
 public:
  // `entries`: in the order of trial.
  explicit SymbolMatcher(std::vector<SymbolEntry> entries);

  // Writes the first `capacity` matches to `out`, in the order of trial. Returns how many there
  // are.
  uint32_t match(std::string_view symbol, SymbolMatch* out, uint32_t capacity) const noexcept;

  const SymbolPattern& pattern(uint32_t index) const { return *entries_[index].pattern; }

 private:
  struct LimitsDeleter {
    void operator()(pcre2_real_match_context_8* limits) const;
  };
  using Limits = std::unique_ptr<pcre2_real_match_context_8, LimitsDeleter>;
  static Limits make_limits(uint32_t steps);

  std::vector<SymbolEntry> entries_;
  std::unordered_map<std::string_view, std::vector<uint32_t>> exact_;
  TextIndex others_;
  bool has_demangled_ = false;
  uint32_t most_groups_ = 0;  // the most groups of one regular expression
  Limits limits_;
  Limits long_symbol_limits_;
};

}  // namespace fibshim
