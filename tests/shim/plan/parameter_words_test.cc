// Which words of a launch's parameters may be addresses that it holds.
#include "shim/plan/parameter_words.h"

#include <gtest/gtest.h>

#include <vector>

namespace fibshim {
namespace {

struct Bytes {
  uint64_t first;
  uint32_t words[4];
};
constexpr Param kLayout[] = {{0, 8}, {8, 16}};

// The words of the parameters, in order. Of a packed buffer `size` bytes are passed.
std::vector<uint64_t> words_of(Bytes* bytes, size_t size, bool is_packed) {
  void* pointers[] = {&bytes->first, bytes->words};
  void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, bytes, CU_LAUNCH_PARAM_BUFFER_SIZE, &size,
                   CU_LAUNCH_PARAM_END};
  std::vector<uint64_t> found;
  const auto keep = [&](uint64_t word, uint32_t, uint32_t) {
    found.push_back(word);
    return true;
  };
  EXPECT_TRUE(
      for_each_word(is_packed ? nullptr : pointers, is_packed ? extra : nullptr, kLayout, 2, keep));
  return found;
}

TEST(WordsOfParameters, StandAtMultiplesOfFourInEitherForm) {
  Bytes bytes = {7, {1, 0, 2, 0}};
  const std::vector<uint64_t> expected = {7, 1, uint64_t{2} << 32, 2};
  EXPECT_EQ(words_of(&bytes, sizeof bytes, false), expected);
  EXPECT_EQ(words_of(&bytes, sizeof bytes, true), expected);
}

TEST(WordsOfParameters, EndWithThePackedBuffer) {
  Bytes bytes = {7, {1, 0, 2, 0}};
  EXPECT_EQ(words_of(&bytes, 20, true), (std::vector<uint64_t>{7, 1, uint64_t{2} << 32}));
  EXPECT_EQ(words_of(&bytes, 16, true), (std::vector<uint64_t>{7, 1}));
  EXPECT_EQ(words_of(&bytes, 12, true), std::vector<uint64_t>{7});
  EXPECT_EQ(words_of(&bytes, 8, true), std::vector<uint64_t>{7});
  EXPECT_EQ(words_of(&bytes, 4, true), std::vector<uint64_t>{});
}

TEST(WordsOfParameters, AreNotToBeHadWithoutABuffer) {
  void* only_end[] = {CU_LAUNCH_PARAM_END};
  const auto take = [](uint64_t, uint32_t, uint32_t) { return true; };
  EXPECT_FALSE(for_each_word(nullptr, nullptr, kLayout, 2, take));
  EXPECT_TRUE(for_each_word(nullptr, nullptr, kLayout, 0, take));
  EXPECT_FALSE(for_each_word(nullptr, only_end, kLayout, 2, take));
}

}  // namespace
}  // namespace fibshim
