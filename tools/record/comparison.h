// What differs between two recordings: kernels, shapes, counts and times. A kernel is its symbol: images, GPUs and
// parameters differ between versions of one engine, and are added up.
#pragma once

#include <set>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "tools/record/recording.h"

namespace fibshim::tools {

// One kernel in one recording.
struct ComparedKernel {
  uint64_t launches = 0;
  uint64_t nodes = 0;
  uint64_t runs = 0;  // that CUPTI told of, eagerly and in graphs
  uint64_t replayed = 0;
  double ns = 0;       // GPU time
  double mean_ns = 0;  // of a run or launch; 0: not measured
  std::set<Geometry> shapes;
};

struct KernelDifference {
  std::string symbol;
  ComparedKernel a, b;
  bool has_other_shapes;
  bool has_other_counts;
  bool has_other_times;
};

struct Comparison {
  std::vector<std::pair<std::string, ComparedKernel>> only_in_a, only_in_b;
  std::vector<KernelDifference> differences;  // of those in both
  double tolerance_percent;

  bool is_equal() const { return only_in_a.empty() && only_in_b.empty() && differences.empty(); }
};

// Times differ where the means are further apart than so many percent of the smaller one. All by falling GPU time.
Comparison compare_recordings(const Recording& a, const Recording& b, double tolerance_percent);

std::string comparison_text(const Comparison& comparison);
nlohmann::ordered_json comparison_json(const Comparison& comparison);

}  // namespace fibshim::tools
