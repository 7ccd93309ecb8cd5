// For tests: running programs and reading what they say.
#ifndef FIBSHIM_TESTS_SUPPORT_PROCESS_H_
#define FIBSHIM_TESTS_SUPPORT_PROCESS_H_

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

// The build folder: the one that the running test program lies in.
std::string build_dir();

// Runs a program to its end, or kills it and its process group after `timeout_s`. `environment` is added to the test's
// own, from which every FIBSHIM_ variable, LD_PRELOAD and LD_LIBRARY_PATH are taken out first; an
// empty value unsets.
ProcessResult run_process(const std::vector<std::string>& command,
                          const std::map<std::string, std::string>& environment = {},
                          int timeout_s = 120, const std::string& working_directory = "");

// The same through /bin/sh -c.
ProcessResult run_shell(const std::string& command,
                        const std::map<std::string, std::string>& environment = {});

// A new empty folder, removed at the end of the program.
std::string make_temporary_dir();

}  // namespace fibshim

#endif  // FIBSHIM_TESTS_SUPPORT_PROCESS_H_
