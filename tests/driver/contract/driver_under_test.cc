// See driver_under_test.h.
#include "tests/driver/contract/driver_under_test.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

namespace fibshim::contract {

const Driver& cuda() {
  static const Driver driver = [] {
    void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      fprintf(stderr, "no driver to test: %s\n", dlerror());
      exit(2);
    }
    const Driver loaded(library);
    const char* wanted = getenv("DRIVER_UNDER_TEST");
    if (wanted != nullptr && strcmp(wanted, "real") == 0 && loaded.is_simulated) {
      fprintf(stderr, "DRIVER_UNDER_TEST=real, but the linker finds the simulated driver\n");
      exit(2);
    }
#define SYMBOL(exported, base, version, form) \
  if (loaded.exported == nullptr) fprintf(stderr, "the driver under test has no %s\n", #exported);
#include "tests/driver/symbols.def"
#undef SYMBOL
    return loaded;
  }();
  return driver;
}

std::string error_name(CUresult error) {
  const char* name = nullptr;
  if (cuda().cuGetErrorName(error, &name) == CUDA_SUCCESS && name != nullptr) return name;
  return "CUresult " + std::to_string(static_cast<int>(error));
}

void record(const std::string& key, const std::string& value) {
  testing::Test::RecordProperty(key, value);
  const testing::TestInfo* test = testing::UnitTest::GetInstance()->current_test_info();
  printf("measured: %s.%s %s: %s\n", test->test_suite_name(), test->name(), key.c_str(),
         value.c_str());
}

std::string data_path(const std::string& name) {
  char path[PATH_MAX];
  const ssize_t length = readlink("/proc/self/exe", path, sizeof path);
  const std::string program(path, length > 0 ? static_cast<size_t>(length) : 0);
  return program.substr(0, program.rfind('/')) + "/data/" + name;
}

std::vector<char> read_file(const std::string& path) {
  std::vector<char> bytes;
  FILE* file = fopen(path.c_str(), "rb");
  if (file == nullptr) {
    ADD_FAILURE() << "cannot read " << path;
    return bytes;
  }
  char block[65536];
  for (size_t got; (got = fread(block, 1, sizeof block, file)) > 0;)
    bytes.insert(bytes.end(), block, block + got);
  fclose(file);
  return bytes;
}

void ContractTest::SetUp() {
  ASSERT_OK(cuda().cuInit(0));
  ASSERT_OK(cuda().cuDeviceGet(&device_, 0));
  ASSERT_OK(cuda().cuDevicePrimaryCtxRetain(&context_, device_));
  ASSERT_OK(cuda().cuCtxSetCurrent(context_));
}

void ContractTest::TearDown() {
  while (!libraries_.empty()) unload(libraries_.back());
  while (!modules_.empty()) unload(modules_.back());
  EXPECT_OK(cuda().cuCtxSetCurrent(nullptr));
  EXPECT_OK(cuda().cuDevicePrimaryCtxRelease_v2(device_));
}

int ContractTest::attribute(CUdevice_attribute which) const {
  int value = 0;
  EXPECT_OK(cuda().cuDeviceGetAttribute(&value, which, device_));
  return value;
}

int ContractTest::sm() const {
  return attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR) * 10 +
         attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
}

std::string ContractTest::cubin_path(const std::string& name) const {
  return data_path(name + ".sm_" + std::to_string(sm() / 10 * 10) + ".cubin");
}

std::vector<std::string> ContractTest::foreign_cubin_paths(const std::string& name) const {
  std::vector<std::string> paths;
  int count = 0;
  EXPECT_OK(cuda().cuDeviceGetCount(&count));
  for (const int foreign_sm : {80, 90, 100}) {
    bool is_here = false;
    for (int ordinal = 0; ordinal < count; ++ordinal) {
      int major = 0;
      EXPECT_OK(cuda().cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
                                            ordinal));
      is_here = is_here || major == foreign_sm / 10;
    }
    if (!is_here) paths.push_back(data_path(name + ".sm_" + std::to_string(foreign_sm) + ".cubin"));
  }
  EXPECT_FALSE(paths.empty()) << "this machine can run every cubin of the suite";
  return paths;
}

CUmodule ContractTest::load_module(const std::string& name) {
  CUmodule module = nullptr;
  EXPECT_OK(cuda().cuModuleLoadData(&module, cubin(name).data()));
  modules_.push_back(module);
  return module;
}

CUlibrary ContractTest::load_library(const std::string& name) {
  CUlibrary library = nullptr;
  EXPECT_OK(cuda().cuLibraryLoadData(&library, cubin(name).data(), nullptr, nullptr, 0, nullptr,
                                     nullptr, 0));
  libraries_.push_back(library);
  return library;
}

void ContractTest::unload(CUmodule module) {
  std::erase(modules_, module);
  EXPECT_OK(cuda().cuModuleUnload(module));
}

void ContractTest::unload(CUlibrary library) {
  std::erase(libraries_, library);
  EXPECT_OK(cuda().cuLibraryUnload(library));
}

CUcontext ContractTest::make_context() {
  CUcontext context = nullptr;
  EXPECT_OK(cuda().cuCtxCreate_v4(&context, nullptr, 0, device_));
  return context;
}

void ContractTest::end_context(CUcontext context) {
  EXPECT_OK(cuda().cuCtxDestroy_v2(context));
  EXPECT_OK(cuda().cuCtxSetCurrent(context_));
}

CUfunction ContractTest::function(CUmodule module, const char* name) {
  CUfunction found = nullptr;
  EXPECT_OK(cuda().cuModuleGetFunction(&found, module, name));
  return found;
}

CUkernel ContractTest::kernel(CUlibrary library, const char* name) {
  CUkernel found = nullptr;
  EXPECT_OK(cuda().cuLibraryGetKernel(&found, library, name));
  return found;
}

CUdeviceptr ContractTest::make_int() {
  CUdeviceptr pointer = 0;
  const int32_t zero = 0;
  EXPECT_OK(cuda().cuMemAlloc_v2(&pointer, sizeof zero));
  EXPECT_OK(cuda().cuMemcpyHtoD_v2(pointer, &zero, sizeof zero));
  return pointer;
}

int32_t ContractTest::read_int(CUdeviceptr pointer) {
  int32_t value = -1;
  EXPECT_OK(cuda().cuCtxSynchronize());
  EXPECT_OK(cuda().cuMemcpyDtoH_v2(&value, pointer, sizeof value));
  return value;
}

CUstream ContractTest::make_stream(unsigned flags) {
  CUstream stream = nullptr;
  EXPECT_OK(cuda().cuStreamCreate(&stream, flags));
  return stream;
}

CUresult ContractTest::launch_store(CUfunction function, CUdeviceptr to, int32_t value,
                                    CUstream stream) {
  void* params[] = {&to, &value};
  return cuda().cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, params, nullptr);
}

CUDA_KERNEL_NODE_PARAMS_v2 ContractTest::store_node(void** params) {
  CUDA_KERNEL_NODE_PARAMS_v2 node{};
  node.gridDimX = node.gridDimY = node.gridDimZ = 1;
  node.blockDimX = node.blockDimY = node.blockDimZ = 1;
  node.kernelParams = params;
  return node;
}

void ContractTest::record_old_form(CUgraphNode node) const {
  CUDA_KERNEL_NODE_PARAMS_v1 old{};
  const CUresult read = cuda().cuGraphKernelNodeGetParams(node, &old);
  CUDA_KERNEL_NODE_PARAMS_v2 widened{};
  memcpy(&widened, &old, sizeof old);
  record("in_the_old_form", error_name(read) + ", " + handles_of(widened));
}

std::string ContractTest::kernel_name(const CUDA_KERNEL_NODE_PARAMS_v2& params) {
  const char* name = nullptr;
  if (params.func != nullptr && cuda().cuFuncGetName(&name, params.func) == CUDA_SUCCESS)
    return name;
  const CUkernel kernel =
      params.func != nullptr ? reinterpret_cast<CUkernel>(params.func) : params.kern;
  return cuda().cuKernelGetName(&name, kernel) == CUDA_SUCCESS ? name : "";
}

std::string ContractTest::handles_of(const CUDA_KERNEL_NODE_PARAMS_v2& params) const {
  const auto kind = [](void* handle) {
    const char* name = nullptr;
    if (handle == nullptr) return "null";
    if (cuda().cuFuncGetName(&name, static_cast<CUfunction>(handle)) == CUDA_SUCCESS)
      return "CUfunction";
    return cuda().cuKernelGetName(&name, static_cast<CUkernel>(handle)) == CUDA_SUCCESS ? "CUkernel"
                                                                                        : "neither";
  };
  const char* context = params.ctx == nullptr    ? "null"
                        : params.ctx == context_ ? "the current one"
                                                 : "another";
  return std::string("func: ") + kind(params.func) + ", kern: " + kind(params.kern) +
         ", ctx: " + context;
}

}  // namespace fibshim::contract
