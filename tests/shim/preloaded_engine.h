// For tests of the preloaded shim: runs the engine host on the simulated driver, and reads its
// output, what the driver ran, and the counters.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "tests/support/process.h"
#include "tests/support/text.h"

namespace fibshim {

using Environment = std::map<std::string, std::string>;

struct EngineRun {
  ProcessResult process;
  nlohmann::json report;               // the engine's line of JSON; null if there was none
  std::map<std::string, long> counts;  // "pattern definition outcome" -> launches, and by outcome

  // Launches by return code, as the host saw them.
  long launches_with(int code) const;
  long ran_original() const;
  long ran_curated() const;
  // Calls, by anybody, for which the driver returned an error.
  long driver_errors() const;
  long outcome(const std::string& name) const;
  // Lines on stderr that the shim wrote.
  std::vector<std::string> messages() const;
};

// Returns the run, which must have that exit code.
inline EngineRun exits(int code, EngineRun run, const char* file = __builtin_FILE(),
                       int line = __builtin_LINE()) {
  (void)exits(code, run.process, file, line);
  return run;
}

// Runs programs under the shim. All runs of one object share a stats folder.
class PreloadedEngine {
 public:
  PreloadedEngine();

  // Runs build/tests/hosts/<host> under the shim with a config folder ("" for none) and adds up the
  // counters of all runs so far.
  EngineRun run(const std::vector<std::string>& arguments, const std::string& config,
                const Environment& environment = {}, const std::string& host = "engine") const;

  // The driver's errors in such a run without the shim, which the host itself causes.
  static long bare_driver_errors(const std::vector<std::string>& arguments,
                                 const Environment& environment = {},
                                 const std::string& host = "engine");

  // The environment of a run, for tests that start programs themselves.
  Environment environment(const std::string& config) const;
  const std::string& stats_dir() const { return stats_dir_; }
  nlohmann::json stats() const;

 private:
  std::string stats_dir_;
};

// The engine, stopped after 40 of the 100 launches that each of its three threads makes.
class PausedEngine {
 public:
  PausedEngine(const Environment& environment, const std::vector<std::string>& arguments);
  ~PausedEngine() { kill(); }
  PausedEngine(const PausedEngine&) = delete;
  PausedEngine& operator=(const PausedEngine&) = delete;

  pid_t pid() const { return pid_; }
  // Lets the engine run to its end, which must be a successful one. Returns the rest of its output.
  std::string resume();
  void kill();

 private:
  pid_t pid_;
  int in_, out_;
};

// build/config/pytorch, and a copy of it that may be changed.
std::string pytorch_config();
std::string copy_of_pytorch_config();

// The only file of that name below a folder.
std::filesystem::path find_file(const std::string& folder, const std::string& name);

// Replaces `from`, which must occur, in a text file.
void edit_file(const std::filesystem::path& path, const std::string& from, const std::string& to);

}  // namespace fibshim
