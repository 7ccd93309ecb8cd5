// A FlashInfer Trace Definition. Serving needs names, axes, inputs and outputs; judging (`fibshim
// verify`) also needs shapes, op_type, tags, constraints and the reference. Of the latter,
// malformed ones are left out: no folder is refused for them.
#pragma once

#include "loader/read/fields.h"

namespace fibshim {

struct DtypeInfo {
  const char* name;
  ValueType scalar;  // how a scalar of this dtype is passed; `address` if it cannot be passed
};

// The dtypes of FlashInfer Trace (tools/doc/contract.md, "FlashInfer Trace records"), and related
// ones.
inline constexpr DtypeInfo kDtypes[] = {
    {"float64", ValueType::float64},
    {"float32", ValueType::float32},
    {"float16", ValueType::address},
    {"bfloat16", ValueType::address},
    {"float8_e4m3fn", ValueType::address},
    {"float8_e4m3fnuz", ValueType::address},
    {"float8_e5m2", ValueType::address},
    {"float8_e5m2fnuz", ValueType::address},
    {"float8_e8m0fnu", ValueType::address},
    {"float4_e2m1", ValueType::address},
    {"float4_e2m1fn_x2", ValueType::address},
    {"int64", ValueType::int64},
    {"int32", ValueType::int32},
    {"int16", ValueType::int16},
    {"int8", ValueType::int8},
    {"uint64", ValueType::uint64},
    {"uint32", ValueType::uint32},
    {"uint16", ValueType::uint16},
    {"uint8", ValueType::uint8},
    {"bool", ValueType::uint8},
    {"complex64", ValueType::address},
    {"complex128", ValueType::address},
    {"unknown", ValueType::address},
};

// Returns an index into kDtypes, or nothing after reporting why.
std::optional<uint8_t> read_dtype(JsonValue value, const What& what, Diagnostics* diagnostics);

struct DefinitionAxis {
  std::string name;
  bool is_const;
  int64_t value;  // of a const axis

  bool operator==(const DefinitionAxis&) const = default;
};

struct DefinitionArgument {
  std::string name;
  bool is_scalar;  // passed by value: "shape": null
  uint8_t dtype;   // index into kDtypes
  bool is_output = false;
  std::vector<std::string> shape;  // names of axes
  std::string written_into;        // an output's "param": the input that it overwrites
  bool is_optional = false;        // a call may do without it

  bool operator==(const DefinitionArgument&) const = default;
};

struct Definition {
  uint16_t folder = 0;  // index into FolderModel::folders
  MarkedName name;
  std::vector<DefinitionAxis> axes;
  std::vector<DefinitionArgument> arguments;  // inputs, then outputs
  std::string op_type;
  std::string reference;  // Python source with run()
  std::vector<std::string> tags;
  std::vector<std::string> constraints;  // Python expressions

  const DefinitionAxis* find_axis(std::string_view wanted) const;
  const DefinitionArgument* find_argument(std::string_view wanted) const;
};

// Returns nothing if the definition has no usable name.
std::optional<Definition> read_definition(JsonValue root, Diagnostics* diagnostics);

}  // namespace fibshim
