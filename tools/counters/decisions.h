// What processes decided: which pattern read a launch as a call of which definition, which solution served it or why
// none did, in which version of the folder (its digest stands for the images). How often does not matter, nor on which
// GPU, nor which launches were checked: those are hits by decision. Ranks of one job ought to decide alike; so ought a run and an earlier one. For `stats --diff`.
#pragma once

#include <set>

#include <nlohmann/json_fwd.hpp>

#include "tools/counters/launch_counts.h"

namespace fibshim::tools {

struct Decision {
  std::string definition, solution, pattern, outcome, digest;
  auto operator<=>(const Decision&) const = default;
};
using Decisions = std::set<Decision>;

// Launches that no pattern knows are no decisions.
Decisions decisions_of(const ProcessCounters& process);

// The same for the same decisions: 16 hexadecimal digits; "" for none.
std::string fingerprint(const Decisions& decisions);

// One of those that are compared.
struct Side {
  std::string name;
  Decisions decisions;
};

// Sides that ought to decide alike.
struct SideGroup {
  std::string job;  // of the ranks; may be empty
  std::vector<Side> sides;
  bool differs() const;
};

// The processes of each job, and those of none together; of a job that still runs the living alone. What has decided
// nothing is left out, and so is what would stand alone.
std::vector<SideGroup> ranks_of(const std::vector<ProcessCounters>& processes);

// What all of these decided, beside what a file that `stats --json` wrote says of that. The error says why it does not.
tl::expected<SideGroup, std::string> beside_earlier(const std::vector<ProcessCounters>& processes,
                                                    const LaunchFilter& filter,
                                                    const std::string& file);

std::string differences_text(const std::vector<SideGroup>& groups);
nlohmann::ordered_json differences_to_json(const std::vector<SideGroup>& groups);

}  // namespace fibshim::tools
