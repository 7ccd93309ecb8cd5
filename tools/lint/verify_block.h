// The optional `verify` block of a solution: facts that `fibshim verify` and `bench` cannot get
// from the definition. Serving ignores it, except for the arguments that it names. Here a misspelt
// key in it is an error, as in `launch`.
//
//   "verify": {
//     "op": "rmsnorm",                          the native reference to judge by
//     "axes": {"batch_size": [1, 7, 64]},       values of variable axes
//     "arguments": {
//       "eps": {"value": 1e-5},                 a scalar; "type" where the size does not tell
//       "stride": {"expr": "hidden_size"},      an integer, from axes and such scalars
//       "rstd": {"shape": ["batch_size"], "dtype": "float32"},    a buffer
//       "first": {"shape": ["batch_size + 1"], "dtype": "int32", "elements": "index"},   one that is read
//       "indptr": {"elements": "3 * index"},    each element of an integer input, by its index
//       "pos_ids": {"low": 0, "high": "max_position"}             the range of an integer input
//     },
//     "atol": 0.01, "rtol": 0.01, "required_matched_ratio": 1.0
//   }
#pragma once

#include "loader/check/check.h"

namespace fibshim {

struct VerifyArgument {
  enum class Kind : uint8_t { value, expression, tensor, range, elements };
  std::string name;
  Kind kind = Kind::value;
  double value = 0;
  std::optional<MarkedExpression> expression;  // expression; range: the lowest value
  std::optional<MarkedExpression> high;        // range: one above the highest value
  std::optional<MarkedExpression> elements;    // tensor: of axes and `index`; none if it is written
  std::optional<ValueType> type;               // of a scalar
  uint8_t dtype = 0;                           // tensor: index into kDtypes
  std::vector<MarkedExpression> shape;         // tensor: of axes
};

struct VerifyBlock {
  std::string op;
  std::vector<std::pair<std::string, std::vector<int64_t>>> axes;
  std::vector<VerifyArgument> arguments;
  std::optional<double> atol, rtol, required_matched_ratio;

  const VerifyArgument* find_argument(std::string_view wanted) const;
};

VerifyBlock read_verify_block(JsonValue value, Diagnostics* diagnostics);

// Collects the blocks of a folder's solutions while the folder is read.
class VerifyBlocks : public FolderLint {
 public:
  void read_solution(JsonValue root, const SolutionSpec& solution,
                     Diagnostics* diagnostics) override;
  void check_model(const FolderModel& /*model*/, Diagnostics* /*diagnostics*/) override {}

  // The solution's block; an empty one if it has none.
  const VerifyBlock& of(const SolutionSpec& solution) const;

 private:
  std::map<std::string, VerifyBlock> blocks_;  // by the solution's file
};

}  // namespace fibshim
