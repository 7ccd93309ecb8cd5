#include "tests/shim/plan/planned_folder.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "loader/read/sha256.h"
#include "shim/plan/fit.h"
#include "shim/plan/remembered.h"

namespace fibshim {
namespace {

constexpr char kPtx[] =
    ".version 7.0\n.target sm_80\n.address_size 64\n"
    ".visible .entry norm(.param .u64 y, .param .u64 x, .param .u64 w, .param .u32 rows)\n"
    "{\n  ret;\n}\n";

constexpr char kNormDefinition[] = R"({
  "name": "norm_h4096", "op_type": "norm",
  "axes": {"hidden": {"type": "const", "value": 4096}, "rows": {"type": "var"}},
  "inputs": {"x": {"shape": ["rows", "hidden"], "dtype": "bfloat16"},
             "w": {"shape": ["hidden"], "dtype": "bfloat16"}},
  "outputs": {"y": {"shape": ["rows", "hidden"], "dtype": "bfloat16"}},
  "reference": "def run(x, w):\n    return x"
})";

std::string pattern(const FolderText& text, const std::string& label, int benefit,
                    const std::string& where, const std::string& definition) {
  return R"({
  "label": ")" +
         label + R"(", "benefit": )" + std::to_string(benefit) + R"(,
  "match": {)" +
         text.params + text.image + R"( "symbol": "engine_norm"},
  "axes": {"rows": {)" +
         text.rows + R"(}, "hidden": {"arg": 4, "type": "int32"},
           "grid_rows": {"grid": "x"}},
  "arguments": {"x": {"arg": 0, "dtype": "bfloat16"}, "w": {"arg": 1, "dtype": "bfloat16"},
                "y": {"arg": 2, "dtype": "bfloat16")" +
         (text.y_shift.empty() ? "" : R"(, "shift": )" + text.y_shift) + R"(}},
  "writes": ["y"], "where": [)" +
         where + R"(],
  "definition": ")" +
         definition + "_h{hidden}\"\n}\n";
}

void write(const std::string& path, const std::string& text) {
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  std::ofstream(path, std::ios::binary) << text;
}

}  // namespace

PlannedFolder::PlannedFolder(const FolderText& text) {
  root_ = (std::filesystem::temp_directory_path() / "fibshim-XXXXXX").string();
  if (mkdtemp(root_.data()) == nullptr) abort();
  umask(022);
  write(root_ + "/definitions/norm_h4096.json", kNormDefinition);
  write(root_ + "/solutions/norm.ptx", kPtx);
  const auto solution =
      [&](const std::string& name, int benefit, const std::string& when, const std::string& block) {
        write(root_ + "/solutions/" + name + ".json", R"({
  "name": ")" + name + R"(", "definition": "norm_h4096", "author": "me",
  "launch": {
    "benefit": )" + std::to_string(benefit) + R"(, "when": [)" +
                                                          when + R"(],
    "kernel": "norm", "images": [{"path": "norm.ptx", "sha256": ")" +
                                                          sha256_hex(sha256(kPtx)) + R"("}],
    "grid": [)" + text.grid + R"(, 1, 1], "block": [)" + block +
                                                          R"(, 1, 1], "cluster": )" + text.cluster +
                                                          R"(, "shared_mem": 96,
    "arguments": ["y", "x", "w", "rows"], "where": [)" + text.solution_where +
                                                          R"(], "pdl": )" + text.pdl + "}\n}\n");
      };
  solution("mine", 1, text.when, text.block);
  if (!text.other_when.empty()) solution("other", 0, text.other_when, "256");
  write(root_ + "/patterns/first.json", pattern(text, "first", 5, text.where, "norm"));
  if (text.second_pattern) {
    write(root_ + "/patterns/second.json", pattern(text, "second", 4, "", "other_norm"));
  }
  const LoaderApi& loader = *fibloader_api(kLoaderApiVersion);
  char message[2048];
  snapshot_ = loader.open(root_.c_str(), {}, message, sizeof message);
  error_ = message;  // also if only a part of a valid folder is broken
  if (snapshot_ == nullptr) return;
  SymbolMatch matches[2];
  const uint32_t count = loader.match(snapshot_, symbol_.c_str(), matches, 2);
  record_.kind = HandleKind::kernel;
  record_.candidate_count = static_cast<uint8_t>(count);
  record_.candidates = candidates_;
  record_.param_count = 6;
  record_.params = params_;
  record_.params_bytes = 36;
  record_.has_params = true;
  record_.symbol = symbol_.data();
  for (uint32_t i = 0; i < count; ++i) {
    fill_candidate(*snapshot_, matches[i], &candidates_[i]);
    candidates_[i].record = &record_;
  }
  MergedInputs merged;
  record_.inputs.list = inputs_;
  if (merge_inputs(*snapshot_, matches, count, params_, 6, &merged)) {
    record_.inputs.count = static_cast<uint8_t>(merged.count);
    fill_inputs(merged, &record_.inputs);
  }
}

PlannedFolder::~PlannedFolder() {
  if (snapshot_ != nullptr) fibloader_api(kLoaderApiVersion)->close(snapshot_);
  std::filesystem::remove_all(root_);
}

void ReadyFolderTest::SetUp() {
  const auto build = std::filesystem::read_symlink("/proc/self/exe").parent_path().parent_path();
  char message[2048];
  snapshot_ = loader_.open((build / "config" / name_).c_str(), {}, message, sizeof message);
  ASSERT_NE(snapshot_, nullptr) << message;
  ASSERT_STREQ(message, "");
}

void ReadyFolderTest::TearDown() {
  if (snapshot_ != nullptr) loader_.close(snapshot_);
}

bool ReadyFolderTest::is_known(const std::string& symbol) const {
  SymbolMatch match;
  return loader_.match(snapshot_, symbol.c_str(), &match, 1) != 0;
}

PlannedCall ReadyFolderTest::planned(std::string symbol, std::span<const GivenParam> given,
                                     uint32_t grid_x, uint32_t grid_y, uint32_t grid_z) const {
  std::vector<Param> params;
  std::vector<void*> values;
  uint32_t bytes = 0;
  for (const GivenParam& one : given) {
    const uint32_t alignment = std::min(one.size, 8U);
    bytes = (bytes + alignment - 1) / alignment * alignment;
    params.push_back({bytes, one.size});
    values.push_back(one.value);
    bytes += one.size;
  }
  Record record = {};
  record.kind = HandleKind::kernel;
  record.param_count = static_cast<uint8_t>(params.size());
  record.params = params.data();
  record.params_bytes = bytes;
  record.has_params = true;
  record.symbol = symbol.data();
  // Of the forms of a kernel, those with these parameters, as when the shim learns it.
  SymbolMatch matches[4];
  const uint32_t count = loader_.match(snapshot_, symbol.c_str(), matches, 4);
  Candidate candidates[4] = {};
  for (uint32_t i = 0; i < count; ++i) {
    const Pattern& pattern = snapshot_->begin(snapshot_->patterns)[matches[i].pattern];
    if (fit_pattern(*snapshot_, pattern, record.params, record.param_count, nullptr) ==
        Fit::other_layout) {
      continue;
    }
    Candidate& candidate = candidates[record.candidate_count++];
    fill_candidate(*snapshot_, matches[i], &candidate);
    candidate.record = &record;
  }
  EXPECT_NE(record.candidate_count, 0) << symbol;
  if (record.candidate_count == 0) return {};
  record.candidates = candidates;
  LaunchRequest request{};
  std::fill_n(request.view.geometry, uint32_t{kSharedMem}, 1);
  request.view.geometry[kGridX] = grid_x;
  request.view.geometry[kGridY] = grid_y;
  request.view.geometry[kGridZ] = grid_z;
  request.view.params = values.data();
  LaunchPlan plan;
  Resolution resolution{};
  plan_launch(record, Mode::apply, &request, &plan,
              [&](const Candidate& one, const int64_t* key) -> const Decision& {
                return plan_uncached(record, one, key, &resolution, &plan.uncached);
              });
  PlannedCall out;
  out.outcome = plan.outcome;
  if (plan.action != LaunchAction::redirect) return out;
  const Binding& binding = *plan.decision->binding;
  out.solution = snapshot_->text(snapshot_->begin(snapshot_->solutions)[binding.solution].name);
  std::copy_n(plan.geometry + kGridX, 3, out.grid.begin());
  std::copy_n(plan.geometry + kBlockX, 3, out.block.begin());
  out.shared_mem = plan.geometry[kSharedMem];
  for (uint32_t i = 0; i < binding.arguments.count; ++i) {
    uint64_t value = 0;
    memcpy(&value, plan.params[i], snapshot_->begin(binding.arguments)[i].size);
    out.arguments.push_back(value);
  }
  return out;
}

}  // namespace fibshim
