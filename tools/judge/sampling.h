// Judges operations whose outputs are random: all samples must come from the allowed set, and
// each of its members must be drawn often enough.
#pragma once

#include "tools/judge/case_data.h"

namespace fibshim::judge {

inline constexpr int kMaskRuns = 100;
inline constexpr int64_t kSamplesPerRow = 500000;
inline constexpr double kMaxTotalVariation = 0.2;

struct SampleLaw {
  std::vector<double> probabilities;  // sums to one
  std::vector<bool> is_allowed;  // a little wider than the law, for ties and rounding at the edge

  bool allows(int64_t token) const {
    return token >= 0 && token < std::ssize(is_allowed) && is_allowed[static_cast<size_t>(token)];
  }
};

// The distribution for one row of `probs` under the operation's filters (top_k before top_p,
// FlashInfer's default order).
SampleLaw sample_law(std::string_view op, const CaseData& data, int64_t row);

}  // namespace fibshim::judge
