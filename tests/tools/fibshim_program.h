// Runs the built fibshim as a user does: a process with arguments, an environment and two outputs.
// It does not inherit this process's FIBSHIM_ variables, LD_PRELOAD or LD_LIBRARY_PATH.
#pragma once

#include <set>

#include <nlohmann/json.hpp>

#include "tests/support/process.h"

namespace fibshim::test {

using ProgramResult = ProcessResult;

struct ProgramOptions {
  std::map<std::string, std::string> environment;
  std::string folder;  // working directory; empty: this process's
};

// Runs `command` (command[0] is looked up on PATH) to its end.
ProgramResult run_program(const std::vector<std::string>& command,
                          const ProgramOptions& options = {});

// The same for build/bin/fibshim.
ProgramResult run_fibshim(std::vector<std::string> arguments, const ProgramOptions& options = {});

// Paths below the build folder that contains this test program, and below the source tree.
std::string build_path(const std::string& below);
std::string source_path(const std::string& below);

std::string read_text(const std::string& path);
void write_text(const std::string& path, const std::string& text);  // makes the folders, too

// Parses JSON. If the text is not JSON, the test fails with that text.
nlohmann::json parse_json(const std::string& text);

// A folder that is removed with its contents when the object ends.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::string& path() const { return path_; }
  std::string operator/(const std::string& below) const { return path_ + "/" + below; }

 private:
  std::string path_;
};

// All matches of the pattern's first group in the text.
std::set<std::string> matches(const std::string& text, const std::string& pattern);

}  // namespace fibshim::test
