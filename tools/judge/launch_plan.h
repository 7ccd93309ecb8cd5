// How a solution is launched without an engine: every name that its launch block uses gets a value.
//
// In this order: the definition's axes and arguments; what a pattern gives as a literal or an
// expression; the solution's "verify" block; what is known by name (eps, strides of contiguous
// tensors, ...). A name without a value is a fault that says what to write.
//
// The patterns that lead to a solution call it in different ways: with other literals, or with one
// buffer as input and output. Each different way is a Variant, and all are judged.
#ifndef FIBSHIM_TOOLS_JUDGE_LAUNCH_PLAN_H_
#define FIBSHIM_TOOLS_JUDGE_LAUNCH_PLAN_H_

#include <array>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "loader/compile/model.h"
#include "tools/lint/verify_block.h"
#include "loader/read/result.h"
#include "tools/judge/case_data.h"

namespace fibshim::judge {

// A solution of a folder, with what belongs to it.
struct Subject {
  const Definition* definition;
  const SolutionSpec* solution;
  const VerifyBlock* verify;  // the solution's
  std::string op;             // find_op
};

struct Variant {
  std::string name;                            // the first pattern that calls it so; "" without one
  const PatternSpec* pattern = nullptr;        // null: no pattern leads here
  std::map<std::string, std::string> aliases;  // argument -> the earlier one whose buffer it shares
};

std::vector<Variant> find_variants(const FolderModel& model, uint32_t solution);

// A tensor that the kernel gets.
struct BufferSpec {
  std::string name;
  const ElementType* type = nullptr;
  std::vector<int64_t> shape;
  bool is_output = false;
  std::string shares;  // the name of the input whose buffer this output is; "" when it has its own
};

struct Launch {
  std::vector<std::array<uint8_t, 8>> params;  // the first bytes of each are the value
  uint32_t geometry[kGeometryCount];
};

class LaunchPlan {
 public:
  // Fails when a name has no value, or a value does not fit the kernel's parameter.
  static Result<LaunchPlan> make(const Subject& subject, const Variant& variant);
  LaunchPlan(LaunchPlan&&) noexcept;
  LaunchPlan& operator=(LaunchPlan&&) noexcept;
  ~LaunchPlan();

  // Scalars beside the definition's own, into data->scalars, where they are not yet. `run`: seeds
  // differ by it.
  Result<void> add_scalars(int run, CaseData* data) const;

  // Buffers for these axes: inputs first. Outputs that the solution does not take are left out when
  // they are no output of the definition; one that is, is a fault.
  Result<std::vector<BufferSpec>> buffers(const AxisValues& axes) const;

  // The launch; nothing when a `where` does not hold. `addresses`: of every buffer.
  Result<std::optional<Launch>> resolve(const CaseData& data,
                                        const std::map<std::string, uint64_t>& addresses) const;

  // Whether the solution takes it as an argument.
  bool takes(const std::string& name) const;

  // Whether the pattern's `where` leaves it but one value.
  bool is_pinned(const std::string& name) const;

 private:
  class Values;
  LaunchPlan();
  std::unique_ptr<Values> values_;
};

// The value of a name by what it usually means; nothing when it means nothing.
std::optional<double> usual_value(const std::string& name, const Subject& subject,
                                  const AxisValues& axes, int run);

// Whether the axes meet those of the definition's constraints that are integer expressions.
bool meets_constraints(const Definition& definition, const AxisValues& axes);

// An expression of axes alone.
Result<int64_t> evaluate(const Expression& expression, const AxisValues& axes);

}  // namespace fibshim::judge

#endif  // FIBSHIM_TOOLS_JUDGE_LAUNCH_PLAN_H_
