// Reads the parts that only rewrite patterns have: several kernels, sizes of buffers, and dead
// outputs.
#pragma once

#include "loader/compile/pattern.h"

namespace fibshim {

// Reads a "match" with several kernels. Their parameters, one kernel after the other, become the
// pattern's.
void read_members(JsonValue match, PatternSpec* pattern, KnownTexts* known,
                  Diagnostics* diagnostics);

// Reads "kernel" and "bytes" of an axis or argument, which only a rewrite has. Returns false after
// reporting it if the pattern is no rewrite or the kernel is unknown.
bool read_value_of_rewrite(JsonValue object, const What& what, bool is_rewrite,
                           const PatternSpec& pattern, PatternValue* value, KnownTexts* known,
                           Diagnostics* diagnostics);

// True if `where` requires that the two names have the same value.
bool is_one_buffer(const PatternSpec& pattern, const std::string& one, const std::string& other);

// Reads "dead", "written_first" and "analysis", which only a rewrite has. "writes" must be read
// before.
void read_rewrite_keys(JsonValue root, bool is_rewrite, PatternSpec* pattern,
                       Diagnostics* diagnostics);

// Compiles the sizes of buffers. All names must be known.
void compile_buffers(PatternSpec* pattern, Diagnostics* diagnostics);

}  // namespace fibshim
