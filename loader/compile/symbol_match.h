// Which patterns fit a kernel's symbol.
//
// Runs once per handle that the driver hands out, so an engine with 10,000 kernels asks 10,000
// times: a symbol that no pattern fits must cost less than a microsecond with 1,000 patterns. Exact
// names are in a hash map. Every glob and regular expression is filed under a few bytes that each
// symbol that it fits must contain; one pass over the symbol finds the candidates, and only those
// are tried. How each is filed is worked out when the folder is checked and lies in the snapshot
// (SymbolEntry); a regular expression is compiled when a symbol first makes it a candidate, which
// most never see. match() is thread-safe and never throws.
#ifndef FIBSHIM_LOADER_COMPILE_SYMBOL_MATCH_H_
#define FIBSHIM_LOADER_COMPILE_SYMBOL_MATCH_H_

#include <stddef.h>
#include <stdint.h>

#include <atomic>
#include <bitset>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include <tl/expected.hpp>

#include "loader/read/limits.h"
#include "shim/abi/snapshot.h"

// PCRE2's types, without its header.
struct pcre2_real_code_8;
struct pcre2_real_match_context_8;

namespace fibshim {

struct SymbolError {
  size_t offset;  // byte of the symbol's text
  std::string message;
};

// A shell pattern: * ? [abc] [a-z] [!a], \ before a character that stands for itself.
class Glob {
 public:
  static tl::expected<Glob, SymbolError> parse(std::string_view text);
  bool matches(std::string_view text) const;
  // Strings that every text that fits contains.
  std::vector<std::string> required_literals() const;

 private:
  struct Token {
    enum class Kind : uint8_t { literal, any, star, set } kind;
    char c;
    uint32_t set;  // index into sets_
  };
  bool fits(const Token& token, char c) const;
  std::vector<Token> tokens_;
  std::vector<std::bitset<256>> sets_;
};

// Strings that every text that fits the regular expression contains. Conservative: what it does not
// understand requires nothing.
std::vector<std::string> required_regex_literals(std::string_view regex);

// What "symbol" of one pattern says.
class SymbolPattern {
 public:
  enum class Kind : uint8_t { exact, glob, regex, demangled };

  static tl::expected<SymbolPattern, SymbolError> parse(std::string_view text);

  const std::string& text() const { return text_; }
  Kind kind() const { return kind_; }
  const std::vector<std::string>& groups() const { return groups_; }  // named groups, by number
  uint16_t group_number(const std::string& name) const;               // of one of groups()

  // Has the regular expression translated to machine code, which takes longer than one match.
  void prepare();
  // `demangled` is the symbol's; only Kind::demangled reads it.
  bool fits(std::string_view symbol, const std::string& demangled, const SymbolEntry& entry,
            pcre2_real_match_context_8* limits, SymbolMatch* out) const;

 private:
  friend std::vector<SymbolEntry> file_symbols(const std::vector<const SymbolPattern*>& patterns);
  struct RegexDeleter {
    void operator()(pcre2_real_code_8* code) const;
  };
  bool fits_regex(std::string_view symbol, const SymbolEntry& entry,
                  pcre2_real_match_context_8* limits, SymbolMatch* out) const;

  std::string text_;
  Kind kind_ = Kind::exact;
  Glob glob_;
  std::unique_ptr<pcre2_real_code_8, RegexDeleter> regex_;
  std::vector<std::string> groups_;
  std::vector<uint16_t> group_numbers_;
  std::vector<std::string> literals_;
};

// Where each pattern is filed: `filing` and `chunk` of one entry each, the rest is zero.
std::vector<SymbolEntry> file_symbols(const std::vector<const SymbolPattern*>& patterns);

class SymbolMatcher {
 public:
  // `texts`: what the entries' offsets count from. Both must outlive the matcher.
  SymbolMatcher(const char* texts, const SymbolEntry* entries, uint32_t count);
  ~SymbolMatcher();
  SymbolMatcher(const SymbolMatcher&) = delete;
  SymbolMatcher& operator=(const SymbolMatcher&) = delete;

  uint32_t match(std::string_view symbol, SymbolMatch* out, uint32_t capacity) const noexcept;

 private:
  // The `kBytes` bytes that a symbol must contain somewhere -> patterns. The bits answer "no" for
  // nearly every position without touching the map.
  template <class Word>
  struct ChunkIndex {
    static constexpr uint32_t kBits = 17;
    std::vector<uint64_t> bits;
    std::unordered_map<Word, std::vector<uint32_t>> patterns;
    static uint32_t slot(Word word);
    void add(Word word, uint32_t pattern);
    void collect(std::string_view symbol, std::vector<uint32_t>* candidates) const;
  };

  const SymbolPattern* pattern(uint32_t index) const;

  const char* const texts_;
  const SymbolEntry* const entries_;
  const uint32_t count_;
  mutable std::vector<std::atomic<const SymbolPattern*>> patterns_;  // null: not yet compiled
  std::unordered_map<std::string_view, std::vector<uint32_t>> exact_;
  ChunkIndex<uint64_t> chunks8_;
  ChunkIndex<uint32_t> chunks4_;
  std::vector<uint32_t> always_;  // nothing is required: tried for every symbol
  pcre2_real_match_context_8* limits_;
  pcre2_real_match_context_8* long_symbol_limits_;
};

}  // namespace fibshim

#endif  // FIBSHIM_LOADER_COMPILE_SYMBOL_MATCH_H_
