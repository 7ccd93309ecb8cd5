// Recordings in files, for fibshim record and suggest to read.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>

#include "tests/tools/fibshim_program.h"
#include "tests/tools/recording_file_builder.h"

namespace fibshim::test {

inline RecordingBuilder example() {
  RecordingBuilder builder;
  builder
      .kernel(kScale,
              {{8, {{kAddress + 256, 100}}},
               {8, {{kAddress + 512, 90}, {kAddress + 4096, 10}}},
               {4, {{4096, 100}}},
               {1, {{1, 100}}},
               {4, {{0x40000000, 60}, {0x3f800000, 40}}}},
              100)
      .geometry(16, 256, 90, 0, {4, 40000, 8000, 12000})
      .geometry(32, 256, 10, 0, {});
  builder
      .kernel("triton_add_one",
              {{8, {{kAddress, 7}}}, {8, {{kAddress + 16, 7}}}, {4, {{900, 5}, {901, 2}}}}, 5, 2,
              0xabcd)
      .geometry(4, 128, 5, 2, {1, 2000, 2000, 2000});
  builder.kernel("_Z4initv", {}, 1).geometry(1, 1, 1, 0, {});
  return builder;
}

class RecordFiles : public testing::Test {
 protected:
  std::string output() { return folder_ / "out.jsonl"; }

  // Makes JSON Lines from the recordings of some processes.
  ProgramResult gather(const std::vector<std::string>& recordings) {
    std::filesystem::remove_all(folder_ / "recordings");
    for (size_t i = 0; i < recordings.size(); ++i) {
      write_text(folder_ / ("recordings/1-" + std::to_string(i) + ".recording"), recordings[i]);
    }
    return run_fibshim({"record", "--from", folder_ / "recordings", "-o", output()});
  }

  ProgramResult suggest(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "suggest");
    return run_fibshim(arguments);
  }

  TemporaryFolder folder_;
};

}  // namespace fibshim::test
