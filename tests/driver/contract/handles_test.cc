// CUfunction and CUkernel: two kinds of handle that only calls can tell apart
// (tools/doc/driver_facts.md, section 1; section 3).
#include <algorithm>
#include <set>

#include "tests/driver/contract/driver_under_test.h"

namespace fibshim::contract {
namespace {

using Handles = ContractTest;

TEST_F(Handles, FunctionCallsRefuseKernels) {
  const CUlibrary library = load_library();
  const CUfunction handle = as_function(kernel(library, "sim_store"));
  const char* name = nullptr;
  size_t offset = 0, size = 0;
  EXPECT_CUDA(CUDA_ERROR_INVALID_HANDLE, cuda().cuFuncGetName(&name, handle));
  EXPECT_CUDA(CUDA_ERROR_INVALID_HANDLE, cuda().cuFuncGetParamInfo(handle, 0, &offset, &size));
}

TEST_F(Handles, KernelCallsRefuseFunctions) {
  const CUmodule module = load_module();
  const auto handle = reinterpret_cast<CUkernel>(function(module, "sim_store"));
  const char* name = nullptr;
  size_t offset = 0, size = 0;
  EXPECT_CUDA(CUDA_ERROR_INVALID_HANDLE, cuda().cuKernelGetName(&name, handle));
  EXPECT_CUDA(CUDA_ERROR_INVALID_HANDLE, cuda().cuKernelGetParamInfo(handle, 0, &offset, &size));
}

TEST_F(Handles, KnowTheirNames) {
  const CUmodule module = load_module();
  const CUlibrary library = load_library();
  const char* name = nullptr;
  EXPECT_OK(cuda().cuFuncGetName(&name, function(module, "sim_mixed")));
  EXPECT_STREQ("sim_mixed", name);
  EXPECT_OK(cuda().cuKernelGetName(&name, kernel(library, "sim_mixed")));
  EXPECT_STREQ("sim_mixed", name);
}

TEST_F(Handles, ParamInfoListsOffsetsAndSizesAndEndsWithInvalidValue) {
  const CUmodule module = load_module();
  const CUlibrary library = load_library();
  constexpr size_t expected[][2] = {{0, 1}, {4, 4}, {8, 8}, {16, 8}, {24, 24}, {48, 2}};
  const CUfunction as_module = function(module, "sim_mixed");
  const CUkernel as_library = kernel(library, "sim_mixed");
  for (size_t i = 0; i < std::size(expected); ++i) {
    size_t offset = 99, size = 99;
    EXPECT_OK(cuda().cuFuncGetParamInfo(as_module, i, &offset, &size));
    EXPECT_EQ(expected[i][0], offset);
    EXPECT_EQ(expected[i][1], size);
    offset = size = 99;
    EXPECT_OK(cuda().cuKernelGetParamInfo(as_library, i, &offset, &size));
    EXPECT_EQ(expected[i][0], offset);
    EXPECT_EQ(expected[i][1], size);
  }
  size_t offset = 0, size = 0;
  EXPECT_CUDA(CUDA_ERROR_INVALID_VALUE,
              cuda().cuFuncGetParamInfo(as_module, std::size(expected), &offset, &size));
  EXPECT_CUDA(CUDA_ERROR_INVALID_VALUE,
              cuda().cuKernelGetParamInfo(as_library, std::size(expected), &offset, &size));
  EXPECT_CUDA(CUDA_ERROR_INVALID_VALUE,
              cuda().cuFuncGetParamInfo(function(module, "sim_empty"), 0, &offset, &size));
}

TEST_F(Handles, ParamInfoKnowsMoreThanFourKilobytes) {
  const CUlibrary library = load_library();
  const CUkernel large = kernel(library, "sim_large");
  size_t offset = 0, size = 0;
  EXPECT_OK(cuda().cuKernelGetParamInfo(large, 0, &offset, &size));
  EXPECT_EQ(0u, offset);
  EXPECT_EQ(5000u, size);
  EXPECT_OK(cuda().cuKernelGetParamInfo(large, 1, &offset, &size));
  EXPECT_EQ(5000u, offset);
  EXPECT_EQ(8u, size);
}

TEST_F(Handles, MissingKernelIsNotFound) {
  const CUmodule module = load_module();
  const CUlibrary library = load_library();
  CUfunction no_function = nullptr;
  CUkernel no_kernel = nullptr;
  EXPECT_CUDA(CUDA_ERROR_NOT_FOUND, cuda().cuModuleGetFunction(&no_function, module, "sim_none"));
  EXPECT_CUDA(CUDA_ERROR_NOT_FOUND, cuda().cuLibraryGetKernel(&no_kernel, library, "sim_none"));
}

TEST_F(Handles, EnumerationsHoldWhatLookupsGive) {
  const CUmodule module = load_module();
  const CUlibrary library = load_library();
  unsigned count = 0;
  ASSERT_OK(cuda().cuModuleGetFunctionCount(&count, module));
  EXPECT_EQ(9u, count);
  std::vector<CUfunction> functions(count);
  ASSERT_OK(cuda().cuModuleEnumerateFunctions(functions.data(), count, module));
  EXPECT_EQ(1, std::count(functions.begin(), functions.end(), function(module, "sim_store")));
  ASSERT_OK(cuda().cuLibraryGetKernelCount(&count, library));
  EXPECT_EQ(9u, count);
  std::vector<CUkernel> kernels(count);
  ASSERT_OK(cuda().cuLibraryEnumerateKernels(kernels.data(), count, library));
  EXPECT_EQ(1, std::count(kernels.begin(), kernels.end(), kernel(library, "sim_store")));
}

TEST_F(Handles, AKernelGivesAFunctionOfTheCurrentContext) {
  const CUlibrary library = load_library();
  CUfunction made = nullptr;
  ASSERT_OK(cuda().cuKernelGetFunction(&made, kernel(library, "sim_store")));
  const char* name = nullptr;
  EXPECT_OK(cuda().cuFuncGetName(&name, made));
  EXPECT_STREQ("sim_store", name);
  CUmodule module = nullptr, of_function = nullptr;
  EXPECT_OK(cuda().cuLibraryGetModule(&module, library));
  EXPECT_OK(cuda().cuFuncGetModule(&of_function, made));
  EXPECT_EQ(module, of_function);
  CUlibrary of_kernel = nullptr;
  EXPECT_OK(cuda().cuKernelGetLibrary(&of_kernel, kernel(library, "sim_store")));
  EXPECT_EQ(library, of_kernel);
}

// This is why the record of a handle must end with its module.
constexpr int kRounds = 200;

TEST_F(Handles, OfUnloadedModulesAreReusedForOtherKernels) {
  std::set<CUfunction> seen;
  int reused = 0;
  for (int round = 0; round < kRounds; ++round) {
    const bool is_even = round % 2 == 0;
    const CUmodule module = load_module(is_even ? "contract" : "renamed");
    const CUfunction handle = function(module, is_even ? "sim_store" : "sim_other");
    if (!seen.insert(handle).second) ++reused;
    unload(module);
  }
  RecordProperty("reused", reused);
  EXPECT_GE(reused, kRounds / 2);
}

TEST_F(Handles, OfUnloadedLibrariesAreReusedForOtherKernels) {
  std::set<CUkernel> seen;
  int reused = 0;
  for (int round = 0; round < kRounds; ++round) {
    const bool is_even = round % 2 == 0;
    const CUlibrary library = load_library(is_even ? "contract" : "renamed");
    const CUkernel handle = kernel(library, is_even ? "sim_store" : "sim_other");
    if (!seen.insert(handle).second) ++reused;
    unload(library);
  }
  RecordProperty("reused", reused);
  EXPECT_GE(reused, kRounds / 2);
}

}  // namespace
}  // namespace fibshim::contract
