#include "loader/read/code_hash.h"

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

namespace fibshim {
namespace {

std::string read_image(const std::string& name) {
  std::ifstream in(std::string(LOADER_TEST_DATA) + "/" + name, std::ios::binary);
  std::ostringstream out;
  out << in.rdbuf();
  EXPECT_FALSE(out.str().empty()) << name;
  return out.str();
}

TEST(CodeHash, StaysWhereOnlyNamesPathsAndDebugSectionsDiffer) {
  const std::string first = read_image("code_first");
  const std::string second = read_image("code_second");
  EXPECT_NE(first, second);
  ASSERT_TRUE(hash_code(first));
  EXPECT_EQ(hash_code(first), hash_code(second));
}

TEST(CodeHash, DiffersWithTheCodeAndWithTheGpu) {
  EXPECT_NE(hash_code(read_image("code_first")), hash_code(read_image("code_other")));
  EXPECT_NE(hash_code(read_image("sm_80.cubin")), hash_code(read_image("sm_90.cubin")));
}

TEST(CodeHash, DiffersWithEachByteOfWhatItCovers) {
  std::string image = read_image("code_first");
  const auto whole = hash_code(image);
  size_t covered = 0;
  for (char& byte : image) {
    byte ^= 1;
    covered += hash_code(image) != whole;
    byte ^= 1;
  }
  // The code of this kernel alone is 512 bytes.
  EXPECT_GT(covered, 512u);
}

TEST(CodeHash, OfAKernelDoesNotChangeWithWhatStandsBesideIt) {
  const std::string alone = read_image("code_plain");
  const std::string beside = read_image("code_beside");
  const auto code = hash_kernel(alone, "add");
  ASSERT_TRUE(code);
  EXPECT_NE(hash_code(alone), hash_code(beside));
  EXPECT_EQ(hash_kernel(beside, "add"), code);
  EXPECT_NE(hash_kernel(beside, "other"), code);
  EXPECT_FALSE(hash_kernel(alone, "other"));
  EXPECT_FALSE(hash_kernel(alone, ""));
  EXPECT_FALSE(hash_kernel(alone.substr(0, alone.size() / 2), "add"));
}

TEST(CodeHash, OfAKernelIsThatOfItsCodeAndVariables) {
  const auto code = hash_kernel(read_image("code_first"), "triton_add_3");
  ASSERT_TRUE(code);
  EXPECT_EQ(hash_kernel(read_image("code_second"), "triton_add_17"), code);
  EXPECT_NE(hash_kernel(read_image("code_other"), "triton_add_3"), code);
}

TEST(CodeHash, OfAFatbinIsThatOfTheOnlyCubinInIt) {
  const auto code = hash_code(read_image("sm_90.cubin"));
  ASSERT_TRUE(code);
  EXPECT_EQ(hash_code(read_image("only_sm_90.fatbin")), code);
  EXPECT_FALSE(hash_code(read_image("compressed.fatbin")));  // with PTX beside it
}

TEST(CodeHash, IsOnlyThatOfAWholeCubin) {
  EXPECT_FALSE(hash_code(""));
  EXPECT_FALSE(hash_code(read_image("ptx")));
  EXPECT_FALSE(hash_code(read_image("plain.fatbin")));
  const std::string image = read_image("code_first");
  for (size_t size = 0; size < image.size(); size += 16) {
    (void)hash_code(image.substr(0, size));  // reads nothing beyond it
  }
  EXPECT_FALSE(hash_code(image.substr(0, image.size() / 2)));
}

}  // namespace
}  // namespace fibshim
