// What processes decided: which pattern read a launch as a call of which definition, which solution served it from which
// image, or why none did, in which version of the folder. How often does not matter, nor on which GPU, nor which launches
// were checked: those are hits by decision. Ranks of one job ought to decide alike; so ought a run and an earlier one.
// In which shapes they met a decision is kept beside it: there ranks may differ. For `stats --diff`.
#pragma once

#include <map>

#include <nlohmann/json_fwd.hpp>

#include "tools/counters/launch_counts.h"

namespace fibshim::tools {

struct Decision {
  std::string definition, solution, pattern, outcome, digest;
  std::string image;  // 16 hexadecimal digits, the first of its SHA-256; empty: none was loaded
  auto operator<=>(const Decision&) const = default;
};
using Decisions = std::map<Decision, Shapes>;

// Launches that no pattern knows are no decisions.
Decisions decisions_of(const ProcessCounters& process);

// The same for the same decisions, in whatever shapes: 16 hexadecimal digits; "" for none.
std::string fingerprint(const Decisions& decisions);

// As `stats --json` writes them.
nlohmann::ordered_json decisions_to_json(const std::vector<ProcessCounters>& processes);

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
tl::expected<SideGroup, std::string> compare_with_earlier(
    const std::vector<ProcessCounters>& processes, const LaunchFilter& filter,
    const std::string& file);

std::string differences_text(const std::vector<SideGroup>& groups);
nlohmann::ordered_json differences_to_json(const std::vector<SideGroup>& groups);

}  // namespace fibshim::tools
