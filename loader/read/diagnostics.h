// What the loader has to say about a config folder, and the table of rules behind it.
//
// A folder is read to its end: every finding is kept, none stops the reading. One row of kRules
// names a rule, says what a finding of it does, and explains it (`fibshim check --explain RULE`).
#ifndef FIBSHIM_LOADER_READ_DIAGNOSTICS_H_
#define FIBSHIM_LOADER_READ_DIAGNOSTICS_H_

#include <stddef.h>
#include <stdint.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "loader/read/result.h"

namespace fibshim {

enum class Severity : uint8_t { error, warning, note };

// What a finding does to the folder.
enum class Effect : uint8_t {
  invalid_folder,   // an error; the folder is not loaded
  broken_solution,  // an error; the folder loads, launches of that solution return a CUDA error
  warning,          // the folder loads; something in it is not used, or looks wrong
  note,             // the folder loads and nothing is wrong; worth knowing
};

enum class Rule : uint8_t {
  // the folder and its files
  folder,
  file_read,
  untrusted,
  signature,
  internal,
  // JSON
  json_syntax,
  json_limits,
  duplicate_key,
  unknown_key,
  missing_key,
  wrong_type,
  bad_value,
  bad_name,
  unknown_dtype,
  // definitions, solutions and patterns
  unknown_axis,
  unknown_definition,
  unknown_argument,
  duplicate_definition,
  duplicate_solution,
  duplicate_label,
  duplicate_name,
  duplicate_image,
  image_path,
  bad_symbol,
  bad_image_hash,
  value_source,
  param_range,
  param_size,
  bad_template,
  geometry_range,
  limit,
  // expressions
  expression_syntax,
  expression_type,
  expression_value,
  expression_cycle,
  expression_size,
  unknown_name,
  // fibshim.json
  unknown_setting,
  setting_value,
  // broken solutions
  image_missing,
  image_invalid,
  image_sha256,
  image_sm,
  kernel_missing,
  kernel_params,
  kernel_geometry,
  // warnings
  refused_dtype,
  refused_writes,
  refused_argument,
  refused_axis,
  refused_expression,
  dropped_scalar,
  unpinned_axis,
  unreachable_solution,
  impossible_pattern,
  shadowed_pattern,
  geometry_overflow,
  // notes
  unrouted_pattern,
  unsolved_definition,
  no_image_for_gpu,
};

struct RuleInfo {
  Rule rule;
  const char* name;
  Effect effect;
  const char* explanation;  // why it is wrong and what to do; a few sentences
};

inline constexpr RuleInfo kRules[] = {
    {Rule::folder, "folder", Effect::invalid_folder,
     "The path is not a config folder: it does not exist, is not a folder, cannot be listed, or "
     "holds none of definitions/, solutions/ and patterns/. Or a folder below it cannot be read, "
     "is "
     "nested too deeply, or is a link that leaves the config folder or comes back to a folder that "
     "it lies in."},
    {Rule::file_read, "file-read", Effect::invalid_folder,
     "A file could not be read, is larger than the loader accepts, is not a regular file, or is a "
     "link that leaves the folder."},
    {Rule::untrusted, "untrusted", Effect::invalid_folder,
     "Somebody other than root, the config folder's owner and you can write the file or folder, or "
     "can put another folder in the place that the path names, and could so run code of his on the "
     "GPU. Take the right away (chmod go-w, chown), or say whom to trust: FIBSHIM_TRUST=group "
     "accepts what a group can write, FIBSHIM_TRUST=all everything. It is set in the environment, "
     "not in the folder. See fibshim-config(5), TRUST."},
    {Rule::signature, "signature", Effect::invalid_folder,
     "A key is required (FIBSHIM_REQUIRE_KEY, check --key), and the folder is not as that key has "
     "signed it: there is no signature, it is another key's or does not fit, a file was added, "
     "removed or changed since, or the key itself cannot be read. fibshim sign makes a signature."},
    {Rule::internal, "internal", Effect::invalid_folder,
     "The loader ran out of memory, or met a fault of its own."},
    {Rule::json_syntax, "json-syntax", Effect::invalid_folder,
     "The file is not JSON (RFC 8259, UTF-8, no comments, no trailing commas)."},
    {Rule::json_limits, "json-limits", Effect::invalid_folder,
     "The JSON is nested more deeply than the loader accepts."},
    {Rule::duplicate_key, "duplicate-key", Effect::invalid_folder,
     "An object has one key twice. JSON readers disagree about which one holds, so neither does."},
    {Rule::unknown_key, "unknown-key", Effect::invalid_folder,
     "A pattern, a launch block or an image entry has a key that fibshim does not know. Keys of "
     "FlashInfer Trace records are not checked; fibshim's own are, since a misspelt guard is no "
     "guard."},
    {Rule::missing_key, "missing-key", Effect::invalid_folder, "A required key is missing."},
    {Rule::wrong_type, "wrong-type", Effect::invalid_folder,
     "A value has another JSON type than the key takes."},
    {Rule::bad_value, "bad-value", Effect::invalid_folder,
     "A value has the right JSON type but is not one that the key takes."},
    {Rule::bad_name, "bad-name", Effect::invalid_folder,
     "A name is empty, too long, holds control characters or, where expressions use it, is not an "
     "identifier ([A-Za-z_][A-Za-z0-9_]*) or is the name of a function (min, max, ceil_div)."},
    {Rule::unknown_dtype, "unknown-dtype", Effect::invalid_folder,
     "The dtype is none that FlashInfer Trace knows."},
    {Rule::unknown_axis, "unknown-axis", Effect::invalid_folder,
     "A shape names an axis that the definition does not declare under \"axes\"."},
    {Rule::unknown_definition, "unknown-definition", Effect::invalid_folder,
     "A solution solves a definition that has no JSON file below definitions/. Dtypes and constant "
     "axes come from it, so nothing could be checked without. Or fibshim.json has a setting for a "
     "definition that is not there, or for a glob that fits none."},
    {Rule::unknown_argument, "unknown-argument", Effect::invalid_folder,
     "A name is neither an input, output or axis of the definition nor an argument or axis of any "
     "pattern, so no launch could supply it."},
    {Rule::duplicate_definition, "duplicate-definition", Effect::invalid_folder,
     "Two files define one definition name."},
    {Rule::duplicate_solution, "duplicate-solution", Effect::invalid_folder,
     "Two solutions solve one definition. A curated folder names exactly one; keep the better "
     "one."},
    {Rule::duplicate_label, "duplicate-label", Effect::invalid_folder,
     "Two patterns have one label. Counters are kept by label, so they would be mixed up."},
    {Rule::duplicate_name, "duplicate-name", Effect::invalid_folder,
     "One name stands twice in one list, or for an axis and for an argument of one pattern."},
    {Rule::duplicate_image, "duplicate-image", Effect::invalid_folder,
     "A solution has two images for one SM, two fatbins, or two PTX files of one target."},
    {Rule::image_path, "image-path", Effect::invalid_folder,
     "Image paths are relative to the folder of the solution's JSON file, end in .cubin, .fatbin "
     "or .ptx, hold no \"..\" and do not leave the config folder through a link."},
    {Rule::bad_symbol, "bad-symbol", Effect::invalid_folder,
     "The symbol is not an exact name, glob:..., re:... (PCRE2) or demangled:... that can be "
     "compiled."},
    {Rule::bad_image_hash, "bad-image-hash", Effect::invalid_folder,
     "An image hash is written \"xxh128:\" and 32 hexadecimal digits."},
    {Rule::value_source, "value-source", Effect::invalid_folder,
     "An axis or argument takes its value from exactly one of arg, grid, block, cluster, "
     "shared_mem, capture, value and expr."},
    {Rule::param_range, "param-range", Effect::invalid_folder,
     "\"arg\" is past the last entry of \"params\", or offset and size reach beyond the "
     "parameter."},
    {Rule::param_size, "param-size", Effect::invalid_folder,
     "The type's size differs from the parameter's size in \"params\". Give an \"offset\" to read "
     "a "
     "field of a larger parameter."},
    {Rule::bad_template, "bad-template", Effect::invalid_folder,
     "The definition's name template has an unmatched brace, or a {name} that is no axis, integer "
     "argument or capture of the pattern."},
    {Rule::geometry_range, "geometry-range", Effect::invalid_folder,
     "A grid, block, cluster or shared memory constant is outside what CUDA accepts."},
    {Rule::limit, "limit", Effect::invalid_folder,
     "The folder holds more than the loader or the launch path takes: bytes, patterns, parameters, "
     "values in a name, captures and others. fibshim-config(5), LIMITS, has them all."},
    {Rule::expression_syntax, "expression-syntax", Effect::invalid_folder,
     "The expression cannot be parsed. The language has integers, + - * / % comparisons && || ! "
     "parentheses and min, max, ceil_div; comparisons do not chain."},
    {Rule::expression_type, "expression-type", Effect::invalid_folder,
     "Floating-point values can be compared, nothing else."},
    {Rule::expression_value, "expression-value", Effect::invalid_folder,
     "A constant part of the expression overflows 64 bits or divides by zero."},
    {Rule::expression_cycle, "expression-cycle", Effect::invalid_folder,
     "An expression depends on itself."},
    {Rule::expression_size, "expression-size", Effect::invalid_folder,
     "The expression, with the expressions that it uses, is too long or too deep for the launch "
     "path."},
    {Rule::unknown_name, "unknown-name", Effect::invalid_folder,
     "A name in an expression or a capture that nothing declares."},
    {Rule::unknown_setting, "unknown-setting", Effect::invalid_folder,
     "fibshim.json takes the names of the FIBSHIM_ variables without the prefix, but for those "
     "that "
     "make sense in the environment only, and \"definitions\": an object that gives a definition's "
     "name, or a glob over names, settings of its own. Only on_error can be one definition's."},
    {Rule::setting_value, "setting-value", Effect::invalid_folder,
     "The value is none that the setting takes."},
    {Rule::image_missing, "image-missing", Effect::broken_solution,
     "The image file does not exist or cannot be read."},
    {Rule::image_invalid, "image-invalid", Effect::broken_solution,
     "The image is not what its name says (a cubin, a fatbin, PTX), or is cut short."},
    {Rule::image_sha256, "image-sha256", Effect::broken_solution,
     "The image's SHA-256 is not the one that the solution states: it was rebuilt, damaged or "
     "exchanged. If it was rebuilt on purpose, state the new hash."},
    {Rule::image_sm, "image-sm", Effect::broken_solution,
     "The file name says another SM than the cubin was compiled for."},
    {Rule::kernel_missing, "kernel-missing", Effect::broken_solution,
     "The image has no kernel of that name. A C++ kernel's name is mangled: declare it extern "
     "\"C\", or write the mangled name."},
    {Rule::kernel_params, "kernel-params", Effect::broken_solution,
     "\"arguments\" does not fit the kernel's parameter table: another count, or a size that the "
     "value cannot have."},
    {Rule::kernel_geometry, "kernel-geometry", Effect::broken_solution,
     "The launch's block or cluster is not one that the kernel was compiled for "
     "(__launch_bounds__, __block_size__, __cluster_dims__), or its shared memory is more than a "
     "block can have."},
    {Rule::refused_dtype, "refused-dtype", Effect::warning,
     "The pattern's argument has another dtype than the definition's. The pattern does not use "
     "this "
     "solution; name a definition of that dtype (a suffix such as _fp16)."},
    {Rule::refused_writes, "refused-writes", Effect::warning,
     "The original kernel writes a buffer that the solution does not take. A caller must find "
     "every "
     "output written, so the pattern does not use this solution."},
    {Rule::refused_argument, "refused-argument", Effect::warning,
     "The solution needs a value that the pattern does not supply. The pattern does not use this "
     "solution."},
    {Rule::refused_axis, "refused-axis", Effect::warning,
     "The pattern's name template gives a constant axis another value than the definition states. "
     "The pattern does not use this solution."},
    {Rule::refused_expression, "refused-expression", Effect::warning,
     "One of the solution's expressions cannot be compiled with the pattern's values. The pattern "
     "does not use this solution."},
    {Rule::dropped_scalar, "dropped-scalar", Effect::warning,
     "The original kernel takes a scalar that neither the definition nor the solution knows. If "
     "its "
     "value matters, the result is wrong: take it as an argument, or pin it with a \"where\" such "
     "as \"eps == 0\"."},
    {Rule::unpinned_axis, "unpinned-axis", Effect::warning,
     "The definition fixes an axis that the pattern reads from the launch, but neither the name "
     "template nor a \"where\" ties the two together: launches of other sizes would be "
     "redirected."},
    {Rule::unreachable_solution, "unreachable-solution", Effect::warning,
     "No pattern's name template can produce the definition that this solution solves."},
    {Rule::impossible_pattern, "impossible-pattern", Effect::warning,
     "The clauses of the pattern's \"where\" contradict each other or what the values can be, or "
     "its "
     "parameters are more than a kernel can take: it never redirects a launch."},
    {Rule::shadowed_pattern, "shadowed-pattern", Effect::warning,
     "A pattern that is tried before, by its benefit or else its label, fits every launch that "
     "this "
     "one fits, and always decides. Only plain cases are found: the same or a wider symbol, the "
     "same "
     "parameters, and no condition that this one does not have."},
    {Rule::geometry_overflow, "geometry-overflow", Effect::warning,
     "For an axis of 1, of the largest value that its type and the \"where\" allow, or of 1048576, "
     "the solution's grid, block, cluster or shared memory is outside what CUDA or the kernel's "
     "launch bounds accept, or cannot be computed in 64 bits. Such a launch returns an error. "
     "Bound "
     "the axis with a \"where\" and it falls back instead."},
    {Rule::unrouted_pattern, "unrouted-pattern", Effect::note,
     "The folder has no definition whose name the pattern's template can produce. Its launches are "
     "counted as fallback_no_solution."},
    {Rule::unsolved_definition, "unsolved-definition", Effect::note,
     "No solution of the folder solves this definition. Launches that read as a call of it run "
     "unchanged and are counted as fallback_no_solution."},
    {Rule::no_image_for_gpu, "no-image-for-gpu", Effect::note,
     "The solution has no cubin for this GPU's compute capability or a lower one of the same "
     "major, "
     "no fatbin and no PTX. Launches fall back there and are counted as fallback_arch. Asked for "
     "with --gpu or --sm."},
};
inline constexpr size_t kRuleCount = sizeof(kRules) / sizeof(kRules[0]);

constexpr const RuleInfo& rule_info(Rule rule) { return kRules[static_cast<size_t>(rule)]; }

// The rule of that name, or nullptr.
const RuleInfo* find_rule(std::string_view name);

// A place in a file. Lines and columns count from 1, columns in characters; 0 means the whole file.
struct Place {
  std::string file;
  uint32_t line = 0;
  uint32_t column = 0;
};

struct Diagnostic {
  Place place;
  Severity severity;
  Rule rule;
  std::string message;  // what was found, and what is accepted
  std::string hint;     // what to do, or empty
};

// "error", "warning" or "note".
const char* severity_name(Severity severity);

// "file:line:col: error: message [rule]", with "; hint" before the rule when there is one.
std::string format_diagnostic(const Diagnostic& diagnostic);

// The accepted word that `word` was probably meant to be, or an empty view.
std::string_view nearest_word(std::string_view word, const std::vector<std::string_view>& accepted);

// "a, b and c", each in double quotes.
std::string list_words(const std::vector<std::string_view>& words, const char* last = "and");

inline constexpr uint32_t kMaxSuggestions = 100;  // of one folder: each looks at every known word

// Keeps what is said, up to kMaxFindings, and counts all. Messages are cut to 1000 bytes, and
// control characters in them written as \xNN. Not thread-safe.
class Diagnostics {
 public:
  void add(Rule rule, Place place, std::string message, std::string hint = {});

  // "did you mean \"x\"?" of the nearest word, or nothing.
  bool has_suggestions_left() const { return suggestion_count_ < kMaxSuggestions; }
  std::string suggestion(std::string_view word, const std::vector<std::string_view>& accepted);

  // Sorts by file, line, column; what is equal keeps the order in which it was found.
  void sort();

  const std::vector<Diagnostic>& all() const { return all_; }
  std::vector<Diagnostic> take();
  bool is_full() const;  // more is counted, and need not be looked for
  uint32_t error_count() const { return error_count_; }
  uint32_t warning_count() const { return warning_count_; }
  uint32_t note_count() const { return note_count_; }
  uint32_t invalid_count() const { return invalid_count_; }  // errors that make the folder invalid

 private:
  std::vector<Diagnostic> all_;
  uint32_t suggestion_count_ = 0;
  uint32_t error_count_ = 0;
  uint32_t warning_count_ = 0;
  uint32_t note_count_ = 0;
  uint32_t invalid_count_ = 0;
  uint32_t dropped_count_ = 0;
};

}  // namespace fibshim

#endif  // FIBSHIM_LOADER_READ_DIAGNOSTICS_H_
