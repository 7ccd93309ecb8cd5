#include "tests/conformance/conform_run.h"

#include <stdlib.h>

#include <fstream>
#include <iterator>
#include <sstream>

#include <nlohmann/json.hpp>

namespace fibshim::conformance {

namespace {

// Of a state: what ran in bodies of conditional nodes, which no count tells.
constexpr char kInBodies[] = "in_bodies";

bool is_set(const char* variable) {
  const char* value = getenv(variable);
  return value != nullptr && *value != 0 && std::string(value) != "0";
}

}  // namespace

bool is_real_driver() { return is_set("FIBSHIM_TEST_REAL_DRIVER"); }

long number_from(const char* name, long unset) {
  const char* text = getenv(name);
  return text == nullptr ? unset : strtol(text, nullptr, 10);
}

Environment devices_of(long seed) { return {{"SIMCUDA_DEVICES", seed % 4 == 3 ? "90,80" : "90"}}; }

Environment faults_of(long seed) {
  // Where none or few strike what the shim does of its own, nearly nothing excuses a launch that is not replaced.
  constexpr const char* kKinds[] = {
      "own=30,slow=30",           "own=10,host=10", "own=100,host=50",      "host=300",
      "own=5,slow=100,images=14", "own=300",        "own=1,host=30,slow=30"};
  Environment environment = devices_of(seed);
  environment["SIMCUDA_CHAOS"] =
      "seed=" + std::to_string(seed) + "," + kKinds[static_cast<size_t>(seed) % std::size(kKinds)];
  if (seed % 2 == 0) environment["FIBSHIM_ON_ERROR"] = "fallback";
  return environment;
}

std::string conform_path(const std::string& name) {
  return build_dir() + "/tests/conformance/" + name;
}

std::string shim_path() { return build_dir() + "/lib/libfibshim.so"; }

Environment host_environment(const std::string& preload, const std::string& stats_dir) {
  Environment all = {{"LD_PRELOAD", preload},
                     {"FIBSHIM_STATS_DIR", stats_dir},
                     {"FIBSHIM_CONFIG", conform_path("config")}};
  // The whole suite with every launch recorded, too: FIBSHIM_TEST_RECORD=events or cupti.
  const bool is_recorded = is_set("FIBSHIM_TEST_RECORD");
  if (is_recorded) {
    all["FIBSHIM_RECORD"] = stats_dir + "/recordings";
    all["FIBSHIM_RECORD_TIMES"] = getenv("FIBSHIM_TEST_RECORD");
  }
  if (!is_real_driver()) {
    all["LD_LIBRARY_PATH"] =
        build_dir() + "/sim" + (is_recorded ? ":" + build_dir() + "/sim/cupti" : std::string());
  } else if (const char* path = getenv("LD_LIBRARY_PATH")) {
    all["LD_LIBRARY_PATH"] = path;
  }
  return all;
}

HostRun::HostRun(const std::vector<std::string>& command, const Environment& added,
                 const std::string& preload, int timeout_s) {
  const std::string folder = make_temporary_dir();
  stats_dir_ = folder + "/stats";
  log_ = folder + "/log";
  Environment all = host_environment(preload, stats_dir_);
  all["SIMCUDA_LOG"] = log_;
  for (const auto& [name, value] : added) all[name] = value;
  is_strict_ = !added.contains("FIBSHIM_ON_ERROR");
  has_log_ = !is_real_driver() && !all["SIMCUDA_LOG"].empty();
  std::vector<std::string> words = command;
  words[0] = conform_path(words[0]);
  process_ = run_process(words, all, timeout_s);

  std::istringstream out(process_.out);
  for (std::string line; std::getline(out, line);) {
    std::istringstream in(line);
    std::string word;
    int pid = 0;
    if (!(in >> word >> pid) || word != "state") continue;
    Tally& tally = stated_[pid];
    while (in >> word) {
      const size_t equals = word.find('=');
      tally[word.substr(0, equals)] += std::stol(word.substr(equals + 1));
    }
  }
}

nlohmann::json stats_json(const std::string& stats_dir, const std::vector<std::string>& more) {
  std::vector<std::string> command = {build_dir() + "/bin/fibshim", "stats", "--json"};
  command.insert(command.end(), more.begin(), more.end());
  const ProcessResult result = run_process(command, {{"FIBSHIM_STATS_DIR", stats_dir}});
  nlohmann::json stats = nlohmann::json::parse(result.out, nullptr, false);
  EXPECT_FALSE(stats.is_discarded()) << result.out << result.err;
  return stats.is_discarded() ? nlohmann::json::object() : stats;
}

Tally HostRun::read_stats(const std::vector<std::string>& more) const {
  Tally tally;
  const nlohmann::json totals = stats_json(stats_dir_, more)["totals"];
  for (const auto& [outcome, count] : totals.items()) {
    if (count.get<long>() != 0) tally[outcome] = count.get<long>();
  }
  return tally;
}

Tally HostRun::counted() const { return read_stats({}); }
Tally HostRun::counted(int pid) const { return read_stats({"--pid", std::to_string(pid)}); }

Tally HostRun::counted_without_nodes(int pid) const {
  std::vector<std::string> more;
  if (pid != 0) more = {"--pid", std::to_string(pid)};
  const nlohmann::json stats = stats_json(stats_dir_, more);
  Tally tally;
  for (const auto& [outcome, count] : stats["totals"].items()) {
    const long left = count.get<long>() - stats["nodes"][outcome].get<long>();
    if (left != 0) tally[outcome] = left;
  }
  return tally;
}

Tally HostRun::logged() const {
  Tally tally;
  std::ifstream log(log_);
  for (std::string line; std::getline(log, line);) {
    // A process that ended with threads launching may have cut its last line short.
    if (log.eof()) break;
    // There are many lines, each as the simulated driver writes it: a parser would take longer than the launches.
    constexpr std::string_view kKey = "\"kernel\":\"";
    const size_t at = line.find(kKey);
    const size_t end = at == std::string::npos ? at : line.find('"', at + kKey.size());
    EXPECT_NE(end, std::string::npos) << line;
    if (end == std::string::npos) continue;
    ++tally["ran:" + line.substr(at + kKey.size(), end - at - kKey.size())];
  }
  return tally;
}

std::vector<std::string> HostRun::messages() const {
  std::vector<std::string> lines;
  std::istringstream in(process_.err);
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with("fibshim[")) lines.push_back(line);
  }
  return lines;
}

void HostRun::expect_ended_well() const {
  EXPECT_FALSE(process_.timed_out) << "it hangs\n" << process_.out << process_.err;
  ASSERT_EQ(process_.exit_code, 0) << process_.out << process_.err;
  EXPECT_FALSE(stated_.empty()) << "the case states nothing\n" << process_.out;
}

void HostRun::expect_holds_with_faults() const {
  expect_ended_well();
  Tally ran;
  for (auto [pid, tally] : stated_) {
    SCOPED_TRACE("process " + std::to_string(pid) + "\n" + process_.out + process_.err);
    for (const auto& [name, value] : tally) {
      if (name.starts_with("ran:")) ran[name] += value;
    }
    Tally counts = counted_without_nodes(pid);
    long launches = 0;
    for (const auto& [outcome, count] : counts) launches += count;
    EXPECT_EQ(launches, tally["launches"]);
    EXPECT_EQ(counts["hit"], tally["hit"]);
    if (!is_strict_) continue;
    EXPECT_GE(counts["error"], tally["least_errors"]);
    EXPECT_LE(counts["error"], tally["most_errors"]);
    if (tally["least_errors"] != 0) {
      const std::string place = "fibshim[" + std::to_string(pid) + "] error: ";
      EXPECT_NE(process_.err.find(place), std::string::npos);
    }
  }
  if (!has_log_) return;
  EXPECT_EQ(logged(), ran) << process_.out << process_.err;
  expect_replaced(ran);
}

void HostRun::expect_holds() const {
  expect_ended_well();
  Tally counts;
  Tally ran;
  for (const auto& [pid, tally] : stated_) {
    Tally own;
    for (const auto& [name, value] : tally) {
      if (name == kInBodies) continue;
      (name.starts_with("ran:") ? ran : counts)[name] += value;
      if (!name.starts_with("ran:")) own[name] = value;
    }
    EXPECT_EQ(counted(pid), own) << "process " << pid << "\n" << process_.out << process_.err;
  }
  EXPECT_EQ(counted(), counts) << process_.out << process_.err;
  if (!has_log_) return;
  EXPECT_EQ(logged(), ran) << process_.out << process_.err;
  expect_replaced(ran);
}

long HostRun::ran_in_bodies() const {
  long runs = 0;
  for (const auto& [pid, tally] : stated_) {
    const auto stated = tally.find(kInBodies);
    if (stated != tally.end()) runs += stated->second;
  }
  return runs;
}

// Executions of hits are what ran as a replacement; but for what a fault left in a graph of the host's, and for what may
// have run in bodies.
void HostRun::expect_replaced(const Tally& ran) const {
  long replaced = 0;
  for (const auto& [name, count] : ran) {
    if (name.starts_with("ran:curated")) replaced += count;
  }
  const long counted = stats_json(stats_dir_, {})["executions"]["hit"].get<long>();
  EXPECT_LE(counted, replaced) << process_.out << process_.err;
  if (process_.err.find("it keeps a replacement") == std::string::npos) {
    EXPECT_GE(counted, replaced - ran_in_bodies()) << process_.out << process_.err;
  }
}

void HostRun::expect_all_executed() const {
  if (!has_log_) return;
  long ran = 0;
  for (const auto& [name, count] : logged()) ran += count;
  long executions = 0;
  const nlohmann::json counted = stats_json(stats_dir_, {})["executions"];
  for (const auto& [outcome, count] : counted.items()) {
    if (outcome != "absorbed") executions += count.get<long>();
  }
  EXPECT_EQ(executions + ran_in_bodies(), ran) << process_.out << process_.err;
}

}  // namespace fibshim::conformance
