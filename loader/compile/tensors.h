// What the pointers of a pattern lead to, as far as shadow checks need it: how large, of which elements, and whether
// the original writes there.
#pragma once

#include "loader/compile/binding_scope.h"
#include "loader/compile/model.h"

namespace fibshim {

// Returns null if nothing is known. `scope`: what names mean for this pattern and definition.
std::shared_ptr<const TensorSpecs> bind_tensors(const PatternSpec& pattern,
                                                const Definition& definition, const Scope& scope,
                                                KnownClauses* known);

}  // namespace fibshim
