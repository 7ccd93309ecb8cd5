// FlashInfer's sampling from probabilities (config/flashinfer): its kernels have up to 15 parameters, whose order differs. What
// the replacement gets of each, in both forms, and which launches keep FlashInfer's kernel.
#include <string.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "shim/plan/fit.h"
#include "shim/plan/plan.h"

namespace fibshim::sampling_test {
namespace {

struct Given {
  uint64_t value = 0;
  uint32_t size = 8;
};

constexpr uint64_t kProbs = 0x7000'0000'0000, kTokens = 0x7100'0000'0000, kValid = 0x7200'0000'0000,
                   kTopK = 0x7300'0000'0000, kP = 0x7400'0000'0000, kSeeds = 0x7500'0000'0000,
                   kOffsets = 0x7600'0000'0000, kIndices = 0x7700'0000'0000;
constexpr uint64_t kRows = 5, kWidth = 128256;

struct Engine {
  std::string op;
  std::string kernel;  // the mangled name with its length
  std::string
      letters;  // P: probabilities, T: tokens, V: valid, 0: indices, k, p: limits of rows, K, Q: limits of all rows,
                // D: the width
};

const Engine kEngines[] = {
    {"sampling_from_probs", "22SamplingFromProb", "PTV0D"},
    {"top_k_sampling", "26TopKSamplingFromProb", "PTV0kKD"},
    {"top_p_sampling", "26TopPSamplingFromProb", "PTV0pQD"},
    {"min_p_sampling", "26MinPSamplingFromProb", "PpTV0QD"},
    {"top_k_top_p_sampling", "30TopKTopPSamplingFromProb", "PkpTV0KQD"},
};

// What a launch differs by.
struct Changes {
  uint64_t indices = 0, top_k = kTopK, p = kP, width = kWidth;
  uint64_t probs = kProbs;
};

std::vector<Given> parameters(const Engine& engine, bool has_strides, const Changes& changes) {
  std::vector<Given> out;
  for (const char letter : engine.letters) {
    switch (letter) {
      case 'P': out.push_back({changes.probs, 8}); break;
      case 'T': out.push_back({kTokens, 8}); break;
      case 'V': out.push_back({kValid, 8}); break;
      case '0': out.push_back({changes.indices, 8}); break;
      case 'k': out.push_back({changes.top_k, 8}); break;
      case 'p': out.push_back({changes.p, 8}); break;
      case 'D': out.push_back({changes.width, 4}); break;
      default: out.push_back({77, 4}); break;  // not looked at where rows have limits
    }
  }
  for (const uint64_t random : {kSeeds, uint64_t{11}, kOffsets, uint64_t{12}}) {
    out.push_back({random, 8});
  }
  if (has_strides) out.insert(out.end(), {{1, 4}, {2, 4}});
  return out;
}

std::string symbol(const Engine& engine, bool has_strides, const char* vector = "4",
                   const char* id = "i") {
  return "_ZN10flashinfer8sampling" + engine.kernel +
         "KernelILj1024ELN3cub16_V_300600_SM_90018BlockScanAlgorithmE2ELNS3_20BlockReduceAlgorithm"
         "E2ELj" +
         vector + "ELb1Ef" + id + "EEvPT4_PT5_Pb" + (has_strides ? "mjj" : "m");
}

struct PlannedCall {
  Outcome outcome = Outcome::untracked;
  std::string solution;
  std::array<uint32_t, 7> geometry = {};  // grid, block, shared memory
  std::vector<uint64_t> arguments;
};

class SamplingFolder : public testing::Test {
 protected:
  void SetUp() override {
    const auto build = std::filesystem::read_symlink("/proc/self/exe").parent_path().parent_path();
    char message[2048];
    snapshot_ = loader_.open((build / "config/flashinfer").c_str(), {}, message, sizeof message);
    ASSERT_NE(snapshot_, nullptr) << message;
  }
  void TearDown() override {
    if (snapshot_ != nullptr) loader_.close(snapshot_);
  }

  bool is_known(const std::string& name) const {
    SymbolMatch match;
    return loader_.match(snapshot_, name.c_str(), &match, 1) != 0;
  }

  PlannedCall planned(const Engine& engine, bool has_strides, const Changes& changes = {}) const {
    std::vector<Given> given = parameters(engine, has_strides, changes);
    std::string name = symbol(engine, has_strides);
    SymbolMatch matches[4];
    const size_t count = loader_.match(snapshot_, name.c_str(), matches, 4);
    std::vector<Param> params;
    std::vector<void*> values;
    uint32_t offset = 0;
    for (Given& one : given) {
      offset = (offset + one.size - 1) / one.size * one.size;
      params.push_back({offset, one.size});
      values.push_back(&one.value);
      offset += one.size;
    }
    // Of the two forms, the one with these parameters, as when the shim learns a kernel.
    Candidate candidate = {};
    uint32_t fitting = 0;
    for (size_t i = 0; i < count; ++i) {
      const Pattern& pattern = snapshot_->begin(snapshot_->patterns)[matches[i].pattern];
      const auto param_count = static_cast<uint32_t>(params.size());
      if (fit_pattern(*snapshot_, pattern, params.data(), param_count, nullptr) != Fit::fits) {
        continue;
      }
      fill_candidate(*snapshot_, matches[i], &candidate);
      ++fitting;
    }
    EXPECT_EQ(fitting, 1u);
    Record record = {};
    candidate.record = &record;
    record.kind = HandleKind::kernel;
    record.candidate_count = 1;
    record.candidates = &candidate;
    record.param_count = static_cast<uint32_t>(params.size());
    record.params = params.data();
    record.params_bytes = offset;
    record.has_params = true;
    record.symbol = name.data();
    LaunchRequest request;
    memset(static_cast<void*>(&request), 0, sizeof request);
    std::fill_n(request.view.geometry, uint32_t{kSharedMem}, 1);
    request.view.geometry[kGridX] = kRows;
    request.view.geometry[kBlockX] = 1024;
    request.view.params = values.data();
    LaunchPlan plan;
    Resolution resolution;
    DecisionRoom room;
    plan_launch(record, Mode::apply, &request, &plan,
                [&](Candidate& one, int64_t* key) -> const Decision& {
                  const auto complete = [&](const Resolution& made, Decision* out) {
                    fill_decision(one, made, made.kind, key, one.pattern->key.count, out);
                  };
                  make_decision(record, one, key, &resolution, &room, complete);
                  return room.decision;
                });
    PlannedCall out;
    out.outcome = plan.outcome;
    if (plan.action != LaunchAction::redirect) return out;
    const Binding& binding = *plan.decision->binding;
    out.solution = snapshot_->text(snapshot_->begin(snapshot_->solutions)[binding.solution].name);
    const int of[] = {kGridX, kGridY, kGridZ, kBlockX, kBlockY, kBlockZ, kSharedMem};
    std::ranges::transform(of, out.geometry.begin(), [&](int at) { return plan.geometry[at]; });
    for (uint32_t i = 0; i < binding.arguments.count; ++i) {
      uint64_t value = 0;
      memcpy(&value, plan.params[i], snapshot_->begin(binding.arguments)[i].size);
      out.arguments.push_back(value);
    }
    return out;
  }

  const LoaderApi& loader_ = *fibloader_api(kLoaderApiVersion);
  const Snapshot* snapshot_ = nullptr;
};

TEST_F(SamplingFolder, PassesOnWhatEachFormHolds) {
  for (const Engine& engine : kEngines) {
    for (const bool has_strides : {true, false}) {
      SCOPED_TRACE(engine.op + (has_strides ? ", 0.7" : ", 0.6"));
      const PlannedCall plan = planned(engine, has_strides);
      EXPECT_EQ(plan.outcome, Outcome::hit);
      EXPECT_EQ(plan.solution, "fibshim_" + engine.op + "_v128256");
      EXPECT_EQ(plan.geometry,
                (std::array<uint32_t, 7>{8 * kRows, 1, 1, 128, 1, 1, 1024 + 2304 * 32}));
      std::vector<uint64_t> expected = {kProbs, kTokens, kValid};
      const auto has = [&](char letter) {
        return engine.letters.find(letter) != std::string::npos;
      };
      if (has('k')) expected.push_back(kTopK);
      if (has('p')) expected.push_back(kP);
      expected.insert(expected.end(), {kSeeds, 11, kOffsets, 12});
      expected.push_back(has_strides ? 1 : 0);
      expected.push_back(has_strides ? 2 : 0);
      expected.insert(expected.end(), {kWidth, 0});
      EXPECT_EQ(plan.arguments, expected);
    }
  }
}

TEST_F(SamplingFolder, LeavesWhatItIsNotFor) {
  for (const Engine& engine : kEngines) {
    SCOPED_TRACE(engine.op);
    Changes changes;
    changes.indices = kIndices;
    EXPECT_EQ(planned(engine, true, changes).outcome, Outcome::fallback_where);
    changes = {};
    changes.width = 128252;
    EXPECT_EQ(planned(engine, true, changes).outcome, Outcome::fallback_no_solution);
    changes = {};
    changes.probs = kProbs + 4;
    EXPECT_EQ(planned(engine, true, changes).outcome, Outcome::fallback_where);
    // One limit for all rows.
    for (const char letter : {'k', 'p'}) {
      if (engine.letters.find(letter) == std::string::npos) continue;
      changes = {};
      (letter == 'k' ? changes.top_k : changes.p) = 0;
      EXPECT_EQ(planned(engine, true, changes).outcome, Outcome::fallback_where);
    }
    // Rows that are no whole vectors; tokens of 64 bits.
    EXPECT_TRUE(is_known(symbol(engine, true)));
    EXPECT_FALSE(is_known(symbol(engine, true, "2")));
    EXPECT_FALSE(is_known(symbol(engine, true, "4", "l")));
  }
}

}  // namespace
}  // namespace fibshim::sampling_test
