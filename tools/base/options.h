// Parsing a subcommand's options with CLI11, with this program's exit codes and message style.
#ifndef FIBSHIM_TOOLS_BASE_OPTIONS_H_
#define FIBSHIM_TOOLS_BASE_OPTIONS_H_

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "tools/base/commands.h"
#include "tools/base/terminal.h"

namespace fibshim::tools {

// Parses argv into what was bound to `app`. True: go on. False: leave with *exit_code; help or a
// message has been printed. `usage` says what follows the command's name on the help's first line.
inline bool parse_options(CLI::App* app, std::string_view usage, int argc, const char* const* argv,
                          int* exit_code) {
  try {
    app->parse(argc, argv);
    return true;
  } catch (const CLI::CallForHelp&) {
    // CLI11 2.1 makes the usage line itself and has no way to set it.
    const std::string help = app->help();
    const size_t line = help.find("Usage:");
    const size_t rest = help.find('\n', line);
    *exit_code = print_data(fmt::format("Usage: {} {}\n\n{}{}", app->get_name(), usage,
                                        help.substr(0, line), help.substr(rest + 1)))
                     ? kExitFine
                     : kExitWrong;
  } catch (const CLI::ParseError& error) {
    *exit_code = usage_error(argv[0], error.what());
  }
  return false;
}

// The same for a subcommand that is followed by a program's command line: options up to the command,
// which begins after "--" or at the first word that is no option. `app` must have prefix_command().
inline bool parse_options_and_command(CLI::App* app, std::string_view usage, int argc,
                                      const char* const* argv, std::vector<std::string>* command,
                                      int* exit_code) {
  const auto* const end = argv + argc;
  const auto* const dashes =
      std::find_if(argv, end, [](const char* word) { return std::string_view(word) == "--"; });
  if (!parse_options(app, usage, static_cast<int>(dashes - argv), argv, exit_code)) return false;
  *command = app->remaining();
  if (!command->empty() && command->front()[0] == '-') {
    *exit_code = usage_error(argv[0], fmt::format("unknown option {}", command->front()));
    return false;
  }
  if (dashes != end) {
    // "run python -- x": the command began before, and the dashes are its own.
    command->insert(command->end(), command->empty() ? dashes + 1 : dashes, end);
  }
  return true;
}

}  // namespace fibshim::tools

#endif  // FIBSHIM_TOOLS_BASE_OPTIONS_H_
