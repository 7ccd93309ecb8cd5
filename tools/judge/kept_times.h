// Keeps what `bench` measured in the measurements.json of the folders that it measured (tools/lint/measurements.h).
#pragma once

#include <span>

#include "tools/judge/records.h"
#include "tools/lint/measurements.h"

namespace fibshim::judge {

class KeptTimes {
 public:
  // What the folders keep already. False, after a message: it cannot be read, and would be lost.
  bool read(const FolderModel& model, const char* command);

  // The times in the records, which are all of this solution; the file is written anew. False, after a message: it
  // could not be.
  bool add(const SolutionSpec& solution, const RecordContext& context,
           std::span<const nlohmann::ordered_json> records, const char* command);

  size_t count() const { return count_; }

 private:
  struct File {
    std::string path;
    std::vector<Measurement> kept;
  };
  std::vector<File> files_;  // of each folder
  size_t count_ = 0;
};

}  // namespace fibshim::judge
