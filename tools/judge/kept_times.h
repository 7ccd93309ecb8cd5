// Saves the times of `bench` in the measurements.json of the folders that it measured (tools/lint/measurements.h).
#pragma once

#include <span>

#include "tools/judge/records.h"
#include "tools/lint/measurements.h"

namespace fibshim::judge {

class KeptTimes {
 public:
  // Reads the times that the folders have already. Prints a message and returns false if one cannot be read: writing
  // would lose them.
  bool read(const FolderModel& model, const char* command);

  // Adds the times of the records, which are all of this solution, and rewrites the file. Prints a message and returns
  // false if that fails.
  bool add(const SolutionSpec& solution, const RecordContext& context,
           std::span<const nlohmann::ordered_json> records, const char* command);

  size_t count() const { return count_; }

 private:
  struct File {
    std::string path;
    std::vector<Measurement> kept;
  };
  std::vector<File> files_;  // one for each folder
  size_t count_ = 0;
};

}  // namespace fibshim::judge
