// A command's options. Parsing, --help, the man page's OPTIONS and the shell completion are all
// made from one definition.
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

// One option of a command. Only command_line.cc includes CLI11's header: it takes longer to compile
// than any command.
class Option {
 public:
  explicit Option(CLI::Option* option) : option_(option) {}
  Option required() const;
  Option needs(Option other) const;
  // Each use of the option has this many values.
  Option takes(int values) const;
  // How often the option was given.
  size_t count() const;

 private:
  CLI::Option* option_;
};

// The end of command_line.cc lists the types that the values of options can have.
class CommandLine {
 public:
  // `usage` follows the command's name in the help. `exit_codes`: "0 fine; 1 ...".
  CommandLine(const char* command, const char* summary, const char* usage, const char* exit_codes);
  ~CommandLine();

  // "--wait{30}": --wait alone means 30; --wait=VALUE sets another value.
  template <class T>
  Option flag(const char* names, T* value, const char* help);
  // `type` names the value in the help. For a type that it knows (DIR, FILE, PID), the completion
  // offers candidates.
  template <class T>
  Option option(const char* names, T* value, const char* type, const char* help);
  // A number from `least` to `most`. `value` may also point to an optional or a vector of numbers.
  template <class Value, class Number>
  Option number(const char* names, Value* value, Number least, Number most, const char* type,
                const char* help);
  // A number of bytes: 4096, 64kb, 1gb.
  Option size(const char* names, uint64_t* value, const char* help);
  // Seconds from `least` to `most`: 60, 0.5s, 5m, 1h.
  Option duration(const char* names, double* seconds, double least, double most, const char* help);
  // One of these words, in upper or lower case. The help lists them.
  Option choice(const char* names, std::string* value, std::vector<std::string> words,
                const char* help);
  // --pid, which may be repeated.
  void pids(std::vector<uint64_t>* pids, const char* help);
  // An argument that is not an option.
  template <class T>
  Option positional(const char* name, T* value, const char* help);
  // --json. When it is given, failures are printed as JSON, too.
  void json(bool* value, const char* help = "print JSON");
  // --dir. The default is stats_folder(), that is, FIBSHIM_STATS_DIR. A given folder must exist.
  Option stats_dir(std::string* folder, const char* help);

  // `body` runs after parsing. It returns what is wrong, or "".
  void check(std::function<std::string()> body) { checks_.push_back(std::move(body)); }

  // Returns false after printing help or a message: the command must then return exit_code().
  bool parse(int argc, const char* const* argv);
  // The same, for options that are followed by a program's command line. That begins after "--" or
  // with the first word that is not an option.
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
