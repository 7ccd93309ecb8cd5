// Computes on the host, in double and row by row, what the outputs of a definition must be.
//
// An operation is recognised by its name: the longest known one with which the definition's name
// begins, else its op_type, unless the solution's "verify" block names another. Tensors are
// recognised by the names that FlashInfer and vLLM give them. If an operation stores an
// intermediate result in a narrower type before it goes on (the residual of vLLM's fused add), so
// does the reference. The final rounding belongs to the kernel, and is left to the tolerance.
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
  const CaseData& data;  // must outlive the reference
  const std::vector<OutputSpec>& outputs;
};

// The known operation that the definition describes, or "". `wanted`: the one that the "verify"
// block names, or "".
std::string find_op(const Definition& definition, std::string_view wanted);

// Operations whose outputs are random: see sampling.h.
bool is_sampling_op(std::string_view op);

// A buffer that an operation's kernels write besides the definition's outputs (rstd, mean), one
// element for each row; null if the operation has none of that name.
struct ExtraOutput {
  const char* name;
  const char* dtype;
};
const ExtraOutput* find_extra_output(std::string_view op, std::string_view name);

// Fails if a tensor that the operation needs is missing; the error names it.
Result<RowReference> make_reference(const ReferenceRequest& request);

// Computes these rows on all processors. `use` gets a row's index in `rows` and the values of each
// output. It is called from several threads, once for each row.
void for_each_row(const RowReference& reference, const std::vector<OutputSpec>& outputs,
                  const std::vector<int64_t>& rows,
                  const std::function<void(size_t index, double* const* values)>& use);

// One row of a tensor as doubles.
void load_row(const Tensor& tensor, int64_t row, double* to);

// Compares each output that was found with the reference, in these rows.
std::vector<Comparison> compare_rows(const RowReference& reference,
                                     const std::vector<OutputSpec>& outputs,
                                     const std::vector<int64_t>& rows,
                                     const std::vector<Tensor>& found,
                                     const std::vector<Tolerance>& tolerances);

}  // namespace fibshim::judge
