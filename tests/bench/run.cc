// `make bench`: measures everything on the simulated driver, prints tables, and writes beside
// itself
//   launch.json    nanoseconds per launch (absolute; what the shim adds is x_ns - direct_ns) and
//                  instructions (added to a direct call), of one launch of each kind
//   scaling.json   launches by threads, patterns, handles and shapes;  scaling.svg  by threads
//   load.json      lookups, loading a large folder, spawning
//   report.txt     the tables
// Every way of preloading runs in processes of its own, in turn (A B A B), and medians are taken:
// of a machine that is busy, or changes its clock, all ways see the same.
//
//   run [--rounds N] [--only launch|scaling|load] [--no-instructions] [--handles N]
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <exception>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "tests/bench/instruction_count.h"
#include "tests/bench/large_folder.h"
#include "tests/bench/line_plot.h"
#include "tests/bench/measure.h"
#include "tests/bench/spawn_cost.h"
#include "tests/support/process.h"

namespace fibshim::bench {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

struct Options {
  int rounds = 15;
  std::string only;  // "": all
  bool has_instructions = true;
  long handles = 1000000;
};

// The kinds of launch, with the targets of the launch path.
struct LaunchKind {
  const char* key;     // in launch.json
  const char* kernel;  // of launches.cu
  const char* meaning;
  double most_ns;  // added to a direct call
  double most_instructions;
};
constexpr LaunchKind kLaunchKinds[] = {
    {"untracked", "bench_untracked", "kernel that no pattern knows", 3, 30},
    {"fallback", "bench_fallback", "known kernel, decision is \"no\"", 10, 90},
    {"hit", "bench_hit", "hit, arguments as they are", 15, 140},
    {"hit_remap", "bench_hit_remap", "hit, 8 arguments reordered", 25, 260},
};

std::string in_bench(const std::string& name) { return build_dir() + "/bench/" + name; }

Preload no_preload() { return {}; }
Preload forwarder() { return {in_bench("libforwarder.so"), ""}; }
Preload shim(const std::string& config) { return {build_dir() + "/lib/libfibshim.so", config}; }

// --- output

FILE* g_report;  // report.txt

__attribute__((format(printf, 1, 2))) void say(const char* format, ...) {
  for (FILE* out : {stdout, g_report}) {
    va_list arguments;
    va_start(arguments, format);
    vfprintf(out, format, arguments);
    va_end(arguments);
    fflush(out);
  }
}

const char* verdict(bool is_met) { return is_met ? "met" : "NOT MET"; }

// A reader never sees half a file.
void write_file(const std::string& name, const std::string& text) {
  const std::string path = in_bench(name);
  std::ofstream(path + ".new", std::ios::trunc) << text;
  if (rename((path + ".new").c_str(), path.c_str()) != 0) {
    throw std::runtime_error(path + ": " + strerror(errno));
  }
}

double rounded(double value, double to) { return static_cast<double>(llround(value / to)) * to; }
double tenths(double value) { return static_cast<double>(llround(value * 10)) / 10; }

// --- reading results

const Samples& find(const Results& results, const std::string& prefix) {
  const auto found = results.lower_bound(prefix);
  if (found == results.end() || !found->first.starts_with(prefix)) {
    throw std::runtime_error("no benchmark is named " + prefix);
  }
  return found->second;
}

double time_ns(const Results& results, const std::string& prefix) {
  return median(find(results, prefix).time_ns);
}

std::string filter(const std::string& regex) { return "--benchmark_filter=" + regex; }

// --- launches

void bench_launches(const Options& options) {
  Results direct, forwarded, shimmed;
  const std::string only = filter("^launch/");
  for (int i = 0; i < options.rounds; ++i) {
    run_benchmarks("launch_bench", {only}, no_preload(), &direct);
    run_benchmarks("launch_bench", {only}, forwarder(), &forwarded);
    run_benchmarks("launch_bench", {only}, shim(in_bench("config")), &shimmed);
  }
  // To the driver all kinds of launch are alike: the kernels differ in their names only.
  const auto all_kinds = [](const Results& results) {
    std::vector<double> all;
    for (const auto& [name, samples] : results) {
      all.insert(all.end(), samples.time_ns.begin(), samples.time_ns.end());
    }
    return median(all);
  };
  const double direct_ns = all_kinds(direct);
  const double forwarder_ns = all_kinds(forwarded);

  std::map<std::string, double> direct_count, shim_count;
  double forwarder_instructions = 0;
  if (options.has_instructions) {
    std::vector<std::string> kernels;
    for (const LaunchKind& kind : kLaunchKinds) kernels.emplace_back(kind.kernel);
    direct_count = count_instructions(kernels, environment_of(no_preload()));
    shim_count = count_instructions(kernels, environment_of(shim(in_bench("config"))));
    const auto forwarder_count = count_instructions(kernels, environment_of(forwarder()));
    forwarder_instructions = forwarder_count.begin()->second - direct_count.begin()->second;
  }

  say("One launch, one thread: medians of %d rounds; what is added to a direct call\n\n",
      options.rounds);
  say("  %-34s %8s %8s %8s %9s %7s %7s %9s\n", "", "ns", "added", "target", "", "instr.", "target",
      "");
  say("  %-34s %8.1f\n", "no preload", direct_ns);
  say("  %-34s %8.1f %8.1f %27.0f\n", "preload that only forwards", forwarder_ns,
      forwarder_ns - direct_ns, forwarder_instructions);
  Json json;
  json["direct_ns"] = tenths(direct_ns);
  json["forwarder_ns"] = tenths(forwarder_ns);
  for (const LaunchKind& kind : kLaunchKinds) {
    const double ns = time_ns(shimmed, std::string("launch/") + kind.kernel + "/");
    const double added = ns - direct_ns;
    json[std::string(kind.key) + "_ns"] = tenths(ns);
    say("  %-34s %8.1f %8.1f %8.0f %9s", kind.meaning, ns, added, kind.most_ns,
        verdict(added <= kind.most_ns));
    if (options.has_instructions) {
      const double count = shim_count.at(kind.kernel) - direct_count.at(kind.kernel);
      say(" %7g %7.0f %9s", count, kind.most_instructions,
          verdict(count <= kind.most_instructions));
    }
    say("\n");
  }
  for (const LaunchKind& kind : kLaunchKinds) {
    const std::string key = std::string(kind.key) + "_instructions";
    if (!options.has_instructions) {
      json[key] = nullptr;
    } else {
      json[key] = shim_count.at(kind.kernel) - direct_count.at(kind.kernel);
    }
  }
  say("\n");
  write_file("launch.json", json.dump(2) + "\n");
}

// --- threads

int threads_of(const std::string& name) {
  const size_t at = name.rfind("threads:");
  return at == std::string::npos ? 1 : atoi(name.c_str() + at + strlen("threads:"));
}

// By the number of threads.
struct ThreadRow {
  double million_per_s;  // of all threads together
  double cpu_ns;  // per launch; what other processes take from the machine does not show here
};
using ThreadRows = std::map<int, ThreadRow>;

ThreadRows rows(const Results& results, const std::string& prefix) {
  ThreadRows rows;
  for (const auto& [name, samples] : results) {
    if (!name.starts_with(prefix)) continue;
    rows[threads_of(name)] = {median(samples.items_per_second) / 1e6, median(samples.cpu_ns)};
  }
  return rows;
}

Json bench_threads() {
  Results direct, shimmed;
  for (int i = 0; i < 3; ++i) {
    run_benchmarks("launch_bench", {filter("^threads/")}, no_preload(), &direct);
    run_benchmarks("launch_bench", {filter("^threads/")}, shim(in_bench("config")), &shimmed);
  }
  Json table = Json::array();
  LinePlot plot = {"Launches from many threads", "threads", "million launches per second", {}};
  say("Launches from many threads, each on a stream of its own: millions per second in total, and\n"
      "processor time of one launch in ns\n\n");
  say("  %-32s", "");
  for (const auto& [threads, row] : rows(direct, "threads/bench_hit/one/")) {
    say("  %4d threads    ", threads);
  }
  say("\n");
  const auto add_row = [&](const std::string& name, const ThreadRows& row) {
    say("  %-32s", name.c_str());
    Line line = {name, {}, false};
    Json rates = Json::object();
    Json times = Json::object();
    for (const auto& [threads, cell] : row) {
      say(" %7.1f %6.1f ns", cell.million_per_s, cell.cpu_ns);
      rates[std::to_string(threads)] = tenths(cell.million_per_s);
      times[std::to_string(threads)] = tenths(cell.cpu_ns);
      line.points.emplace_back(threads, cell.million_per_s);
    }
    say("\n");
    table.push_back(
        {{"launches", name}, {"million_per_s_by_threads", rates}, {"cpu_ns_by_threads", times}});
    plot.lines.push_back(std::move(line));
  };
  for (const char* handles : {"one", "distinct"}) {
    const std::string of = std::string(handles) == "one" ? ", one kernel" : ", distinct kernels";
    add_row("no preload" + of,
            rows(direct, std::string("threads/bench_untracked/") + handles + "/"));
    for (const LaunchKind& kind : kLaunchKinds) {
      add_row(kind.key + of,
              rows(shimmed, std::string("threads/") + kind.kernel + "/" + handles + "/"));
    }
  }
  Line ideal = {"no preload, linear", {}, true};
  const auto& first = plot.lines.front().points;
  for (const auto& [threads, rate] : first) {
    ideal.points.emplace_back(threads, first.front().second * threads);
  }
  plot.lines.push_back(std::move(ideal));
  say("\n");
  write_file("scaling.svg", to_svg(plot));
  return table;
}

// --- patterns, shapes, handles

struct GrowthTable {
  Json json = Json::array();

  static void begin(const char* title) {
    say("%s\n\n  %-46s %8s %8s %8s\n", title, "", "direct", "shim", "added");
  }
  void add(const std::string& what, double direct_ns, double shim_ns) {
    say("  %-46s %8.1f %8.1f %8.1f\n", what.c_str(), direct_ns, shim_ns, shim_ns - direct_ns);
    json.push_back({{"launches", what},
                    {"direct_ns", tenths(direct_ns)},
                    {"shim_ns", tenths(shim_ns)},
                    {"added_ns", tenths(shim_ns - direct_ns)}});
  }
};

Json bench_patterns(const std::string& large_folder) {
  Results direct, few, many;
  for (int i = 0; i < 5; ++i) {
    run_benchmarks("launch_bench", {filter("^launch/")}, no_preload(), &direct);
    run_benchmarks("launch_bench", {filter("^launch/")}, shim(in_bench("config")), &few);
    run_benchmarks("launch_bench", {filter("^launch/")}, shim(large_folder), &many);
  }
  GrowthTable table;
  GrowthTable::begin(
      "Launches by the folder's patterns: 3, or 10,003 and 10,000 solutions more (ns)");
  for (const LaunchKind& kind : kLaunchKinds) {
    const std::string name = std::string("launch/") + kind.kernel + "/";
    table.add(std::string(kind.key) + ", 3 patterns", time_ns(direct, name), time_ns(few, name));
    table.add(std::string(kind.key) + ", 10003 patterns", time_ns(direct, name),
              time_ns(many, name));
  }
  say("\n");
  return table.json;
}

Json bench_shapes(const std::string& large_folder) {
  Results direct, shimmed;
  for (int i = 0; i < 3; ++i) {
    run_benchmarks("launch_bench", {filter("^shapes/")}, no_preload(), &direct);
    run_benchmarks("launch_bench", {filter("^shapes/")}, shim(large_folder), &shimmed);
  }
  GrowthTable table;
  GrowthTable::begin("Launches by the shapes that the kernel was launched with (ns)");
  for (const char* kind : {"fallback", "hit"}) {
    const std::string prefix = std::string("shapes/bench_") + kind + "/";
    const auto add = [&](const char* size, const char* meaning) {
      table.add(std::string(kind) + ", " + meaning, time_ns(direct, prefix + size),
                time_ns(shimmed, prefix + size));
    };
    add("1/1/", "1 shape");
    add("10000/1/", "10000 shapes seen, one in use");
    add("10000/10000/", "10000 shapes seen, all in use");
  }
  say("\n");
  return table.json;
}

Json bench_handles(const Options& options) {
  Results direct, shimmed;
  const std::string count = std::to_string(options.handles);
  setenv("BENCH_HANDLES", count.c_str(), 1);
  run_benchmarks("launch_bench", {filter("^handles/")}, no_preload(), &direct);
  run_benchmarks("launch_bench", {filter("^handles/")}, shim(in_bench("config")), &shimmed);
  GrowthTable table;
  GrowthTable::begin("Launches by the handles that the process was given (ns)");
  const auto add = [&](const char* kind, const std::string& size, const std::string& meaning) {
    const std::string name = std::string("handles/") + kind + "/" + size + "/";
    table.add(meaning, time_ns(direct, name), time_ns(shimmed, name));
  };
  add("untracked", "1/1", "untracked, 1 handle");
  add("untracked", count + "/1", "untracked, " + count + " seen, one in use");
  add("untracked", count + "/" + count, "untracked, " + count + " seen, all in use");
  add("bench_hit", "1/1", "hit, 1 handle");
  add("bench_hit", count + "/1", "hit, " + count + " seen, one in use");
  const auto grown = [&](const Results& results) {
    double most = 0;
    for (const auto& [name, samples] : results) {
      const auto found = samples.counters.find("handle_bytes");
      if (found == samples.counters.end()) continue;
      for (const double bytes : found->second) most = std::max(most, bytes);
    }
    return most;
  };
  const double bytes = (grown(shimmed) - grown(direct)) / static_cast<double>(options.handles);
  say("  memory that the shim holds for each handle: %.0f bytes\n\n", bytes);
  return {{"launches", table.json}, {"bytes_per_handle", rounded(bytes, 1)}};
}

void bench_scaling(const Options& options) {
  Json json;
  json["processors"] = sysconf(_SC_NPROCESSORS_ONLN);
  json["threads"] = bench_threads();
  const std::string large = in_bench("large");
  make_large_folder(in_bench("config"), large, {10000, 10000});
  json["patterns"] = bench_patterns(large);
  json["shapes"] = bench_shapes(large);
  json["handles"] = bench_handles(options);
  fs::remove_all(large);
  write_file("scaling.json", json.dump(2) + "\n");
}

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

  const ProcessResult index =
      run_process({build_dir() + "/bin/fibshim", "check", "--write-index", folder});
  const std::string index_path = folder + "/.fibshim-index";
  if (!fs::exists(index_path)) throw std::runtime_error("no index was written: " + index.err);
  const double indexed_ms = load_ms(folder, &results);
  const auto index_bytes = static_cast<double>(fs::file_size(index_path));
  // As after a copy: every stamp is another, every byte the same.
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    fs::last_write_time(entry.path(), fs::file_time_type::clock::now());
  }
  const double copied_ms = load_ms(folder, &results);

  say("Loading a folder of %.0f solutions and %.0f patterns\n\n", solutions, patterns);
  say("  %-46s %8s %8s\n", "", "ms", "target");
  const auto row = [](const char* what, double time_ms, double target) {
    say("  %-46s %8.1f %8.0f %9s\n", what, time_ms, target, verdict(time_ms <= target));
  };
  row("without an index", ms, 2000);
  row("with an index", indexed_ms, 100);
  row("with an index, after the folder was copied", copied_ms, 2000);
  say("\n  snapshot %.1f MiB in each process, index file %.1f MiB\n\n", bytes / (1 << 20),
      index_bytes / (1 << 20));
  return {{"solutions", solutions},
          {"patterns", patterns},
          {"open_ms", tenths(ms)},
          {"open_indexed_ms", tenths(indexed_ms)},
          {"open_indexed_copied_ms", tenths(copied_ms)},
          {"snapshot_bytes", bytes},
          {"index_bytes", index_bytes}};
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
    } else {
      return false;
    }
  }
  return options->rounds > 0 && options->handles > 1 &&
         (options->only.empty() || options->only == "launch" || options->only == "scaling" ||
          options->only == "load");
}

}  // namespace
}  // namespace fibshim::bench

int main(int argc, char** argv) {
  using namespace fibshim::bench;  // NOLINT(google-build-using-namespace): a short main
  Options options;
  if (!parse(argc, argv, &options)) {
    fprintf(stderr,
            "usage: run [--rounds N] [--only launch|scaling|load] [--no-instructions] "
            "[--handles N]\n");
    return 2;
  }
  try {
    g_report = fopen(in_bench("report.txt").c_str(), "w");
    if (g_report == nullptr) throw std::runtime_error(in_bench("report.txt: cannot be written"));
    const auto is_wanted = [&](const char* part) {
      return options.only.empty() || options.only == part;
    };
    if (is_wanted("launch")) bench_launches(options);
    if (is_wanted("scaling")) bench_scaling(options);
    if (is_wanted("load")) bench_loading();
  } catch (const std::exception& error) {
    fprintf(stderr, "bench: %s\n", error.what());
    return 1;
  }
  return 0;
}
