// The subcommands. A subcommand gets its own argv (argv[0] is its name) and returns the exit code
// of the process: 0 fine, 1 something is wrong with what was examined, 2 wrong usage. Data goes to
// stdout, messages to stderr.
#pragma once

#include "tools/base/command_line.h"
#include "tools/base/terminal.h"

namespace fibshim::tools {

int run_command(int argc, const char* const* argv);
int stats_command(int argc, const char* const* argv);
int top_command(int argc, const char* const* argv);
int swap_command(int argc, const char* const* argv);
int rollout_command(int argc, const char* const* argv);
int shadow_command(int argc, const char* const* argv);
int serve_command(int argc, const char* const* argv);
int record_command(int argc, const char* const* argv);
int suggest_command(int argc, const char* const* argv);
int check_command(int argc, const char* const* argv);
int explain_command(int argc, const char* const* argv);
int init_command(int argc, const char* const* argv);
int inspect_command(int argc, const char* const* argv);
int verify_command(int argc, const char* const* argv);
int bench_command(int argc, const char* const* argv);
int report_command(int argc, const char* const* argv);
int env_command(int argc, const char* const* argv);
int doctor_command(int argc, const char* const* argv);

// Dispatch, `fibshim --help`, the completion and the list in fibshim(1) are made from this table.
struct Command {
  const char* name;
  const char* summary;
  int (*run)(int argc, const char* const* argv);
};

inline constexpr Command kCommands[] = {
    {"run", "run a program under the shim", run_command},
    {"stats", "what happened to the launches: hits and fallbacks, live", stats_command},
    {"top", "a live view of the counters", top_command},
    {"swap", "move running processes to another config folder", swap_command},
    {"rollout", "move processes a share at a time, and back where they do worse", rollout_command},
    {"shadow", "have running processes compare solutions with originals", shadow_command},
    {"serve", "the counters over HTTP, for Prometheus", serve_command},
    {"record", "record every launch of a program, and rank its kernels", record_command},
    {"suggest", "begin a config folder for a kernel that was recorded", suggest_command},
    {"explain", "what a folder would do with a recorded kernel's launches", explain_command},
    {"check", "check config folders: every mistake, with its place", check_command},
    {"init", "write a config folder to begin with, which works without a GPU, too", init_command},
    {"inspect", "what a GPU image, a library or a running process holds", inspect_command},
    {"verify", "run solutions and compare them with what their definitions say", verify_command},
    {"bench", "time solutions, alone and beside what they replace", bench_command},
    {"report", "draw evaluation records as one HTML page", report_command},
    {"env", "the settings: value in force, where it comes from, what is accepted", env_command},
    {"doctor", "find out why the shim does not work on this machine", doctor_command},
};

}  // namespace fibshim::tools
