// Reads a pattern's JSON, strictly: an unknown key is an error, since a misspelt guard is no guard.
#pragma once

#include "loader/compile/pattern.h"

namespace fibshim {

// Null when the pattern is too faulty to take part in anything; diagnostics say why.
std::unique_ptr<PatternSpec> read_pattern(JsonValue root, Diagnostics* diagnostics);

}  // namespace fibshim
