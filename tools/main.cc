// fibshim: the command line. Finds the subcommand in the table and hands over.
#include <exception>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "loader/read/diagnostics.h"
#include "tools/base/commands.h"
#include "tools/base/terminal.h"

namespace {

using fibshim::tools::Command;
using fibshim::tools::kCommands;
using fibshim::tools::kExitFine;
using fibshim::tools::kExitWrong;
using fibshim::tools::kVersion;

std::string help() {
  std::string out =
      "Usage: fibshim COMMAND [OPTIONS]\n"
      "\n"
      "Replaces the GPU kernels that an engine launches with curated ones, without changing it.\n"
      "\n"
      "Commands:\n";
  for (const Command& command : kCommands) {
    out += fmt::format("  {:<9}{}\n", command.name, command.summary);
  }
  out +=
      "\n"
      "Options:\n"
      "  -h, --help     this text; of a command: fibshim COMMAND --help\n"
      "  --version      the version\n"
      "\n"
      "Exit codes: 0 fine, 1 the thing looked at is wrong, 2 wrong usage.\n"
      "More: man fibshim, man fibshim-COMMAND, man 5 fibshim-config\n";
  return out;
}

int dispatch(int argc, const char* const* argv) {
  namespace tools = fibshim::tools;
  if (argc < 2) return tools::usage_error("", "no command given");
  const std::string_view word = argv[1];
  if (word == "-h" || word == "--help" || (word == "help" && argc == 2)) {
    return tools::print_data(help()) ? kExitFine : kExitWrong;
  }
  if (word == "--version") {
    return tools::print_data(fmt::format("fibshim {}\n", kVersion)) ? kExitFine : kExitWrong;
  }
  if (word == "help") {
    const char* const rewritten[] = {argv[0], argv[2], "--help", nullptr};
    return dispatch(3, rewritten);
  }
  std::vector<std::string_view> names;
  for (const Command& command : kCommands) {
    if (word == command.name) return command.run(argc - 1, argv + 1);
    names.emplace_back(command.name);
  }
  std::string text = fmt::format("'{}' is not a command", tools::printable(word));
  const std::string_view meant = fibshim::nearest_word(word, names);
  if (!meant.empty()) text += fmt::format("; did you mean '{}'?", meant);
  return tools::usage_error("", text);
}

}  // namespace

int main(int argc, char** argv) {
  // The last resort: whatever a library throws ends as one line, not as an abort.
  try {
    return dispatch(argc, argv);
  } catch (const std::exception& error) {
    fibshim::tools::print_message("", fibshim::tools::printable(error.what()));
    return kExitWrong;
  }
}
