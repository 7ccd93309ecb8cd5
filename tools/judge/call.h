// Launches a solution as the shim would: a launch of the kernel that a pattern describes goes
// through the shim's plan.
//
// A Call makes the launch that its pattern describes: parameters, geometry and captures in which
// each value of the pattern is where the pattern reads it. plan_launch() says what is launched
// instead, and exactly that runs. A value comes from the first of these sources that has it: the
// definition, the pattern or the "verify" block; what the other values imply; a "where" that leaves
// only one value; what its name usually means; a recorded launch. If the solution needs a value
// that no source gives, the error says what to write.
//
// Patterns call a solution in different ways, with other literals or with one buffer as input and
// output: each way is a Variant, and all are judged. Patterns that call it alike are twins: each is
// planned, all must lead to one launch, and that is made once.
#pragma once

#include "tools/judge/gpu.h"
#include "tools/judge/original.h"
#include "tools/judge/usual_values.h"
#include "tools/judge/variants.h"

namespace fibshim::tools {
struct KernelRecord;
}  // namespace fibshim::tools

namespace fibshim::judge {

class Call {
 public:
  // `recorded`: kernels, of which one may fit the pattern. All arguments must outlive the Call.
  Call(const Subject& subject, const Variant& variant, const Snapshot& snapshot,
       const std::vector<tools::KernelRecord>& recorded);

  // Adds the scalars that the definition does not name to data->scalars, unless they are there
  // already; what the pattern fixes replaces what is there. `run`: each run has other seeds.
  void add_scalars(int run, CaseData* data) const;

  // Buffers for these axes, inputs first. It is an error if the solution does not take an output of
  // the definition; other outputs that it does not take are left out. `for_original`: also those
  // that only the pattern's kernel takes, if their shape is known.
  Result<std::vector<BufferSpec>> buffers(const AxisValues& axes, bool for_original = false) const;

  // Lays outputs out as the pattern says. Returns which buffer cannot lie so, or "".
  std::string lay_out(const CaseData& data, std::vector<BufferSpec>* buffers) const;

  // The launch that the shim would make; nothing if it would run the original, and then *reason
  // says why. `addresses`: of every buffer. Fails if a name has no value, if the launch leads to
  // another binding, if the fast form differs from the plan, and if twins differ.
  Result<std::optional<Launch>> resolve(const CaseData& data,
                                        const std::map<std::string, uint64_t>& addresses,
                                        std::string* reason) const;

  // The recorded launch with these values and buffers in it, and the launch that replaces it;
  // nothing and *reason as in resolve(). Fails if one of its buffers is not known.
  struct Pair {
    Launch original, replacement;
  };
  Result<std::optional<Pair>> resolve_both(const RecordedLaunch& recorded, const CaseData& data,
                                           const std::map<std::string, uint64_t>& addresses,
                                           std::string* reason) const;

  // True if the solution has an argument of this name.
  bool takes(const std::string& name) const;

  // True if the pattern states the value of this name, or its `where` leaves it only one.
  bool is_fixed(const std::string& name) const;

  // The one integer that every launch of the pattern has for this name; nothing if it may have others.
  std::optional<int64_t> only_value(std::string_view name) const;

  // The values that only a recorded launch gave, as text; "" for none.
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
