// What a kernel's parameters are. The driver tells their sizes; a C++ symbol tells their types, where
// its parameter list has as many, of these sizes; else the values that launches had give a guess:
//   8 bytes   an address where one lies between 2^32 and 2^56; float64 where all look like one;
//             else int64
//   4 bytes   float32 where all that are not 0 have a magnitude of 1e-12 to 1e12 read as one (integers
//             of that pattern are above 730 million); else int32
//   1, 2      uint8, int16
//
// A struct has words, and those have fields: a word of 8 bytes is a pointer where the driver found memory at its
// values, or could not tell and they look like addresses; float64 where it reads as one and not as two
// float32; two fields of 4 bytes where its upper half was not always 0; else int64.
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
  uint64_t bits = 0;                                // of all values, or-ed
  uint64_t others = 0;                              // launches with a value that is not in `values`
  std::map<uint64_t, uint64_t> values;              // zero-extended -> launches
  RecordedMemory memory = RecordedMemory::unknown;  // of a word
  std::vector<ParamRecord> words;  // of a struct, in their order; their offsets are within it

  // Within what CUDA lets a kernel have.
  bool is_possible() const {
    constexpr uint32_t kMostBytes = 32764;  // of all parameters of one kernel
    return size != 0 && size <= kMostBytes && offset <= kMostBytes;
  }
  // Nothing where none was kept.
  std::optional<uint64_t> commonest_value() const;
};

enum class ParamSource : uint8_t { signature, values, size };

struct ParamType {
  std::string name;       // of a scalar, as patterns spell it: "int32"; "pointer"; "" for a struct
  std::string element;    // of a pointer, as definitions spell it; "" where that is not known
  bool is_const = false;  // a pointer to what the kernel only reads
  ParamSource source = ParamSource::size;

  bool is_pointer() const { return name == "pointer"; }
  bool is_integer() const {
    return name.rfind("int", 0) == 0 || name.rfind("uint", 0) == 0 || name == "bool";
  }
  bool is_floating() const { return name.rfind("float", 0) == 0; }
};

// The readable form of a symbol; the symbol itself where it has none.
std::string demangled(const std::string& symbol);

// Without return type, parameter list and ABI tags: "at::native::add<float>".
std::string function_name(const std::string& symbol);

// The last part of it without template arguments: "add".
std::string short_name(const std::string& symbol);

std::vector<ParamType> types_of_params(const std::string& symbol,
                                       const std::vector<ParamRecord>& params);

// A part of a struct, as its values tell.
struct Field {
  ParamRecord record;  // its offset is within the struct
  ParamType type;
};
std::vector<Field> fields_of_struct(const ParamRecord& param);

// The type of a struct's word, and of what else says nothing but its values.
ParamType type_of_word(const ParamRecord& word);

// A parameter's bytes as its type reads: "4096", "1e-06", "0x7f1200000000".
std::string value_text(const ParamType& type, uint32_t size, uint64_t value);
int64_t integer_value(const ParamType& type, uint32_t size, uint64_t value);
std::optional<double> floating_value(const ParamType& type, uint64_t value);

}  // namespace fibshim::tools
