#include "loader/read/code_hash.h"

#include <elf.h>
#include <string.h>

#include <fstream>
#include <sstream>
#include <vector>

#include <gtest/gtest.h>

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

struct Function {
  std::string name, code;
  bool is_kernel;
};

// Makes a cubin of these functions, of which the first calls the one at `callee`.
std::string make_cubin(const std::vector<Function>& functions, size_t callee) {
  const auto put = [](std::string* to, const auto& value) {
    to->append(reinterpret_cast<const char*>(&value), sizeof value);
  };
  constexpr uint16_t kNames = 1, kSymbols = 2, kFirst = 3;
  Elf64_Ehdr header{};
  memcpy(header.e_ident, ELFMAG "\x02\x01\x01\x41\x08", 9);
  header.e_machine = 190;
  header.e_flags = 90 << 8;
  header.e_shoff = sizeof header;
  header.e_shnum = static_cast<uint16_t>(kFirst + functions.size() + 1);
  header.e_shstrndx = kNames;
  const uint64_t content_at = sizeof header + header.e_shnum * sizeof(Elf64_Shdr);
  std::string names(1, '\0'), symbols, sections, content;
  put(&symbols, Elf64_Sym{});
  const auto add = [&](const std::string& bytes, Elf64_Shdr section) {
    section.sh_offset = content_at + content.size();
    section.sh_size = bytes.size();
    put(&sections, section);
    content += bytes;
  };
  std::vector<uint32_t> names_at;
  for (const Function& function : functions) {
    names_at.push_back(static_cast<uint32_t>(names.size()));
    names += ".text." + function.name + '\0';
    Elf64_Sym symbol{};
    symbol.st_name = names_at.back() + 6;
    symbol.st_info = ELF64_ST_INFO(STB_GLOBAL, STT_FUNC);
    symbol.st_other = function.is_kernel ? 0x10 : 0;
    symbol.st_shndx = static_cast<uint16_t>(kFirst + names_at.size() - 1);
    symbol.st_size = function.code.size();
    put(&symbols, symbol);
  }
  std::string call;
  put(&call, Elf64_Rela{0, ELF64_R_INFO(1 + callee, 1), 0});
  put(&sections, Elf64_Shdr{});
  add(names, {.sh_type = SHT_STRTAB});
  add(symbols, {.sh_type = SHT_SYMTAB, .sh_link = kNames});
  for (size_t i = 0; i < functions.size(); ++i) {
    add(functions[i].code, {.sh_name = names_at[i], .sh_type = SHT_PROGBITS});
  }
  add(call, {.sh_type = SHT_RELA, .sh_link = kSymbols, .sh_info = kFirst});
  std::string image;
  put(&image, header);
  return image + sections + content;
}

TEST(CodeHash, DiffersWithTheFunctionThatIsCalled) {
  const std::vector<Function> functions = {
      {"kernel", "call", true}, {"f", "x * 3", false}, {"g", "x * 5", false}};
  const std::string f = make_cubin(functions, 1);
  const std::string g = make_cubin(functions, 2);
  ASSERT_TRUE(hash_code(f));
  EXPECT_NE(hash_code(f), hash_code(g));
  EXPECT_NE(hash_kernel(f, "kernel"), hash_kernel(g, "kernel"));
}

TEST(CodeHash, DiffersWhenTwoKernelsExchangeTheirCode) {
  const auto make = [](const char* first, const char* second) {
    return make_cubin({{"a", first, true}, {"b", second, true}}, 0);
  };
  const auto code = hash_code(make("x * 3", "x * 5"));
  ASSERT_TRUE(code);
  EXPECT_NE(hash_code(make("x * 5", "x * 3")), code);
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
