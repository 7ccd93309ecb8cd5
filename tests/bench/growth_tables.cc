// The cost of a launch when there are many patterns, handles and shapes. If many are used in random
// order, every cache misses, as in any program that keeps data for each of them. So besides a
// direct call the tables have one that also reads as much memory as any such table must
// (launch_bench.cc, "touching").
#include <stdlib.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "tests/bench/large_folder.h"
#include "tests/bench/report.h"
#include "tests/bench/tables.h"

namespace fibshim::bench {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kMostGrowth = 2;
constexpr int kShapes = 10000;

class GrowthTable {
 public:
  explicit GrowthTable(const char* title) {
    say("%s (ns)\n\n  %-42s %8s %9s %8s %8s %9s %12s\n", title, "", "direct", "touching", "shim",
        "added", "x fewest", "x touching");
  }

  // `touching_ns` is 0 if few are in use, which stay in the caches. The first row of a kind is the
  // smallest. The others are compared with it, or with the cost of touching where that is inherent.
  void add(const std::string& what, bool is_smallest, double direct_ns, double touching_ns,
           double shim_ns) {
    if (is_smallest) smallest_ns_ = shim_ns;
    const double growth = shim_ns / smallest_ns_;
    say("  %-42s %8.1f ", what.c_str(), direct_ns);
    Json row = {{"launches", what},
                {"direct_ns", tenths(direct_ns)},
                {"shim_ns", tenths(shim_ns)},
                {"added_ns", tenths(shim_ns - direct_ns)},
                {"of_smallest", hundredths(growth)}};
    if (touching_ns == 0) {
      say("%9s %8.1f %8.1f %9.2f %12s  %s\n", "", shim_ns, shim_ns - direct_ns, growth, "",
          is_smallest ? "" : verdict(growth <= kMostGrowth));
    } else {
      const double share = shim_ns / touching_ns;
      say("%9.1f %8.1f %8.1f %9.2f %12.2f  %s\n", touching_ns, shim_ns, shim_ns - direct_ns, growth,
          share, verdict(growth <= kMostGrowth || share <= kMostGrowth));
      row["touching_ns"] = tenths(touching_ns);
      row["of_touching"] = hundredths(share);
    }
    json_.push_back(row);
  }
  const Json& json() const { return json_; }

 private:
  Json json_ = Json::array();
  double smallest_ns_ = 0;
};

double most(const Results& results, const std::string& prefix, const std::string& counter) {
  double most = 0;
  for (const auto& [name, samples] : results) {
    const auto found = samples.counters.find(counter);
    if (!name.starts_with(prefix) || found == samples.counters.end()) continue;
    for (const double value : found->second) most = std::max(most, value);
  }
  return most;
}

// The resident memory, in bytes, that the shim needs for each of `count` things.
double bytes_for_each(const Results& direct, const Results& shimmed, const std::string& prefix,
                      const char* counter, long count) {
  return rounded(
      (most(shimmed, prefix, counter) - most(direct, prefix, counter)) / static_cast<double>(count),
      1);
}

Json bench_patterns(const std::string& large_folder) {
  const std::string launches = filter("^launch/");
  Results direct, few, many;
  for (int i = 0; i < 5; ++i) {
    run_benchmarks("launch_bench", {launches}, no_preload(), &direct);
    run_benchmarks("launch_bench", {launches}, shim(in_bench("config")), &few);
    run_benchmarks("launch_bench", {launches}, shim(large_folder), &many);
  }
  GrowthTable table("Launches by the folder's patterns: 3, or 10,000 and 10,000 solutions more");
  for (const LaunchKind& kind : kLaunchKinds) {
    const std::string name = std::string("launch/") + kind.kernel + "/";
    const double direct_ns = time_ns(direct, name);
    table.add(std::string(kind.key) + ", 3 patterns", true, direct_ns, 0, time_ns(few, name));
    table.add(std::string(kind.key) + ", 10003 patterns", false, direct_ns, 0, time_ns(many, name));
  }
  say("\n");
  return table.json();
}

Json bench_shapes(const std::string& large_folder) {
  Results direct, shimmed;
  for (int i = 0; i < 3; ++i) {
    run_benchmarks("launch_bench", {filter("^shapes/")}, no_preload(), &direct);
    run_benchmarks("launch_bench", {filter("^shapes/[^t]")}, shim(large_folder), &shimmed);
  }
  GrowthTable table("Launches by the shapes that the kernel was launched with");
  const std::string count = std::to_string(kShapes);
  const double touching_ns = time_ns(direct, "shapes/touching/" + count + "/");
  for (const std::string kind : {"fallback", "hit"}) {
    const std::string prefix = "shapes/bench_" + kind + "/";
    const auto add = [&](const std::string& size, const std::string& meaning, double touching) {
      table.add(kind + meaning, size == "1/1/", time_ns(direct, prefix + size), touching,
                time_ns(shimmed, prefix + size));
    };
    add("1/1/", ", 1 shape", 0);
    add(count + "/1/", ", " + count + " seen, one in use", 0);
    add(count + "/" + count + "/", ", " + count + " seen, all in use", touching_ns);
  }
  const double bytes = bytes_for_each(direct, shimmed, "shapes/bench_hit/", "shape_bytes", kShapes);
  say("  memory that the shim holds for each shape with a solution: %.0f bytes\n\n", bytes);
  return {{"launches", table.json()}, {"bytes_per_shape", bytes}};
}

Json bench_handles(const Options& options) {
  Results direct, shimmed;
  const std::string count = std::to_string(options.handles);
  setenv("BENCH_HANDLES", count.c_str(), 1);
  for (int i = 0; i < 3; ++i) {
    run_benchmarks("launch_bench", {filter("^handles/")}, no_preload(), &direct);
    run_benchmarks("launch_bench", {filter("^handles/[^t]")}, shim(in_bench("config")), &shimmed);
  }
  GrowthTable table("Launches by the handles that the process was given");
  const double touching_ns = time_ns(direct, "handles/touching/" + count + "/");
  const auto add = [&](const std::string& kind, const std::string& size, const std::string& meaning,
                       double touching) {
    const std::string name = "handles/" + kind + "/" + size + "/";
    table.add(meaning, size == "1/1", time_ns(direct, name), touching, time_ns(shimmed, name));
  };
  add("untracked", "1/1", "untracked, 1 handle", 0);
  add("untracked", count + "/1", "untracked, " + count + " seen, one in use", 0);
  add("untracked", count + "/" + count, "untracked, " + count + " seen, all in use", touching_ns);
  add("bench_hit", "1/1", "hit, 1 handle", 0);
  add("bench_hit", count + "/1", "hit, " + count + " seen, one in use", 0);
  const double bytes = bytes_for_each(direct, shimmed, "", "handle_bytes", options.handles);
  say("  memory that the shim holds for each handle: %.0f bytes\n\n", bytes);
  return {{"launches", table.json()}, {"bytes_per_handle", bytes}};
}

}  // namespace

void bench_growth(const Options& options) {
  const std::string large = in_bench("large");
  make_large_folder(in_bench("config"), large, {10000, kShapes});
  Json json;
  json["patterns"] = bench_patterns(large);
  json["shapes"] = bench_shapes(large);
  json["handles"] = bench_handles(options);
  std::filesystem::remove_all(large);
  write_file("growth.json", json.dump(2) + "\n");
}

}  // namespace fibshim::bench
