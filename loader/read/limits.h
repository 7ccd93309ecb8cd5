// The limits of one config folder, as one table: the man page lists it, and a test exceeds each
// limit. A folder beyond a limit is refused with a message that states the limit. The limits of the
// launch path are in snapshot.h, for the shim.
#pragma once

#include "shim/abi/snapshot.h"

namespace fibshim {

inline constexpr size_t kMaxJsonBytes = size_t{16} << 20;
inline constexpr uint32_t kMaxJsonDepth = 64;
inline constexpr uint32_t kMaxJsonNodes = 1 << 20;
inline constexpr size_t kMaxImageBytes = size_t{512} << 20;
inline constexpr uint64_t kMaxFolderBytes = uint64_t{8} << 30;
inline constexpr size_t kMaxFolderFiles = 1 << 17;
inline constexpr size_t kMaxFolderDepth = 32;
inline constexpr size_t kMaxManifestBytes = size_t{64} << 20;
inline constexpr size_t kMaxPatterns = 1 << 14;
inline constexpr uint64_t kMaxComparedPairs = uint64_t{1} << 21;
inline constexpr size_t kMaxBindings = size_t{1} << 17;
inline constexpr size_t kMaxFindings = 10000;
inline constexpr size_t kMaxEntries = 1024;
inline constexpr size_t kMaxRank = 64;
inline constexpr size_t kMaxSymbolPatternLength = 4096;
inline constexpr size_t kMaxExpressionLength = 1024;
inline constexpr size_t kMaxExpressionNodes = 512;
inline constexpr uint32_t kMaxExpressionNesting = 64;
inline constexpr size_t kMaxSymbolLength = 16384;
inline constexpr size_t kMaxDemangledLength = 8192;
// A step may look at the whole symbol, so long symbols get fewer steps. The most hostile cases that
// fuzzing and thought came up with give up after 0.2 s.
inline constexpr uint32_t kMaxRegexSteps = 100000;
inline constexpr size_t kLongSymbol = 1024;
inline constexpr uint32_t kMaxLongSymbolRegexSteps = 10000;
inline constexpr uint32_t kMaxRegexHeapKib = 1024;

struct LimitInfo {
  const char* name;  // its test's name
  uint64_t value;
  const char* meaning;  // what is counted, in the man page's words
  const char* beyond;   // the rule that a folder beyond the limit breaks, or what happens
};

inline constexpr LimitInfo kLimits[] = {
    {"JsonBytes", kMaxJsonBytes, "bytes of a JSON file", "file-read"},
    {"JsonDepth", kMaxJsonDepth, "objects and arrays inside one another", "json-limits"},
    {"JsonNodes", kMaxJsonNodes, "keys and values of a JSON file", "json-limits"},
    {"ImageBytes", kMaxImageBytes, "bytes of an image", "image-missing"},
    {"FolderBytes", kMaxFolderBytes, "bytes of all files that are read", "limit"},
    {"FolderFiles", kMaxFolderFiles, "files and folders below the three folders", "folder"},
    {"FolderDepth", kMaxFolderDepth, "folders inside one another", "folder"},
    {"ManifestBytes", kMaxManifestBytes, "bytes of a manifest", "signature"},
    {"Patterns", kMaxPatterns, "patterns", "limit"},
    {"ComparedPairs", kMaxComparedPairs,
     "solutions, summed over the patterns, whose definition's name begins as the pattern's does",
     "limit"},
    {"Bindings", kMaxBindings, "pairs of a pattern and a solution", "limit"},
    {"Choices", kMaxChoices, "solutions of one definition", "limit"},
    {"Findings", kMaxFindings, "findings that are listed; more are counted", "limit"},
    {"Entries", kMaxEntries, "axes, arguments, images or clauses of a record", "limit"},
    {"Rank", kMaxRank, "axes of one shape", "limit"},
    {"NameBytes", kMaxNameLength - 1, "bytes of a name", "bad-name"},
    {"SymbolPatternBytes", kMaxSymbolPatternLength, "bytes of a symbol's pattern", "bad-symbol"},
    {"ExpressionBytes", kMaxExpressionLength, "bytes of an expression", "expression-size"},
    {"ExpressionNodes", kMaxExpressionNodes, "parts of an expression, with those that it uses",
     "expression-size"},
    {"ExpressionNesting", kMaxExpressionNesting, "parentheses and calls inside one another",
     "expression-size"},
    {"StackDepth", kMaxStackDepth, "values that an expression has in flight", "expression-size"},
    {"Params", kMaxParams, "parameters of a kernel", "limit"},
    {"KeyParts", kMaxKeyParts, "values of a definition's name that the launch supplies", "limit"},
    {"Captures", kMaxCaptures, "captures of a pattern", "limit"},
    {"SymbolBytes", kMaxSymbolLength, "bytes of a kernel's symbol", "no pattern fits it"},
    {"DemangledBytes", kMaxDemangledLength, "bytes of a symbol that is demangled",
     "demangled: fits none"},
    {"RegexSteps", kMaxRegexSteps, "steps of a regular expression on a symbol", "it does not fit"},
    {"LongSymbolRegexSteps", kMaxLongSymbolRegexSteps,
     "steps of a regular expression on a symbol of more than 1024 bytes", "it does not fit"},
};

}  // namespace fibshim
