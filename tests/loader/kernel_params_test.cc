// The number of parameters of an image's kernels is the same for every form of the image.
#include "loader/read/kernel_params.h"

#include "loader/read/fatbin.h"
#include "shim/abi/snapshot.h"
#include "tests/loader/test_folder.h"
#include "tests/support/text.h"

namespace fibshim {
namespace {

using Counts = std::map<std::string, uint32_t>;

TEST(KernelParams, AreCountedAlikeInEveryForm) {
  const Counts counts = count_kernel_params(test_image("sm_90.cubin"));
  EXPECT_EQ(counts.size(), 7u);
  EXPECT_EQ(counts.at("scale"), 4u);
  EXPECT_EQ(counts.at("no_params"), 0u);
  for (const char* form : {"ptx", "plain.fatbin", "compressed.fatbin"}) {
    EXPECT_EQ(count_kernel_params(test_image(form)), counts) << form;
  }
}

TEST(KernelParams, OfAFatbinWithPtxAloneComeFromThat) {
  std::string fatbin = test_image("plain.fatbin");
  const auto info = read_fatbin(fatbin);
  ASSERT_TRUE(info);
  const Counts counts = count_kernel_params(fatbin);
  for (const FatbinEntry& entry : info->entries) {
    if (entry.kind != FatbinEntryKind::elf) continue;
    fatbin[static_cast<size_t>(entry.payload.data() - fatbin.data())] =
        'X';  // not an ELF file any more
  }
  EXPECT_EQ(count_kernel_params(fatbin), counts);
}

TEST(KernelParams, OfPtxAreCountedByTheirList) {
  const auto count = [](const std::string& entry) {
    const Counts counts = count_kernel_params(".version 8.0\n.target sm_90\n" + entry);
    return counts.empty() ? -1 : static_cast<int>(counts.begin()->second);
  };
  EXPECT_EQ(
      count(".visible .entry k(\n .param .u64 k_param_0,\n .param .u32 k_param_1\n)\n{ ret; }"), 2);
  EXPECT_EQ(
      count(".entry k (.param .align 8 .b8 k_param_0[24])\n{ ld.param.u64 %rd1, [k_param_0]; }"),
      1);
  EXPECT_EQ(count(".entry k()\n{ .param .b32 p; }"), 0);
  EXPECT_EQ(count(".entry k\n{ .param .b32 p; }"), 0);
  EXPECT_EQ(count(".entry k(.param .u64 a"), 1);  // cut short
}

TEST(KernelParams, OfWhatIsNoImageAreNone) {
  EXPECT_TRUE(count_kernel_params("").empty());
  EXPECT_TRUE(count_kernel_params("no image").empty());
  EXPECT_TRUE(count_kernel_params(test_image("sm_90.cubin").substr(0, 500)).empty());
}

TEST(KernelParams, AreListedForTheShim) {
  const std::string image = test_image("sm_90.cubin");
  Counts listed;
  fibloader_api(kLoaderApiVersion)
      ->list_kernels(image.data(), image.size(), &listed,
                     [](void* context, const char* name, uint32_t count) {
                       (*static_cast<Counts*>(context))[name] = count;
                     });
  EXPECT_EQ(listed, count_kernel_params(image));
}

}  // namespace
}  // namespace fibshim
