// Finds the types of a kernel's parameters. The driver reports their sizes. A C++ symbol gives
// their types, if its parameter list has as many, of these sizes. Otherwise the values allow a
// guess:
//   8 bytes   an address if one is between 2^32 and 2^56; float64 if all look like one;
//             else int64
//   4 bytes   float32 if all but 0 have a magnitude of 1e-12 to 1e12 when read as one (integers with
//             such bits are above 730 million); else int32
//   1, 2      uint8, int16
//
// A struct consists of words, and these of fields. A word of 8 bytes is a pointer if the driver
// found memory at its values, or if the driver could not tell and they look like addresses; float64
// if it reads as one and not as two float32; two fields of 4 bytes if its upper half is not always
// 0; else int64.
#pragma once

#include <stdint.h>

#include "shim/abi/recording_format.h"

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace fibshim::tools {

struct ParamRecord {
  uint32_t offset = 0;
  uint32_t size = 0;
  uint64_t bits = 0;                                // all values, or-ed
  uint64_t others = 0;                              // launches with a value that is not in `values`
  std::map<uint64_t, uint64_t> values;              // zero-extended -> launches
  RecordedMemory memory = RecordedMemory::unknown;  // of a word
  std::vector<ParamRecord> words;  // of a struct, in order; their offsets are from its begin

  // True if CUDA allows such a parameter.
  bool is_possible() const {
    constexpr uint32_t kMostBytes = 32764;  // of all parameters of one kernel
    return size != 0 && size <= kMostBytes && offset <= kMostBytes;
  }
  // Nothing if no value was kept.
  std::optional<uint64_t> commonest_value() const;
};

enum class ParamSource : uint8_t { signature, values, size };

struct ParamType {
  std::string name;       // of a scalar, as patterns spell it: "int32"; "pointer"; "" for a struct
  std::string element;    // of a pointer, as definitions spell it; "" if not known
  bool is_const = false;  // a pointer to const
  ParamSource source = ParamSource::size;

  bool is_pointer() const { return name == "pointer"; }
  bool is_integer() const {
    return name.rfind("int", 0) == 0 || name.rfind("uint", 0) == 0 || name == "bool";
  }
  bool is_floating() const { return name.rfind("float", 0) == 0; }
};

// The readable form of a symbol; the symbol itself if it has none.
std::string demangled(const std::string& symbol);

// The readable name without return type, parameter list and ABI tags: "at::native::add<float>".
std::string function_name(const std::string& symbol);

// The last part of it without template arguments: "add".
std::string short_name(const std::string& symbol);

std::vector<ParamType> types_of_params(const std::string& symbol,
                                       const std::vector<ParamRecord>& params);

// A part of a struct, as its values suggest.
struct Field {
  ParamRecord record;  // its offset is from the struct's begin
  ParamType type;
};
std::vector<Field> fields_of_struct(const ParamRecord& param);

// The type of a struct's word, or of anything else of which only the values are known.
ParamType type_of_word(const ParamRecord& word);

// A parameter's value as text, read as its type: "4096", "1e-06", "0x7f1200000000".
std::string value_text(const ParamType& type, uint32_t size, uint64_t value);
int64_t integer_value(const ParamType& type, uint32_t size, uint64_t value);
std::optional<double> floating_value(const ParamType& type, uint64_t value);

}  // namespace fibshim::tools
