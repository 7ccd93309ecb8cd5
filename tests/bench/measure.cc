#include "tests/bench/measure.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "tests/support/process.h"

namespace fibshim::bench {
namespace {

constexpr int kTimeLimitS = 900;

double ns_per(const std::string& unit) {
  if (unit == "ns") return 1;
  if (unit == "us") return 1e3;
  return unit == "ms" ? 1e6 : 1e9;
}

// False for the keys that every benchmark's object has.
bool is_counter(const std::string& key, const nlohmann::json& value) {
  static const char* const known[] = {"family_index", "per_family_instance_index",
                                      "repetitions",  "repetition_index",
                                      "threads",      "iterations",
                                      "real_time",    "cpu_time"};
  return value.is_number() && std::find(std::begin(known), std::end(known), key) == std::end(known);
}

}  // namespace

std::map<std::string, std::string> environment_of(const Preload& preload) {
  static const std::string stats_dir = make_temporary_dir();
  return {{"LD_LIBRARY_PATH", build_dir() + "/sim"},
          {"LD_PRELOAD", preload.library},
          {"FIBSHIM_CONFIG", preload.config},
          {"FIBSHIM_STATS_DIR", stats_dir},
          {"SIMCUDA_FAST", "1"}};
}

void run_benchmarks(const std::string& program, const std::vector<std::string>& arguments,
                    const Preload& preload, Results* results) {
  std::vector<std::string> command = {build_dir() + "/bench/" + program};
  command.insert(command.end(), arguments.begin(), arguments.end());
  command.emplace_back("--benchmark_format=json");
  const ProcessResult run = run_process(command, environment_of(preload), kTimeLimitS);
  const auto report = nlohmann::json::parse(run.out, nullptr, false);
  if (run.exit_code != 0 || report.is_discarded()) {
    throw std::runtime_error(program + " exits with " + std::to_string(run.exit_code) + ":\n" +
                             run.err + run.out.substr(0, 1000));
  }
  // A shim that could not start would look like a very fast one.
  if (run.err.find("fibshim[") != std::string::npos) throw std::runtime_error(run.err);
  for (const auto& one : report["benchmarks"]) {
    if (one.value("error_occurred", false)) {
      throw std::runtime_error(one.value("name", "") + ": " + one.value("error_message", ""));
    }
    if (one.value("run_type", "") != "iteration") continue;
    Samples& samples = (*results)[one.value("run_name", "")];
    samples.time_ns.push_back(one.value("real_time", 0.0) * ns_per(one.value("time_unit", "ns")));
    for (const auto& [key, value] : one.items()) {
      if (is_counter(key, value)) samples.counters[key].push_back(value);
    }
  }
}

}  // namespace fibshim::bench
