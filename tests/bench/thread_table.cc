// Launches from many threads, each on its own stream: their throughput compared with that of one
// thread, with and without the shim, in the same run. Whatever keeps direct calls from scaling
// linearly (lower clocks when more processors work, other load on the machine) affects the shim,
// too: so the two are compared with each other.
#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "tests/bench/report.h"
#include "tests/bench/tables.h"

namespace fibshim::bench {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kRounds = 3;
constexpr double kLeastOfLinear = 0.9;

// For a number of threads: million launches per second in all, and processor time per launch.
struct Cell {
  double million_per_s;
  double cpu_ns;
};
using Rates = std::map<int, Cell>;

int threads_of(const std::string& name) {
  const size_t at = name.rfind("threads:");
  return at == std::string::npos ? 1 : atoi(name.c_str() + at + strlen("threads:"));
}

Rates rates(const Results& results, const std::string& prefix) {
  Rates rates;
  for (const auto& [name, samples] : results) {
    if (!name.starts_with(prefix)) continue;
    rates[threads_of(name)] = {median(samples.counters.at("launches_per_s")) / 1e6,
                               median(samples.counters.at("cpu_ns_per_launch"))};
  }
  return rates;
}

// The share of linear scaling that is reached; more threads than processors cannot add any.
double of_linear(const Rates& rates, int threads, int processors) {
  return rates.at(threads).million_per_s /
         (rates.at(1).million_per_s * std::min(threads, processors));
}

}  // namespace

void bench_threads() {
  Results direct, shimmed;
  for (int i = 0; i < kRounds; ++i) {
    run_benchmarks("launch_bench", {filter("^threads/bench_untracked/")}, no_preload(), &direct);
    run_benchmarks("launch_bench", {filter("^threads/")}, shim(in_bench("config")), &shimmed);
  }
  const auto processors = static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
  say("Launches from many threads on %d processors: millions per second in total; share of linear\n"
      "growth; and that share divided by the direct calls' own (target: 0.90 of linear)\n\n",
      processors);
  say("  %-30s", "threads");
  for (const auto& [threads, cell] : rates(direct, "threads/bench_untracked/one/")) {
    say(" %15d    ", threads);
  }
  say("\n");
  Json table = Json::array();
  std::string points;
  const auto add_row = [&](const std::string& launches, const std::string& handles,
                           const Rates& row, const Rates& base) {
    const std::string name = launches + (handles == "one" ? ", one kernel" : ", a kernel each");
    say("  %-30s", name.c_str());
    Json by_threads = Json::object();
    bool is_met = true;
    for (const auto& [threads, cell] : row) {
      const double linear = of_linear(row, threads, processors);
      const double relative = linear / of_linear(base, threads, processors);
      is_met = is_met && relative >= kLeastOfLinear;
      say(" %8.1f %4.2f %4.2f", cell.million_per_s, linear, relative);
      by_threads[std::to_string(threads)] = {{"million_per_s", tenths(cell.million_per_s)},
                                             {"cpu_ns", tenths(cell.cpu_ns)},
                                             {"of_linear", hundredths(linear)},
                                             {"of_direct", hundredths(relative)}};
      points +=
          name + "\t" + std::to_string(threads) + "\t" + std::to_string(cell.million_per_s) + "\n";
    }
    say("  %s\n", verdict(is_met));
    points += "\n\n";
    table.push_back({{"launches", launches}, {"kernels", handles}, {"by_threads", by_threads}});
  };
  for (const std::string handles : {"one", "distinct"}) {
    const Rates base = rates(direct, "threads/bench_untracked/" + handles + "/");
    add_row("no preload", handles, base, base);
    for (const LaunchKind& kind : kLaunchKinds) {
      add_row(kind.key, handles,
              rates(shimmed, std::string("threads/") + kind.kernel + "/" + handles + "/"), base);
    }
  }
  say("\n");
  write_file("scaling.json", Json{{"processors", processors}, {"threads", table}}.dump(2) + "\n");
  write_file("scaling.tsv", points);
}

}  // namespace fibshim::bench
