// The types of tensor elements that can be compared, and their tolerances. The rule is
// FlashInfer-Bench's: with abs = |x - y| and rel = abs / (|y| + 1e-8) an element is bad if abs >
// atol and rel > rtol.
#pragma once

#include <stdint.h>

namespace fibshim {

enum class ElementKind : uint8_t {
  unknown,  // not compared
  float64,
  float32,
  float16,
  bfloat16,
  float8_e4m3fn,
  float8_e5m2,
  int64,
  int32,
  int16,
  int8,
  uint64,
  uint32,
  uint16,
  uint8,
};

struct ElementInfo {
  const char* dtype;
  uint8_t bytes;
  bool is_floating;
  double tolerance;  // default of atol and rtol; integers are compared exactly
};
// Indexed by ElementKind.
inline constexpr ElementInfo kElements[] = {
    {"", 0, false, 0},
    {"float64", 8, true, 1e-5},
    {"float32", 4, true, 1e-5},
    {"float16", 2, true, 1e-3},
    {"bfloat16", 2, true, 1e-2},
    {"float8_e4m3fn", 1, true, 1e-1},
    {"float8_e5m2", 1, true, 1e-1},
    {"int64", 8, false, 0},
    {"int32", 4, false, 0},
    {"int16", 2, false, 0},
    {"int8", 1, false, 0},
    {"uint64", 8, false, 0},
    {"uint32", 4, false, 0},
    {"uint16", 2, false, 0},
    {"uint8", 1, false, 0},
};

inline constexpr double kRelativeFloor = 1e-8;
inline constexpr double kLeastCosine = 0.999;  // between floating-point output and the expected

}  // namespace fibshim
