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
  bool add(const FolderModel& model, const SolutionSpec& solution, const RecordContext& context,
           std::span<const nlohmann::ordered_json> records, const char* command);

  // Adds the times of a file of the same form that another program has measured. Each belongs to the folder's present solution
  // of that name, whatever the file has for "images". Those of solutions that are not `chosen` (indices) are left out. Prints a
  // message and returns false if the folder has no such solution.
  bool add_from(const std::string& path, const FolderModel& model,
                const std::vector<uint32_t>& chosen, const char* command);

  size_t count() const { return count_; }

 private:
  struct File {
    std::string path;
    std::vector<Measurement> kept;
  };
  bool write(const File& file, const char* command) const;

  std::vector<File> files_;  // one for each folder
  size_t count_ = 0;
};

}  // namespace fibshim::judge
