// fibshim: the command line. Finds the subcommand in the table and calls it.
#include <fcntl.h>
#include <unistd.h>

#include <exception>

#include "loader/read/diagnostics.h"
#include "tools/commands/commands.h"
#include "tools/base/files.h"
#include "tools/base/manual.h"

namespace {

namespace tools = fibshim::tools;

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

// Commands of earlier versions. Each is refused with a message that says what to use instead.
struct RemovedCommand {
  const char* name;
  const char* instead;
};
constexpr RemovedCommand kRemovedCommands[] = {
    {"sign",
     "minisign makes keys (minisign -G) and signs: 'fibshim check --write-manifest DIR' writes "
     "what "
     "is signed, and says how"},
};

// fibshim(1) and fibshim-config(5), which belong to no command.
std::string manual(const char* page) {
  return tools::fill_manual(tools::read_small_file(page), [](std::string_view keyword) {
    std::string out;
    if (keyword == "HEAD") return tools::manual_head("fibshim", 1);
    if (keyword != "COMMANDS") return out;
    for (const Command& command : kCommands) {
      out += fmt::format(".TP\n.BR fibshim-{} (1)\n{}\n", command.name,
                         tools::roff_sentence(command.summary));
    }
    return out;
  });
}

int print(const std::string& text) { return tools::print_data(text) ? kExitFine : kExitWrong; }

int dispatch(int argc, const char* const* argv) {
  if (argc < 2) return tools::usage_error("", "no command given");
  const std::string_view word = argv[1];
  if (word == "-h" || word == "--help" || (word == "help" && argc == 2)) {
    return print(help());
  }
  if (word == "--version") return print(fmt::format("fibshim {}\n", kVersion));
  if (word == "--manual" && argc == 3) return print(manual(argv[2]));
  if (word == "--completion") {
    std::string words;
    for (const Command& command : kCommands) words += fmt::format("{}\n", command.name);
    return print(words + "help\n--version\n-h\n--help\n");
  }
  if (word == "help") {
    const char* const rewritten[] = {argv[0], argv[2], "--help", nullptr};
    return dispatch(3, rewritten);
  }
  for (const RemovedCommand& removed : kRemovedCommands) {
    if (word != removed.name) continue;
    return tools::usage_error("", "'{}' was removed: {}", removed.name, removed.instead);
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

// What a command opens must not become its stdin, stdout or stderr. What stands in for those that
// are closed can neither be read nor written, and is closed for the programs that it runs.
void occupy_closed_descriptors() {
  int fd = 0;
  do {
    fd = open("/dev/null", O_PATH | O_CLOEXEC);
  } while (fd >= 0 && fd <= STDERR_FILENO);
  if (fd >= 0) close(fd);
}

}  // namespace

int main(int argc, char** argv) {
  occupy_closed_descriptors();
  // The last resort: an exception that a library throws becomes one line, not an abort.
  int exit_code = kExitWrong;
  try {
    exit_code = dispatch(argc, argv);
  } catch (const std::exception& error) {
    tools::print_message("", tools::printable(error.what()));
  }
  if (exit_code != kExitFine) tools::fail_as_json();
  return exit_code;
}
