// What a rewrite pattern has beyond other patterns: several kernels, sizes of buffers, and what nobody reads.
#pragma once

#include "loader/compile/pattern.h"

namespace fibshim {

// "match" of several kernels: their parameters become the pattern's, one kernel's behind the other's.
void read_members(JsonValue match, PatternSpec* pattern, Diagnostics* diagnostics);

// "kernel" and "bytes" of an axis or argument, which only a rewrite has. False: which kernel is meant is not known.
bool read_value_of_rewrite(JsonValue object, const std::string& what, bool is_rewrite,
                           const PatternSpec& pattern, PatternValue* value,
                           Diagnostics* diagnostics);

// Whether `where` says that the two names have one value.
bool is_one_buffer(const PatternSpec& pattern, const std::string& one, const std::string& other);

// "dead", "written_first" and "analysis", which only a rewrite has. After "writes".
void read_rewrite_keys(JsonValue root, bool is_rewrite, PatternSpec* pattern,
                       Diagnostics* diagnostics);

// Once all names are known.
void compile_buffers(PatternSpec* pattern, Diagnostics* diagnostics);

}  // namespace fibshim
