// What the outputs of a definition must be, computed on the host in double, row by row.
//
// An operation is known by its name: the longest known one that the definition's name begins with,
// else its op_type, unless the solution's "verify" block says another. Tensors are known by the names
// that FlashInfer and vLLM give them. Where an operation stores an intermediate result in a narrower
// type before it goes on (the residual of vLLM's fused add), so does the reference; a final rounding
// is the kernel's own, and left to the tolerance.
#pragma once

#include <functional>

#include "loader/compile/definition.h"
#include "tools/judge/case_data.h"
#include "tools/judge/compare.h"

namespace fibshim::judge {

// A tensor that a solution writes.
struct OutputSpec {
  std::string name;
  const ElementType* type = nullptr;
  std::vector<int64_t> shape;
};

// Writes row `row` (an index of the first axis) of each output to out[i], in the outputs' order.
// Callable from several threads.
using RowReference = std::function<void(int64_t row, double* const* out)>;

struct ReferenceRequest {
  std::string_view op;
  const Definition& definition;
  const CaseData& data;  // outlives the reference
  const std::vector<OutputSpec>& outputs;
};

// The known operation that the definition is, or "". `wanted`: as the "verify" block says, or "".
std::string find_op(const Definition& definition, std::string_view wanted);

// Operations whose outputs are random: see sampling.h.
bool is_sampling_op(std::string_view op);

// Shape, by axis values, of a buffer that an operation's kernels write beside the definition's
// outputs (rstd, mean); null when the operation knows none of that name.
struct ExtraOutput {
  const char* name;
  const char* dtype;
};
const ExtraOutput* find_extra_output(std::string_view op, std::string_view name);

// Fails when a tensor that the operation needs is missing, with its name.
Result<RowReference> make_reference(const ReferenceRequest& request);

// Rows that a reference fills at once, on all processors. `rows`: which; `use` gets a row's index in
// `rows` and the values of each output, and is called from several threads, never twice for a row.
void for_each_row(const RowReference& reference, const std::vector<OutputSpec>& outputs,
                  const std::vector<int64_t>& rows,
                  const std::function<void(size_t index, double* const* values)>& use);

// One row of a tensor as doubles.
void load_row(const Tensor& tensor, int64_t row, double* to);

// Each output as it was found against the reference, in these rows.
std::vector<Comparison> compare_rows(const RowReference& reference,
                                     const std::vector<OutputSpec>& outputs,
                                     const std::vector<int64_t>& rows,
                                     const std::vector<Tensor>& found,
                                     const std::vector<Tolerance>& tolerances);

}  // namespace fibshim::judge
