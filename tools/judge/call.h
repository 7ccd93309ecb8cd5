// How a solution is launched: as the kernel that a pattern describes would be, through the plan that the shim
// carries out.
//
// A Call makes the launch that its pattern describes: parameters, geometry and captures in which each value
// of the pattern stands where the pattern reads it. plan_launch() says what is launched instead, and exactly
// that runs. A value is, in this order: the definition's, or stated by the pattern or the "verify" block;
// what the other values imply; pinned by "where"; what its name usually means; a recorded launch's. One that
// the solution needs and nothing gives is a fault that says what to write.
//
// Patterns call a solution in different ways, with other literals or with one buffer as input and output: each
// way is a Variant, and all are judged. Patterns that call it alike are twins: each is planned, all must come
// to one launch, and that is launched once.
#pragma once

#include "tools/judge/gpu.h"
#include "tools/judge/original.h"
#include "tools/judge/usual_values.h"
#include "tools/judge/variants.h"

namespace fibshim::tools {
struct KernelRecord;
}  // namespace fibshim::tools

namespace fibshim::judge {

// A tensor that the kernel gets.
struct BufferSpec {
  std::string name;
  const ElementType* type = nullptr;
  std::vector<int64_t> shape;
  bool is_output = false;
  std::string shares;  // the name of the input whose buffer this output is; "" when it has its own
};

class Call {
 public:
  // `recorded`: kernels of which one may be the pattern's. All that is passed outlives the call.
  Call(const Subject& subject, const Variant& variant, const Snapshot& snapshot,
       const std::vector<tools::KernelRecord>& recorded);

  // Scalars beside the definition's own, into data->scalars, where they are not yet. `run`: seeds
  // differ by it.
  void add_scalars(int run, CaseData* data) const;

  // Buffers for these axes: inputs first. Outputs that the solution does not take are left out when
  // they are no output of the definition; one that is, is a fault. `for_original`: those too that only the
  // pattern's kernel takes, where their shape is known.
  Result<std::vector<BufferSpec>> buffers(const AxisValues& axes, bool for_original = false) const;

  // The launch; nothing when the shim would run the original, and then *reason says why. `addresses`: of
  // every buffer. Fails when a name has no value, when the launch leads to another binding, when the fast
  // form does other than the plan, and when twins differ.
  Result<std::optional<Launch>> resolve(const CaseData& data,
                                        const std::map<std::string, uint64_t>& addresses,
                                        std::string* reason) const;

  // The recorded launch with these values and buffers in it, and what is launched instead; nothing and *reason as
  // above. Fails when one of its buffers is not known.
  struct Pair {
    Launch original, replacement;
  };
  Result<std::optional<Pair>> resolve_both(const RecordedLaunch& recorded, const CaseData& data,
                                           const std::map<std::string, uint64_t>& addresses,
                                           std::string* reason) const;

  // Whether the solution takes it as an argument.
  bool takes(const std::string& name) const;

  // Whether the pattern's `where` leaves it but one value.
  bool is_pinned(const std::string& name) const { return variant_.pattern->pin_of(name).is_pinned; }

  // What a recorded launch had to give; "" for nothing.
  std::string recorded_values() const;

 private:
  class Values;

  Result<std::optional<Launch>> resolve_alone(const CaseData& data,
                                              const std::map<std::string, uint64_t>& addresses,
                                              std::string* reason,
                                              const RecordedLaunch* recorded = nullptr,
                                              Launch* original = nullptr) const;

  Subject subject_;
  Variant variant_;
  const Snapshot* snapshot_;
  const tools::KernelRecord* recorded_ = nullptr;
  std::set<std::string> used_;    // by the solution
  std::set<std::string> needed_;  // by the solution and by the pattern's own decisions
  std::vector<Call> twins_;
  mutable std::set<std::string> from_recording_;
};

}  // namespace fibshim::judge
