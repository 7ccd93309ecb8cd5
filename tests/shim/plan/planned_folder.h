// A config folder with one definition, one solution and one or two patterns, opened by the loader,
// and the record that the shim would make for the engine's kernel:
//
//   engine_norm(x: 8 bytes, w: 8, y: 8, rows: 4, hidden: 4, eps: 4)  ->  norm(y, x, w, rows)
//
// And what the shim would do with a launch of an engine's kernel by a ready folder.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "shim/plan/plan.h"

namespace fibshim {

// Pieces of JSON.
struct FolderText {
  bool second_pattern = false;  // of lower benefit, for a definition without a solution
  std::string where;            // the pattern's clauses
  std::string solution_where;
  std::string when;  // the solution's clauses
  std::string
      other_when;  // of a second solution with lower benefit and blocks of 256; "": there is none
  std::string grid = "\"rows\"";
  std::string block = "512";
  std::string cluster = "[1, 1, 1]";
  std::string pdl = "false";
  std::string rows = R"("arg": 3, "type": "int32")";
  std::string y_shift = "";  // such as "\"8 * rows\""
  std::string params = "\"params\": [8, 8, 8, 4, 4, 4],";
  std::string image;
};

class PlannedFolder {
 public:
  explicit PlannedFolder(const FolderText& text);
  ~PlannedFolder();
  PlannedFolder(const PlannedFolder&) = delete;
  PlannedFolder& operator=(const PlannedFolder&) = delete;

  const std::string& error() const { return error_; }  // "": the folder is valid
  const Snapshot& snapshot() const { return *snapshot_; }
  const Record& record() const { return record_; }

 private:
  std::string root_;
  std::string error_;
  std::string symbol_ = "engine_norm";
  const Snapshot* snapshot_ = nullptr;
  Param params_[6] = {{0, 8}, {8, 8}, {16, 8}, {24, 4}, {28, 4}, {32, 4}};
  Candidate candidates_[2] = {};
  LaunchInput inputs_[kMaxLaunchInputs] = {};
  Record record_ = {};
};

struct GivenParam {
  void* value;
  uint32_t size;
};

struct PlannedCall {
  Outcome outcome = Outcome::untracked;
  std::string solution;
  std::array<uint32_t, 3> grid = {}, block = {};
  uint32_t shared_mem = 0;
  std::vector<uint64_t> arguments;
};

// With build/config/NAME.
class ReadyFolderTest : public testing::Test {
 protected:
  explicit ReadyFolderTest(const char* name) : name_(name) {}
  void SetUp() override;
  void TearDown() override;

  bool is_known(const std::string& symbol) const;
  // Whatever the code of the kernel is; a block has one thread.
  PlannedCall planned(std::string symbol, std::span<const GivenParam> given, uint32_t grid_x,
                      uint32_t grid_y, uint32_t grid_z = 1) const;

  const LoaderApi& loader_ = *fibloader_api(kLoaderApiVersion);
  const Snapshot* snapshot_ = nullptr;

 private:
  const char* name_;
};

}  // namespace fibshim
