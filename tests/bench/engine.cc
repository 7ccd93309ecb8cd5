#include "tests/bench/engine.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <mutex>
#include <set>

#include "shim/driver/real_dl.h"

namespace fibshim::bench {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void fail(const std::string& message) {
  fprintf(stderr, "%s\n", message.c_str());
  exit(1);
}

CUcontext g_context;

template <class Function>
void resolve(void* library, const char* name, Function* out) {
  *out = reinterpret_cast<Function>(dlsym(library, name));
  if (*out == nullptr) fail(std::string("libcuda.so.1 has no ") + name);
}

Cuda open_driver() {
  void* library = dlopen("libcuda.so.1", RTLD_NOW);
  if (library == nullptr) fail(dlerror());
  Cuda cuda;
  resolve(library, "cuInit", &cuda.init);
  resolve(library, "cuDevicePrimaryCtxRetain", &cuda.retain_primary);
  resolve(library, "cuCtxSetCurrent", &cuda.set_current);
  resolve(library, "cuStreamCreate", &cuda.create_stream);
  resolve(library, "cuStreamSynchronize", &cuda.synchronize);
  resolve(library, "cuLibraryLoadData", &cuda.load_library);
  resolve(library, "cuLibraryUnload", &cuda.unload_library);
  resolve(library, "cuLibraryGetKernel", &cuda.get_kernel);
  resolve(library, "cuModuleLoadData", &cuda.load_module);
  resolve(library, "cuModuleUnload", &cuda.unload_module);
  resolve(library, "cuModuleGetFunction", &cuda.get_function);
  resolve(library, "cuGraphCreate", &cuda.create_graph);
  resolve(library, "cuGraphAddKernelNode_v2", &cuda.add_kernel_node);
  resolve(library, "cuGraphInstantiateWithFlags", &cuda.instantiate);
  resolve(library, "cuGraphLaunch", &cuda.launch_graph);
  resolve(library, "cuLaunchKernel", &cuda.launch);
  resolve(library, "cuLaunchKernelEx", &cuda.launch_ex);
  // Uses libc's own dlsym, found as the shim finds it: no preload can intercept that.
  cuda.direct_launch =
      reinterpret_cast<PFN_cuLaunchKernel_v4000>(real_dlsym()(library, "cuLaunchKernel"));
  require(cuda.init(0), "cuInit");
  require(cuda.retain_primary(&g_context, 0), "cuDevicePrimaryCtxRetain");
  return cuda;
}

std::string read_image(const std::string& name) {
  const fs::path self = fs::read_symlink("/proc/self/exe");
  const fs::path path = self.parent_path() / "images/launches" / (name + ".sm_90.cubin");
  std::ifstream file(path, std::ios::binary);
  if (!file) fail(path.string() + ": cannot be read; `make bench` builds it");
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace

const Cuda& cuda() {
  static const Cuda cuda = open_driver();
  return cuda;
}

void require(CUresult result, const char* call) {
  if (result != CUDA_SUCCESS) {
    fail(std::string(call) + " returns " + std::to_string(static_cast<int>(result)));
  }
}

CUstream start_thread() {
  const Cuda& driver = cuda();
  require(driver.set_current(g_context), "cuCtxSetCurrent");
  CUstream stream = nullptr;
  require(driver.create_stream(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
  return stream;
}

const std::string& image(const std::string& name) {
  static std::mutex lock;
  static std::map<std::string, std::string> images;
  const std::lock_guard guard(lock);
  auto found = images.find(name);
  if (found == images.end()) found = images.emplace(name, read_image(name)).first;
  return found->second;
}

CUfunction load_kernel(const std::string& image_name, const char* kernel) {
  CUlibrary library = nullptr;
  require(cuda().load_library(&library, image(image_name).data(), nullptr, nullptr, 0, nullptr,
                              nullptr, 0),
          "cuLibraryLoadData");
  CUkernel handle = nullptr;
  require(cuda().get_kernel(&handle, library, kernel), "cuLibraryGetKernel");
  return reinterpret_cast<CUfunction>(handle);
}

CUfunction load_function(const std::string& image_name, const char* kernel) {
  CUmodule module = nullptr;
  require(cuda().load_module(&module, image(image_name).data()), "cuModuleLoadData");
  CUfunction function = nullptr;
  require(cuda().get_function(&function, module, kernel), "cuModuleGetFunction");
  return function;
}

const std::vector<std::string>& many_kernel_names() {
  static const std::vector<std::string> names = [] {
    // Every kernel has a section .text.<name>. More than one string table contains its name.
    std::set<std::string> found;
    const std::string& bytes = image("many_kernels");
    const std::string mark = std::string(1, '\0') + ".text._Z";
    for (size_t at = bytes.find(mark); at != std::string::npos; at = bytes.find(mark, at + 1)) {
      found.emplace(bytes.c_str() + at + mark.size() - 2);
    }
    if (found.empty()) fail("many_kernels holds no kernels");
    return std::vector<std::string>(found.begin(), found.end());
  }();
  return names;
}

// Stores 4 rows, 6144 columns and K = 4096 where the pattern reads them
// (config/patterns/bench-packed.json).
PackedLaunch::PackedLaunch(CUstream stream)
    : config_{96, 1, 1, 128, 1, 1, 0, stream, &cluster_, 1} {
  const auto put = [this](size_t at, auto value) { memcpy(bytes_ + at, &value, sizeof value); };
  for (const size_t at : {176, 1704}) put(at, uint64_t{0x7f0000000000});
  for (const size_t at : {240, 1712}) put(at, uint64_t{0x7f0010000000});
  put(328, uint64_t{0x7f0020000000});
  for (const size_t at : {208, 272}) put(at, 4095);
  for (const size_t at : {212, 416}) put(at, 6143);
  for (const size_t at : {276, 420}) put(at, 3);
  put(320, 4096);
  put(344, 1.0f);
  put(352, int64_t{6144});
  cluster_.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
  cluster_.value.clusterDim = {4, 1, 1};
}

}  // namespace fibshim::bench
