// triton_kernels' products of experts in mxfp4, as vLLM calls them for gpt-oss (config/vllm): what the replacement gets of a
// recorded launch, and that each tie of the patterns leaves a launch that lacks it to the engine's kernel.
#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/shim/plan/planned_folder.h"

namespace fibshim::mxfp4_products_test {
namespace {

struct Value {
  uint64_t bits;
  uint32_t size;
};

constexpr uint64_t kOut = 0x7000'0000'0000, kA = 0x7100'0000'0000, kWeights = 0x7200'0000'0000,
                   kScales = 0x7300'0000'0000, kBias = 0x7400'0000'0000, kOwn = 0x7500'0000'0000,
                   kCounts = 0x7600'0000'0000, kOffsets = 0x7700'0000'0000,
                   kBlocks = 0x7800'0000'0000, kAlpha = 0x3fd9db23, kLimit = 0x40e00000;

// The parameters that both products have in the same places. The first has two rows of weights for each of its outputs.
std::vector<Value> shared_values(uint64_t choices, uint64_t rows_of_a, bool is_first) {
  const uint64_t n = is_first ? 5760 : 2880;
  return {{kOut, 8},
          {kOut, 8},
          {choices * 2880, 4},
          {choices * 2880, 4},
          {2880, 4},
          {kA, 8},
          {kA, 8},
          {rows_of_a * 2880, 4},
          {2880, 4},
          {kWeights, 8},
          {kWeights, 8},
          {n * 1440, 4},
          {5760, 4},
          {kScales, 8},
          {(n + 255) / 256 * 8 * 2944, 4},
          {2944, 4},
          {kBias, 8},
          {n, 4}};
}

// Of 16 choices, of 32 experts.
uint64_t blocks_of(uint64_t choices) {
  return choices <= 32 ? choices : 31 + (choices - 31 + 15) / 16;
}

std::vector<Value> first_values(uint64_t tokens) {
  std::vector<Value> values = shared_values(tokens * 4, tokens, true);
  if (tokens > 1) values.push_back({tokens, 4});
  for (const Value value : std::vector<Value>{{5760, 4},
                                              {2880, 4},
                                              {kOwn, 8},
                                              {kCounts, 8},
                                              {kOffsets, 8},
                                              {1, 8},
                                              {kBlocks, 8},
                                              {blocks_of(tokens * 4), 4},
                                              {23, 4},
                                              {kAlpha, 4},
                                              {kLimit, 4},
                                              {0, 8},
                                              {0, 8}}) {
    values.push_back(value);
  }
  return values;
}

std::vector<Value> second_values(uint64_t choices) {
  std::vector<Value> values = shared_values(choices, choices, false);
  for (const Value value : std::vector<Value>{{choices, 4},
                                              {2880, 4},
                                              {2880, 4},
                                              {kOwn, 8},
                                              {1, 8},
                                              {choices, 4},
                                              {kCounts, 8},
                                              {kOffsets, 8},
                                              {1, 8},
                                              {kBlocks, 8},
                                              {blocks_of(choices), 4},
                                              {12, 4},
                                              {0, 8},
                                              {0, 8}}) {
    values.push_back(value);
  }
  return values;
}

class Mxfp4Products : public ReadyFolderTest {
 protected:
  Mxfp4Products() : ReadyFolderTest("vllm") {}

  PlannedCall planned_with(bool is_first, std::vector<Value> values) const {
    std::vector<GivenParam> given;
    for (Value& value : values) given.push_back({&value.bits, value.size});
    return planned(
        std::string("_matmul_ogs_NNT_bf16xbf16xmxfp4_16x256x128x1") + (is_first ? "_swiglu" : ""),
        given, 92, 1);
  }

  // The kernel loads 16 bytes of a row of A at once.
  void expect_alignment(bool is_first, const std::vector<Value>& values) const {
    std::vector<Value> other = values;
    other[5].bits += 8;
    EXPECT_NE(planned_with(is_first, other).outcome, Outcome::hit);
    other = values;
    other[7].bits = other[7].bits / 2880 * 2884;
    other[8].bits = 2884;
    EXPECT_NE(planned_with(is_first, other).outcome, Outcome::hit);
    other[7].bits = other[7].bits / 2884 * 2888;
    other[8].bits = 2888;
    EXPECT_EQ(planned_with(is_first, other).outcome, Outcome::hit);
  }

  // Each of these parameters, changed by itself, keeps the engine's kernel.
  void expect_ties(bool is_first, const std::vector<Value>& values,
                   std::vector<size_t> ties) const {
    for (const size_t i : ties) {
      std::vector<Value> other = values;
      other[i].bits = other[i].size == 8 ? 0 : other[i].bits + 16;
      EXPECT_NE(planned_with(is_first, other).outcome, Outcome::hit) << "parameter " << i;
    }
  }
};

TEST_F(Mxfp4Products, TakesTheFirst) {
  for (const uint64_t tokens : {1, 8, 128}) {
    const std::vector<Value> values = first_values(tokens);
    const PlannedCall call = planned_with(true, values);
    EXPECT_EQ(call.outcome, Outcome::hit) << tokens;
    EXPECT_EQ(call.solution, "fibshim_moe_gemm_mxfp4_swiglu_n5760_k2880_t4");
    EXPECT_EQ(
        call.arguments,
        (std::vector<uint64_t>{kA,       kWeights, kScales, kBias,  kOwn,    kCounts,
                               kOffsets, kBlocks,  kOut,    kAlpha, kLimit,  blocks_of(tokens * 4),
                               5760,     4,        2880,    2880,   8294400, 5760,
                               541696,   2944,     5760}));
    const size_t more = tokens > 1;
    expect_ties(true, values,
                {2, 4, 7, 8, 11, 12, 14, 15, 17, 18 + more, 19 + more, 20 + more, 21 + more,
                 22 + more, 24 + more});
  }
  expect_alignment(true, first_values(8));
  EXPECT_NE(planned_with(true, first_values(129)).outcome, Outcome::hit);
}

TEST_F(Mxfp4Products, TakesTheSecond) {
  for (const uint64_t choices : {4, 32, 512}) {
    const std::vector<Value> values = second_values(choices);
    const PlannedCall call = planned_with(false, values);
    EXPECT_EQ(call.outcome, Outcome::hit) << choices;
    EXPECT_EQ(call.solution, "fibshim_moe_gemm_mxfp4_weighted_n2880_k2880_t1");
    EXPECT_EQ(call.arguments,
              (std::vector<uint64_t>{kA, kWeights, kScales, kBias, kOwn, kCounts, kOffsets, kBlocks,
                                     kOut, blocks_of(choices), 2880, 2880, 2880, 4147200, 5760,
                                     282624, 2944, 2880}));
    expect_ties(false, values, {2, 4, 7, 8, 11, 12, 14, 15, 17, 18, 19, 20, 21, 24, 25, 27});
  }
  expect_alignment(false, second_values(32));
  EXPECT_NE(planned_with(false, second_values(516)).outcome, Outcome::hit);
}

}  // namespace
}  // namespace fibshim::mxfp4_products_test
