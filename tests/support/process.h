// For tests: runs programs and reads their output.
#pragma once

#include <map>
#include <string>
#include <vector>

namespace fibshim {

struct ProcessResult {
  int exit_code = -1;  // 128 + signal if a signal ended it
  bool timed_out = false;
  std::string out;
  std::string err;
};

// The words and the environment of a program, made before fork, so that the child only execs. First
// every FIBSHIM_ and SIMCUDA_ variable, LD_PRELOAD and LD_LIBRARY_PATH are removed from the test's
// own environment, then `environment` is added; an empty value unsets a variable.
class Command {
 public:
  Command(const std::vector<std::string>& words,
          const std::map<std::string, std::string>& environment,
          const std::string& working_directory = "");
  Command(const Command&) = delete;
  Command& operator=(const Command&) = delete;

  // Called in the child. words[0] is looked up in PATH.
  [[noreturn]] void exec() const;

 private:
  std::vector<std::string> words_, entries_;
  std::string working_directory_;
  std::vector<char*> argv_, envp_;
};

// Returns the build folder, which contains the running test program.
std::string build_dir();

// Runs a program (see Command) to its end, or kills it and its process group after `timeout_s`.
ProcessResult run_process(const std::vector<std::string>& command,
                          const std::map<std::string, std::string>& environment = {},
                          int timeout_s = 120, const std::string& working_directory = "");

// The same through /bin/sh -c.
ProcessResult run_shell(const std::string& command,
                        const std::map<std::string, std::string>& environment = {});

// Makes an empty folder, which is removed at the end of the program.
std::string make_temporary_dir();

}  // namespace fibshim
