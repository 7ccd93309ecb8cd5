// A command's options: one definition that parsing, --help, the man page's OPTIONS and the completion
// are made from.
#pragma once

#include <stdint.h>

#include <functional>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

namespace fibshim::tools {

class CommandLine {
 public:
  // `usage` follows the command's name on the help's first line. `exit_codes`: "0 fine; 1 ...".
  CommandLine(const char* command, const char* summary, const char* usage, const char* exit_codes);

  // "--wait{30}" is 30 unless it is given as --wait=VALUE.
  template <class T>
  CLI::Option* flag(const char* names, T* value, const char* help) {
    return app_.add_flag(names, *value, help);
  }
  // `type` names the value in the help; the completion offers what it knows of that type (DIR, FILE, PID).
  template <class T>
  CLI::Option* option(const char* names, T* value, const char* type, const char* help) {
    return app_.add_option(names, *value, help)->type_name(type)->allow_extra_args(false);
  }
  // From `least` to `most`; an optional or a vector of numbers, too.
  template <class Value, class Number>
  CLI::Option* number(const char* names, Value* value, Number least, Number most, const char* type,
                      const char* help) {
    return option(names, value, type, help)->check([least, most](const std::string& text) {
      Number number{};
      // It takes "-1" for the largest of an unsigned type.
      const bool is_number = !(std::is_unsigned_v<Number> && text.starts_with('-')) &&
                             CLI::detail::lexical_cast(text, number);
      if (is_number && number >= least && number <= most) return std::string();
      return fmt::format(
          "takes a {} from {}{}, not '{}'", std::is_integral_v<Number> ? "whole number" : "number",
          least, most == std::numeric_limits<Number>::max() ? " on" : fmt::format(" to {}", most),
          text);
    });
  }
  // The value is one of these words, in any case. The help lists them.
  CLI::Option* choice(const char* names, std::string* value, std::vector<std::string> words,
                      const char* help);
  // --pid, which may be repeated.
  void pids(std::vector<uint64_t>* pids, const char* help);
  // What follows the options.
  template <class T>
  CLI::Option* positional(const char* name, T* value, const char* help) {
    return app_.add_option(name, *value, help)->type_name("");
  }
  // A failure is told as JSON, too.
  void json(bool* value, const char* help = "print JSON") {
    wants_json_ = value;
    flag("--json", value, help);
  }
  // --dir, which is FIBSHIM_STATS_DIR unless given. A folder that is given must be there.
  CLI::Option* stats_dir(std::string* folder, const char* help);

  // Runs after parsing. Returns what is wrong, or "".
  void check(std::function<std::string()> body) { checks_.push_back(std::move(body)); }

  // False: the command ends with exit_code(). Help or a message has been printed.
  bool parse(int argc, const char* const* argv);
  // The same where a program's command line follows, after "--" or at the first word that is no option.
  bool parse_with_command(int argc, const char* const* argv, std::vector<std::string>* command);
  int exit_code() const { return exit_code_; }

 private:
  bool parse_options(int argc, const char* const* argv);
  bool run_checks();
  std::string words_of(const CLI::ParseError& error) const;
  std::string unknown_words(const std::string& word) const;
  std::string help() const;
  std::string manual(std::string_view page) const;
  std::string completion_words() const;

  const char* command_;
  const char* usage_;
  const char* exit_codes_;
  CLI::App app_;
  std::vector<std::function<std::string()>> checks_;
  const bool* wants_json_ = nullptr;
  const CLI::Option* stats_dir_ = nullptr;
  const std::string* stats_folder_ = nullptr;
  int exit_code_ = 0;
};

}  // namespace fibshim::tools
