// What a solution's "verify" block says of a case, beside the numbers that follow from others.
#pragma once

#include "tools/judge/usual_values.h"

namespace fibshim::judge {

// Shape of a buffer that the definition does not have, for these axes, const and var.
Result<std::vector<int64_t>> shape_of(const VerifyArgument& buffer, const AxisValues& axes);

// Adds the definition's scalars that the block gives a value, and every tensor that it gives elements. What is in
// there already stays.
Result<void> add_stated(const Subject& subject, CaseData* data);

}  // namespace fibshim::judge
