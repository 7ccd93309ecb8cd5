// Launches many kernels with many geometries from many threads, for tests of the recording: every
// thread launches every kernel with every geometry once. With CAPTURED, launches of the first
// kernel then go into a stream capture, and the program prints the number of nodes, and of events
// that were recorded meanwhile.
//
//   launch_variety KERNELS GEOMETRIES THREADS [CAPTURED]
//   launch_variety struct LAUNCHES       of the kernel with a struct among its parameters
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#include <algorithm>
#include <string>
#include <thread>
#include <vector>

#include "tests/bench/engine.h"
#include "tests/driver/simcuda.h"

namespace fibshim::bench {
namespace {

// The kernels take one int, which is the geometry's number here.
void launch_all(const std::vector<CUfunction>& kernels, int geometries) {
  const CUstream stream = start_thread();
  for (int i = 0; i < geometries; ++i) {
    for (const CUfunction kernel : kernels) {
      int value = i;
      void* params[] = {&value};
      require(cuda().launch(kernel, static_cast<unsigned>(i) + 1, 1, 1, 32, 1, 1, 0, stream, params,
                            nullptr),
              "cuLaunchKernel");
    }
  }
}

template <class Function>
Function find(const char* name) {
  return reinterpret_cast<Function>(dlsym(dlopen("libcuda.so.1", RTLD_NOW), name));
}

void capture(CUfunction kernel, int launches) {
  const CUstream stream = start_thread();
  require(find<PFN_cuStreamBeginCapture_v10010>("cuStreamBeginCapture_v2")(
              stream, CU_STREAM_CAPTURE_MODE_GLOBAL),
          "cuStreamBeginCapture_v2");
  const auto calls = find<decltype(&simcuda_call_count)>("simcuda_call_count");
  const uint64_t events_before = calls("cuEventRecord");
  int value = 0;
  void* params[] = {&value};
  for (int i = 0; i < launches; ++i) {
    require(cuda().launch(kernel, 1, 1, 1, 32, 1, 1, 0, stream, params, nullptr), "cuLaunchKernel");
  }
  CUgraph graph = nullptr;
  size_t count = 0;
  require(find<PFN_cuStreamEndCapture_v10000>("cuStreamEndCapture")(stream, &graph),
          "cuStreamEndCapture");
  require(find<PFN_cuGraphGetNodes_v10000>("cuGraphGetNodes")(graph, nullptr, &count),
          "cuGraphGetNodes");
  // Nodes are recorded, and counted, when their graph is instantiated.
  CUgraphExec executable = nullptr;
  require(find<PFN_cuGraphInstantiateWithFlags_v11040>("cuGraphInstantiateWithFlags")(&executable,
                                                                                      graph, 0),
          "cuGraphInstantiateWithFlags");
  printf("%zu nodes, %llu events\n", count,
         static_cast<unsigned long long>(calls("cuEventRecord") - events_before));
}

void launch_struct(CUlibrary library, int launches) {
  const CUstream stream = start_thread();
  CUkernel kernel = nullptr;
  require(cuda().get_kernel(&kernel, library, "scale_view"), "cuLibraryGetKernel");
  CUdeviceptr memory = 0;
  require(find<PFN_cuMemAlloc_v3020>("cuMemAlloc_v2")(&memory, 4096), "cuMemAlloc_v2");
  struct View {
    CUdeviceptr output, input;
    int columns, rows;
    float scale;
  } view = {memory, memory + 1024, 128, 0, 0.5f};
  int mode = 0;
  void* params[] = {&view, &mode};
  for (int i = 0; i < launches; ++i) {
    view.rows = 33 + i;
    require(cuda().launch(reinterpret_cast<CUfunction>(kernel), 1, 1, 1, 32, 1, 1, 0, stream,
                          params, nullptr),
            "cuLaunchKernel");
  }
}

}  // namespace
}  // namespace fibshim::bench

int main(int argc, char** argv) {
  using namespace fibshim::bench;  // NOLINT(google-build-using-namespace): a short main
  const bool is_struct = argc == 3 && std::string(argv[1]) == "struct";
  if (argc < 4 && !is_struct) {
    fprintf(stderr,
            "usage: launch_variety KERNELS GEOMETRIES THREADS [CAPTURED] | struct LAUNCHES\n");
    return 2;
  }
  (void)start_thread();
  CUlibrary library = nullptr;
  require(cuda().load_library(&library, image("many_kernels").data(), nullptr, nullptr, 0, nullptr,
                              nullptr, 0),
          "cuLibraryLoadData");
  if (is_struct) {
    launch_struct(library, atoi(argv[2]));
    return 0;
  }
  const auto& names = many_kernel_names();
  const size_t count = std::min<size_t>(names.size(), strtoul(argv[1], nullptr, 10));
  std::vector<CUfunction> kernels;
  for (size_t i = 0; i < count; ++i) {
    CUkernel kernel = nullptr;
    require(cuda().get_kernel(&kernel, library, names[i].c_str()), "cuLibraryGetKernel");
    kernels.push_back(reinterpret_cast<CUfunction>(kernel));
  }
  std::vector<std::thread> threads;
  for (int i = 0; i < atoi(argv[3]); ++i) {
    threads.emplace_back(launch_all, std::cref(kernels), atoi(argv[2]));
  }
  for (std::thread& thread : threads) thread.join();
  if (argc > 4) capture(kernels.front(), atoi(argv[4]));
  return 0;
}
