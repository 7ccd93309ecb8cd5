// `make bench`: measures everything on the simulated driver, prints tables, and writes beside
// itself
//   launch.json    nanoseconds per launch (absolute; what the shim adds is x_ns - direct_ns) and
//                  instructions (added to a direct call), of one launch of each kind
//   scaling.json   launches by the number of threads
//   growth.json    launches by patterns, handles and shapes; memory for each
//   load.json      lookups, loading a large folder, spawning
//   launch.tsv, scaling.tsv  what overhead.gp makes overhead.svg of
//   report.txt     the tables
// Every way of preloading runs in its own processes, in turn (A B A B), and medians are taken:
// so a busy machine or a changing clock affects all ways equally.
//
//   run [--rounds N] [--only launch|scaling|growth|load] [--no-instructions] [--handles N]
//       [--peer LIBRARY]   another preload to compare launches with
#include <stdio.h>
#include <stdlib.h>

#include <exception>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "tests/bench/large_folder.h"
#include "tests/bench/measure.h"
#include "tests/bench/report.h"
#include "tests/bench/spawn_cost.h"
#include "tests/bench/tables.h"
#include "tests/support/process.h"

namespace fibshim::bench {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

// --- lookups, loading, spawning

Json bench_lookups() {
  const std::string folder = in_bench("large");
  make_large_folder(in_bench("config"), folder, {1000, 0});
  Results direct, shimmed;
  for (int i = 0; i < 3; ++i) {
    run_benchmarks("launch_bench", {filter("^lookup/")}, no_preload(), &direct);
    run_benchmarks("launch_bench", {filter("^lookup/")}, shim(folder), &shimmed);
  }
  say("Looking up a kernel that none of 1003 patterns fits, a third of them regexes (ns)\n\n");
  say("  %-46s %8s %8s %8s %8s\n", "", "direct", "shim", "added", "target");
  Json json = Json::array();
  for (const char* call : {"cuLibraryGetKernel", "cuModuleGetFunction"}) {
    for (const char* time : {"first", "again"}) {
      const std::string name = std::string("lookup/") + call + "/" + time + "/";
      const double direct_ns = time_ns(direct, name);
      const double shim_ns = time_ns(shimmed, name);
      const double added = shim_ns - direct_ns;
      say("  %-46s %8.0f %8.0f %8.0f %8d %9s\n", (std::string(call) + ", " + time).c_str(),
          direct_ns, shim_ns, added, 1000, verdict(added <= 1000));
      json.push_back({{"call", call},
                      {"time", time},
                      {"direct_ns", rounded(direct_ns, 1)},
                      {"shim_ns", rounded(shim_ns, 1)},
                      {"added_ns", rounded(added, 1)}});
    }
  }
  say("\n");
  return json;
}

double load_ms(const std::string& folder, Results* results) {
  results->clear();
  for (int i = 0; i < 5; ++i) run_benchmarks("load_bench", {folder}, no_preload(), results);
  return median(find(*results, "open/").time_ns) / 1e6;
}

Json bench_folder() {
  const std::string folder = in_bench("large");
  make_large_folder(in_bench("config"), folder, {1000, 10000});
  Results results;
  const double ms = load_ms(folder, &results);
  const Samples samples = find(results, "open/");
  const double bytes = median(samples.counters.at("snapshot_bytes"));
  const double solutions = median(samples.counters.at("solutions"));
  const double patterns = median(samples.counters.at("patterns"));
  say("Loading a folder of %.0f solutions and %.0f patterns\n\n", solutions, patterns);
  say("  %-46s %8s %8s\n", "", "ms", "target");
  const auto row = [](const char* what, double time_ms, double target) {
    say("  %-46s %8.1f %8.0f %9s\n", what, time_ms, target, verdict(time_ms <= target));
  };
  row("files in the page cache", ms, 500);
  say("\n  snapshot %.1f MiB in each process\n\n", bytes / (1 << 20));
  return {{"solutions", solutions},
          {"patterns", patterns},
          {"open_ms", tenths(ms)},
          {"snapshot_bytes", bytes}};
}

Json bench_spawn() {
  const SpawnCost cost =
      measure_spawn_cost(build_dir() + "/lib/libfibshim.so", in_bench("config"), 1000);
  const SpawnCost least = measure_spawn_cost(in_bench("libempty.so"), "", 1000);
  const double added_us = cost.preloaded_us - cost.plain_us;
  const double least_us = least.preloaded_us - least.plain_us;
  const double added_kib = cost.preloaded_pss_kib - cost.plain_pss_kib;
  const double least_kib = least.preloaded_pss_kib - least.plain_pss_kib;
  say("A process that never touches CUDA\n\n");
  say("  spawning /bin/true: %.0f us, preloaded %.0f us: %.1f us added (target 30: %s)\n",
      cost.plain_us, cost.preloaded_us, added_us, verdict(added_us <= 30));
  say("  memory (PSS): %.0f KiB added, %.0f KiB of it private (target 300: %s)\n", added_kib,
      cost.preloaded_private_kib - cost.plain_private_kib, verdict(added_kib <= 300));
  say("  a preload without anything in it adds %.1f us and %.0f KiB\n\n", least_us, least_kib);
  return {{"plain_us", tenths(cost.plain_us)},
          {"preloaded_us", tenths(cost.preloaded_us)},
          {"added_us", tenths(added_us)},
          {"added_pss_kib", added_kib},
          {"added_private_kib", cost.preloaded_private_kib - cost.plain_private_kib},
          {"empty_preload_added_us", tenths(least_us)},
          {"empty_preload_added_pss_kib", least_kib}};
}

void bench_loading() {
  Json json;
  json["lookups"] = bench_lookups();
  json["folder"] = bench_folder();
  json["spawn"] = bench_spawn();
  fs::remove_all(in_bench("large"));
  write_file("load.json", json.dump(2) + "\n");
}

bool parse(int argc, char** argv, Options* options) {
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const char* value = i + 1 < argc ? argv[i + 1] : nullptr;
    if (word == "--no-instructions") {
      options->has_instructions = false;
      continue;
    }
    if (value == nullptr) return false;
    ++i;
    if (word == "--rounds") {
      options->rounds = atoi(value);
    } else if (word == "--handles") {
      options->handles = atol(value);
    } else if (word == "--only") {
      options->only = value;
    } else if (word == "--peer") {
      options->peer = fs::absolute(value);
    } else {
      return false;
    }
  }
  return options->rounds > 0 && options->handles > 1 &&
         (options->peer.empty() || fs::exists(options->peer)) &&
         (options->only.empty() || options->only == "launch" || options->only == "scaling" ||
          options->only == "growth" || options->only == "load");
}

}  // namespace
}  // namespace fibshim::bench

int main(int argc, char** argv) {
  using namespace fibshim::bench;  // NOLINT(google-build-using-namespace): a short main
  Options options;
  if (!parse(argc, argv, &options)) {
    fprintf(stderr,
            "usage: run [--rounds N] [--only launch|scaling|growth|load] [--no-instructions] "
            "[--handles N] [--peer LIBRARY]\n");
    return 2;
  }
  try {
    open_report();
    const auto is_wanted = [&](const char* part) {
      return options.only.empty() || options.only == part;
    };
    if (is_wanted("launch")) bench_launches(options);
    if (is_wanted("scaling")) bench_threads();
    if (is_wanted("growth")) bench_growth(options);
    if (is_wanted("load")) bench_loading();
  } catch (const std::exception& error) {
    fprintf(stderr, "bench: %s\n", error.what());
    return 1;
  }
  return 0;
}
