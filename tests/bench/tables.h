// The tables of `make bench` about launches. Each function measures, prints, and writes its files.
// On failure it throws a std::exception with the reason.
#pragma once

#include <string>

namespace fibshim::bench {

struct Options {
  int rounds = 15;
  std::string only;  // "": all
  bool has_instructions = true;
  long handles = 1000000;
  std::string peer;  // another preload; "": none
};

// The kinds of launch, with the performance targets of the launch path.
struct LaunchKind {
  const char* key;     // in launch.json
  const char* kernel;  // of launches.cu
  const char* meaning;
  double most_ns;  // added to a direct call
  double most_instructions;
};
inline constexpr LaunchKind kLaunchKinds[] = {
    {"untracked", "bench_untracked", "kernel that no pattern knows", 5, 40},
    {"fallback", "bench_fallback", "known kernel, decision is \"no\"", 10, 90},
    {"hit", "bench_hit", "hit, arguments as they are", 15, 160},
    {"hit_remap", "bench_hit_remap", "hit, 8 arguments reordered", 20, 220},
};

// The cost of one launch of each kind: launch.json, launch.tsv.
void bench_launches(const Options& options);

// The cost by number of threads: scaling.json, scaling.tsv.
void bench_threads();

// The cost by number of patterns, shapes and handles: growth.json.
void bench_growth(const Options& options);

}  // namespace fibshim::bench
