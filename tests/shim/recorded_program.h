// Runs and records programs on the simulated driver.
#pragma once

#include <gtest/gtest.h>

#include <fstream>

#include "tests/shim/preloaded_engine.h"
#include "tests/support/text.h"

namespace fibshim {

using Lines = std::vector<nlohmann::json>;

struct Recorded {
  ProcessResult process;
  Lines lines;  // of the file; the first line is the head

  const nlohmann::json& head() const { return lines.at(0); }
  const nlohmann::json& kernel(size_t i = 0) const { return lines.at(i + 1); }
  size_t kernel_count() const { return lines.empty() ? 0 : lines.size() - 1; }
};

inline Lines read_lines(const std::string& path) {
  Lines lines;
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) {
    lines.push_back(nlohmann::json::parse(line, nullptr, false));
    EXPECT_FALSE(lines.back().is_discarded()) << line;
  }
  return lines;
}

inline std::string fibshim_program() { return build_dir() + "/bin/fibshim"; }
inline std::string engine_program() { return build_dir() + "/tests/hosts/engine"; }

class Record : public testing::Test {
 protected:
  Record() : folder_(make_temporary_dir()) {}

  std::string output() const { return folder_ + "/out.jsonl"; }
  virtual Environment environment() const {
    return {{"LD_LIBRARY_PATH", build_dir() + "/sim"},
            {"FIBSHIM_STATS_DIR", folder_ + "/stats"},
            // The CUPTI of this machine does not work with the simulated driver.
            {"FIBSHIM_RECORD_TIMES", "events"}};
  }

  // Runs: fibshim record -o OUTPUT [options] -- command
  Recorded record(const std::vector<std::string>& command,
                  const std::vector<std::string>& options = {}) const {
    std::vector<std::string> words = {fibshim_program(), "record", "-o", output()};
    words.insert(words.end(), options.begin(), options.end());
    words.emplace_back("--");
    words.insert(words.end(), command.begin(), command.end());
    Recorded out{run_process(words, environment()), {}};
    out.lines = read_lines(output());
    return out;
  }

  Recorded record_engine(std::vector<std::string> arguments,
                         const std::vector<std::string>& options = {}) const {
    arguments.insert(arguments.begin(), engine_program());
    return record(arguments, options);
  }

  // Gathers the recordings that processes left in the folder FIBSHIM_RECORD.
  Lines gather(const std::string& recordings) const {
    (void)exits(0, run_process({fibshim_program(), "record", "--from", recordings, "-o", output()},
                               environment()));
    return read_lines(output());
  }

  Environment recording_environment(const std::string& recordings) const {
    Environment all = environment();
    all["LD_PRELOAD"] = build_dir() + "/lib/libfibshim.so";
    all["FIBSHIM_RECORD"] = recordings;
    return all;
  }

  std::string folder_;
};

}  // namespace fibshim
