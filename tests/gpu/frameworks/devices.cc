// Two GPUs in one process, by the driver API: devices SCENARIO:TIMES..., or devices list, which prints
// the SM of each GPU.
//
// Each scenario launches a kernel of its own, y = x + 1, `times` times on each device, over 4096 floats
// on device 0 and 8192 on device 1, in turns. A line for each device says what its launches have
// written: "SCENARIO DEVICE VERDICT". Memory of one device is out of the other's reach, so a launch
// that went to the wrong one would fail.
#include <cuda.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <string>
#include <thread>
#include <vector>

#include "tests/gpu/frameworks/host.h"

using namespace fibshim_test;

namespace {

constexpr int kDevices = 2;
constexpr int kSizes[kDevices] = {4096, 8192};

struct Failure {
  CUresult error;
  const char* call;
};
void check(CUresult error, const char* call) {
  if (error != CUDA_SUCCESS) throw Failure{error, call};
}
#define CHECK(call) check(call, #call)

std::string image_path() {
  char path[PATH_MAX];
  const ssize_t length = readlink("/proc/self/exe", path, sizeof path);
  const std::string self(path, length > 0 ? static_cast<size_t>(length) : 0);
  return self.substr(0, self.rfind('/') + 1) + "devices_kernels.fatbin";
}

// Where some launches of one scenario write, in memory of one context. Its stream is of that context.
class Lane {
 public:
  Lane(CUcontext context, int n, int times) : context_(context), n_(n), times_(times) {
    CHECK(cuCtxSetCurrent(context_));
    const size_t bytes = static_cast<size_t>(n) * sizeof(float);
    std::vector<float> x(static_cast<size_t>(n));
    for (int i = 0; i < n; ++i) x[static_cast<size_t>(i)] = input(i);
    CHECK(cuMemAlloc(&x_, bytes));
    CHECK(cuMemAlloc(&y_, bytes * static_cast<size_t>(times)));
    CHECK(cuMemsetD8(y_, 0, bytes * static_cast<size_t>(times)));
    CHECK(cuMemcpyHtoD(x_, x.data(), bytes));
    CHECK(cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING));
  }
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  CUcontext context() const { return context_; }
  CUstream stream() const { return stream_; }

  // Launch number `index`, in whatever context is current.
  void launch(CUfunction function, int index, bool is_on_default_stream = false) {
    CUdeviceptr y = y_ + static_cast<size_t>(index) * static_cast<size_t>(n_) * sizeof(float);
    void* params[] = {&x_, &y, &n_};
    CHECK(cuLaunchKernel(function, static_cast<unsigned>(n_ / kBlock), 1, 1, kBlock, 1, 1, 0,
                         is_on_default_stream ? nullptr : stream_, params, nullptr));
  }

  const char* verdict() {
    CHECK(cuCtxSetCurrent(context_));
    CHECK(cuCtxSynchronize());
    std::vector<float> y(static_cast<size_t>(n_) * static_cast<size_t>(times_));
    CHECK(cuMemcpyDtoH(y.data(), y_, y.size() * sizeof(float)));
    return judge(y.data(), n_, times_);
  }

 private:
  CUcontext context_;
  int n_;
  int times_;
  CUdeviceptr x_ = 0;
  CUdeviceptr y_ = 0;
  CUstream stream_ = nullptr;
};

struct Machine {
  CUdevice device[kDevices];
  CUcontext primary[kDevices];
  CUlibrary library = nullptr;
  std::string image = image_path();

  Machine() {
    CHECK(cuInit(0));
    for (int i = 0; i < kDevices; ++i) {
      CHECK(cuDeviceGet(&device[i], i));
      CHECK(cuDevicePrimaryCtxRetain(&primary[i], device[i]));
    }
    CHECK(cuCtxSetCurrent(primary[0]));
    CHECK(cuLibraryLoadFromFile(&library, image.c_str(), nullptr, nullptr, 0, nullptr, nullptr, 0));
  }

  CUfunction kernel(const char* name) const {
    CUkernel found = nullptr;
    CHECK(cuLibraryGetKernel(&found, library, name));
    return reinterpret_cast<CUfunction>(found);
  }

  // From a module of its own in that context.
  CUfunction function(CUcontext context, const char* name) const {
    CUmodule module = nullptr;
    CUfunction found = nullptr;
    CHECK(cuCtxSetCurrent(context));
    CHECK(cuModuleLoad(&module, image.c_str()));
    CHECK(cuModuleGetFunction(&found, module, name));
    return found;
  }
};

void report(const char* scenario, int device, const char* verdict) {
  printf("%s %d %s\n", scenario, device, verdict);
}

// One CUkernel for both devices: the stream says where it runs, the other's context is current.
void library_scenario(const Machine& machine, const char* name, int times) {
  const CUfunction kernel = machine.kernel("devices_library_plus_one");
  Lane lane0(machine.primary[0], kSizes[0], times);
  Lane lane1(machine.primary[1], kSizes[1], times);
  for (int i = 0; i < times; ++i) {
    CHECK(cuCtxSetCurrent(machine.primary[1]));
    lane0.launch(kernel, i);
    CHECK(cuCtxSetCurrent(machine.primary[0]));
    lane1.launch(kernel, i);
  }
  report(name, 0, lane0.verdict());
  report(name, 1, lane1.verdict());
}

// A CUfunction for each context. `is_foreign`: launched while the other device's context is current.
void module_scenario(const Machine& machine, const char* name, int times, bool is_foreign) {
  const char* symbol = is_foreign ? "devices_foreign_plus_one" : "devices_module_plus_one";
  const CUfunction function0 = machine.function(machine.primary[0], symbol);
  const CUfunction function1 = machine.function(machine.primary[1], symbol);
  Lane lane0(machine.primary[0], kSizes[0], times);
  Lane lane1(machine.primary[1], kSizes[1], times);
  for (int i = 0; i < times; ++i) {
    CHECK(cuCtxSetCurrent(machine.primary[is_foreign ? 1 : 0]));
    lane0.launch(function0, i);
    CHECK(cuCtxSetCurrent(machine.primary[is_foreign ? 0 : 1]));
    lane1.launch(function1, i);
  }
  report(name, 0, lane0.verdict());
  report(name, 1, lane1.verdict());
}

// On each device a context beside the primary one, both with modules of their own; it is destroyed
// half way, and the primary one's function goes on. `times` launches in each context.
void contexts_scenario(const Machine& machine, const char* name, int times) {
  constexpr char kSymbol[] = "devices_contexts_plus_one";
  const char* verdicts[kDevices] = {};
  for (int i = 0; i < kDevices; ++i) {
    CUcontext second = nullptr;
    CHECK(cuCtxCreate(&second, nullptr, 0, machine.device[i]));
    const CUfunction in_primary = machine.function(machine.primary[i], kSymbol);
    const CUfunction in_second = machine.function(second, kSymbol);
    Lane primary_lane(machine.primary[i], kSizes[i], times);
    Lane second_lane(second, kSizes[i], times);
    for (int launch = 0; launch < times; ++launch) {
      CHECK(cuCtxSetCurrent(second));
      second_lane.launch(in_second, launch);
      if (launch >= times / 2) continue;
      CHECK(cuCtxSetCurrent(machine.primary[i]));
      primary_lane.launch(in_primary, launch);
    }
    const std::string second_verdict = second_lane.verdict();
    CHECK(cuCtxDestroy(second));
    CHECK(cuCtxSetCurrent(machine.primary[i]));
    for (int launch = times / 2; launch < times; ++launch) primary_lane.launch(in_primary, launch);
    verdicts[i] = primary_lane.verdict();
    if (second_verdict != verdicts[i]) verdicts[i] = "not the same in both contexts";
  }
  for (int i = 0; i < kDevices; ++i) report(name, i, verdicts[i]);
}

// A graph captured on each device's stream without any launch before, while the other device's context
// is current; `times` nodes.
void capture_scenario(const Machine& machine, const char* name, int times) {
  const CUfunction kernel = machine.kernel("devices_capture_plus_one");
  Lane lane0(machine.primary[0], kSizes[0], times);
  Lane lane1(machine.primary[1], kSizes[1], times);
  Lane* const lanes[kDevices] = {&lane0, &lane1};
  for (int i = kDevices - 1; i >= 0; --i) {
    CUgraph graph = nullptr;
    CUgraphExec executable = nullptr;
    CHECK(cuCtxSetCurrent(machine.primary[1 - i]));
    CHECK(cuStreamBeginCapture(lanes[i]->stream(), CU_STREAM_CAPTURE_MODE_GLOBAL));
    for (int launch = 0; launch < times; ++launch) lanes[i]->launch(kernel, launch);
    CHECK(cuStreamEndCapture(lanes[i]->stream(), &graph));
    CHECK(cuGraphInstantiateWithFlags(&executable, graph, 0));
    CHECK(cuGraphLaunch(executable, lanes[i]->stream()));
    CHECK(cuStreamSynchronize(lanes[i]->stream()));
    CHECK(cuGraphExecDestroy(executable));
    CHECK(cuGraphDestroy(graph));
  }
  report(name, 0, lane0.verdict());
  report(name, 1, lane1.verdict());
}

// A thread for each device, both with the same CUkernel.
void threads_scenario(const Machine& machine, const char* name, int times) {
  const CUfunction kernel = machine.kernel("devices_threads_plus_one");
  Lane lane0(machine.primary[0], kSizes[0], times);
  Lane lane1(machine.primary[1], kSizes[1], times);
  Lane* const lanes[kDevices] = {&lane0, &lane1};
  Failure failures[kDevices] = {};
  std::vector<std::thread> threads;
  for (int i = 0; i < kDevices; ++i) {
    threads.emplace_back([&, i] {
      try {
        CHECK(cuCtxSetCurrent(machine.primary[i]));
        for (int launch = 0; launch < times; ++launch) lanes[i]->launch(kernel, launch);
      } catch (const Failure& failure) {
        failures[i] = failure;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Failure& failure : failures) check(failure.error, failure.call);
  report(name, 0, lane0.verdict());
  report(name, 1, lane1.verdict());
}

// The null stream is the current context's.
void default_stream_scenario(const Machine& machine, const char* name, int times) {
  const CUfunction kernel = machine.kernel("devices_default_stream_plus_one");
  Lane lane0(machine.primary[0], kSizes[0], times);
  Lane lane1(machine.primary[1], kSizes[1], times);
  for (int i = 0; i < times; ++i) {
    CHECK(cuCtxSetCurrent(lane0.context()));
    lane0.launch(kernel, i, true);
    CHECK(cuCtxSetCurrent(lane1.context()));
    lane1.launch(kernel, i, true);
  }
  report(name, 0, lane0.verdict());
  report(name, 1, lane1.verdict());
}

struct Scenario {
  const char* name;
  void (*run)(const Machine&, const char*, int);
};
constexpr Scenario kScenarios[] = {
    {"library", library_scenario},
    {"module", [](const Machine& machine, const char* name,
                  int times) { module_scenario(machine, name, times, false); }},
    {"foreign", [](const Machine& machine, const char* name,
                   int times) { module_scenario(machine, name, times, true); }},
    {"contexts", contexts_scenario},
    {"capture", capture_scenario},
    {"threads", threads_scenario},
    {"default_stream", default_stream_scenario},
};

void list_devices() {
  int count = 0;
  CHECK(cuInit(0));
  CHECK(cuDeviceGetCount(&count));
  for (int i = 0; i < count; ++i) {
    CUdevice device = 0;
    int major = 0;
    int minor = 0;
    CHECK(cuDeviceGet(&device, i));
    CHECK(cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device));
    CHECK(cuDeviceGetAttribute(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device));
    printf("%d\n", major * 10 + minor);
  }
}

int run(int argc, char** argv) {
  if (argc == 2 && strcmp(argv[1], "list") == 0) {
    list_devices();
    return 0;
  }
  const Machine machine;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    const size_t colon = argument.find(':');
    const Scenario* scenario = nullptr;
    for (const Scenario& one : kScenarios) {
      if (argument.substr(0, colon) == one.name) scenario = &one;
    }
    const int times = colon == std::string::npos ? 0 : atoi(argument.c_str() + colon + 1);
    if (scenario == nullptr || times <= 0) {
      fprintf(stderr, "devices: %s is no SCENARIO:TIMES\n", argv[i]);
      return 2;
    }
    try {
      scenario->run(machine, scenario->name, times);
    } catch (const Failure& failure) {
      printf("%s - error %d of %s\n", scenario->name, static_cast<int>(failure.error),
             failure.call);
    }
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const Failure& failure) {
    fprintf(stderr, "devices: error %d of %s\n", static_cast<int>(failure.error), failure.call);
    return 1;
  }
}
