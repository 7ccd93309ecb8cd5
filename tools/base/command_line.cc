#include "tools/base/command_line.h"

#include <errno.h>
#include <strings.h>

#include <charconv>
#include <limits>

#include <CLI/CLI.hpp>

#include "tools/base/file_descriptor.h"
#include "tools/base/files.h"
#include "tools/base/manual.h"
#include "tools/base/setting_values.h"
#include "tools/base/terminal.h"

namespace fibshim::tools {
namespace {

// Options of earlier versions. Each is refused with a message that says what to use instead.
struct RemovedOption {
  const char* command;
  const char* option;
  const char* instead;
};
constexpr char kSweeping[] =
    "counters of ended processes stay a day, and 'stats' and 'serve' then delete those of their "
    "user; what is to last longer is kept by 'stats --json --output FILE'; 'stats --clear' deletes "
    "them at once";
constexpr RemovedOption kRemovedOptions[] = {
    {"stats", "--keep", kSweeping},
    {"stats", "--no-sweep", kSweeping},
    {"serve", "--keep", kSweeping},
    {"serve", "--no-sweep", kSweeping},
    {"top", "--keep", kSweeping},
    {"top", "--no-sweep", kSweeping},
    {"check", "--write-index", "folders are loaded without an index; leave the option out"},
};

// The names of an option as they are typed.
std::vector<std::string> names_of(const CLI::Option& option) {
  std::vector<std::string> out;
  for (const std::string& name : option.get_snames()) out.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) out.push_back("--" + name);
  return out;
}

std::string type_of(const CLI::Option& option) {
  if (option.get_expected_max() == 0) return "";
  const std::string type = option.get_type_name();
  return type.substr(0, type.find(':'));  // CLI11 appends descriptions of its checks
}

// Returns a message if the name of a file or folder is empty, as an unset variable in a script
// makes it; or "".
std::string empty_name(const CLI::App& app) {
  for (const CLI::Option* option : app.get_options()) {
    const bool is_positional = option->get_positional();
    const std::string name = is_positional ? option->get_name(true) : names_of(*option).back();
    const std::string type = is_positional ? name : type_of(*option);
    const bool is_folder = type == "DIR";
    if (!is_folder && type != "FILE" && type != "FILE|DIR" && type != "A B" && type != "TRACES") {
      continue;
    }
    if (std::ranges::count(option->results(), "") == 0) continue;
    return fmt::format("{}: needs the name of a {}", name, is_folder ? "folder" : "file");
  }
  return "";
}

// Prints names and types only, without CLI11's "TIME:UINT []", "--wait{30}" and "REQUIRED".
class OptionsFormatter : public CLI::Formatter {
  std::string make_option_name(const CLI::Option* option, bool is_positional) const override {
    return is_positional ? option->get_name(true)
                         : fmt::format("{}", fmt::join(names_of(*option), ", "));
  }
  std::string make_option_opts(const CLI::Option* option) const override {
    const std::string type = type_of(*option);
    return type.empty() ? "" : " " + type;
  }
};

template <class T>
CLI::Option* add_option(CLI::App* app, const char* names, T* value, const char* type,
                        const char* help) {
  return app->add_option(names, *value, help)->type_name(type)->allow_extra_args(false);
}

}  // namespace

CommandLine::CommandLine(const char* command, const char* summary, const char* usage,
                         const char* exit_codes)
    : command_(command),
      usage_(usage),
      exit_codes_(exit_codes),
      app_(std::make_unique<CLI::App>(summary, fmt::format("fibshim {}", command))) {
  app_->get_help_ptr()->description("print the options and exit");
  app_->formatter(std::make_shared<OptionsFormatter>());
  app_->get_formatter()->label("Positionals", "Arguments");
}

CommandLine::~CommandLine() = default;

Option Option::required() const { return Option(option_->required()); }
Option Option::needs(Option other) const { return Option(option_->needs(other.option_)); }
Option Option::takes(int values) const {
  // CLI11 takes an option for a value.
  return Option(option_->expected(values)->check([values](const std::string& text) {
    return text.starts_with('-') ? fmt::format("takes {} values, not '{}'", values, text) : "";
  }));
}
size_t Option::count() const { return option_->count(); }

template <class T>
Option CommandLine::flag(const char* names, T* value, const char* help) {
  return Option(app_->add_flag(names, *value, help));
}

template <class T>
Option CommandLine::option(const char* names, T* value, const char* type, const char* help) {
  return Option(add_option(app_.get(), names, value, type, help));
}

template <class Value, class Number>
Option CommandLine::number(const char* names, Value* value, Number least, Number most,
                           const char* type, const char* help) {
  CLI::Option* const option = add_option(app_.get(), names, value, type, help);
  return Option(option->check([least, most](const std::string& text) {
    Number number{};
    // CLI11 reads "-1" as the largest number of an unsigned type, and clamps larger numbers to it.
    errno = 0;
    const bool is_number = !(std::is_unsigned_v<Number> && text.starts_with('-')) &&
                           CLI::detail::lexical_cast(text, number) && errno == 0;
    if (is_number && number >= least && number <= most) return std::string();
    return fmt::format(
        "takes a {} from {}{}, not '{}'", std::is_integral_v<Number> ? "whole number" : "number",
        least, most == std::numeric_limits<Number>::max() ? " on" : fmt::format(" to {}", most),
        text);
  }));
}

Option CommandLine::size(const char* names, uint64_t* value, const char* help) {
  const auto as_bytes = [](std::string& text) {
    const std::string given = text;
    const bool is_number = !given.empty() && given[0] >= '0' && given[0] <= '9';
    try {
      uint64_t bytes = 0;
      // At most the largest signed number, as in the shim.
      if (is_number && CLI::AsSizeValue(false)(text).empty() &&
          CLI::detail::lexical_cast(text, bytes) && bytes <= INT64_MAX) {
        return std::string();
      }
    } catch (const CLI::ValidationError&) {  // the unit is unknown, or the number is too large
    }
    return fmt::format("takes a number of bytes, or one with kb, mb or gb, not '{}'", given);
  };
  return Option(
      add_option(app_.get(), names, value, "BYTES", help)->transform(CLI::Validator(as_bytes, "")));
}

Option CommandLine::duration(const char* names, double* seconds, double least, double most,
                             const char* help) {
  const auto as_seconds = [least, most](std::string& text) {
    double number = 0;
    const char* const end = text.data() + text.size();
    const auto parsed = std::from_chars(text.data(), end, number);
    const std::string_view unit(parsed.ptr, static_cast<size_t>(end - parsed.ptr));
    const double factor = unit.empty() || unit == "s" ? 1
                          : unit == "m"               ? 60
                          : unit == "h"               ? 3600
                                                      : 0;
    if (parsed.ec == std::errc() && number * factor >= least && number * factor <= most) {
      text = fmt::format("{}", number * factor);
      return std::string();
    }
    return fmt::format(
        "takes a time from {:g} to {:g} seconds, such as 60, 60s, 5m or 1h, not '{}'", least, most,
        text);
  };
  return Option(add_option(app_.get(), names, seconds, "TIME", help)
                    ->transform(CLI::Validator(as_seconds, "")));
}

template <class T>
Option CommandLine::positional(const char* name, T* value, const char* help) {
  return Option(app_->add_option(name, *value, help)->type_name(""));
}

Option CommandLine::choice(const char* names, std::string* value, std::vector<std::string> words,
                           const char* help) {
  const std::string type = fmt::format("{}", fmt::join(words, "|"));
  const auto as_choice = [words](std::string& text) {
    for (const std::string& word : words) {
      if (strcasecmp(word.c_str(), text.c_str()) != 0) continue;
      text = word;
      return std::string();
    }
    const std::string_view meant = nearest_word(text, {words.begin(), words.end()});
    return fmt::format("takes {}, not '{}'{}", fmt::join(words, "|"), text,
                       meant.empty() ? "" : fmt::format("; did you mean {}?", meant));
  };
  return Option(add_option(app_.get(), names, value, type.c_str(), help)
                    ->transform(CLI::Validator(as_choice, "")));
}

void CommandLine::pids(std::vector<uint64_t>* pids, const char* help) {
  number("--pid", pids, uint64_t{1}, UINT64_MAX, "PID", help);
}

void CommandLine::json(bool* value, const char* help) {
  wants_json_ = value;
  flag("--json", value, help);
}

Option CommandLine::stats_dir(std::string* folder, const char* help) {
  auto* const option = add_option(app_.get(), "--dir", folder, "DIR", help);
  stats_dir_ = option;
  stats_folder_ = folder;
  check([option, folder] {
    if (option->count() == 0) *folder = stats_folder();
    return std::string();
  });
  return Option(option);
}

bool CommandLine::parse(int argc, const char* const* argv) {
  return parse_options(argc, argv) && run_checks();
}

bool CommandLine::parse_with_command(int argc, const char* const* argv,
                                     std::vector<std::string>* command) {
  app_->prefix_command();
  const auto* const end = argv + argc;
  const auto* const dashes =
      std::find_if(argv, end, [](const char* word) { return strcmp(word, "--") == 0; });
  if (!parse_options(static_cast<int>(dashes - argv), argv)) return false;
  *command = app_->remaining();
  if (!command->empty() && command->front()[0] == '-') {
    exit_code_ = usage_error(command_, printable(unknown_words(command->front())));
    return false;
  }
  if (dashes != end) {
    // "run python -- x": the command began before the dashes, which are its own argument.
    command->insert(command->end(), command->empty() ? dashes + 1 : dashes, end);
  }
  return run_checks();
}

bool CommandLine::parse_options(int argc, const char* const* argv) {
  const std::string_view first = argc > 1 ? argv[1] : "";
  if (first == "--completion") {
    exit_code_ = print_data(completion_words()) ? kExitFine : kExitWrong;
    return false;
  }
  if (first == "--manual" && argc == 3) {
    exit_code_ = print_data(manual(read_small_file(argv[2]))) ? kExitFine : kExitWrong;
    return false;
  }
  for (int i = 1; i < argc; ++i) {
    const std::string_view word(argv[i], strcspn(argv[i], "="));
    for (const RemovedOption& removed : kRemovedOptions) {
      if (word != removed.option || strcmp(command_, removed.command) != 0) continue;
      exit_code_ = usage_error(command_, "{} was removed: {}", removed.option, removed.instead);
      return false;
    }
  }
  try {
    app_->parse(argc, argv);
    if (wants_json_ != nullptr && *wants_json_) expect_json();
    const std::string fault = empty_name(*app_);
    if (fault.empty()) return true;
    exit_code_ = usage_error(command_, fault);
  } catch (const CLI::CallForHelp&) {
    exit_code_ = print_data(help()) ? kExitFine : kExitWrong;
  } catch (const CLI::ParseError& error) {
    if (wants_json_ != nullptr && app_->get_option("--json")->count() > 0) expect_json();
    exit_code_ = usage_error(command_, printable(words_of(error)));
  }
  return false;
}

bool CommandLine::run_checks() {
  for (const auto& body : checks_) {
    if (const std::string fault = body(); !fault.empty()) {
      exit_code_ = usage_error(command_, printable(fault));
      return false;
    }
  }
  if (stats_dir_ == nullptr || stats_dir_->count() == 0) return true;
  struct stat status;
  if (stat(stats_folder_->c_str(), &status) == 0 || errno != ENOENT) return true;
  print_message(command_, "{}: no such folder", printable(*stats_folder_));
  exit_code_ = kExitWrong;
  return false;
}

std::string CommandLine::words_of(const CLI::ParseError& error) const {
  std::string text = error.what();
  const std::vector<std::string> words = app_->remaining();
  const auto option = std::ranges::find_if(words, [](const auto& word) { return word[0] == '-'; });
  if (dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr && !words.empty()) {
    return unknown_words(option == words.end() ? words.front() : *option);
  }
  // CLI11 looks for what is missing first.
  if (dynamic_cast<const CLI::RequiredError*>(&error) != nullptr && option != words.end()) {
    return unknown_words(*option);
  }
  if (dynamic_cast<const CLI::ArgumentMismatch*>(&error) != nullptr && text.starts_with('-')) {
    const bool is_repeated = text.find("At Most") != std::string::npos;
    return text.substr(0, text.find_first_of(": ")) +
           (is_repeated ? ": is given more than once" : ": needs a value");
  }
  return text;
}

std::string CommandLine::unknown_words(const std::string& word) const {
  if (word[0] != '-') return fmt::format("unexpected argument '{}'", word);
  const std::string name = word.substr(0, word.find('='));
  std::vector<std::string> names;
  for (const CLI::Option* option : app_->get_options()) {
    for (std::string& one : names_of(*option)) names.push_back(std::move(one));
  }
  const std::string_view meant = nearest_word(name, {names.begin(), names.end()});
  return fmt::format("unknown option {}{}", name,
                     meant.empty() ? "" : fmt::format("; did you mean {}?", meant));
}

std::string CommandLine::help() const {
  // CLI11 2.1 makes the usage line itself; it cannot be set.
  const std::string help = app_->help();
  const size_t line = help.find("Usage:");
  return fmt::format("Usage: {} {}\n\n{}{}Exit codes: {}\n", app_->get_name(), usage_,
                     help.substr(0, line), help.substr(help.find('\n', line) + 1), exit_codes_);
}

std::string CommandLine::manual(std::string_view page) const {
  const std::string name = fmt::format("fibshim-{}", command_);
  std::string summary = app_->get_description();
  summary[0] = static_cast<char>(tolower(summary[0]));
  const std::string head =
      fmt::format("{}.SH NAME\n{} \\- {}\n.SH SYNOPSIS\n.B fibshim {}\n{}\n.SH DESCRIPTION\n",
                  manual_head(name, 1), roff(name), roff(summary), command_, roff(usage_));
  return head + fill_manual(page, [this](std::string_view keyword) -> std::string {
           if (keyword == "EXIT") {
             return fmt::format(".SH EXIT STATUS\n{}\n", roff(exit_codes_));
           }
           if (keyword != "OPTIONS") return "";
           std::string out = ".SH OPTIONS\n";
           for (const CLI::Option* option : app_->get_options()) {
             if (option->get_positional()) continue;
             out += fmt::format(".TP\n{} {}",
                                roff(fmt::format("{}", fmt::join(names_of(*option), ", "))),
                                roff(type_of(*option)));
             if (out.back() == ' ') out.pop_back();
             out += "\n" + roff_sentence(option->get_description()) + "\n";
           }
           return out;
         });
}

std::string CommandLine::completion_words() const {
  std::string out;
  for (const CLI::Option* option : app_->get_options()) {
    if (option->get_positional()) {
      out += fmt::format("\t{}\n", option->get_name(true));
    }
    for (const std::string& name : names_of(*option)) {
      out += fmt::format("{}\t{}\n", name, type_of(*option));
    }
  }
  return out;
}

// ---- the types of values

template Option CommandLine::flag(const char*, bool*, const char*);
template Option CommandLine::flag(const char*, std::string*, const char*);
template Option CommandLine::option(const char*, std::string*, const char*, const char*);
template Option CommandLine::option(const char*, std::vector<std::string>*, const char*,
                                    const char*);
template Option CommandLine::positional(const char*, std::string*, const char*);
template Option CommandLine::positional(const char*, std::vector<std::string>*, const char*);
template Option CommandLine::number(const char*, uint32_t*, uint32_t, uint32_t, const char*,
                                    const char*);
template Option CommandLine::number(const char*, uint64_t*, uint64_t, uint64_t, const char*,
                                    const char*);
template Option CommandLine::number(const char*, int*, int, int, const char*, const char*);
template Option CommandLine::number(const char*, double*, double, double, const char*, const char*);
template Option CommandLine::number(const char*, std::vector<uint32_t>*, uint32_t, uint32_t,
                                    const char*, const char*);
template Option CommandLine::number(const char*, std::vector<int>*, int, int, const char*,
                                    const char*);
template Option CommandLine::number(const char*, std::optional<double>*, double, double,
                                    const char*, const char*);

}  // namespace fibshim::tools
