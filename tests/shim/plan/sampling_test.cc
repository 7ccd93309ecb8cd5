// FlashInfer's sampling from probabilities (config/flashinfer), and sgl-kernel's (config/sglang): the kernels have up to 15
// parameters, whose order differs. What the replacement gets of each, in all forms, and which launches keep the engine's kernel.
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/shim/plan/planned_folder.h"

namespace fibshim::sampling_test {
namespace {

constexpr uint64_t kProbs = 0x7000'0000'0000, kTokens = 0x7100'0000'0000, kValid = 0x7200'0000'0000,
                   kTopK = 0x7300'0000'0000, kP = 0x7400'0000'0000, kSeeds = 0x7500'0000'0000,
                   kOffsets = 0x7600'0000'0000, kIndices = 0x7700'0000'0000;
constexpr uint64_t kRows = 5, kWidth = 128256, kLimitOfAll = 77;

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

struct Value {
  uint64_t bits;
  uint32_t size;
};

const Engine kOlderEngines[] = {
    {"sampling_from_probs", "22SamplingFromProb", "PT0D"},
    {"top_k_sampling", "26TopKSamplingFromProb", "PT0kKD"},
    {"top_p_sampling", "26TopPSamplingFromProb", "PT0pQD"},
    {"min_p_sampling", "26MinPSamplingFromProb", "PpT0QD"},
    {"top_k_top_p_sampling", "30TopKTopPSamplingFromProb", "PkpT0KQD"},
};

// Since 0.7.4 on Hopper; the kernel is the mode. n: a null pointer, C: what a block has of a row.
const Engine kSplitRows[] = {
    {"top_p_sampling", "0", "PTV0npKQDC"},
    {"top_k_sampling", "1", "PTV0knKQDC"},
    {"top_k_top_p_sampling", "2", "PTV0kpKQDC"},
};

// What a launch differs by.
struct Changes {
  uint64_t indices = 0, top_k = kTopK, p = kP, width = kWidth;
  uint64_t probs = kProbs;
  uint64_t blocks = 8;  // that share a row
};

bool has(const Engine& engine, char letter) {
  return engine.letters.find(letter) != std::string::npos;
}

// Without the random numbers.
std::vector<Value> parameters(const Engine& engine, const Changes& changes) {
  std::vector<Value> out;
  for (const char letter : engine.letters) {
    switch (letter) {
      case 'P': out.push_back({changes.probs, 8}); break;
      case 'T': out.push_back({kTokens, 8}); break;
      case 'V': out.push_back({kValid, 8}); break;
      case '0': out.push_back({changes.indices, 8}); break;
      case 'k': out.push_back({changes.top_k, 8}); break;
      case 'p': out.push_back({changes.p, 8}); break;
      case 'n': out.push_back({0, 8}); break;
      case 'D': out.push_back({changes.width, 4}); break;
      case 'C': out.push_back({(changes.width / changes.blocks + 3) / 4 * 4, 4}); break;
      default: out.push_back({kLimitOfAll, 4}); break;
    }
  }
  return out;
}

std::vector<Value> parameters(const Engine& engine, bool has_strides, const Changes& changes) {
  std::vector<Value> out = parameters(engine, changes);
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

class SamplingFolder : public ReadyFolderTest {
 protected:
  SamplingFolder() : ReadyFolderTest("flashinfer") {}

  PlannedCall planned(const Engine& engine, bool has_strides, const Changes& changes = {}) const {
    std::vector<Value> values = parameters(engine, has_strides, changes);
    std::vector<GivenParam> given;
    for (Value& value : values) given.push_back({&value.bits, value.size});
    return ReadyFolderTest::planned(symbol(engine, has_strides), given, kRows, 1);
  }
};

class SplitRowsFolder : public SamplingFolder {
 protected:
  static std::string symbol(const Engine& engine, const char* vector = "4", const char* id = "i") {
    return "_ZN10flashinfer8sampling39SplitRowRejectionSamplingFromProbKernelILj256ELN3cub16_V_"
           "300600_SM_90018BlockScanAlgorithmE2ELj" +
           std::string(vector) + "ELNS0_20SplitRowSamplingModeE" + engine.kernel + "Ef" + id +
           "EEvPT3_PT4_PbS9_S9_PfS8_fjjPmmSC_mjj";
  }

  PlannedCall planned(const Engine& engine, const Changes& changes = {}) const {
    std::vector<Value> values = parameters(engine, true, changes);
    std::vector<GivenParam> given;
    for (Value& value : values) given.push_back({&value.bits, value.size});
    return ReadyFolderTest::planned(symbol(engine), given,
                                    static_cast<uint32_t>(kRows * changes.blocks), 1);
  }
};

void expect_hit(const PlannedCall& plan, const std::string& definition,
                const std::vector<uint64_t>& arguments) {
  EXPECT_EQ(plan.outcome, Outcome::hit);
  EXPECT_EQ(plan.solution, "fibshim_" + definition + "_v128256");
  EXPECT_EQ(plan.grid, (std::array<uint32_t, 3>{8 * kRows, 1, 1}));
  EXPECT_EQ(plan.block, (std::array<uint32_t, 3>{128, 1, 1}));
  EXPECT_EQ(plan.shared_mem, 1024 + 2304 * 32);
  EXPECT_EQ(plan.arguments, arguments);
}

TEST_F(SamplingFolder, PassesOnWhatEachFormHolds) {
  for (const Engine& engine : kEngines) {
    for (const bool has_strides : {true, false}) {
      for (const bool is_one : {true, false}) {
        if (is_one && !has(engine, 'k') && !has(engine, 'p')) continue;
        SCOPED_TRACE(engine.op + (has_strides ? ", 0.7" : ", 0.6") + (is_one ? ", one limit" : ""));
        Changes changes;
        if (is_one) changes.top_k = changes.p = 0;
        std::vector<uint64_t> expected = {kProbs, kTokens, kValid};
        if (has(engine, 'k')) expected.push_back(is_one ? kLimitOfAll : kTopK);
        if (has(engine, 'p')) expected.push_back(is_one ? kLimitOfAll : kP);
        expected.insert(expected.end(), {kSeeds, 11, kOffsets, 12});
        expected.push_back(has_strides ? 1 : 0);
        expected.push_back(has_strides ? 2 : 0);
        expected.insert(expected.end(), {kWidth, 0});
        expect_hit(planned(engine, has_strides, changes), engine.op + (is_one ? "_one_limit" : ""),
                   expected);
      }
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
    // One of two limits for all rows.
    for (const char letter : {'k', 'p'}) {
      if (!has(engine, 'k') || !has(engine, 'p')) continue;
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

// No solution is for them (tests/bench/RESULTS.md).
TEST_F(SplitRowsFolder, KnowsEachFormAndLeavesIt) {
  for (const Engine& engine : kSplitRows) {
    SCOPED_TRACE(engine.op);
    for (const uint64_t blocks : {2, 4, 8}) {
      Changes changes;
      changes.blocks = blocks;
      EXPECT_EQ(planned(engine, changes).outcome, Outcome::fallback_no_solution);
      changes.top_k = changes.p = 0;
      EXPECT_EQ(planned(engine, changes).outcome, Outcome::fallback_no_solution);
    }
    Changes changes;
    changes.indices = kIndices;
    EXPECT_EQ(planned(engine, changes).outcome, Outcome::fallback_where);
    EXPECT_TRUE(is_known(symbol(engine)));
    EXPECT_FALSE(is_known(symbol(engine, "2")));
    EXPECT_FALSE(is_known(symbol(engine, "4", "l")));
  }
}

class OlderSamplingFolder : public ReadyFolderTest {
 protected:
  OlderSamplingFolder() : ReadyFolderTest("sglang") {}

  static std::string symbol(const Engine& engine, const char* vector = "4") {
    return "_ZN10flashinfer8sampling" + engine.kernel +
           "KernelILj1024ELN3cub35CUB_200802_SM_800_890_900_1000_120018BlockScanAlgorithmE2ELNS3_"
           "20BlockReduceAlgorithmE2ELj" +
           vector + "ELb1EfiEEvPT4_PT5_S9_jmm";
  }

  PlannedCall planned(const Engine& engine, const Changes& changes = {}) const {
    std::vector<Value> values = parameters(engine, changes);
    values.insert(values.end(), {{11, 8}, {12, 8}});
    std::vector<GivenParam> given;
    for (Value& value : values) given.push_back({&value.bits, value.size});
    return ReadyFolderTest::planned(symbol(engine), given, kRows, 1);
  }
};

TEST_F(OlderSamplingFolder, PassesOnWhatEachKernelHolds) {
  for (const Engine& engine : kOlderEngines) {
    SCOPED_TRACE(engine.op);
    std::vector<uint64_t> expected = {kProbs, kTokens};
    if (has(engine, 'k')) expected.push_back(kTopK);
    if (has(engine, 'p')) expected.push_back(kP);
    expected.insert(expected.end(), {11, 12, kWidth, 0});
    expect_hit(planned(engine), engine.op + "_tokens", expected);
  }
}

TEST_F(OlderSamplingFolder, LeavesWhatItIsNotFor) {
  for (const Engine& engine : kOlderEngines) {
    SCOPED_TRACE(engine.op);
    Changes changes;
    changes.indices = kIndices;
    EXPECT_EQ(planned(engine, changes).outcome, Outcome::fallback_where);
    for (const char letter : {'k', 'p'}) {  // one limit for all rows
      if (!has(engine, letter)) continue;
      changes = {};
      (letter == 'k' ? changes.top_k : changes.p) = 0;
      EXPECT_EQ(planned(engine, changes).outcome, Outcome::fallback_where);
    }
    EXPECT_TRUE(is_known(symbol(engine)));
    EXPECT_FALSE(is_known(symbol(engine, "2")));
  }
}

}  // namespace
}  // namespace fibshim::sampling_test
