// fibshim run: starts a program under the shim, after checking what would otherwise fail silently:
// the folder, the library, and whether the program can be preloaded at all.
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <iterator>
#include <sstream>

#include "tools/commands/commands.h"
#include "tools/base/diagnostics_output.h"
#include "tools/base/folder_list.h"
#include "tools/lint/mistakes.h"
#include "tools/processes/installation.h"
#include "tools/processes/programs.h"

namespace fibshim::tools {
namespace {

const SettingInfo& setting_info(SettingId id) { return kSettings[static_cast<size_t>(id)]; }

struct RunOptions {
  std::string config;
  std::map<SettingId, std::string> settings;  // empty: not given
  bool skips_check = false;
  bool is_forced = false;
  bool prints_env = false;
  bool simulates = false;
  std::string format = "shell";  // of --print-env
  std::vector<std::string> command;
};

// Adds an option for a setting whose values are words of a list.
void add_choice(CommandLine* line, const char* name, SettingId id, RunOptions* options) {
  std::vector<std::string> choices;
  for (const char* choice : setting_info(id).choices) {
    if (choice != nullptr) choices.emplace_back(choice);
  }
  line->choice(name, &options->settings[id], std::move(choices), setting_info(id).meaning);
}

// AddressSanitizer and its relatives stop the program if a library comes before theirs.
bool is_sanitizer(const std::string& library) {
  const std::string name = library.substr(library.rfind('/') + 1);
  return name.rfind("libasan.so", 0) == 0 || name.rfind("libtsan.so", 0) == 0 ||
         name.rfind("liblsan.so", 0) == 0 || name.rfind("libclang_rt.", 0) == 0;
}

// The new LD_PRELOAD: the shim first, but behind sanitizers, and only once. A sanitizer that the
// program itself links is put in front, since it would otherwise be loaded after the shim.
std::string preload_list(const std::string& shim, const char* existing,
                         const std::vector<std::string>& needed_by_program) {
  std::vector<std::string> sanitizers;
  std::vector<std::string> others;
  // The linker accepts colons and blanks as separators.
  std::string text = existing == nullptr ? "" : existing;
  std::ranges::replace(text, ':', ' ');
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    if (word != shim) (is_sanitizer(word) ? sanitizers : others).push_back(word);
  }
  if (sanitizers.empty()) {
    std::copy_if(needed_by_program.begin(), needed_by_program.end(), std::back_inserter(sanitizers),
                 is_sanitizer);
  }
  sanitizers.push_back(shim);
  sanitizers.insert(sanitizers.end(), others.begin(), others.end());
  return fmt::format("{}", fmt::join(sanitizers, ":"));
}

// If this returns false, the command must return *exit_code.
bool parse(int argc, const char* const* argv, RunOptions* options, int* exit_code) {
  CommandLine line("run", "Runs a program under the shim", "[OPTIONS] [--] COMMAND [ARGUMENTS...]",
                   "the program's own; 1 the folder or the installation is wrong, and nothing was "
                   "run; 2 wrong usage; 126 the program cannot be run or preloaded; 127 it was not "
                   "found.");
  line.option("-c,--config", &options->config, "DIR", "config folder (default: FIBSHIM_CONFIG)");
  add_choice(&line, "--mode", SettingId::mode, options);
  add_choice(&line, "--on-error", SettingId::on_error, options);
  line.option("--stats-dir", &options->settings[SettingId::stats_dir], "DIR",
              setting_info(SettingId::stats_dir).meaning);
  add_choice(&line, "--log", SettingId::log, options);
  line.option("--log-file", &options->settings[SettingId::log_file], "FILE",
              "where messages go; %h stands for the host, %p for the pid, %q{VAR} for a variable");
  line.flag("--no-check", &options->skips_check, "do not check the config folder first");
  line.flag("--force", &options->is_forced,
            "run a program that cannot be preloaded: what it starts perhaps can be");
  line.flag(
      "--simulate", &options->simulates,
      "without a GPU: on a simulated driver, which computes the kernels of the folder demo and "
      "of what fibshim init writes; launches of others are counted, and write nothing");
  const Option prints_env = line.flag("--print-env", &options->prints_env,
                                      "print the environment that would be set, and run nothing");
  line.choice("--format", &options->format, {"shell", "docker", "kubernetes", "slurm"},
              "of --print-env: shell code (default), a file for docker's --env-file, a container's "
              "env in Kubernetes YAML, an option for srun and sbatch")
      .needs(prints_env);
  const bool is_fine = line.parse_with_command(argc, argv, &options->command);
  *exit_code = line.exit_code();
  return is_fine;
}

// Prints what is wrong with the folder to stderr. Returns true if the program may run.
bool check_config(const std::string& folder) {
  const CheckReport report = check_with_mistakes(folder);
  const FoundMistakes found = count_mistakes(folder, report);
  if (found.errors == 0) {
    // The engine accepts the folder, and the program runs; one line tells of the mistakes.
    if (found.mistakes > 0)
      print_message("run", "{} {}", printable(folder), printable(found.words));
    return true;
  }
  std::string text = format_findings(report) + format_summary(folder, report);
  text.pop_back();
  print_message("run",
                "the config folder has mistakes:\n{}\nNothing was run. "
                "--no-check runs the program all the same",
                text);
  return false;
}

// Returns true if the shim exists and its path can be written in LD_PRELOAD.
bool find_shim(std::string* shim) {
  *shim = shim_library_path();
  if (shim->find_first_of(": \t\n") != std::string::npos) {
    print_message("run",
                  "{}: LD_PRELOAD cannot name a path with blanks or colons; "
                  "move the installation",
                  printable(*shim));
    return false;
  }
  const DynamicSection library = read_dynamic_section(*shim);
  if (!library.fault.empty()) {
    print_message("run",
                  "{}: {}; it belongs beside this program, as ../lib/"
                  "libfibshim.so",
                  printable(*shim), library.fault);
    return false;
  }
  return true;
}

using Variables = std::vector<std::pair<std::string, std::string>>;

std::string shell_code(const Variables& variables) {
  std::string out;
  for (const auto& [name, value] : variables) {
    out += fmt::format("export {}={}\n", name, shell_quoted(value));
  }
  return out;
}

std::string docker_env_file(const Variables& variables) {
  std::string out;
  for (const auto& [name, value] : variables) out += fmt::format("{}={}\n", name, value);
  return out;
}

// A JSON string is a YAML string, too. Kubernetes replaces $(NAME), and makes $ of $$.
std::string kubernetes_env(const Variables& variables) {
  std::string out = "env:\n";
  for (const auto& [name, value] : variables) {
    std::string text;
    for (const char c : value) text += c == '$' ? "$$" : std::string(1, c);
    out += fmt::format("- name: {}\n  value: {}\n", name, json_string(text));
  }
  return out;
}

std::string slurm_export(const Variables& variables) {
  std::string out = "--export=ALL";
  for (const auto& [name, value] : variables) out += fmt::format(",{}={}", name, value);
  return out + "\n";
}

struct EnvFormat {
  const char* name;
  std::string (*text)(const Variables&);
  const char* forbidden;  // characters that the format cannot express in a value
  bool inherits;          // the program gets this environment's variables besides
  bool takes_bytes;       // that are not UTF-8
};
constexpr EnvFormat kEnvFormats[] = {
    {"shell", shell_code, "", true, true},
    {"docker", docker_env_file, "\n", false, false},
    {"kubernetes", kubernetes_env, "", false, false},
    // srun splits the list at commas, and the shell that passes the option on splits at blanks.
    {"slurm", slurm_export, ", \t\n'\"\\", true, true},
};

int print_env(Variables variables, const std::string& format) {
  const EnvFormat& found = *std::find_if(std::begin(kEnvFormats), std::end(kEnvFormats),
                                         [&](const EnvFormat& f) { return format == f.name; });
  for (const SettingInfo& setting : kSettings) {
    const char* const value = found.inherits ? nullptr : getenv(setting.name);
    const bool is_set = std::any_of(variables.begin(), variables.end(),
                                    [&](const auto& one) { return one.first == setting.name; });
    if (value != nullptr && !is_set) variables.emplace_back(setting.name, value);
  }
  for (const auto& [name, value] : variables) {
    if (value.find_first_of(found.forbidden) == std::string::npos &&
        (found.takes_bytes || valid_utf8(value) == value)) {
      continue;
    }
    print_message("run",
                  "{}={}: {} cannot pass a value with such characters; set the "
                  "variables with --format shell before",
                  name, printable(value), format);
    return kExitWrong;
  }
  return print_data(found.text(variables)) ? kExitFine : kExitWrong;
}

}  // namespace

int run_command(int argc, const char* const* argv) {
  RunOptions options;
  if (int exit_code = 0; !parse(argc, argv, &options, &exit_code)) return exit_code;
  if (options.config.empty()) {
    const char* const from_environment = getenv(setting_info(SettingId::config).name);
    if (from_environment != nullptr) options.config = from_environment;
  }
  // Launches can be recorded without a folder.
  const bool has_config = !options.config.empty();
  const char* const record = getenv(setting_info(SettingId::record).name);
  if (!has_config && (record == nullptr || record[0] == '\0')) {
    return usage_error("run", "no config folder: name one with -c, or set FIBSHIM_CONFIG");
  }
  if (has_config) options.config = absolute_folders(options.config);
  if (options.command.empty() && !options.prints_env) {
    return usage_error("run", "no command to run");
  }

  std::string shim;
  if (!find_shim(&shim)) return kExitWrong;
  if (has_config && !options.skips_check && !check_config(options.config)) return kExitWrong;

  Variables variables;
  if (has_config) variables.emplace_back(setting_info(SettingId::config).name, options.config);
  for (const auto& [id, value] : options.settings) {
    if (value.empty()) continue;
    const bool is_path = id == SettingId::stats_dir || id == SettingId::log_file;
    variables.emplace_back(setting_info(id).name, is_path ? absolute_path(value) : value);
  }
  if (options.simulates) {
    const std::string driver = simulator_path();
    if (access(driver.c_str(), R_OK) != 0) {
      print_message("run", "--simulate: {}: {}", printable(driver), strerror(errno));
      return kExitWrong;
    }
    const char* const before = getenv("LD_LIBRARY_PATH");
    const std::string folder = driver.substr(0, driver.rfind('/'));
    variables.emplace_back("LD_LIBRARY_PATH",
                           before == nullptr || *before == 0 ? folder : folder + ":" + before);
    variables.emplace_back("SIMCUDA_TELL", "1");
  }
  if (options.prints_env) {
    variables.emplace_back("LD_PRELOAD", preload_list(shim, getenv("LD_PRELOAD"), {}));
    return print_env(variables, options.format);
  }

  const std::string& name = options.command[0];
  const std::string program = find_program(name);
  if (program.empty() || access(program.c_str(), F_OK) != 0) {
    print_message("run", "{}: command not found", printable(name));
    return kExitNotFound;
  }
  const ProgramInfo judged = judge_program(program);
  if (!judged.explanation.empty()) {
    print_message("run", printable(judged.explanation));
    if (!options.is_forced) {
      print_message("run", "nothing was run; --force runs it all the same");
      return kExitCannotRun;
    }
  }

  const DynamicSection section = read_dynamic_section(judged.path);
  variables.emplace_back("LD_PRELOAD", preload_list(shim, getenv("LD_PRELOAD"), section.needed));
  for (const auto& [variable, value] : variables) setenv(variable.c_str(), value.c_str(), 1);
  std::vector<char*> arguments;
  for (std::string& argument : options.command) arguments.push_back(argument.data());
  arguments.push_back(nullptr);
  execvp(name.c_str(), arguments.data());
  print_message("run", "{}: {}", printable(name), strerror(errno));
  return errno == ENOENT ? kExitNotFound : kExitCannotRun;
}

}  // namespace fibshim::tools
