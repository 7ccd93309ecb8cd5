// Which images can be loaded, and how others are refused.
#include "tests/driver/contract/driver_under_test.h"

namespace fibshim::contract {
namespace {

class Images : public ContractTest {
 protected:
  CUresult library_from(const void* image) {
    CUlibrary library = nullptr;
    const CUresult result =
        cuda().cuLibraryLoadData(&library, image, nullptr, nullptr, 0, nullptr, nullptr, 0);
    if (result == CUDA_SUCCESS) {
      unload(library);
    }
    return result;
  }

  CUresult module_from(const void* image) {
    CUmodule module = nullptr;
    const CUresult result = cuda().cuModuleLoadData(&module, image);
    if (result == CUDA_SUCCESS) {
      unload(module);
    }
    return result;
  }

  // Loads a library, which must succeed, and returns the result of asking for a kernel.
  CUresult kernel_from(const void* image, const char* name) {
    CUlibrary library = nullptr;
    EXPECT_OK(cuda().cuLibraryLoadData(&library, image, nullptr, nullptr, 0, nullptr, nullptr, 0));
    CUkernel found = nullptr;
    const CUresult result = cuda().cuLibraryGetKernel(&found, library, name);
    unload(library);
    return result;
  }
};

TEST_F(Images, CubinsLoadThroughEveryCall) {
  const std::vector<char> image = cubin("contract");
  EXPECT_OK(module_from(image.data()));
  EXPECT_OK(library_from(image.data()));
  CUmodule module = nullptr;
  EXPECT_OK(cuda().cuModuleLoad(&module, cubin_path("contract").c_str()));
  unload(module);
  EXPECT_OK(cuda().cuModuleLoadDataEx(&module, image.data(), 0, nullptr, nullptr));
  unload(module);
  CUlibrary library = nullptr;
  EXPECT_OK(cuda().cuLibraryLoadFromFile(&library, cubin_path("contract").c_str(), nullptr, nullptr,
                                         0, nullptr, nullptr, 0));
  unload(library);
}

// The library's caller may free its bytes: the driver has copied them.
TEST_F(Images, AreCopied) {
  std::vector<char> image = cubin("contract");
  CUlibrary library = nullptr;
  ASSERT_OK(
      cuda().cuLibraryLoadData(&library, image.data(), nullptr, nullptr, 0, nullptr, nullptr, 0));
  std::fill(image.begin(), image.end(), '\0');
  expect_stores(as_function(kernel(library, "sim_store")), make_int(), 5);
  unload(library);
}

TEST_F(Images, FatbinsGiveTheDevicesCubin) {
  const std::vector<char> image = read_file(data_path("contract.fatbin"));
  CUmodule module = nullptr;
  ASSERT_OK(cuda().cuModuleLoadFatBinary(&module, image.data()));
  expect_stores(function(module, "sim_store"), make_int(), 6);
  unload(module);
  EXPECT_OK(module_from(image.data()));
  EXPECT_OK(library_from(image.data()));
}

// Compilers embed a wrapper that points to the fatbin in a program. Modules refuse it.
TEST_F(Images, FatbinWrappersAreFollowedByLibrariesOnly) {
  const std::vector<char> image = read_file(data_path("contract.fatbin"));
  struct {
    uint32_t magic, version;
    const void* data;
    void* more;
  } const wrapper = {0x466243b1, 1, image.data(), nullptr};
  EXPECT_CUDA(CUDA_ERROR_INVALID_IMAGE, module_from(&wrapper));
  CUmodule module = nullptr;
  EXPECT_CUDA(CUDA_ERROR_INVALID_IMAGE, cuda().cuModuleLoadFatBinary(&module, &wrapper));
  CUlibrary library = nullptr;
  ASSERT_OK(cuda().cuLibraryLoadData(&library, &wrapper, nullptr, nullptr, 0, nullptr, nullptr, 0));
  expect_stores(as_function(kernel(library, "sim_store")), make_int(), 7);
  unload(library);
}

// Loading a library is lazy: only asking for a kernel shows whether its code suits the device.
TEST_F(Images, OfAnotherArchitectureAreFoundOutAtTheFirstKernel) {
  for (const std::string& path : foreign_cubin_paths("contract")) {
    const std::vector<char> image = read_file(path);
    EXPECT_CUDA(CUDA_ERROR_NO_BINARY_FOR_GPU, module_from(image.data())) << path;
    EXPECT_OK(library_from(image.data())) << path;
    EXPECT_CUDA(CUDA_ERROR_NO_BINARY_FOR_GPU, kernel_from(image.data(), "sim_store")) << path;
  }
}

TEST_F(Images, OfNoKnownFormatLoadAsLibrariesToo) {
  std::vector<char> garbage(65536, 'x');
  garbage.back() = 0;
  EXPECT_CUDA(CUDA_ERROR_INVALID_IMAGE, module_from(garbage.data()));
  EXPECT_OK(library_from(garbage.data()));
  const CUresult asked = kernel_from(garbage.data(), "sim_store");
  record("cuLibraryGetKernel", error_name(asked));
  EXPECT_NE(CUDA_SUCCESS, asked);
}

// The driver knows no size for an image in memory. Here the tail is replaced by zeros, so that
// nothing beyond the buffer is read.
TEST_F(Images, WithALostTailAreInvalidImages) {
  std::vector<char> image = cubin("contract");
  std::fill(image.begin() + static_cast<ptrdiff_t>(image.size() / 2), image.end(), '\0');
  EXPECT_CUDA(CUDA_ERROR_INVALID_IMAGE, module_from(image.data()));
  EXPECT_CUDA(CUDA_ERROR_INVALID_IMAGE, library_from(image.data()));
}

TEST_F(Images, MissingFilesAreNotFound) {
  CUmodule module = nullptr;
  CUlibrary library = nullptr;
  EXPECT_CUDA(CUDA_ERROR_FILE_NOT_FOUND, cuda().cuModuleLoad(&module, "/nonexistent.cubin"));
  EXPECT_CUDA(CUDA_ERROR_FILE_NOT_FOUND,
              cuda().cuLibraryLoadFromFile(&library, "/nonexistent.cubin", nullptr, nullptr, 0,
                                           nullptr, nullptr, 0));
}

TEST_F(Images, PtxIsCompiledForTheDevice) {
  std::vector<char> text = read_file(data_path("contract.ptx"));
  text.push_back(0);
  CUmodule module = nullptr;
  ASSERT_OK(cuda().cuModuleLoadData(&module, text.data()));
  expect_stores(function(module, "sim_store"), make_int(), 8);
  size_t offset = 0, size = 0;
  EXPECT_OK(cuda().cuFuncGetParamInfo(function(module, "sim_mixed"), 4, &offset, &size));
  EXPECT_EQ(24u, offset);
  EXPECT_EQ(24u, size);
  unload(module);
}

TEST_F(Images, GlobalsHoldTheirInitialValues) {
  const CUmodule module = load_module();
  CUdeviceptr pointer = 0;
  size_t size = 0;
  ASSERT_OK(cuda().cuModuleGetGlobal_v2(&pointer, &size, module, "sim_counter"));
  EXPECT_EQ(sizeof(int32_t), size);
  EXPECT_EQ(7, read_int(pointer));
}

}  // namespace
}  // namespace fibshim::contract
