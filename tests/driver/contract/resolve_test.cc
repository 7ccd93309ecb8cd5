// How driver functions are found (tools/doc/driver_facts.md, sections 1 and 5).
#include <dlfcn.h>

#include "tests/driver/contract/driver_under_test.h"

namespace fibshim::contract {
namespace {

constexpr cuuint64_t kLegacy = CU_GET_PROC_ADDRESS_LEGACY_STREAM;
constexpr cuuint64_t kPerThread = CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;

struct Row {
  const char* base;
  int version;
  cuuint64_t flags;
  const char* exported;
};

// The questions of libcudart 13, and older forms.
constexpr Row kRows[] = {
    {"cuLaunchKernel", 4000, 0, "cuLaunchKernel"},
    {"cuLaunchKernel", 13000, kLegacy, "cuLaunchKernel"},
    {"cuLaunchKernel", 7000, kPerThread, "cuLaunchKernel_ptsz"},
    {"cuLaunchKernelEx", 11060, 0, "cuLaunchKernelEx"},
    {"cuLaunchKernelEx", 11060, kPerThread, "cuLaunchKernelEx_ptsz"},
    {"cuLaunchCooperativeKernel", 9000, 0, "cuLaunchCooperativeKernel"},
    {"cuLaunchCooperativeKernel", 9000, kPerThread, "cuLaunchCooperativeKernel_ptsz"},
    {"cuGraphLaunch", 10000, 0, "cuGraphLaunch"},
    {"cuGraphLaunch", 10000, kPerThread, "cuGraphLaunch_ptsz"},
    {"cuMemAlloc", 3020, 0, "cuMemAlloc_v2"},
    {"cuMemAlloc", 13000, kPerThread, "cuMemAlloc_v2"},
    {"cuMemcpyHtoD", 3020, 0, "cuMemcpyHtoD_v2"},
    {"cuMemcpyHtoD", 7000, kPerThread, "cuMemcpyHtoD_v2_ptds"},
    {"cuCtxGetDevice", 2000, 0, "cuCtxGetDevice"},
    {"cuCtxGetDevice", 13000, 0, "cuCtxGetDevice_v2"},
    {"cuModuleLoadData", 2000, 0, "cuModuleLoadData"},
    {"cuLibraryLoadData", 12000, 0, "cuLibraryLoadData"},
    {"cuGraphAddKernelNode", 10000, 0, "cuGraphAddKernelNode"},
    {"cuGraphAddKernelNode", 12000, 0, "cuGraphAddKernelNode_v2"},
    {"cuGraphAddNode", 12020, 0, "cuGraphAddNode"},
    {"cuGraphAddNode", 12030, 0, "cuGraphAddNode_v2"},
    {"cuGetProcAddress", 11030, 0, "cuGetProcAddress"},
    {"cuGetProcAddress", 12000, 0, "cuGetProcAddress_v2"},
    {"cuGetProcAddress", 13000, 0, "cuGetProcAddress_v2"},
};

class Resolve : public testing::TestWithParam<Row> {};

// The shim compares pointers, not names, so it needs this to recognise hooked functions.
TEST_P(Resolve, GivesTheExportedFunction) {
  const Row& row = GetParam();
  void* exported = dlsym(cuda().library, row.exported);
  ASSERT_NE(nullptr, exported);
  void* by_four = nullptr;
  EXPECT_OK(cuda().cuGetProcAddress(row.base, &by_four, row.version, row.flags));
  EXPECT_EQ(exported, by_four);
  void* by_five = nullptr;
  CUdriverProcAddressQueryResult status = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  EXPECT_OK(cuda().cuGetProcAddress_v2(row.base, &by_five, row.version, row.flags, &status));
  EXPECT_EQ(exported, by_five);
  EXPECT_EQ(CU_GET_PROC_ADDRESS_SUCCESS, status);
}

std::string row_name(const testing::TestParamInfo<Row>& row) {
  return std::string(row.param.exported) + "_at_" + std::to_string(row.param.version) + "_" +
         std::to_string(row.index);
}
INSTANTIATE_TEST_SUITE_P(Names, Resolve, testing::ValuesIn(kRows), row_name);

TEST(ResolveStatus, MayBeNull) {
  void* function = nullptr;
  EXPECT_OK(cuda().cuGetProcAddress_v2("cuInit", &function, 2000, 0, nullptr));
  EXPECT_EQ(dlsym(cuda().library, "cuInit"), function);
}

// The call succeeds, so a caller must check the pointer.
TEST(ResolveStatus, TellsAnUnknownNameFromATooLowVersion) {
  void* function = &function;
  CUdriverProcAddressQueryResult status = CU_GET_PROC_ADDRESS_SUCCESS;
  EXPECT_OK(cuda().cuGetProcAddress_v2("cuNoSuchFunction", &function, 13000, 0, &status));
  EXPECT_EQ(nullptr, function);
  EXPECT_EQ(CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND, status);
  function = &function;
  status = CU_GET_PROC_ADDRESS_SUCCESS;
  EXPECT_OK(cuda().cuGetProcAddress_v2("cuLaunchKernelEx", &function, 11000, 0, &status));
  EXPECT_EQ(nullptr, function);
  EXPECT_EQ(CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT, status);
}

// Asks by an exported name instead of the base name.
TEST(ResolveStatus, SucceedsForAVersionedName) {
  void* function = nullptr;
  CUdriverProcAddressQueryResult status = CU_GET_PROC_ADDRESS_SUCCESS;
  EXPECT_OK(cuda().cuGetProcAddress_v2("cuMemAlloc_v2", &function, 13000, 0, &status));
  record("pointer", function == nullptr ? "null" : "given");
  record("symbolStatus", std::to_string(status));
}

// CUDA 11's form of the call was documented to return CUDA_ERROR_NOT_FOUND.
TEST(ResolveStatus, IsAnErrorOrANullPointerInTheOldForm) {
  for (const char* name : {"cuNoSuchFunction", "cuMemAlloc_v2"}) {
    void* function = nullptr;
    const CUresult result = cuda().cuGetProcAddress(name, &function, 11030, 0);
    record(name, error_name(result) + (function == nullptr ? ", null" : ", a pointer"));
    EXPECT_TRUE(result == CUDA_SUCCESS || result == CUDA_ERROR_NOT_FOUND) << error_name(result);
    EXPECT_EQ(nullptr, function) << name;
  }
}

// Checks in a process that has never called cuInit. If one fails, it exits with another code.
void without_init() {
  void* function = nullptr;
  const bool can_resolve =
      cuda().cuGetProcAddress_v2("cuLaunchKernel", &function, 4000, 0, nullptr) == CUDA_SUCCESS &&
      function == dlsym(cuda().library, "cuLaunchKernel");
  CUdevice device = 0;
  CUcontext context = nullptr;
  CUlibrary library = nullptr;
  const char image[64] = {};
  const bool is_refused = cuda().cuDeviceGet(&device, 0) == CUDA_ERROR_NOT_INITIALIZED &&
                          cuda().cuCtxGetCurrent(&context) == CUDA_ERROR_NOT_INITIALIZED &&
                          cuda().cuLibraryLoadData(&library, image, nullptr, nullptr, 0, nullptr,
                                                   nullptr, 0) == CUDA_ERROR_NOT_INITIALIZED;
  _exit(can_resolve && is_refused ? 0 : 1);
}

TEST(BeforeInit, FunctionsResolveAndOtherCallsAreRefused) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(without_init(), testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace fibshim::contract
