// A host whose launches never repeat: PyTorch's fused RMSNorm on rows of 128, each time on other values and another
// number of rows, some in place. Prints a digest of all results, so that two runs can be compared bit for bit.
//
//   shadow_host LAUNCHES [GRAPH_EVERY] [PAUSE_AFTER] [beside]
//
// GRAPH_EVERY: of so many launches one goes through a graph, captured for it alone. After PAUSE_AFTER launches it says
// "paused" and waits for a line. "beside": while it captures it launches the same in another stream.
#include <cuda.h>
#include <dlfcn.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <string>
#include <vector>

namespace {

constexpr char kSymbol[] =
    "_ZN2at6native53_GLOBAL__N__a25d6a36_20_layer_norm_kernel_cu_9c5ada8a28vectorized_layer_norm_"
    "kernelIN3c108BFloat16EfLb1EEEviT0_PKT_S8_S8_PS5_S9_PS6_";
constexpr int kHidden = 128, kMostRows = 24;

void* g_library;

template <class Function>
Function find(const char* name) {
  auto* const found = reinterpret_cast<Function>(dlsym(g_library, name));
  if (found != nullptr) return found;
  fprintf(stderr, "shadow_host: libcuda.so.1 has no %s\n", name);
  exit(1);
}

void must(CUresult result, const char* call) {
  if (result == CUDA_SUCCESS) return;
  fprintf(stderr, "shadow_host: %s returns %d\n", call, static_cast<int>(result));
  exit(1);
}

uint64_t g_random = 88172645463325252u;
uint64_t draw() {
  g_random ^= g_random << 13;
  g_random ^= g_random >> 7;
  return g_random ^= g_random << 17;
}

// bfloat16 from about -4 to 4.
void fill(std::vector<uint16_t>* values) {
  for (uint16_t& value : *values) {
    const float number =
        static_cast<float>(static_cast<int64_t>(draw() >> 40) - (1 << 23)) / (1 << 21);
    uint32_t bits;
    memcpy(&bits, &number, sizeof bits);
    value = static_cast<uint16_t>(bits >> 16);
  }
}

uint64_t g_digest = 14695981039346656037u;
template <class T>
void digest(const std::vector<T>& values) {
  for (const T& value : values) {
    uint32_t bits = 0;
    memcpy(&bits, &value, sizeof value);
    g_digest = (g_digest ^ bits) * 1099511628211u;
  }
}

}  // namespace

#define FIND(name, exported) const auto name##_ = find<decltype(&::name)>(exported)
#define MUST(call) must(call, #call)

int main(int argc, char** argv) {
  const long launches = argc > 1 ? atol(argv[1]) : 100;
  const long graph_every = argc > 2 ? atol(argv[2]) : 0;
  const long pause_after = argc > 3 ? atol(argv[3]) : -1;
  const bool launches_beside = argc > 4;
  g_library = dlopen("libcuda.so.1", RTLD_NOW);
  if (g_library == nullptr) {
    fprintf(stderr, "shadow_host: %s\n", dlerror());
    return 1;
  }
  FIND(cuInit, "cuInit");
  FIND(cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain");
  FIND(cuCtxSetCurrent, "cuCtxSetCurrent");
  FIND(cuModuleLoad, "cuModuleLoad");
  FIND(cuModuleGetFunction, "cuModuleGetFunction");
  FIND(cuMemAlloc, "cuMemAlloc_v2");
  FIND(cuMemcpyHtoD, "cuMemcpyHtoD_v2");
  FIND(cuMemcpyDtoH, "cuMemcpyDtoH_v2");
  FIND(cuStreamCreate, "cuStreamCreate");
  FIND(cuStreamSynchronize, "cuStreamSynchronize");
  FIND(cuStreamBeginCapture, "cuStreamBeginCapture_v2");
  FIND(cuStreamEndCapture, "cuStreamEndCapture");
  FIND(cuGraphInstantiateWithFlags, "cuGraphInstantiateWithFlags");
  FIND(cuGraphLaunch, "cuGraphLaunch");
  FIND(cuGraphExecDestroy, "cuGraphExecDestroy");
  FIND(cuGraphDestroy, "cuGraphDestroy");
  FIND(cuLaunchKernel, "cuLaunchKernel");

  char self[PATH_MAX];
  const ssize_t length = readlink("/proc/self/exe", self, sizeof self);
  const std::string program(self, length > 0 ? static_cast<size_t>(length) : 0);
  const std::string image =
      program.substr(0, program.rfind('/')) + "/../data/engine_kernels.fatbin";
  CUcontext context = nullptr;
  CUmodule module = nullptr;
  CUfunction kernel = nullptr;
  CUstream stream = nullptr, other_stream = nullptr;
  MUST(cuInit_(0));
  MUST(cuDevicePrimaryCtxRetain_(&context, 0));
  MUST(cuCtxSetCurrent_(context));
  MUST(cuModuleLoad_(&module, image.c_str()));
  MUST(cuModuleGetFunction_(&kernel, module, kSymbol));
  MUST(cuStreamCreate_(&stream, CU_STREAM_NON_BLOCKING));
  MUST(cuStreamCreate_(&other_stream, CU_STREAM_NON_BLOCKING));
  std::vector<uint16_t> x(kHidden * kMostRows), y(kHidden * kMostRows), weight(kHidden);
  std::vector<float> rstd(kMostRows);
  CUdeviceptr x_at = 0, y_at = 0, weight_at = 0, rstd_at = 0;
  MUST(cuMemAlloc_(&x_at, x.size() * 2));
  MUST(cuMemAlloc_(&y_at, y.size() * 2));
  MUST(cuMemAlloc_(&weight_at, weight.size() * 2));
  MUST(cuMemAlloc_(&rstd_at, rstd.size() * 4));
  MUST(cuMemcpyHtoD_(y_at, y.data(), y.size() * 2));
  MUST(cuMemcpyHtoD_(rstd_at, rstd.data(), rstd.size() * 4));
  for (long i = 0; i < launches; ++i) {
    if (i == pause_after) {
      printf("paused\n");
      fflush(stdout);
      (void)getchar();
    }
    fill(&x);
    fill(&weight);
    MUST(cuMemcpyHtoD_(x_at, x.data(), x.size() * 2));
    MUST(cuMemcpyHtoD_(weight_at, weight.data(), weight.size() * 2));
    const auto rows = static_cast<unsigned>(1 + draw() % kMostRows);
    const bool is_in_place = draw() % 4 == 0;
    int hidden = kHidden;
    float eps = 1e-5f;
    CUdeviceptr none = 0;
    CUdeviceptr out = is_in_place ? x_at : y_at;
    void* params[] = {&hidden, &eps, &x_at, &weight_at, &none, &none, &rstd_at, &out};
    const auto launch_in = [&](CUstream where) {
      MUST(cuLaunchKernel_(kernel, rows, 1, 1, 32, 4, 1, 0, where, params, nullptr));
    };
    if (graph_every > 0 && i % graph_every == 0) {
      CUgraph graph = nullptr;
      CUgraphExec exec = nullptr;
      MUST(cuStreamBeginCapture_(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
      launch_in(stream);
      if (launches_beside) launch_in(other_stream);
      MUST(cuStreamEndCapture_(stream, &graph));
      MUST(cuStreamSynchronize_(other_stream));
      MUST(cuGraphInstantiateWithFlags_(&exec, graph, 0));
      MUST(cuGraphLaunch_(exec, stream));
      MUST(cuStreamSynchronize_(stream));
      MUST(cuGraphExecDestroy_(exec));
      MUST(cuGraphDestroy_(graph));
    } else {
      launch_in(stream);
      MUST(cuStreamSynchronize_(stream));
    }
    MUST(cuMemcpyDtoH_(y.data(), out, y.size() * 2));
    MUST(cuMemcpyDtoH_(rstd.data(), rstd_at, rstd.size() * 4));
    digest(y);
    digest(rstd);
  }
  printf("{\"launches\": %ld, \"digest\": \"%016llx\"}\n", launches,
         static_cast<unsigned long long>(g_digest));
  return 0;
}
