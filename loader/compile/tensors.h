// What the pointers of a pattern lead to, as far as shadow checks need it: how large, of which elements, and whether
// the original writes there.
#pragma once

#include "loader/compile/model.h"

namespace fibshim {

// Fills in the binding's tensors and its variable axes. `scope`: what names mean for this pattern and definition.
void bind_tensors(const PatternSpec& pattern, const Definition& definition, const Scope& scope,
                  BindingSpec* binding);

}  // namespace fibshim
