// Reads a pattern's JSON, strictly: an unknown key is an error, since a misspelt guard is no guard.
#pragma once

#include "loader/compile/pattern.h"

namespace fibshim {

// Returns null if the pattern is too faulty to be used at all; diagnostics say why. `known`: null if
// no texts are known. Runs on any thread.
std::unique_ptr<PatternSpec> read_pattern(JsonValue root, Diagnostics* diagnostics,
                                          KnownTexts* known = nullptr);

}  // namespace fibshim
