// For tests: running programs and reading what they say.
#pragma once

#include <map>
#include <string>
#include <vector>

namespace fibshim {

struct ProcessResult {
  int exit_code = -1;  // 128 + signal when a signal ended it
  bool timed_out = false;
  std::string out;
  std::string err;
};

// The words and the environment of a program, made before fork: the child only execs. `environment` is
// added to the test's own, from which every FIBSHIM_ and SIMCUDA_ variable, LD_PRELOAD and
// LD_LIBRARY_PATH are taken out first; an empty value unsets.
class Command {
 public:
  Command(const std::vector<std::string>& words,
          const std::map<std::string, std::string>& environment,
          const std::string& working_directory = "");
  Command(const Command&) = delete;
  Command& operator=(const Command&) = delete;

  // In the child. words[0] is looked up on PATH.
  [[noreturn]] void exec() const;

 private:
  std::vector<std::string> words_, entries_;
  std::string working_directory_;
  std::vector<char*> argv_, envp_;
};

// The build folder: the one that the running test program lies in.
std::string build_dir();

// Runs a program (see Command) to its end, or kills it and its process group after `timeout_s`.
ProcessResult run_process(const std::vector<std::string>& command,
                          const std::map<std::string, std::string>& environment = {},
                          int timeout_s = 120, const std::string& working_directory = "");

// The same through /bin/sh -c.
ProcessResult run_shell(const std::string& command,
                        const std::map<std::string, std::string>& environment = {});

// A new empty folder, removed at the end of the program.
std::string make_temporary_dir();

}  // namespace fibshim
