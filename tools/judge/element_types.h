// Converts elements of every dtype to doubles and back, to make inputs and judge outputs. Values
// are rounded to nearest, ties to even, after rounding to float32, as kernels do; the fp8 types
// saturate, as the hardware's conversions do.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include <string_view>

namespace fibshim::judge {

struct ElementType {
  const char* name;         // as in kDtypes
  const char* safetensors;  // the same in a safetensors header
  uint32_t bytes;
  bool is_floating;
  double (*load)(const uint8_t* from);
  void (*store)(double value, uint8_t* to);
};

// Null for the dtypes whose elements are not whole bytes or not numbers.
const ElementType* find_element_type(std::string_view name);
const ElementType* element_type_of(uint8_t dtype);  // index into kDtypes
const ElementType* find_safetensors_type(std::string_view name);

// `value` after being stored as `type` and read back.
double rounded_to(const ElementType& type, double value);

}  // namespace fibshim::judge
