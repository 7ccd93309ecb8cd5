// What a pattern says of a pointer besides its place: "layout" and "shift".
#pragma once

#include "loader/compile/pattern.h"

namespace fibshim {

// Reads both keys of an argument, which messages call `what`.
void read_pointer_keys(JsonValue object, const What& what, PatternValue* value, KnownTexts* known,
                       Diagnostics* diagnostics);

// The expressions that they have.
std::vector<const MarkedExpression*> pointer_expressions(const PatternValue& value);

// Reports what is wrong with them, once the pattern knows all names.
void check_pointer(const PatternValue& value, const PatternSpec& pattern, Diagnostics* diagnostics);

// Of a pattern without mistakes: the steps of "shift"; empty if there is none.
std::vector<Step> shift_steps(const PatternValue& value, const PatternSpec& pattern);

}  // namespace fibshim
