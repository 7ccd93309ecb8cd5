// The folder for attention (config/flash_attention). The only parameter of FlashAttention 3's
// kernel is a struct that no compiler checks; here it is as vLLM 0.25 filled it on an H200, and with
// its fields where sglang-kernel's builds have them, by their source and code. The same for the
// kernel that merges its parts, and for FlashInfer's kernel. The tests also say which values make
// the original run.
#include <string.h>

#include <array>
#include <cstdint>
#include <map>
#include <regex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "shim/plan/fit.h"
#include "tests/shim/plan/planned_folder.h"

namespace fibshim {
namespace {

using Struct = std::array<char, 2688>;

template <class T, class Any>
void put(Any* to, int offset, T value) {
  memcpy(to->data() + offset, &value, sizeof value);
}

// A build of the kernel. Some fields lie behind their places in vLLM's.
struct Layout {
  const char* name;
  const char* others;    // flags in the symbol
  const char* mainloop;  // and further ones
  const char* epilogue;
  bool is_sorted;
  int from_scale, of_splits, from_cache_rows;  // how far
};
constexpr Layout kVllm = {"vLLM", "ELb0ELb0ELb1ELb1ELb0ELb0ELb1ELb1ELb1", "", "ELi1", false, 0, 0,
                          0};
constexpr Layout kLayouts[] = {
    kVllm,
    {"vLLM 0.33", "ELb0ELb0ELb1ELb1ELb0ELb0ELb0ELb1ELb1ELb1", "", "ELi1", false, 0, 0, 0},
    {"sglang-kernel", "ELb0ELb0ELb1ELb1ELb0ELb0ELb0ELb1ELb1ELb1", "Lb0E", "", true, 8, 20, 24},
    {"sglang-kernel 0.4.2", "ELb0ELb0ELb1ELb1ELb0ELb0ELb1ELb1ELb1", "", "", true, 0, 12, 16}};

// Where the field is that vLLM has at `offset`.
int at(const Layout& layout, int offset) {
  if (offset < 1800 || offset > 1960) return offset;
  if (offset < 1892) return offset + layout.from_scale;
  return offset + (offset == 1892 ? layout.of_splits : layout.from_cache_rows);
}

// As recorded: five sequences, 32 query heads on 8 key heads, pages of 16, at most 32 parts. The
// addresses are made up.
Struct recorded(const Layout& layout = kVllm) {
  Struct made = {};
  const std::pair<int, int32_t> words[] = {
      {8, 5},     {12, 128},  {16, 32},    {20, 1},    {48, 4},    {60, 8},     {112, 16},
      {116, 128}, {120, 8},   {124, 37},   {160, 128}, {368, 512}, {416, 5},    {420, 32},
      {432, 16},  {456, 4},   {1884, 511}, {1892, 32}, {2056, 5},  {2060, 128}, {2064, 32},
      {2068, 1},  {2072, 32}, {2452, 132}, {2488, 8},  {2492, 5},  {2496, 4},   {2500, 1}};
  for (const auto& [offset, word] : words) put(&made, at(layout, offset), word);
  if (!layout.is_sorted) put(&made, 1968, 1);  // ranks of context parallelism
  const std::pair<int, int64_t> longs[] = {{0, 0x7000'0000'0000},
                                           {24, 4096},
                                           {32, 128},
                                           {104, 0x7100'0000'0000},
                                           {128, 1024},
                                           {136, 128},
                                           {144, 32768},
                                           {152, 0x7100'0000'8000},
                                           {168, 1024},
                                           {176, 128},
                                           {184, 32768},
                                           {408, 0x7000'0001'0000},
                                           {424, 517},
                                           {1904, 0x7000'0002'0000},
                                           {1936, 0x7000'0003'0000},
                                           {2048, 0x7000'0004'0000},
                                           {2080, 4096},
                                           {2088, 128},
                                           {2176, 0x7000'0005'0000},
                                           {2184, 128},
                                           {2192, 640},
                                           {2208, 20480},
                                           {2256, 0x7000'0006'0000},
                                           {2264, 5},
                                           {2344, 0x7000'0007'0000},
                                           {2352, 5},
                                           {2368, 160},
                                           {2432, 0x7000'0002'0000},
                                           {2528, 0x7000'0008'0060},
                                           {2536, 0x7000'0002'0000},
                                           {2552, 0x7000'0008'0020},
                                           {2560, 0x7000'0008'0000},
                                           {2576, 0x7000'0008'0040}};
  for (const auto& [offset, value] : longs) put(&made, at(layout, offset), value);
  put(&made, at(layout, 1800), 0.127517F);
  if (layout.is_sorted) put<int64_t>(&made, 2568, 0x7000'0008'0060);
  return made;
}

Struct changed(int offset, int64_t value, int size) {
  Struct made = recorded();
  memcpy(made.data() + offset, &value, static_cast<size_t>(size));
  return made;
}

// The symbol for heads of 128: causal or not, split into parts or not.
std::string symbol(bool is_causal, bool is_split, const Layout& layout = kVllm,
                   const char* tile = "NS7_ILi128EEESB_", const char* type = "ENS_10bfloat16_tE",
                   const char* type_of_sinks = "ESD_") {
  const auto flag = [](bool is) { return is ? "Lb1" : "Lb0"; };
  return std::string(
             "_ZN7cutlass13device_kernelIN5flash20enable_sm90_or_laterINS1_16FlashAttnFwdSm90INS1_"
             "25"
             "CollectiveMainloopFwdSm90ILi2EN4cute5tupleIJNS5_1CILi1EEES8_S8_EEENS6_IJNS7_"
             "ILi64EEE") +
         tile + "EEELi128" + type + "fNS_4arch4Sm90E" + flag(is_causal) + layout.others + "E" +
         flag(is_split) + "ELb0" + type_of_sinks + layout.mainloop +
         "Li1EEENS1_21CollectiveEpilogueFwdISC_S9_SD_SF_Li128ELb1ELb1E" + flag(is_split) + "ELb0" +
         layout.epilogue + "EEENS1_36VarlenDynamicPersistentTileSchedulerILi64ELi128ELi128ELi128E" +
         flag(is_split) + "ELb1ELb1E" + flag(is_causal) + "E" + flag(layout.is_sorted) +
         "ELb1EEEEEEEEEvNT_6ParamsE";
}

class FlashAttentionFolder : public ReadyFolderTest {
 protected:
  FlashAttentionFolder() : ReadyFolderTest("flash_attention") {}

  template <class Params>
  PlannedCall planned(Params of_engine, const std::string& name, uint32_t grid_x, uint32_t grid_y,
                      uint32_t grid_z = 1) const {
    const GivenParam given = {of_engine.data(), sizeof of_engine};
    return ReadyFolderTest::planned(name, {&given, 1}, grid_x, grid_y, grid_z);
  }
  PlannedCall planned(const Struct& of_engine, const Layout& layout) const {
    return planned(of_engine, symbol(true, true, layout));
  }
  PlannedCall planned(const Struct& of_engine, const std::string& name = symbol(true, true)) const {
    return planned(of_engine, name, 1, 1);
  }
};

TEST_F(FlashAttentionFolder, PassesOnWhatTheStructHolds) {
  for (const Layout& layout : kLayouts) {
    const PlannedCall plan = planned(recorded(layout), layout);
    EXPECT_EQ(plan.outcome, Outcome::hit) << layout.name;
    EXPECT_EQ(plan.solution, "fibshim_gqa_page_table_decode_h32_kv8_d128_ps16_w6");
    EXPECT_EQ(plan.grid, (std::array<uint32_t, 3>{8, 5 + 16, 1}));  // 128 blocks for further parts
    EXPECT_EQ(plan.block, (std::array<uint32_t, 3>{192, 1, 1}));
    uint32_t scale;
    const float value = 0.127517F;
    memcpy(&scale, &value, sizeof scale);
    const uint64_t order = layout.is_sorted ? 0x7000'0008'0060 : 0;
    EXPECT_EQ(plan.arguments, (std::vector<uint64_t>{0x7000'0000'0000,
                                                     0x7100'0000'0000,
                                                     0x7100'0000'8000,
                                                     0x7000'0001'0000,
                                                     0x7000'0003'0000,
                                                     0x7000'0002'0000,
                                                     0x7000'0008'0000,
                                                     0x7000'0008'0020,
                                                     order,
                                                     0x7000'0004'0000,
                                                     0x7000'0006'0000,
                                                     0x7000'0005'0000,
                                                     0x7000'0007'0000,
                                                     4096,
                                                     4096,
                                                     32768,
                                                     1024,
                                                     128,
                                                     517,
                                                     scale,
                                                     5,
                                                     5,
                                                     8,
                                                     4,
                                                     16,
                                                     32}))
        << layout.name;
  }
}

std::string symbol_in_fp16(const Layout& layout) {
  return symbol(true, true, layout, "NS7_ILi128EEESB_", "ENS_6half_tE", "ENS_10bfloat16_tE");
}

TEST_F(FlashAttentionFolder, TellsFp16ByTheName) {
  for (const Layout& layout : kLayouts) {
    const PlannedCall in_bf16 = planned(recorded(layout), layout);
    const PlannedCall in_fp16 = planned(recorded(layout), symbol_in_fp16(layout));
    EXPECT_EQ(in_fp16.outcome, Outcome::hit) << layout.name;
    EXPECT_EQ(in_fp16.solution, "fibshim_gqa_page_table_decode_h32_kv8_d128_ps16_fp16_w6");
    EXPECT_EQ(in_fp16.arguments, in_bf16.arguments) << layout.name;
    Struct larger_pages = recorded(layout);
    for (const int offset : {112, 432}) put<int32_t>(&larger_pages, offset, 32);
    EXPECT_EQ(planned(larger_pages, layout).outcome, Outcome::hit) << layout.name;
    EXPECT_EQ(planned(larger_pages, symbol_in_fp16(layout)).outcome, Outcome::fallback_no_solution)
        << layout.name;
    EXPECT_FALSE(is_known(symbol(true, true, layout, "NS7_ILi128EEESB_", "ENS_12float_e4m3_tE",
                                 "ENS_10bfloat16_tE")));
  }
}

// gpt-oss: 64 query heads of 64 on 8 key heads, sinks, in every other layer a window of 128 tokens.
Struct with_sinks() {
  Struct made = recorded();
  for (const int offset : {12, 16, 160, 2064}) put<int32_t>(&made, offset, 64);
  for (const int offset : {48, 2496}) put<int32_t>(&made, offset, 8);
  for (const int offset : {32, 2088, 2184}) put<int64_t>(&made, offset, 64);
  for (const int offset : {2192, 2368}) put<int64_t>(&made, offset, 320);
  put<int64_t>(&made, 1960, 0x7000'0009'0000);
  return made;
}
Struct with_window(Struct made, int left) {
  put<int32_t>(&made, 1884, left);
  return made;
}

// What stands in the symbol of heads of 64 or 128 in place of `symbol`'s.
std::string symbol_of(bool has_window, bool is_64, bool is_split, const char* more = "Lb0E") {
  const char* const tile = !has_window ? "NS7_ILi64EEENS7_ILi192EEESA_"
                           : is_64     ? "NS7_ILi192EEENS7_ILi160EEENS7_ILi64EEE"
                                       : "NS7_ILi128EEESA_SA_";
  const std::string threads = !has_window ? "128" : is_64 ? "384" : "256";
  const std::string split = is_split ? "Lb1E" : "Lb0E", window = has_window ? "Lb1E" : "Lb0E";
  return std::string(
             "_ZN7cutlass13device_kernelIN5flash20enable_sm90_or_laterINS1_16FlashAttnFwdSm90INS1_"
             "25CollectiveMainloopFwdSm90ILi2EN4cute5tupleIJNS5_1CILi1EEES8_S8_EEENS6_IJ") +
         tile + "EEELi" + (is_64 ? "64" : "128") + "ENS_10bfloat16_tEfNS_4arch4Sm90ELb0E" + window +
         "Lb0ELb1ELb1ELb0ELb0E" + more + "Lb1E" + (has_window && is_64 ? "Lb0E" : "Lb1E") + "Lb1E" +
         split + "Lb0E" +
         (!has_window ? "SD_"
          : is_64     ? "SE_"
                      : "SC_") +
         "Li1EEENS1_21CollectiveEpilogueFwdINS6_IJSA_SC_SB_EEES9_SE_SG_Li" + threads + "ELb1ELb1E" +
         split + "Lb0ELi1EEENS1_36VarlenDynamicPersistentTileSchedulerILi" +
         (!has_window ? "64ELi192"
          : is_64     ? "192ELi160"
                      : "128ELi128") +
         "ELi" + threads + "ELi128E" + split + "Lb1ELb1E" + window + "Lb0ELb1EEEEEEEEEvNT_6ParamsE";
}

TEST_F(FlashAttentionFolder, TakesSinksAndWindows) {
  for (const char* more : {"", "Lb0E"}) {
    const PlannedCall sinks = planned(with_sinks(), symbol_of(false, true, true, more));
    EXPECT_EQ(sinks.outcome, Outcome::hit);
    EXPECT_EQ(sinks.solution, "fibshim_gqa_page_table_sink_decode_h64_kv8_d64_ps16_w6");
    EXPECT_EQ(sinks.arguments.size(), 27U);
    EXPECT_EQ(sinks.arguments.back(), 0x7000'0009'0000U);

    const PlannedCall both =
        planned(with_window(with_sinks(), 127), symbol_of(true, true, true, more));
    EXPECT_EQ(both.outcome, Outcome::hit);
    EXPECT_EQ(both.solution, "fibshim_gqa_page_table_window_sink_decode_h64_kv8_d64_ps16_w6");
    EXPECT_EQ(both.grid, (std::array<uint32_t, 3>{8, 5 + 16, 1}));
    EXPECT_EQ(both.arguments.size(), 28U);
    EXPECT_EQ(both.arguments[26], 0x7000'0009'0000U);
    EXPECT_EQ(both.arguments[27], 127U);

    const PlannedCall window =
        planned(with_window(recorded(), 4095), symbol_of(true, false, true, more));
    EXPECT_EQ(window.outcome, Outcome::hit);
    EXPECT_EQ(window.solution, "fibshim_gqa_page_table_window_decode_h32_kv8_d128_ps16_w6");
    EXPECT_EQ(window.arguments[26], 0U);
    EXPECT_EQ(window.arguments[27], 4095U);
  }
  Struct longer = with_sinks();
  put<int32_t>(&longer, 368, 131072);
  EXPECT_EQ(planned(longer, symbol_of(false, true, true)).outcome, Outcome::fallback_where);
  EXPECT_EQ(planned(with_window(longer, 127), symbol_of(true, true, true)).solution,
            "fibshim_gqa_page_table_window_sink_decode_h64_kv8_d64_ps16_w6");
}

TEST_F(FlashAttentionFolder, LeavesOtherWindowsAndSinksToTheOriginal) {
  const std::string of_64 = symbol_of(true, true, true), of_128 = symbol_of(true, false, true);
  EXPECT_EQ(planned(with_window(with_sinks(), -1), of_64).outcome, Outcome::fallback_where);
  Struct before_the_last = with_window(with_sinks(), 127);
  put<int32_t>(&before_the_last, 1888, -1);
  EXPECT_EQ(planned(before_the_last, of_64).outcome, Outcome::fallback_where);
  Struct no_sinks = with_window(with_sinks(), 127);
  put<int64_t>(&no_sinks, 1960, 0);
  EXPECT_EQ(planned(no_sinks, of_64).outcome, Outcome::fallback_where);
  Struct sinks = with_window(recorded(), 1023);
  put<int64_t>(&sinks, 1960, 0x7000'0009'0000);
  EXPECT_EQ(planned(sinks, of_128).outcome, Outcome::fallback_where);
  Struct larger_pages = with_window(with_sinks(), 127);
  for (const int offset : {112, 432}) put<int32_t>(&larger_pages, offset, 32);
  EXPECT_EQ(planned(larger_pages, of_64).outcome, Outcome::fallback_no_solution);
  // Softcap, pages by tensor maps, Q loaded for groups of eight heads.
  EXPECT_FALSE(is_known(std::regex_replace(of_64, std::regex("ELb1ELb0ELb1E"), "ELb1ELb1ELb1E")));
  EXPECT_FALSE(
      is_known(std::regex_replace(of_64, std::regex("Lb1ELb1ELb0ELb0E"), "Lb1ELb0ELb0ELb0E")));
  EXPECT_FALSE(is_known(std::regex_replace(of_64, std::regex("SE_Li1E"), "SE_Li8E")));
  EXPECT_TRUE(is_known(symbol_of(true, true, false)));
  EXPECT_TRUE(is_known(symbol_of(true, false, false)));
}

// As SGLang has them by default.
Struct with_pages_of_a_token(const Layout& layout, int longest) {
  Struct made = recorded(layout);
  for (const int offset : {112, 432}) put<int32_t>(&made, offset, 1);
  for (const int offset : {144, 184}) put<int64_t>(&made, offset, 1024);
  put<int32_t>(&made, 368, longest);
  put<int64_t>(&made, 424, longest);
  return made;
}

TEST_F(FlashAttentionFolder, TakesPagesOfAToken) {
  for (const Layout& layout : kLayouts) {
    for (const auto& [longest, kernel] : {std::pair(2048, "w6"), std::pair(2049, "w6_pair")}) {
      const PlannedCall plan = planned(with_pages_of_a_token(layout, longest), layout);
      EXPECT_EQ(plan.outcome, Outcome::hit) << layout.name;
      EXPECT_EQ(plan.solution,
                std::string("fibshim_gqa_page_table_decode_h32_kv8_d128_ps1_") + kernel);
      EXPECT_EQ(plan.arguments[15], 1024U);  // from page to page
      EXPECT_EQ(plan.arguments[24], 1U);
      EXPECT_EQ(plan.arguments[25], static_cast<uint64_t>(longest));
    }
  }
}

TEST_F(FlashAttentionFolder, KnowsHowFarApartPagesOfATokenMayBe) {
  for (const auto& [stride, outcome] :
       {std::pair(134217720, Outcome::hit), std::pair(134217728, Outcome::fallback_where)}) {
    Struct pages = with_pages_of_a_token(kVllm, 512);
    for (const int offset : {144, 184}) put<int64_t>(&pages, offset, stride);
    EXPECT_EQ(planned(pages).outcome, outcome) << stride;
    // There is no second token in a page, wherever it were.
    Struct tokens = with_pages_of_a_token(kVllm, 512);
    for (const int offset : {128, 168}) put<int64_t>(&tokens, offset, stride);
    EXPECT_EQ(planned(tokens).outcome, Outcome::hit) << stride;
  }
}

TEST_F(FlashAttentionFolder, LeavesOtherPagesToTheOriginal) {
  for (const int page_size : {2, 8, 24, 256}) {
    Struct made = recorded();
    for (const int offset : {112, 432}) put<int32_t>(&made, offset, page_size);
    EXPECT_EQ(planned(made).outcome, Outcome::fallback_no_solution) << page_size;
  }
}

TEST_F(FlashAttentionFolder, CountsThePageThatIsNotFull) {
  const PlannedCall plan = planned(changed(368, 513, 4));  // the struct's own count, at 420, is 32
  EXPECT_EQ(plan.outcome, Outcome::hit);
  EXPECT_EQ(plan.arguments.back(), 33U);
}

TEST_F(FlashAttentionFolder, TakesWhatIsInOnePart) {
  for (const Layout& layout : kLayouts) {
    Struct one_part = recorded(layout);
    for (const int offset : {at(layout, 1892), 2072}) put<int32_t>(&one_part, offset, 1);
    for (const int offset : {2176, 2184, 2192, 2208, 2344, 2552}) {
      put<int64_t>(&one_part, offset, 0);
    }
    for (const bool is_causal : {false, true}) {
      const PlannedCall plan = planned(one_part, symbol(is_causal, false, layout));
      EXPECT_EQ(plan.outcome, Outcome::hit) << layout.name;
      EXPECT_EQ(plan.grid, (std::array<uint32_t, 3>{8, 5, 1}));
    }
  }
}

TEST_F(FlashAttentionFolder, ChoosesTheBlockByTheBatch) {
  const std::pair<int, int> blocks[] = {{33, 192}, {34, 128}, {49, 128}, {50, 192}, {256, 192}};
  for (const auto& [batch, block] : blocks) {
    Struct of_engine = changed(2492, batch, 4);
    put<int32_t>(&of_engine, 416, batch);
    EXPECT_EQ(planned(of_engine).block[0], static_cast<uint32_t>(block)) << batch;
  }
  Struct too_many = changed(2492, 257, 4);
  put<int32_t>(&too_many, 416, 257);
  EXPECT_EQ(planned(too_many).outcome, Outcome::fallback_where);
}

TEST_F(FlashAttentionFolder, GivesLongSequencesToClusters) {
  for (const auto& [batch, longest, kernel, grid_y] :
       {std::tuple(2, 1 << 20, "w6_pair", 32), std::tuple(32, 2048, "w6", 48),
        std::tuple(32, 2049, "w6_pair", 32), std::tuple(33, 2049, "w6_pair", 50),
        std::tuple(40, 2048, "w4", 56), std::tuple(50, 2049, "w6_pair", 66)}) {
    Struct of_engine = changed(2492, batch, 4);
    put<int32_t>(&of_engine, 416, batch);
    put<int32_t>(&of_engine, 368, longest);
    const PlannedCall plan = planned(of_engine);
    EXPECT_EQ(plan.solution,
              std::string("fibshim_gqa_page_table_decode_h32_kv8_d128_ps16_") + kernel);
    EXPECT_EQ(plan.grid[1], static_cast<uint32_t>(grid_y)) << batch << " sequences of " << longest;
  }
}

// Where clusters are slower than FlashAttention, and blocks alone are when lengths differ much.
TEST_F(FlashAttentionFolder, LeavesLongSequencesOfSomeBatchesToTheOriginal) {
  for (const auto& [batch, outcome] :
       {std::pair(33, Outcome::hit), std::pair(34, Outcome::fallback_where),
        std::pair(49, Outcome::fallback_where), std::pair(50, Outcome::hit)}) {
    Struct of_engine = changed(2492, batch, 4);
    put<int32_t>(&of_engine, 416, batch);
    put<int32_t>(&of_engine, 368, 32768);
    EXPECT_EQ(planned(of_engine).outcome, outcome) << batch;
  }
}

TEST_F(FlashAttentionFolder, LeavesOtherHeadsToTheOriginal) {
  Struct of_engine = changed(16, 128, 4);
  for (const int offset : {48, 2496}) put<int32_t>(&of_engine, offset, 16);
  put<int32_t>(&of_engine, 2064, 128);
  put<int64_t>(&of_engine, 2208, 81920);
  put<int64_t>(&of_engine, 2368, 640);
  EXPECT_EQ(planned(of_engine).outcome, Outcome::fallback_no_solution);
}

struct Patch {
  int offset;
  int64_t value;
  int size = 8;
};
struct Guard {
  const char* what;
  std::vector<Patch> patches;
};

TEST_F(FlashAttentionFolder, LeavesWhatItIsNotForToTheOriginal) {
  const Guard guards[] = {
      {"two tokens a sequence", {{2500, 2, 4}}},
      {"another head size", {{12, 96, 4}}},
      {"another head size of values", {{160, 64, 4}}},
      {"heads not packed", {{48, 1, 4}}},
      {"other groups in the schedule", {{2496, 8, 4}}},
      {"other KV heads in the schedule", {{2488, 4, 4}}},
      {"other heads in the output", {{2064, 16, 4}}},
      {"another page size in the divisor", {{432, 32, 4}}},
      {"other rows in the page table", {{416, 6, 4}}},
      {"queries in batches", {{20, 5, 4}}},
      {"other rows in the output", {{2056, 6, 4}}},
      {"heads of Q apart", {{32, 256}}},
      {"heads of the output apart", {{2088, 256}}},
      {"other pages of V", {{184, 65536}}},
      {"other tokens of V", {{168, 2048}}},
      {"other heads of V", {{176, 256}}},
      {"lse of another pitch", {{2264, 6}}},
      {"other parts in the output", {{2072, 16, 4}}},
      {"no counts of parts", {{2552, 0}}},
      {"rows of parts apart", {{2184, 256}}},
      {"heads of parts apart", {{2192, 128}}},
      {"parts apart", {{2208, 128}}},
      {"heads of the parts' lse apart", {{2352, 6}}},
      {"the parts' lse apart", {{2368, 5}}},
      {"no pages", {{408, 0}}},
      {"no lengths", {{1936, 0}}},
      {"no lengths of queries", {{2560, 0}}},
      {"other first rows in the output", {{2432, 0x7000'0009'0000}}},
      {"other first rows in the schedule", {{2536, 0x7000'0009'0000}}},
      {"new keys", {{192, 0x7000'0009'0000}}},
      {"a second query", {{272, 0x7000'0009'0000}}},
      {"rotary embedding", {{360, 0x7000'0009'0000}}},
      {"softcap", {{1880, 0x41f00000, 4}}},
      {"rows of the cache named", {{1896, 0x7000'0009'0000}}},
      {"first keys", {{1912, 0x7000'0009'0000}}},
      {"first new keys", {{1920, 0x7000'0009'0000}}},
      {"some queries unused", {{1928, 0x7000'0009'0000}}},
      {"padding on the left", {{1944, 0x7000'0009'0000}}},
      {"sinks", {{1960, 0x7000'0009'0000}}},
      {"Q not aligned", {{0, 0x7000'0000'0008}}},
      {"K not aligned", {{104, 0x7100'0000'0008}}},
      {"V not aligned", {{152, 0x7100'0000'8008}}},
      {"groups that do not fit the heads", {{48, 2, 4}, {2496, 2, 4}}},
      {"no first rows", {{1904, 0}, {2432, 0}, {2536, 0}}},
      {"the output not aligned", {{2048, 0x700000040004}}},
      {"the parts not aligned", {{2176, 0x700000050008}}},
      {"rows of Q not aligned", {{24, 4100}}},
      {"rows of the output not aligned", {{2080, 4098}}},
      {"pages not aligned", {{144, 32772}, {184, 32772}}},
      {"tokens not aligned", {{128, 1028}, {168, 1028}}},
      {"heads not aligned", {{136, 132}, {176, 132}}},
      {"tokens far apart", {{128, 134217728}, {168, 134217728}}},
      {"no longest sequence", {{368, 0, 4}}},
      {"a page table of no width", {{424, 0}}},
  };
  for (const Layout& layout : kLayouts) {
    for (const Guard& guard : guards) {
      Struct made = recorded(layout);
      for (const Patch& patch : guard.patches) {
        memcpy(made.data() + at(layout, patch.offset), &patch.value,
               static_cast<size_t>(patch.size));
      }
      EXPECT_EQ(planned(made, layout).outcome, Outcome::fallback_where)
          << layout.name << ": " << guard.what;
    }
    Struct other_order = recorded(layout);
    put<int64_t>(&other_order, 2568, layout.is_sorted ? 0 : 0x7000'0009'0000);
    EXPECT_EQ(planned(other_order, layout).outcome, Outcome::fallback_where) << layout.name;
  }
  EXPECT_EQ(planned(changed(1968, 2, 4)).outcome, Outcome::fallback_where);  // context parallelism
}

TEST_F(FlashAttentionFolder, KnowsTheNamesOfDecodeOnly) {
  for (const Layout& layout : kLayouts) {
    for (const bool is_causal : {false, true}) {
      for (const bool is_split : {false, true}) {
        EXPECT_TRUE(is_known(symbol(is_causal, is_split, layout))) << layout.name;
      }
    }
    // Pages by tensor maps.
    EXPECT_FALSE(is_known(symbol(true, true, layout, "NS7_ILi176EEESB_"))) << layout.name;
    // A flag that is set from the front, up to the heads' packing, or not set.
    const std::string flags = layout.others;
    for (size_t digit = 3; digit < flags.size(); digit += 4) {
      std::string others = flags;
      others[digit] = static_cast<char>('0' + '1' - others[digit]);
      Layout other = layout;
      other.others = others.c_str();
      EXPECT_FALSE(is_known(symbol(true, true, other))) << layout.name << " " << others;
    }
    Layout other = layout;
    other.is_sorted = !layout.is_sorted;
    EXPECT_FALSE(is_known(symbol(true, true, other))) << layout.name;
    other = layout;
    other.mainloop = "Lb1E";  // a mask of blocks
    EXPECT_FALSE(is_known(symbol(true, true, other))) << layout.name;
    other = layout;
    other.epilogue = "ELi2";
    EXPECT_FALSE(is_known(symbol(true, true, other))) << layout.name;
  }
}

// The kernel that merges the parts of the same five sequences, 32 heads of 128, at most 32 parts.
struct CombineFolder : FlashAttentionFolder {
  using Struct = std::array<char, 288>;

  static Struct filled() {
    Struct made = {};
    const std::pair<int, int32_t> words[] = {
        {0, 5},   {16, 5}, {20, 128}, {24, 32},  {28, 32}, {32, 1},   {80, 5},  {84, 32},
        {88, 32}, {92, 1}, {176, 5},  {188, 32}, {240, 5}, {244, 32}, {248, 8}, {280, 1}};
    for (const auto& [offset, word] : words) put(&made, offset, word);
    const std::pair<int, int64_t> strides[] = {{40, 128}, {48, 20480}, {56, 640},  {96, 160},
                                               {104, 5},  {128, 4096}, {136, 128}, {160, 5}};
    for (const auto& [offset, stride] : strides) put(&made, offset, stride);
    for (const int offset : {8, 72, 120, 152, 200, 216, 232, 272}) {
      put(&made, offset, address(offset));
    }
    put(&made, 252, true);
    put(&made, 256, address(200));
    return made;
  }
  static int64_t address(int offset) { return 0x7000'0000'0000 + offset * int64_t{1 << 20}; }

  static std::string name_of(const char* tile = "ILi8EEENS5_ILi128E", int log_of_parts = 5,
                             const char* rest = "ELb0ELb1ENS_10bfloat16_tEf") {
    return std::string(
               "_ZN7cutlass13device_kernelIN5flash19FlashAttnFwdCombineIN4cute5tupleIJNS3_1C") +
           tile + "EEEEELi" + std::to_string(log_of_parts) + "ELi256ELi1" + rest +
           "NS_4arch4Sm90EEEEEvNT_6ParamsE";
  }

  PlannedCall plan(const Struct& of_engine, const std::string& name = name_of()) const {
    return planned(of_engine, name, 25, 1);
  }
};

TEST_F(CombineFolder, PassesOnWhatTheStructHolds) {
  const PlannedCall made = plan(filled());
  EXPECT_EQ(made.outcome, Outcome::hit);
  EXPECT_EQ(made.solution, "fibshim_decode_combine_d128");
  EXPECT_EQ(made.grid, (std::array<uint32_t, 3>{8, 5, 1}));
  EXPECT_EQ(made.block, (std::array<uint32_t, 3>{128, 1, 1}));
  std::vector<uint64_t> expected;
  for (const int offset : {8, 72, 200, 272, 216, 120, 152, 232}) {
    expected.push_back(static_cast<uint64_t>(address(offset)));
  }
  // The stride of the output's rows, the batch, the rows, the heads, and 0: the next kernel waits.
  for (const uint64_t value : {4096, 5, 5, 32, 0}) expected.push_back(value);
  EXPECT_EQ(made.arguments, expected);
}

TEST_F(CombineFolder, HasFewBlocksWhateverTheBatch) {
  for (const auto& [batch, heads, x, y] :
       {std::tuple(1, 32, 8U, 1U), std::tuple(8, 32, 8U, 8U), std::tuple(256, 32, 8U, 8U),
        std::tuple(256, 6, 2U, 32U), std::tuple(3, 512, 128U, 1U)}) {
    Struct made = filled();
    for (const int offset : {0, 16, 80, 176, 240}) put<int32_t>(&made, offset, batch);
    for (const int offset : {28, 88, 188, 244}) put<int32_t>(&made, offset, heads);
    for (const int offset : {104, 160}) put<int64_t>(&made, offset, batch);
    put<int64_t>(&made, 48, batch * heads * 128);
    put<int64_t>(&made, 56, batch * 128);
    put<int64_t>(&made, 96, batch * heads);
    EXPECT_EQ(plan(made).grid, (std::array<uint32_t, 3>{x, y, 1})) << batch << " x " << heads;
  }
}

TEST_F(CombineFolder, KnowsTheNamesOfSequencesOfTheirOwnLengths) {
  for (const int log_of_parts : {5, 6, 7, 8})
    EXPECT_TRUE(is_known(name_of("ILi8EEENS5_ILi128E", log_of_parts)));
  for (const int log_of_parts : {4, 5, 8})
    EXPECT_TRUE(is_known(name_of("ILi16EEENS5_ILi64E", log_of_parts)));
  EXPECT_FALSE(is_known(name_of("ILi8EEENS5_ILi256E")));
  EXPECT_FALSE(is_known(name_of("ILi8EEENS5_ILi128E", 5, "ELb0ELb0ENS_10bfloat16_tEf")));
  EXPECT_FALSE(is_known(name_of("ILi8EEENS5_ILi128E", 5, "ELb0ELb1Eff")));
}

TEST_F(CombineFolder, TellsFp16ByTheName) {
  const PlannedCall made =
      plan(filled(), name_of("ILi8EEENS5_ILi128E", 5, "ELb0ELb1ENS_6half_tEf"));
  EXPECT_EQ(made.solution, "fibshim_decode_combine_d128_fp16");
  EXPECT_EQ(made.arguments, plan(filled()).arguments);
}

TEST_F(CombineFolder, TakesHeadsOf64) {
  Struct made = filled();
  put<int32_t>(&made, 20, 64);
  for (const int offset : {40, 136}) put<int64_t>(&made, offset, 64);
  put<int64_t>(&made, 48, 10240);
  put<int64_t>(&made, 56, 320);
  put<int64_t>(&made, 128, 2048);
  const PlannedCall planned = plan(made, name_of("ILi16EEENS5_ILi64E"));
  EXPECT_EQ(planned.solution, "fibshim_decode_combine_d64");
  EXPECT_EQ(planned.grid, (std::array<uint32_t, 3>{4, 5, 1}));
}

TEST_F(CombineFolder, LeavesWhatItIsNotForToTheOriginal) {
  const Guard guards[] = {
      {"no sequences", {{0, 0, 4}, {240, 0, 4}}},
      {"one part", {{24, 1, 4}, {84, 1, 4}}},
      {"another head size", {{20, 96, 4}}},
      {"parts in batches", {{32, 5, 4}}},
      {"rows of parts apart", {{40, 256}}},
      {"heads of parts apart", {{56, 128}}},
      {"parts apart", {{48, 128}}},
      {"other rows in the parts' lse", {{80, 6, 4}}},
      {"other parts in the parts' lse", {{84, 16, 4}}},
      {"other heads in the parts' lse", {{88, 16, 4}}},
      {"the parts' lse in batches", {{92, 5, 4}}},
      {"heads of the parts' lse apart", {{104, 6}}},
      {"the parts' lse apart", {{96, 5}}},
      {"heads of the output apart", {{136, 256}}},
      {"lse of another pitch", {{160, 6}}},
      {"other rows in the divisor", {{176, 6, 4}}},
      {"other heads in the divisor", {{188, 16, 4}}},
      {"other sequences in the schedule", {{240, 6, 4}}},
      {"other heads in the schedule", {{244, 16, 4}}},
      {"heads not packed", {{252, 0, 1}}},
      {"other first rows in the schedule", {{256, 0x7000'0009'0000}}},
      {"no first rows", {{200, 0}, {256, 0}}},
      {"no lengths of queries", {{272, 0}}},
      {"no counts of parts", {{216, 0}}},
      {"nothing to count by", {{232, 0}}},
      {"some queries unused", {{208, 0x7000'0009'0000}}},
      {"some queries unused in the schedule", {{264, 0x7000'0009'0000}}},
      {"sequences out of order", {{224, 0x7000'0009'0000}}},
      {"several rows a sequence", {{0, 4, 4}, {240, 4, 4}}},
      {"parts not aligned", {{8, 0x7000'0000'0008}}},
      {"the output not aligned", {{120, 0x7000'0000'0004}}},
      {"rows of the output not aligned", {{128, 4098}}},
  };
  for (const Guard& guard : guards) {
    Struct made = filled();
    for (const Patch& patch : guard.patches) {
      memcpy(made.data() + patch.offset, &patch.value, static_cast<size_t>(patch.size));
    }
    EXPECT_EQ(plan(made).outcome, Outcome::fallback_where) << guard.what;
  }
}

// Both forms of the kernel, which have one name.
TEST_F(CombineFolder, SaysWhatIsWritten) {
  SymbolMatch matches[2];
  ASSERT_EQ(loader_.match(snapshot_, name_of().c_str(), matches, 2), 2U);
  for (const SymbolMatch& match : matches) {
    std::set<std::string> written;
    const Binding* const bindings = snapshot_->begin(snapshot_->bindings);
    for (uint32_t i = 0; i < snapshot_->bindings.count; ++i) {
      if (bindings[i].pattern != match.pattern) continue;
      const TensorUse* const tensors = snapshot_->begin(bindings[i].tensors);
      for (uint32_t k = 0; k < bindings[i].tensors.count; ++k) {
        if (tensors[k].is_written != 0) written.insert(snapshot_->text(tensors[k].name));
      }
      // Before its wait the next kernel may read memory that this one reads, but none that it
      // writes.
      const Solution& solution = snapshot_->begin(snapshot_->solutions)[bindings[i].solution];
      EXPECT_EQ(solution.kept_params, 0x1fU);
      EXPECT_EQ(solution.next_may_begin, 13);
      EXPECT_TRUE(solution.may_begin_early());
    }
    EXPECT_EQ(written, (std::set<std::string>{"lse", "output", "semaphore"}));
  }
}

// The same kernel of sglang-kernel: another struct.
struct SortedCombineFolder : FlashAttentionFolder {
  using Struct = std::array<char, 232>;

  static Struct filled() {
    Struct made = {};
    const std::pair<int, int32_t> words[] = {{8, 5},  {12, 128}, {16, 32}, {20, 32},
                                             {24, 1}, {72, 5},   {76, 32}, {80, 32},
                                             {84, 1}, {168, 5},  {180, 32}};
    for (const auto& [offset, word] : words) put(&made, offset, word);
    const std::pair<int, int64_t> strides[] = {{32, 128}, {40, 20480}, {48, 640},  {88, 160},
                                               {96, 5},   {120, 4096}, {128, 128}, {152, 5}};
    for (const auto& [offset, stride] : strides) put(&made, offset, stride);
    for (const int offset : {0, 64, 112, 144, 192, 208, 216, 224}) {
      put(&made, offset, CombineFolder::address(offset));
    }
    return made;
  }

  PlannedCall plan(const Struct& of_engine, const std::string& name = CombineFolder::name_of(),
                   uint32_t grid_x = 4, uint32_t grid_y = 1, uint32_t batch_size = 5) const {
    return planned(of_engine, name, grid_x, grid_y, batch_size);
  }
};

TEST_F(SortedCombineFolder, PassesOnWhatTheStructHolds) {
  const PlannedCall made = plan(filled());
  EXPECT_EQ(made.outcome, Outcome::hit);
  EXPECT_EQ(made.solution, "fibshim_decode_combine_sorted_d128");
  EXPECT_EQ(made.grid, (std::array<uint32_t, 3>{8, 5, 1}));
  EXPECT_EQ(made.block, (std::array<uint32_t, 3>{128, 1, 1}));
  std::vector<uint64_t> expected;
  for (const int offset : {0, 64, 192, 216, 208, 112, 144, 224}) {
    expected.push_back(static_cast<uint64_t>(CombineFolder::address(offset)));
  }
  // The stride of the output's rows, the batch, the rows, the heads, and 0: the next kernel waits.
  for (const uint64_t value : {4096, 5, 5, 32, 0}) expected.push_back(value);
  EXPECT_EQ(made.arguments, expected);
}

TEST_F(SortedCombineFolder, TellsFp16ByTheName) {
  const PlannedCall made =
      plan(filled(), CombineFolder::name_of("ILi8EEENS5_ILi128E", 5, "ELb0ELb1ENS_6half_tEf"));
  EXPECT_EQ(made.solution, "fibshim_decode_combine_sorted_d128_fp16");
  EXPECT_EQ(made.arguments, plan(filled()).arguments);
}

TEST_F(SortedCombineFolder, TakesHeadsOf64) {
  Struct made = filled();
  put<int32_t>(&made, 12, 64);
  for (const int offset : {32, 128}) put<int64_t>(&made, offset, 64);
  put<int64_t>(&made, 40, 10240);
  put<int64_t>(&made, 48, 320);
  put<int64_t>(&made, 120, 2048);
  const PlannedCall planned = plan(made, CombineFolder::name_of("ILi16EEENS5_ILi64E"), 2);
  EXPECT_EQ(planned.solution, "fibshim_decode_combine_sorted_d64");
  EXPECT_EQ(planned.grid, (std::array<uint32_t, 3>{4, 5, 1}));
}

TEST_F(SortedCombineFolder, LeavesWhatItIsNotForToTheOriginal) {
  const Guard guards[] = {
      {"no rows",
       {{8, 0, 4}, {72, 0, 4}, {168, 0, 4}, {40, 0}, {48, 0}, {88, 0}, {96, 0}, {152, 0}}},
      {"one part", {{16, 1, 4}, {76, 1, 4}}},
      {"another head size", {{12, 96, 4}}},
      {"parts in batches", {{24, 5, 4}}},
      {"rows of parts apart", {{32, 256}}},
      {"heads of parts apart", {{48, 128}}},
      {"parts apart", {{40, 128}}},
      {"other rows in the parts' lse", {{72, 6, 4}}},
      {"other parts in the parts' lse", {{76, 16, 4}}},
      {"other heads in the parts' lse", {{80, 16, 4}}},
      {"the parts' lse in batches", {{84, 5, 4}}},
      {"heads of the parts' lse apart", {{96, 6}}},
      {"the parts' lse apart", {{88, 5}}},
      {"heads of the output apart", {{128, 256}}},
      {"lse of another pitch", {{152, 6}}},
      {"other rows in the divisor", {{168, 6, 4}}},
      {"other heads in the divisor", {{180, 16, 4}}},
      {"no first rows", {{192, 0}}},
      {"some queries unused", {{200, 0x7000'0009'0000}}},
      {"no counts of parts", {{208, 0}}},
      {"no order", {{216, 0}}},
      {"nothing to count by", {{224, 0}}},
      {"parts not aligned", {{0, 0x7000'0000'0008}}},
      {"the output not aligned", {{112, 0x7000'0000'0004}}},
      {"rows of the output not aligned", {{120, 4098}}},
  };
  for (const Guard& guard : guards) {
    Struct made = filled();
    for (const Patch& patch : guard.patches) {
      memcpy(made.data() + patch.offset, &patch.value, static_cast<size_t>(patch.size));
    }
    EXPECT_EQ(plan(made).outcome, Outcome::fallback_where) << guard.what;
  }
  const std::string name = CombineFolder::name_of();
  EXPECT_EQ(plan(filled(), name, 8).outcome, Outcome::fallback_where);     // two rows a sequence
  EXPECT_EQ(plan(filled(), name, 4, 2).outcome, Outcome::fallback_where);  // heads in two tiles
  EXPECT_EQ(plan(filled(), name, 4, 1, 4).outcome,
            Outcome::fallback_where);  // more rows than sequences
}

// FlashInfer's kernel: 5 sequences, 32 query heads on 8 key heads, pages of 16, in 7 parts. The
// addresses are made up.
struct FlashInferFolder : FlashAttentionFolder {
  using Struct = std::array<char, 240>;

  static Struct filled() {
    Struct made = {};
    const std::pair<int, int32_t> words[] = {
        {8, 16},     {20, 4},    {24, 16},    {28, 8},     {32, 128},  {36, 5},
        {40, 16384}, {44, 1024}, {48, 128},   {52, 16384}, {56, 1024}, {60, 128},
        {168, 7},    {172, 32},  {176, 4096}, {180, 128},  {184, -1},  {232, 1}};
    for (const auto& [offset, word] : words) put(&made, offset, word);
    for (const int offset : {0, 64, 72, 80, 88, 96, 112, 120, 192, 200, 208, 216, 224}) {
      put(&made, offset, address(offset));
    }
    put(&made, 144, 0.0883883);
    return made;
  }
  static int64_t address(int offset) { return 0x7000'0000'0000 + offset * int64_t{1 << 20}; }

  static std::string name_of(const char* tile = "ELj1ELj8ELj16ELj4ELj2E",
                             const char* variant = "ILb0ELb0ELb0ELb0E", int positions = 0) {
    return "_ZN10flashinfer33BatchDecodeWithPagedKVCacheKernelILNS_15PosEncodingModeE" +
           std::to_string(positions) + "ELj2" + tile + "NS_16DefaultAttention" + variant +
           "EE6ParamsEEvT7_";
  }

  PlannedCall plan(const Struct& of_engine, const std::string& name = name_of(),
                   uint32_t kv_heads = 8) const {
    return planned(of_engine, name, 7, kv_heads);
  }
};

TEST_F(FlashInferFolder, PassesOnThePlan) {
  const PlannedCall made = plan(filled());
  EXPECT_EQ(made.outcome, Outcome::hit);
  EXPECT_EQ(made.solution, "fibshim_gqa_paged_decode_planned_h32_kv8_d128");
  EXPECT_EQ(made.grid, (std::array<uint32_t, 3>{8, 7, 1}));
  EXPECT_EQ(made.block, (std::array<uint32_t, 3>{128, 1, 1}));
  std::vector<uint64_t> expected;
  for (const int offset : {0, 64, 72, 80, 88, 96, 192, 200, 216, 224, 112, 120}) {
    expected.push_back(static_cast<uint64_t>(address(offset)));
  }
  const double scale = 0.0883883;
  uint64_t bits;
  memcpy(&bits, &scale, sizeof bits);
  for (const uint64_t value : {bits, uint64_t{4096}, uint64_t{16384}, uint64_t{1024}, uint64_t{128},
                               uint64_t{8}, uint64_t{4}, uint64_t{16}, uint64_t{1}}) {
    expected.push_back(value);
  }
  EXPECT_EQ(made.arguments, expected);
}

TEST_F(FlashInferFolder, TakesWholeSequencesWithoutLse) {
  Struct whole = filled();
  put<char>(&whole, 232, 0);
  for (const int offset : {120, 208, 224}) put<int64_t>(&whole, offset, 0);
  const PlannedCall made = plan(whole);
  EXPECT_EQ(made.outcome, Outcome::hit);
  EXPECT_EQ(made.arguments.back(), 0U);
}

TEST_F(FlashInferFolder, LeavesWhatItIsNotForToTheOriginal) {
  struct Wrong {
    const char* what;
    int offset;
    int64_t value;
    int size = 4;
  };
  const Wrong wrongs[] = {{"another head size", 32, 64},
                          {"heads that do not fit the group", 172, 16},
                          {"other parts than the grid", 168, 8},
                          {"another page size", 8, 32},
                          {"heads of Q apart", 180, 256},
                          {"other pages of V", 52, 32768},
                          {"other tokens of V", 56, 2048},
                          {"other heads of V", 60, 256},
                          {"rotary positions", 104, 1 << 20, 8},
                          {"slopes", 128, 1 << 20, 8},
                          {"softcap", 136, 0x403e000000000000, 8},
                          {"a window", 184, 100},
                          {"no scale", 144, 0, 8},
                          {"a flag that is none", 232, 2, 1},
                          {"no pages", 80, 0, 8},
                          {"no first pages", 88, 0, 8},
                          {"no lengths", 96, 0, 8},
                          {"no sequences", 192, 0, 8},
                          {"no chunks", 200, 0, 8},
                          {"no chunk size", 216, 0, 8},
                          {"Q not aligned", 0, 0x7000'0000'0008, 8},
                          {"K not aligned", 64, 0x7000'0000'0008, 8},
                          {"V not aligned", 72, 0x7000'0000'0008, 8},
                          {"the output not aligned", 112, 0x7000'0000'0004, 8},
                          {"rows of Q not aligned", 176, 4100}};
  for (const Wrong& wrong : wrongs) {
    Struct made = filled();
    memcpy(made.data() + wrong.offset, &wrong.value, static_cast<size_t>(wrong.size));
    EXPECT_EQ(plan(made).outcome, Outcome::fallback_where) << wrong.what;
  }
  for (const auto& [mine, of_v, what] :
       {std::tuple(40, 52, "pages"), std::tuple(44, 56, "tokens"), std::tuple(48, 60, "heads")}) {
    Struct made = filled();
    for (const int offset : {mine, of_v}) put<int32_t>(&made, offset, 1028);
    EXPECT_EQ(plan(made).outcome, Outcome::fallback_where) << what << " not aligned";
  }
  Struct no_page_size = filled();
  for (const int offset : {8, 24}) put<int32_t>(&no_page_size, offset, 0);
  EXPECT_EQ(plan(no_page_size).outcome, Outcome::fallback_where);
  EXPECT_EQ(plan(filled(), name_of(), 4).outcome, Outcome::fallback_where);  // heads of the grid
}

TEST_F(FlashInferFolder, KnowsOnlyPlainKernelsForHopperAndTheirCode) {
  EXPECT_TRUE(is_known(name_of("ELj4ELj8ELj16ELj1ELj8E")));
  EXPECT_TRUE(is_known(name_of("ELj1ELj8ELj8ELj4ELj4E")));     // heads of 64
  EXPECT_FALSE(is_known(name_of("ELj1ELj8ELj32ELj4ELj1E")));   // of 256
  EXPECT_FALSE(is_known(name_of("ELj1ELj8ELj16ELj16ELj1E")));  // groups of 16
  EXPECT_FALSE(is_known(name_of("ELj1ELj16ELj8ELj4ELj4E")));   // fp8
  for (const char* variant : {"ILb1ELb0ELb0ELb0E", "ILb0ELb1ELb0ELb0E", "ILb0ELb0ELb1ELb0E",
                              "ILb0ELb0ELb0ELb1E"}) {  // mask, window, softcap, slopes
    EXPECT_FALSE(is_known(name_of("ELj1ELj8ELj16ELj4ELj2E", variant))) << variant;
  }
  EXPECT_FALSE(is_known(name_of("ELj1ELj8ELj16ELj4ELj2E", "ILb0ELb0ELb0ELb0E", 1)));  // RoPE

  SymbolMatch matches[2];  // bfloat16 and fp16, which only the code tells apart
  ASSERT_EQ(loader_.match(snapshot_, name_of().c_str(), matches, 2), 2U);
  Candidate candidates[2] = {};
  for (int i = 0; i < 2; ++i) fill_candidate(*snapshot_, matches[i], &candidates[i]);
  const Param param = {0, 240};
  for (int i = 0; i < 2; ++i) {
    const auto& pattern = *candidates[i].pattern;
    ImageHashes image = {{1, 2}, snapshot_->begin(pattern.images)[0]};
    EXPECT_EQ(fit_pattern(*snapshot_, pattern, &param, 1, &image), Fit::fits);
    EXPECT_EQ(fit_pattern(*snapshot_, *candidates[1 - i].pattern, &param, 1, &image),
              Fit::other_image);
    image.code.low ^= 1;  // other code, for example for fp8
    EXPECT_EQ(fit_pattern(*snapshot_, pattern, &param, 1, &image), Fit::other_image);
    EXPECT_EQ(fit_pattern(*snapshot_, pattern, &param, 1, nullptr), Fit::other_image);
  }
}

}  // namespace
}  // namespace fibshim
