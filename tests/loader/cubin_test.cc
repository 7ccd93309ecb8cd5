// Reads GPU images: real ones from nvcc, older ones made from them, and damaged ones.
#include "loader/read/cubin.h"

#include <elf.h>
#include <string.h>

#include <random>

#include "loader/read/fatbin.h"
#include "loader/read/image_format.h"
#include "loader/read/ptx.h"
#include "tests/loader/test_folder.h"
#include "tests/support/text.h"

namespace fibshim {
namespace {

const CubinKernel& kernel_of(const CubinInfo& cubin, const char* name) {
  const CubinKernel* const kernel = cubin.find_kernel(name);
  EXPECT_NE(kernel, nullptr) << name;
  static const CubinKernel kNone;
  return kernel == nullptr ? kNone : *kernel;
}

std::vector<uint32_t> sizes_of(const CubinKernel& kernel) {
  std::vector<uint32_t> sizes;
  for (const KernelParam& param : kernel.params) sizes.push_back(param.size);
  return sizes;
}

struct ImageCase {
  const char* file;
  uint16_t sm;
  bool is_arch_specific;
};

class Cubin : public testing::TestWithParam<ImageCase> {};

TEST_P(Cubin, TellsItsSmAndItsKernels) {
  const ImageCase& image = GetParam();
  const std::string bytes = test_image(image.file);
  const auto cubin = read_cubin(bytes);
  ASSERT_TRUE(cubin) << cubin.error().message;
  EXPECT_EQ(cubin->sm, image.sm);
  EXPECT_EQ(cubin->is_arch_specific, image.is_arch_specific);
  EXPECT_EQ(cubin->abi, CubinAbi::since_13);
  EXPECT_EQ(cubin->kernels.size(), image.sm >= 90 ? 7u : 5u);
  EXPECT_EQ(cubin->find_kernel("scal"), nullptr);

  const CubinKernel& none = kernel_of(*cubin, "no_params");
  EXPECT_TRUE(none.params.empty());
  EXPECT_EQ(none.param_bytes, 0u);

  const CubinKernel& scale = kernel_of(*cubin, "scale");
  EXPECT_EQ(sizes_of(scale), (std::vector<uint32_t>{8, 8, 4, 4}));
  EXPECT_EQ(scale.params[3].offset, 20u);
  EXPECT_EQ(scale.param_bytes, 24u);
  EXPECT_EQ(scale.max_threads, 256u);
  EXPECT_GT(scale.registers, 3u);
  EXPECT_LT(scale.registers, 256u);
  EXPECT_GT(scale.code_bytes, 100u);
  // 64 floats; from sm_90 on with the reserve of 1 KB.
  EXPECT_EQ(scale.static_shared_bytes, image.sm >= 90 ? 256u + 1024u : 256u);

  const CubinKernel& mixed = kernel_of(*cubin, "mixed_params");
  EXPECT_EQ(sizes_of(mixed), (std::vector<uint32_t>{2, 1, 8, 240, 1}));
  EXPECT_EQ(mixed.params[1].offset, 2u);
  EXPECT_EQ(mixed.params[2].offset, 8u);
  EXPECT_EQ(mixed.params[4].offset, 256u);
  EXPECT_EQ(mixed.max_threads, 0u);

  const CubinKernel& huge = kernel_of(*cubin, "huge_params");
  EXPECT_EQ(sizes_of(huge), (std::vector<uint32_t>{6000, 8}));
  EXPECT_EQ(huge.params[1].offset, 6000u);

  EXPECT_GE(kernel_of(*cubin, "_Z12on_the_stackIfEvPT_").stack_bytes, 400u);
  if (image.sm >= 90) {
    EXPECT_EQ(kernel_of(*cubin, "clustered").required_cluster.x, 2u);
    EXPECT_EQ(kernel_of(*cubin, "exact_block").required_threads.x, 128u);
    EXPECT_EQ(kernel_of(*cubin, "exact_block").required_threads.y, 2u);
    EXPECT_EQ(scale.required_cluster.x, 0u);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Every, Cubin,
    testing::Values(ImageCase{"sm_75.cubin", 75, false}, ImageCase{"sm_80.cubin", 80, false},
                    ImageCase{"sm_89.cubin", 89, false}, ImageCase{"sm_90.cubin", 90, false},
                    ImageCase{"sm_90a.cubin", 90, true}, ImageCase{"sm_100.cubin", 100, false},
                    ImageCase{"sm_103.cubin", 103, false}, ImageCase{"sm_120.cubin", 120, false}),
    [](const auto& row) {
      std::string name = row.param.file;
      return name.substr(0, name.find('.'));
    });

// nvcc 13 writes only the newer ABI. The older one differs in the ident bytes, in the place of the
// SM in e_flags, and in having a flag for "sm_90a".
std::string with_old_abi(std::string bytes, uint32_t flags) {
  bytes[7] = 0x33;
  bytes[8] = 7;
  memcpy(bytes.data() + 48, &flags, sizeof flags);
  return bytes;
}

// Sections that share bytes (from sm_100 on), and those of relocatable images that reserve memory
// without bytes in the file.
TEST(Cubin, ReadsImagesWithConstantsTablesAndTextures) {
  for (const char* kind : {"tables", "relocatable"}) {
    for (const char* sm : {"75", "80", "89", "90", "100", "103", "120", "121"}) {
      const std::string name = std::string(kind) + ".sm_" + sm + ".cubin";
      const std::string bytes = test_image(name.c_str());
      const auto cubin = read_cubin(bytes);
      ASSERT_TRUE(cubin) << name << ": " << cubin.error().message;
      EXPECT_EQ(std::to_string(cubin->sm), sm);
      EXPECT_EQ(sizes_of(kernel_of(*cubin, "look_up")), (std::vector<uint32_t>{8, 8, 4})) << name;
      for (size_t size = 0; size < bytes.size(); size += 1 + size / 97) {
        EXPECT_FALSE(read_cubin(bytes.substr(0, size))) << name << " cut to " << size;
      }
    }
  }
}

TEST(Cubin, ReadsTheAbiOfOlderToolkits) {
  auto cubin = read_cubin(with_old_abi(test_image("sm_90.cubin"), 0x5a055a));
  ASSERT_TRUE(cubin) << cubin.error().message;
  EXPECT_EQ(cubin->sm, 90);
  EXPECT_EQ(cubin->abi, CubinAbi::before_13);
  EXPECT_FALSE(cubin->is_arch_specific);
  EXPECT_EQ(sizes_of(kernel_of(*cubin, "scale")), (std::vector<uint32_t>{8, 8, 4, 4}));
  cubin = read_cubin(with_old_abi(test_image("sm_90.cubin"), 0x5a0d5a));
  ASSERT_TRUE(cubin);
  EXPECT_TRUE(cubin->is_arch_specific);
}

TEST(Cubin, RejectsOtherFiles) {
  const auto message = [](std::string_view bytes) {
    const auto cubin = read_cubin(bytes);
    EXPECT_FALSE(cubin);
    return cubin ? std::string() : cubin.error().message;
  };
  EXPECT_EQ(message(""), "too short for a cubin");
  EXPECT_EQ(message(std::string(1000, 'x')), "not a cubin: no ELF magic");
  std::string image = test_image("sm_90.cubin");
  image[18] = 62;  // x86-64
  EXPECT_CONTAINS(message(image), "machine 62");
  image = test_image("sm_90.cubin");
  image[4] = 1;
  EXPECT_CONTAINS(message(image), "64-bit");
  image = test_image("sm_90.cubin");
  image[7] = 0;
  EXPECT_CONTAINS(message(image), "unknown ABI");
  std::ifstream self("/proc/self/exe", std::ios::binary);
  const std::string program{std::istreambuf_iterator<char>(self), {}};
  EXPECT_CONTAINS(message(program), "not CUDA");
}

TEST(Cubin, RejectsEveryTruncation) {
  const std::string image = test_image("sm_90.cubin");
  const uint64_t program_headers_end = image.size();
  for (size_t size = 0; size < program_headers_end; size += 1 + size / 97) {
    // A separate copy, so that the sanitizer sees a read past the end.
    const std::string cut = image.substr(0, size);
    EXPECT_FALSE(read_cubin(cut)) << size;
  }
}

TEST(Cubin, SurvivesDamage) {
  std::mt19937 random(7);
  uint32_t rejected = 0;
  for (const char* name : {"sm_80.cubin", "sm_90.cubin"}) {
    const std::string image = test_image(name);
    uint64_t table = 0;
    memcpy(&table, image.data() + 40, sizeof table);
    for (int round = 0; round < 3000; ++round) {
      std::string damaged = image;
      const int changes = 1 + static_cast<int>(random() % 4);
      for (int i = 0; i < changes; ++i) {
        // Damage to headers, names and section headers has the most effect.
        const size_t at = random() % 3 == 0   ? random() % 0x400
                          : random() % 2 == 0 ? table + random() % (image.size() - table)
                                              : random() % image.size();
        damaged[at] = static_cast<char>(random());
      }
      rejected += !read_cubin(damaged);
    }
  }
  EXPECT_GT(rejected, 100u);
}

// Returns the offset of the first record in the image for that attribute and parameter.
size_t find_param_record(const std::string& image, uint8_t attribute, uint16_t ordinal) {
  for (size_t at = 0; at + 16 <= image.size(); ++at) {
    const bool is_record = image[at] == 4 && static_cast<uint8_t>(image[at + 1]) == attribute &&
                           image[at + 2] == 12 && image[at + 3] == 0;
    uint16_t found = 0;
    memcpy(&found, image.data() + at + 8, sizeof found);
    if (is_record && found == ordinal) return at;
  }
  ADD_FAILURE() << "no such record";
  return 0;
}

TEST(Cubin, RejectsAParameterTableWithAGap) {
  std::string image = test_image("sm_90.cubin");
  const size_t at = find_param_record(image, 0x17, 1);
  image[at + 8] = 77;
  const auto cubin = read_cubin(image);
  ASSERT_FALSE(cubin);
  EXPECT_CONTAINS(cubin.error().message, "lacks or repeats parameter 1");
}

TEST(Cubin, RejectsAParameterOutsideItsBlock) {
  std::string image = test_image("sm_90.cubin");
  const size_t at = find_param_record(image, 0x17, 1);
  image[at + 11] = 0x40;  // the offset's high byte
  EXPECT_FALSE(read_cubin(image));
}

// Makes a cubin whose sections or kernels have names that are ends of one long string.
std::string cubin_of_shared_names(uint32_t kernels, uint32_t sections, uint32_t name_bytes) {
  const auto put = [](std::string* to, const auto& value) {
    to->append(reinterpret_cast<const char*>(&value), sizeof value);
  };
  std::string names(name_bytes, 'n');
  names += '\0';
  std::string symbols;
  for (uint32_t i = 0; i < kernels; ++i) {
    Elf64_Sym symbol{};
    symbol.st_name = i;  // each name is an end of the one before
    symbol.st_info = ELF64_ST_INFO(STB_GLOBAL, STT_FUNC);
    symbol.st_other = 0x10;
    symbol.st_shndx = 1;
    put(&symbols, symbol);
  }
  Elf64_Ehdr header{};
  memcpy(header.e_ident, ELFMAG "\x02\x01\x01\x41\x08", 9);
  header.e_machine = 190;
  header.e_version = EV_CURRENT;
  header.e_flags = 90 << 8;
  header.e_shentsize = sizeof(Elf64_Shdr);
  header.e_shnum = static_cast<uint16_t>(3 + sections);
  header.e_shstrndx = 1;
  header.e_shoff = sizeof header;
  const uint64_t names_at = sizeof header + header.e_shnum * sizeof(Elf64_Shdr);
  std::string image;
  put(&image, header);
  put(&image, Elf64_Shdr{});
  put(&image, Elf64_Shdr{0, SHT_STRTAB, 0, 0, names_at, names.size(), 0, 0, 1, 0});
  put(&image, Elf64_Shdr{0, SHT_SYMTAB, 0, 0, names_at + names.size(), symbols.size(), 1, 0, 1,
                         sizeof(Elf64_Sym)});
  for (uint32_t i = 0; i < sections; ++i) put(&image, Elf64_Shdr{i, SHT_NOBITS});
  return image + names + symbols;
}

TEST(Cubin, TakesWorkAndMemoryInProportionToItsSize) {
  EXPECT_TRUE(read_cubin(cubin_of_shared_names(3, 3, 10)));
  // 20,000 kernels, or 60,000 sections, with names of up to a megabyte: gigabytes in all.
  for (const std::string& image :
       {cubin_of_shared_names(20000, 0, 1 << 20), cubin_of_shared_names(0, 60000, 1 << 20)}) {
    const auto cubin = read_cubin(image);
    ASSERT_FALSE(cubin);
    EXPECT_CONTAINS(cubin.error().message, "names overlap");
  }
  for (const uint32_t type : {0x70000000, SHT_PROGBITS}) {  // records, code
    std::string image = cubin_of_shared_names(0, 2, 100);
    if (type == SHT_PROGBITS) image.replace(image.find("nnn"), 6, ".text.");
    for (const size_t section : {3, 4}) {  // both cover the whole file
      const Elf64_Shdr whole{0, type, 0, 0, 0, image.size(), 0, 0, 1, 0};
      memcpy(image.data() + sizeof(Elf64_Ehdr) + section * sizeof whole, &whole, sizeof whole);
    }
    const auto cubin = read_cubin(image);
    ASSERT_FALSE(cubin) << type;
    EXPECT_EQ(cubin.error().message, "its sections overlap");
  }
}

TEST(Fatbin, ListsItsEntries) {
  const std::string bytes = test_image("plain.fatbin");
  const auto fatbin = read_fatbin(bytes);
  ASSERT_TRUE(fatbin) << fatbin.error().message;
  ASSERT_EQ(fatbin->entries.size(), 2u);
  for (const FatbinEntry& entry : fatbin->entries) {
    EXPECT_EQ(entry.sm, 90);
    EXPECT_EQ(entry.compression, FatbinCompression::none);
    if (entry.kind == FatbinEntryKind::elf) {
      const auto cubin = read_cubin(entry.payload);
      ASSERT_TRUE(cubin) << cubin.error().message;
      EXPECT_EQ(cubin->kernels.size(), 7u);
    } else {
      const auto ptx = read_ptx(entry.payload);
      ASSERT_TRUE(ptx) << ptx.error().message;
      EXPECT_EQ(ptx->kernels.size(), 7u);
    }
  }
}

TEST(Fatbin, KnowsCompressedEntries) {
  const std::string bytes = test_image("compressed.fatbin");
  const auto fatbin = read_fatbin(bytes);
  ASSERT_TRUE(fatbin) << fatbin.error().message;
  const uint64_t plain = test_image("sm_90.cubin").size();
  for (const FatbinEntry& entry : fatbin->entries) {
    EXPECT_EQ(entry.compression, FatbinCompression::zstd);
    EXPECT_LT(entry.stored_bytes, entry.raw_bytes);
    EXPECT_EQ(entry.payload.size(), entry.stored_bytes);
    if (entry.kind != FatbinEntryKind::elf) continue;
    EXPECT_EQ(entry.raw_bytes, plain);
  }
}

TEST(Fatbin, RejectsEveryTruncationAndSurvivesDamage) {
  const std::string image = test_image("plain.fatbin");
  for (size_t size = 0; size < image.size(); size += 1 + size / 97) {
    EXPECT_FALSE(read_fatbin(std::string(image, 0, size))) << size;
  }
  std::mt19937 random(11);
  uint32_t rejected = 0;
  for (int round = 0; round < 3000; ++round) {
    std::string damaged = image;
    damaged[random() % 0x90] = static_cast<char>(random());
    rejected += !read_fatbin(damaged);
  }
  EXPECT_GT(rejected, 100u);
}

TEST(Ptx, TellsVersionTargetAndKernels) {
  const std::string bytes = test_image("ptx");
  const auto ptx = read_ptx(bytes);
  ASSERT_TRUE(ptx) << ptx.error().message;
  EXPECT_EQ(ptx->sm, 90);
  EXPECT_EQ(ptx->scope, ArchScope::portable);
  EXPECT_FALSE(ptx->version.empty());
  EXPECT_EQ(ptx->kernels.size(), 7u);
  EXPECT_NE(std::find(ptx->kernels.begin(), ptx->kernels.end(), "scale"), ptx->kernels.end());
  EXPECT_EQ(read_ptx(".version 9.0\n.target sm_100f, debug\n")->scope, ArchScope::family_specific);
  EXPECT_EQ(read_ptx("// x\n/* .target sm_1 */ .version 8.0\n.target sm_90a\n")->scope,
            ArchScope::arch_specific);
}

TEST(Ptx, RejectsOtherText) {
  for (const char* text : {"", ".version", ".version 9.0", ".target sm_90", ".target x .version 1",
                           ".version 9.0 .target sm_", ".version 9.0 .target sm_90abc",
                           ".version 9.0 .target sm_90 .entry (", "int main() {}"}) {
    EXPECT_FALSE(read_ptx(text)) << text;
  }
}

TEST(Ptx, RejectsTooManyKernels) {
  constexpr size_t kMost = 1 << 16;
  std::string text = ".version 9.0\n.target sm_90\n";
  for (size_t i = 0; i < kMost; ++i) text += ".entry a\n";
  EXPECT_TRUE(read_ptx(text));
  const auto ptx = read_ptx(text + ".entry a\n");
  ASSERT_FALSE(ptx);
  EXPECT_EQ(ptx.error().message, "PTX with too many kernels");
}

TEST(Image, FormatIsKnownByItsFirstBytes) {
  EXPECT_EQ(detect_image_format(test_image("sm_80.cubin")), ImageFormat::cubin);
  EXPECT_EQ(detect_image_format(test_image("plain.fatbin")), ImageFormat::fatbin);
  EXPECT_EQ(detect_image_format(test_image("ptx")), ImageFormat::ptx);
  EXPECT_EQ(detect_image_format(""), ImageFormat::unknown);
  EXPECT_EQ(detect_image_format("hello"), ImageFormat::unknown);
}

}  // namespace
}  // namespace fibshim
