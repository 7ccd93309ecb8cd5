// A command's options: one definition that parsing, --help, the man page's OPTIONS and the completion
// are made from.
#pragma once

#include <stdint.h>

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace CLI {
class App;
class Option;
class ParseError;
}  // namespace CLI

namespace fibshim::tools {

// An option that a command has. CLI11's header takes longer to compile than any command: only command_line.cc has it.
class Option {
 public:
  explicit Option(CLI::Option* option) : option_(option) {}
  Option required() const;
  Option needs(Option other) const;
  // So many values each time.
  Option takes(int values) const;
  // How often it was given.
  size_t count() const;

 private:
  CLI::Option* option_;
};

// The types of values are those that command_line.cc lists at its end.
class CommandLine {
 public:
  // `usage` follows the command's name on the help's first line. `exit_codes`: "0 fine; 1 ...".
  CommandLine(const char* command, const char* summary, const char* usage, const char* exit_codes);
  ~CommandLine();

  // "--wait{30}" is 30 unless it is given as --wait=VALUE.
  template <class T>
  Option flag(const char* names, T* value, const char* help);
  // `type` names the value in the help; the completion offers what it knows of that type (DIR, FILE, PID).
  template <class T>
  Option option(const char* names, T* value, const char* type, const char* help);
  // From `least` to `most`; an optional or a vector of numbers, too.
  template <class Value, class Number>
  Option number(const char* names, Value* value, Number least, Number most, const char* type,
                const char* help);
  // A number of bytes: 4096, 64kb, 1gb.
  Option size(const char* names, uint64_t* value, const char* help);
  // Seconds from `least` to `most`: 60, 0.5s, 5m, 1h.
  Option duration(const char* names, double* seconds, double least, double most, const char* help);
  // The value is one of these words, in any case. The help lists them.
  Option choice(const char* names, std::string* value, std::vector<std::string> words,
                const char* help);
  // --pid, which may be repeated.
  void pids(std::vector<uint64_t>* pids, const char* help);
  // What follows the options.
  template <class T>
  Option positional(const char* name, T* value, const char* help);
  // A failure is told as JSON, too.
  void json(bool* value, const char* help = "print JSON");
  // --dir, which is FIBSHIM_STATS_DIR unless given. A folder that is given must be there.
  Option stats_dir(std::string* folder, const char* help);

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
  std::unique_ptr<CLI::App> app_;
  std::vector<std::function<std::string()>> checks_;
  const bool* wants_json_ = nullptr;
  CLI::Option* stats_dir_ = nullptr;
  const std::string* stats_folder_ = nullptr;
  int exit_code_ = 0;
};

}  // namespace fibshim::tools
