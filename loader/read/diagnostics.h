// The loader's findings about a config folder, and the table of rules behind them.
//
// A folder is read to its end: every finding is kept, none stops the reading. One row of rules.def
// names a rule, says what a finding of it does, and explains it (`fibshim check --explain RULE`).
#pragma once

#include <stddef.h>
#include <stdint.h>

#include <string_view>
#include <vector>

#include "loader/read/limits.h"
#include "loader/read/result.h"

namespace fibshim {

enum class Severity : uint8_t { error, warning, note };

// The effect of a finding on the folder.
enum class Effect : uint8_t {
  invalid_folder,   // an error; the folder is not loaded
  broken_solution,  // an error; the folder loads, launches of that solution return a CUDA error
  mistake,          // an error that only `fibshim check` looks for; the folder loads
  warning,          // the folder loads; something in it is not used, or looks wrong
  note,             // the folder loads and nothing is wrong; worth knowing
};

enum class Rule : uint8_t {
#define RULE(rule, name, effect, explanation) rule,
#include "loader/read/rules.def"
#undef RULE
};

struct RuleInfo {
  Rule rule;
  const char* name;
  Effect effect;
  const char* explanation;  // why it is wrong and what to do; a few sentences
};

// Indexed by Rule.
inline constexpr RuleInfo kRules[] = {
#define RULE(rule, name, effect, explanation) {Rule::rule, name, Effect::effect, explanation},
#include "loader/read/rules.def"
#undef RULE
};
inline constexpr size_t kRuleCount = sizeof(kRules) / sizeof(kRules[0]);

constexpr const RuleInfo& rule_info(Rule rule) { return kRules[static_cast<size_t>(rule)]; }

// Returns the rule of that name, or nullptr.
const RuleInfo* find_rule(std::string_view name);

// A place in a file. Lines and columns count from 1, columns in characters; 0 means the whole file.
struct Place {
  std::string file;
  uint32_t line = 0;
  uint32_t column = 0;
};

// A Place that does not copy its file's name. `file` must outlive the reading of the folder.
struct Mark {
  const std::string* file = nullptr;
  uint32_t line = 0;
  uint32_t column = 0;

  operator Place() const { return {file == nullptr ? std::string() : *file, line, column}; }
};

struct Diagnostic {
  Place place;
  Severity severity;
  Rule rule;
  std::string message;  // what was found, and what is accepted
  std::string hint;     // what to do, or empty
  std::string meant;    // the key that the misspelt one at `place` must be; empty if not certain
};

// Returns "error", "warning" or "note".
const char* severity_name(Severity severity);

// Returns "file:line:col: error: message [rule]", with "; hint" before the rule if there is one.
std::string format_diagnostic(const Diagnostic& diagnostic);

// Returns the accepted word that `word` was probably meant to be, or an empty view. Also knows the
// names of types in other languages.
std::string_view nearest_word(std::string_view word, const std::vector<std::string_view>& accepted);

// Returns nearest_word() if no other accepted word is about as near; else an empty view.
std::string_view only_word(std::string_view word, const std::vector<std::string_view>& accepted);

// Returns a text such as "a, b and c", with each word in double quotes.
std::string list_words(const std::vector<std::string_view>& words, const char* last = "and");

// Per folder. Each suggestion compares with every known word.
inline constexpr uint32_t kMaxSuggestions = 100;

// Keeps up to kMaxFindings findings, or as many as it is made for, and counts all. Messages are cut
// to 1000 bytes, and control characters in them are written as \xNN. Not thread-safe.
class Diagnostics {
 public:
  explicit Diagnostics(size_t most = kMaxFindings) : most_(most) {}

  void add(Rule rule, Place place, std::string message, std::string hint = {},
           std::string_view meant = {});
  // Adds what others found, who must not have made suggestions.
  void add_all(Diagnostics others);

  // Returns "did you mean \"x\"?" with the nearest word, or "".
  bool has_suggestions_left() const { return suggestion_count_ < kMaxSuggestions; }
  std::string suggestion(std::string_view word, const std::vector<std::string_view>& accepted);

  // Sorts by file, line and column. The sort is stable.
  void sort();

  const std::vector<Diagnostic>& all() const { return all_; }
  bool has(Rule rule, Mark mark) const;
  // Moves all findings out.
  std::vector<Diagnostic> release();
  bool is_full() const;  // further findings are only counted
  uint32_t error_count() const { return error_count_; }
  uint32_t warning_count() const { return warning_count_; }
  uint32_t note_count() const { return note_count_; }
  uint32_t invalid_count() const { return invalid_count_; }  // errors that make the folder invalid

 private:
  size_t most_;
  std::vector<Diagnostic> all_;
  uint32_t suggestion_count_ = 0;
  uint32_t error_count_ = 0;
  uint32_t warning_count_ = 0;
  uint32_t note_count_ = 0;
  uint32_t invalid_count_ = 0;
  uint32_t dropped_count_ = 0;
};

}  // namespace fibshim
