// Runs the built fibshim as a user does: a process with arguments, an environment and two outputs.
// Nothing of this process's FIBSHIM_ variables, LD_PRELOAD or LD_LIBRARY_PATH reaches it.
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

// Below the build folder that this test program lies in, and below the source tree.
std::string build_path(const std::string& below);
std::string source_path(const std::string& below);

std::string read_text(const std::string& path);
void write_text(const std::string& path, const std::string& text);  // makes the folders, too

// Parses, failing the test with the text when it is not JSON.
nlohmann::json parse_json(const std::string& text);

// A folder that is removed with all it holds.
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

// What the pattern's first group fits, wherever in the text.
std::set<std::string> matches(const std::string& text, const std::string& pattern);

}  // namespace fibshim::test
