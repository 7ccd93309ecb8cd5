// What shadow checks have found (FIBSHIM_SHADOW), as counters files have it, and added up.
#pragma once

#include <stdint.h>

#include <map>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "shim/abi/counters_format.h"

namespace fibshim::tools {

struct ProcessCounters;

struct ShadowNumbers {
  uint64_t checks = 0;
  uint64_t mismatches = 0;
  uint64_t not_checked[kShadowMisses] = {};  // by ShadowMiss
  uint64_t elements = 0;
  uint64_t wrong_elements = 0;
  uint64_t nans = 0;
  uint64_t infinities = 0;
  double largest_difference = 0;
  double largest_mean = 0;
  uint64_t buckets[kShadowBuckets] = {};

  void add(const ShadowNumbers& more);
  uint64_t all_not_checked() const;
};

// Of one process: one entry of its file.
struct ShadowCount {
  uint32_t config;
  std::string pattern, definition, solution, shape;
  ShadowNumbers numbers;
};

// The numbers of an entry; what is no difference counts as none.
ShadowNumbers numbers_of(const ShadowEntry& entry);

struct ShadowKey {
  std::string definition, solution, pattern, shape;
  auto operator<=>(const ShadowKey&) const = default;
};
using ShadowSums = std::map<ShadowKey, ShadowNumbers>;
ShadowSums shadow_sums_of(const std::vector<ProcessCounters>& processes);

// A table; empty where nothing was to be checked.
std::string shadow_table(const ShadowSums& sums);
nlohmann::ordered_json shadow_to_json(const ShadowSums& sums);
// In a few words: "12 checks, 1 mismatch, 3 not checked"; empty as above.
std::string shadow_words(const ShadowSums& sums);

}  // namespace fibshim::tools
