// Makes FieldChecks (shim/abi/snapshot.h) of a `where`: kernels such as cuBLAS's take one struct, of which a pattern compares many
// fields with constants and with each other. Each is a step of its own (clauses.h); as a check it takes a quarter of the time.
#pragma once

#include <vector>

#include "shim/abi/snapshot.h"

namespace fibshim {

struct FieldCheckSpec {
  std::vector<FieldCheck> checks;  // sorted by kind
  std::vector<Step> rest;
  uint16_t param = 0;
  uint8_t ends[kFieldCheckKinds] = {};
};

// `steps`: as sort_clauses() leaves them. No checks: there are too few to gain anything.
FieldCheckSpec make_field_checks(const std::vector<Step>& steps);

}  // namespace fibshim
