// Compares two recordings: kernels, shapes, counts and times. Kernels are identified by their
// symbols alone: images, GPUs and parameters differ between versions of one engine, so records of
// one symbol are added up.
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
  uint64_t runs = 0;  // reported by CUPTI, eager ones and those in graphs
  uint64_t replayed = 0;
  double ns = 0;       // GPU time
  double mean_ns = 0;  // of a run or launch; 0: not measured
  std::set<Geometry> shapes;
  bool has_all_shapes = true;  // false: there was no room for some
};

struct KernelDifference {
  std::string symbol;
  ComparedKernel a, b;
  std::vector<Geometry> shapes_only_in_a, shapes_only_in_b;
  bool has_other_counts;
  bool has_other_times;

  bool has_other_shapes() const { return !shapes_only_in_a.empty() || !shapes_only_in_b.empty(); }
};

struct Comparison {
  std::vector<std::pair<std::string, ComparedKernel>> only_in_a, only_in_b;
  std::vector<KernelDifference> differences;  // of those in both
  double tolerance_percent;
  uint64_t left_out_of_a, left_out_of_b;  // kernels, for which the files had no room

  bool is_equal() const { return only_in_a.empty() && only_in_b.empty() && differences.empty(); }
};

// What a recording could not keep is no difference: shapes beyond those for which it had room, and runs without CUPTI.
// Times differ if the means differ by more than this percentage of the smaller one. All lists are
// sorted by falling GPU time.
Comparison compare_recordings(const Recording& a, const Recording& b, double tolerance_percent);

std::string comparison_text(const Comparison& comparison);
nlohmann::ordered_json comparison_json(const Comparison& comparison);

}  // namespace fibshim::tools
