// A command's options: one definition that parsing, --help, the man page's OPTIONS and the completion
// are made from.
#pragma once

#include <stdint.h>

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include <CLI/CLI.hpp>

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
  template <class T>
  CLI::Option* number(const char* names, T* value, T least, T most, const char* type,
                      const char* help) {
    return option(names, value, type, help)->check(CLI::Range(least, most).description(""));
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
  void json(bool* value) { flag("--json", value, "print JSON"); }
  // --dir, which is FIBSHIM_STATS_DIR unless given.
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
  int fail(const std::string& text);
  std::string help() const;
  std::string manual(std::string_view page) const;
  std::string completion_words() const;

  const char* command_;
  const char* usage_;
  const char* exit_codes_;
  CLI::App app_;
  std::vector<std::function<std::string()>> checks_;
  int exit_code_ = 0;
};

}  // namespace fibshim::tools
