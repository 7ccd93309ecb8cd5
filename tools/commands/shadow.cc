// fibshim shadow: has running processes compare solutions with originals, more often, less often or not at all.
#include <nlohmann/json.hpp>

#include "tools/base/setting_values.h"
#include "tools/commands/commands.h"
#include "tools/commands/move_options.h"
#include "tools/counters/control.h"

namespace fibshim::tools {
namespace {

constexpr std::chrono::seconds kMostWait{30};

struct ShadowOptions {
  std::string rate;
  std::string definition = "*";
  MoveOptions choice;  // of processes
  bool wants_json = false;
  uint32_t interval = 0;
};

nlohmann::ordered_json to_json(const ShadowOptions& options, const std::vector<MoveResult>& results,
                               const std::string& error) {
  nlohmann::ordered_json out;
  out["version"] = 1;
  out["rate"] = options.rate;
  out["definition"] = options.definition;
  out["processes"] = nlohmann::ordered_json::array();
  for (const MoveResult& result : results) {
    out["processes"].push_back({{"pid", result.pid},
                                {"file", result.file},
                                {"state", shadow_state_name(result.state)},
                                {"reason", result.reason}});
  }
  if (!error.empty()) out["error"] = error;
  return out;
}

int fail(const ShadowOptions& options, const std::string& error) {
  print_message("shadow", printable(error));
  if (options.wants_json) (void)print_json(to_json(options, {}, error));
  return kExitWrong;
}

int shadow(const ShadowOptions& options) {
  const std::string& folder = options.choice.stats_dir;
  const auto deadline = ControlClock::now() + kMostWait;
  const auto right = AskingRight::acquire(folder, deadline);
  auto found = read_counters_folder(folder);
  if (!right || !found) {
    return fail(options, fmt::format("{}: {}", folder, right ? found.error() : right.error()));
  }
  bool are_fine = true;
  const std::vector<ProcessCounters> processes =
      choose_processes("shadow", std::move(*found), options.choice, &are_fine);
  if (processes.empty()) {
    return fail(options,
                fmt::format("no such process runs under the shim with counters in {}", folder));
  }
  const std::vector<MoveResult> results =
      ask_shadow(*right, processes, options.definition, options.interval, deadline);
  std::string text;
  for (size_t i = 0; i < results.size(); ++i) {
    const MoveResult& result = results[i];
    text += fmt::format("pid {}: {}{}{}\n", result.pid, shadow_state_name(result.state),
                        result.reason.empty() ? "" : ": ", printable(result.reason));
    const bool has_ended = result.state == MoveState::dead && processes[i].is_alive;
    are_fine = are_fine && (result.state == MoveState::moved || has_ended);
  }
  const bool is_printed =
      options.wants_json ? print_json(to_json(options, results, "")) : print_data(text);
  return are_fine && is_printed ? kExitFine : kExitWrong;
}

}  // namespace

int shadow_command(int argc, const char* const* argv) {
  ShadowOptions options;
  CommandLine line(
      "shadow", "Has running processes compare solutions with originals", "[OPTIONS] RATE",
      "0 all do as asked; 1 there is no such process, or one does not; 2 wrong usage.");
  line.positional("RATE", &options.rate, "1/N: one of N launches; off: none");
  line.option("--definition", &options.definition, "GLOB",
              "only launches of the definitions whose names it fits; of the others what was said "
              "before goes on");
  line.pids(&options.choice.pids, "only this process (may be repeated)");
  line.json(&options.wants_json);
  line.stats_dir(&options.choice.stats_dir, "ask there instead of in FIBSHIM_STATS_DIR");
  line.check([&options]() -> std::string {
    if (!parse_shadow(options.rate.c_str(), &options.interval)) {
      return "RATE: is off or 1/N, with N from 1 to 1000000000";
    }
    if (options.definition.empty() || options.definition.size() >= kMaxNameLength) {
      return "--definition: needs a name or a glob over names";
    }
    return "";
  });
  return line.parse(argc, argv) ? shadow(options) : line.exit_code();
}

}  // namespace fibshim::tools
