// The nanoseconds and instructions that each way of preloading adds to one launch, in one thread.
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "tests/bench/instruction_count.h"
#include "tests/bench/report.h"
#include "tests/bench/tables.h"

namespace fibshim::bench {
namespace {

using Json = nlohmann::ordered_json;
using Counts = std::map<std::string, double>;

constexpr char kLaunches[] = "^launch/";
// If a definition has several solutions: so much more than a hit, and so many instructions in all.
constexpr double kMostForChoice_ns = 3;
constexpr double kMostInstructionsOfChosen = 200;
constexpr LaunchKind kComputed = {"hit_computed", "bench_hit_computed",
                                  "hit, two patterns, expressions", 25, 450};
// A different launch for the driver, too, so that it is compared with a direct call of its own.
constexpr LaunchKind kPacked = {"packed", "bench_packed", "hit, a packed struct, a cluster", 25,
                                300};

// For the driver, and for a preload without patterns, all kinds of launch are equal.
double all_kinds_ns(const Results& results) {
  std::vector<double> all;
  for (const auto& [name, samples] : results) {
    all.insert(all.end(), samples.time_ns.begin(), samples.time_ns.end());
  }
  return median(all);
}

// A row of the table. Null: nothing was counted, or there is no target.
struct Row {
  std::string key;
  std::string meaning;
  double ns;
  Json instructions;
  const LaunchKind* target;
};

void print(const Row& row, double direct_ns) {
  const double added = row.ns - direct_ns;
  say("  %-34s %8.1f %8.1f", row.meaning.c_str(), row.ns, added);
  if (row.target == nullptr) {
    if (!row.instructions.is_null()) say(" %8s %9s %7g", "", "", row.instructions.get<double>());
  } else {
    say(" %8.0f %9s", row.target->most_ns, verdict(added <= row.target->most_ns));
    if (!row.instructions.is_null()) {
      const double count = row.instructions;
      say(" %7g %7.0f %9s", count, row.target->most_instructions,
          verdict(count <= row.target->most_instructions));
    }
  }
  say("\n");
}

}  // namespace

void bench_launches(const Options& options) {
  const Preload peer = {options.peer, ""};
  LaunchKind chosen = {"hit_chosen", "bench_hit_chosen", "hit, the last of two solutions", 0,
                       kMostInstructionsOfChosen};
  const Preload with_shim = shim(in_bench("config"));
  Results direct, forwarded, shimmed, peered;
  for (int i = 0; i < options.rounds; ++i) {
    run_benchmarks("launch_bench", {filter(kLaunches)}, no_preload(), &direct);
    run_benchmarks("launch_bench", {filter(kLaunches)}, forwarder(), &forwarded);
    run_benchmarks("launch_bench", {filter(kLaunches)}, with_shim, &shimmed);
    if (!options.peer.empty()) run_benchmarks("launch_bench", {filter(kLaunches)}, peer, &peered);
  }

  Results packed_directly, packed_shimmed;
  for (int i = 0; i < options.rounds; ++i) {
    run_benchmarks("launch_bench", {filter("^packed/")}, no_preload(), &packed_directly);
    run_benchmarks("launch_bench", {filter("^packed/")}, with_shim, &packed_shimmed);
  }

  std::vector<std::string> kernels = {kPacked.kernel, kComputed.kernel, chosen.kernel};
  for (const LaunchKind& kind : kLaunchKinds) kernels.emplace_back(kind.kernel);
  Counts direct_count;
  if (options.has_instructions) {
    direct_count = count_instructions(kernels, environment_of(no_preload()));
  }
  const auto added_by = [&](const Preload& preload) {
    Counts counts;
    if (!options.has_instructions) return counts;
    counts = count_instructions(kernels, environment_of(preload));
    for (auto& [kernel, count] : counts) count -= direct_count.at(kernel);
    return counts;
  };
  const auto count_of = [](const Counts& counts, const std::string& kernel) {
    const auto found = counts.find(kernel);
    return found == counts.end() ? Json() : Json(found->second);
  };

  std::vector<Row> rows;
  const Counts forwarder_count = added_by(forwarder());
  const Counts shim_count = added_by(with_shim);
  rows.push_back({"direct", "no preload", all_kinds_ns(direct), nullptr, nullptr});
  rows.push_back({"forwarder", "preload that only forwards", all_kinds_ns(forwarded),
                  count_of(forwarder_count, kLaunchKinds[0].kernel), nullptr});
  for (const LaunchKind& kind : kLaunchKinds) {
    rows.push_back({kind.key, kind.meaning,
                    time_ns(shimmed, std::string("launch/") + kind.kernel + "/"),
                    count_of(shim_count, kind.kernel), &kind});
  }
  if (!options.peer.empty()) {
    rows.push_back({"peer", std::filesystem::path(options.peer).filename().string(),
                    all_kinds_ns(peered), count_of(added_by(peer), kLaunchKinds[0].kernel),
                    nullptr});
  }

  say("One launch, one thread: medians of %d rounds; what is added to a direct call\n\n",
      options.rounds);
  say("  %-34s %8s %8s %8s %9s %7s %7s %9s\n", "", "ns", "added", "target", "", "instr.", "target",
      "");
  const double direct_ns = rows.front().ns;
  Json json;
  std::string points;
  for (const Row& row : rows) {
    print(row, direct_ns);
    json[row.key + "_ns"] = tenths(row.ns);
    if (&row != &rows.front()) {
      points += row.key + "\t" + std::to_string(tenths(row.ns - direct_ns)) + "\n";
    }
  }
  for (const Row& row : rows) {
    if (&row != &rows.front()) json[row.key + "_instructions"] = row.instructions;
  }
  const double hit_ns = time_ns(shimmed, "launch/bench_hit/");
  chosen.most_ns = hit_ns - direct_ns + kMostForChoice_ns;
  for (const LaunchKind* const kind : {&std::as_const(chosen), &kComputed}) {
    const std::string key = kind->key;
    const Row row = {key, kind->meaning,
                     time_ns(shimmed, std::string("launch/") + kind->kernel + "/"),
                     count_of(shim_count, kind->kernel), kind};
    print(row, direct_ns);
    json[key + "_ns"] = tenths(row.ns);
    json[key + "_instructions"] = row.instructions;
  }
  const double packed_direct_ns = all_kinds_ns(packed_directly);
  const Row packed = {kPacked.key, kPacked.meaning, all_kinds_ns(packed_shimmed),
                      count_of(shim_count, kPacked.kernel), &kPacked};
  print(packed, packed_direct_ns);
  json["packed_direct_ns"] = tenths(packed_direct_ns);
  json["packed_ns"] = tenths(packed.ns);
  json["packed_instructions"] = packed.instructions;
  say("\n");
  write_file("launch.json", json.dump(2) + "\n");
  write_file("launch.tsv", points);
}

}  // namespace fibshim::bench
