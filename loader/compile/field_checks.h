// Makes FieldChecks (shim/abi/snapshot.h) of a `where`. Kernels such as cuBLAS's take one struct,
// and their patterns compare many of its fields with constants and with each other. Each comparison
// is a step of its own (clauses.h); as a check it takes a quarter of the time.
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

// `steps`: as sort_clauses() returns them. Returns no checks if there are too few to gain anything,
// or too many.
FieldCheckSpec make_field_checks(const std::vector<Step>& steps);

}  // namespace fibshim
