// What shadow checks and `verify` should tolerate, from what the engine itself has computed: twice as much as its own results,
// kept by `fibshim record --tensors`, are off from the reference, since a right solution may be off as far to the other side.
// At least as much as two neighbouring values of a type differ. For the solutions' "verify" blocks.
#pragma once

#include <nlohmann/json.hpp>

#include "tools/judge/trial.h"

namespace fibshim::judge {

class ProposedTolerances {
 public:
  // What the cases of a solution have shown.
  void add(uint32_t solution, const std::vector<CaseOutcome>& outcomes);

  // After all were added. `writes`: into the solutions' files.
  void propose(const FolderModel& model, bool writes);

  // Something is proposed, and whatever could not be is named by text().
  bool has_any() const;
  std::string text() const;
  nlohmann::ordered_json json() const;

 private:
  struct Proposal {
    size_t workloads = 0;  // whose outputs were recorded
    double original_distance = -1, solution_distance = -1;
    std::string definition, solution;
    double tolerance = 0;  // 0: none, and `why`
    std::string why;
    bool is_written = false;
  };
  std::map<uint32_t, Proposal> proposals_;  // by solution
};

}  // namespace fibshim::judge
