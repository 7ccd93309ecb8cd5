// The cost of a launch for the thread that makes it, on any driver: the median over batches of
// launches of a small kernel with two arguments. The queue is emptied between batches, which is not
// timed, so that no launch waits for room in it.
//
//   launch_cost BATCHES LAUNCHES_IN_A_BATCH
//
// Prints nanoseconds for one launch.
#include <cuda.h>
#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <vector>

namespace {

template <class Function>
Function find(void* library, const char* name) {
  auto* const found = reinterpret_cast<Function>(dlsym(library, name));
  if (found != nullptr) return found;
  fprintf(stderr, "launch_cost: libcuda.so.1 has no %s\n", name);
  exit(1);
}

void must(CUresult result, const char* call) {
  if (result == CUDA_SUCCESS) return;
  fprintf(stderr, "launch_cost: %s returns %d\n", call, static_cast<int>(result));
  exit(1);
}

double now_ns() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) * 1e9 + static_cast<double>(now.tv_nsec);
}

}  // namespace

#define FIND(name, exported) const auto name##_ = find<decltype(&::name)>(library, exported)

int main(int argc, char** argv) {
  const long batches = argc > 1 ? atol(argv[1]) : 200;
  const long launches = argc > 2 ? atol(argv[2]) : 500;
  if (batches < 1 || launches < 1) {
    fprintf(stderr, "usage: launch_cost BATCHES LAUNCHES_IN_A_BATCH\n");
    return 2;
  }
  void* const library = dlopen("libcuda.so.1", RTLD_NOW);
  if (library == nullptr) {
    fprintf(stderr, "launch_cost: %s\n", dlerror());
    return 1;
  }
  FIND(cuInit, "cuInit");
  FIND(cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain");
  FIND(cuCtxSetCurrent, "cuCtxSetCurrent");
  FIND(cuModuleLoad, "cuModuleLoad");
  FIND(cuModuleGetFunction, "cuModuleGetFunction");
  FIND(cuMemAlloc, "cuMemAlloc_v2");
  FIND(cuStreamCreate, "cuStreamCreate");
  FIND(cuStreamSynchronize, "cuStreamSynchronize");
  FIND(cuLaunchKernel, "cuLaunchKernel");

  char self[PATH_MAX];
  const ssize_t length = readlink("/proc/self/exe", self, sizeof self);
  const std::string program(self, length > 0 ? static_cast<size_t>(length) : 0);
  const std::string image = program.substr(0, program.rfind('/')) + "/../data/contract.fatbin";
  CUcontext context = nullptr;
  CUmodule module = nullptr;
  CUfunction kernel = nullptr;
  CUdeviceptr target = 0;
  CUstream stream = nullptr;
  must(cuInit_(0), "cuInit");
  must(cuDevicePrimaryCtxRetain_(&context, 0), "cuDevicePrimaryCtxRetain");
  must(cuCtxSetCurrent_(context), "cuCtxSetCurrent");
  must(cuModuleLoad_(&module, image.c_str()), "cuModuleLoad");
  must(cuModuleGetFunction_(&kernel, module, "sim_store"), "cuModuleGetFunction");
  must(cuMemAlloc_(&target, 4), "cuMemAlloc");
  must(cuStreamCreate_(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");

  int value = 1;
  void* params[] = {&target, &value};
  std::vector<double> times;
  for (long batch = -2; batch < batches; ++batch) {  // the first two are warm-up
    const double begin = now_ns();
    for (long i = 0; i < launches; ++i) {
      must(cuLaunchKernel_(kernel, 1, 1, 1, 1, 1, 1, 0, stream, params, nullptr), "cuLaunchKernel");
    }
    const double end = now_ns();
    must(cuStreamSynchronize_(stream), "cuStreamSynchronize");
    if (batch >= 0) times.push_back((end - begin) / static_cast<double>(launches));
  }
  std::sort(times.begin(), times.end());
  printf("%.1f\n", times[times.size() / 2]);
  return 0;
}
