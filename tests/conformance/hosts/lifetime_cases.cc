// Handles that end, and others that get the same values (number 16 of tools/doc/driver_facts.md,
// section 7). The shim's record of a handle ends with the handle, and the records of others stay
// valid, under load from other threads.

#include <set>

#include "tests/conformance/hosts/graphs.h"
#include "tests/conformance/hosts/launchers.h"

namespace conform {
namespace {

constexpr int kRounds = 300;

// Rounds of the cases under load. A real driver waits for launches of other threads before it
// unloads.
int rounds_of_modules() { return cuda().is_simulated ? 2000 : 20; }
int rounds_of_contexts() { return cuda().is_simulated ? 2000 : 5; }

}  // namespace
}  // namespace conform

using namespace conform;

// Handle values are reused at once, for another kernel. Without reuse this would test nothing.
GPU_CASE(reuse) {
  int reused = 0;
  std::set<CUfunction> seen;
  for (int i = 0; i < kRounds; ++i) {
    CUmodule module = gpu.load_module();
    const CUfunction step = gpu.function(module);
    reused += !seen.insert(step).second;
    OK(gpu.launch(step, 1));
    OK(cuda().cuModuleUnload(module));
    module = gpu.load_module(kOther);
    const CUfunction other = gpu.function(module);
    reused += !seen.insert(other).second;
    OK(gpu.launch_other(other));
    OK(cuda().cuModuleUnload(module));
  }
  CHECK(reused > kRounds / 10);
  gpu.finish({.step = kRounds, .curated1 = kRounds}, {.hit = kRounds, .untracked = kRounds});
}

// A CUkernel's value becomes a CUfunction's, and back.
GPU_CASE(reuse_between_kinds) {
  for (int i = 0; i < kRounds; ++i) {
    const CUlibrary library = gpu.load_library();
    OK(gpu.launch(gpu.kernel(library), 2));
    OK(cuda().cuLibraryUnload(library));
    const CUmodule module = gpu.load_module(kOther);
    OK(gpu.launch_other(gpu.function(module)));
    OK(cuda().cuModuleUnload(module));
  }
  gpu.finish({.step = kRounds, .curated2 = kRounds}, {.hit = kRounds, .untracked = kRounds});
}

GPU_CASE(reuse_under_load) {
  Launchers load(gpu, 2, gpu.handles(), {1, 2});
  const int rounds = rounds_of_modules();
  for (int i = 0; i < rounds; ++i) {
    gpu.launch_and_unload_both();
  }
  const long each = load.stop();
  gpu.finish({.step = rounds, .free = each, .curated1 = rounds + each, .curated2 = each},
             {.hit = rounds + 2 * each, .untracked = rounds + each});
}

// Contexts are made and destroyed while other threads launch kernels of another context: those stay
// valid, and so must the shim's records of them.
GPU_CASE(contexts_under_load) {
  Launchers load(gpu, 2, gpu.handles(), {1, 2});
  for (int i = 0; i < rounds_of_contexts(); ++i) {
    const CUcontext context = make_context(gpu);
    const CUmodule module = gpu.load_module(i % 2 == 0 ? kImage : kOther);
    (void)gpu.function(module);
    OK(cuda().cuCtxDestroy_v2(context));
    gpu.enter();
  }
  const long each = load.stop();
  gpu.finish({.free = each, .curated1 = each, .curated2 = each},
             {.hit = 2 * each, .untracked = each});
}

// The same for functions made from kernels.
GPU_CASE(kernel_functions_under_load) {
  const CUlibrary own = gpu.load_library();
  CUfunction step = nullptr;
  CUfunction free = nullptr;
  OK(cuda().cuKernelGetFunction(&step, gpu.kernel(own)));
  OK(cuda().cuKernelGetFunction(&free, gpu.kernel(own, kFree)));
  Launchers load(gpu, 2, {nullptr, step, free}, {1, 2});
  for (int i = 0; i < rounds_of_modules(); ++i) {
    const CUmodule module = gpu.load_module(i % 2 == 0 ? kImage : kOther);
    (void)gpu.function(module);
    OK(cuda().cuModuleUnload(module));
  }
  const long each = load.stop();
  gpu.finish({.free = each, .curated1 = each, .curated2 = each},
             {.hit = 2 * each, .untracked = each});
}

// A handle that the shim has forgotten, or never knew, is learnt at the launch.
GPU_CASE(strangers) {
  const auto own = gpu.handles();
  const CUkernel kernel = gpu.kernel(gpu.load_library());
  for (int i = 0; i < 5; ++i) {
    OK(cuda().cuCtxDestroy_v2(make_context(gpu)));
    gpu.enter();
    OK(gpu.launch(own.step, 1));
    OK(gpu.launch(own.free, 1));
    OK(gpu.launch(kernel, 2));
  }
  // In a capture, and as a node.
  OK(cuda().cuCtxDestroy_v2(make_context(gpu)));
  gpu.enter();
  const Graph graph(
      gpu.capture([&] { OK(gpu.launch(own.step, 1)); }, CU_STREAM_CAPTURE_MODE_GLOBAL));
  graph.run(gpu);
  OK(cuda().cuCtxDestroy_v2(make_context(gpu)));
  gpu.enter();
  const Graph added;
  added.add(own.step, Arguments(gpu.marks(), 2, 7));
  added.run(gpu);
  gpu.finish({.free = 5, .curated1 = 6, .curated2 = 6}, {.hit = 12, .untracked = 5});
}

// A CUfunction runs in its own context, a CUkernel in the stream's; the replacement likewise.
GPU_CASE(several_contexts) {
  const CUkernel kernel = gpu.kernel(gpu.load_library());
  const CUfunction own = gpu.step();
  const CUcontext other = make_context(gpu);
  const CUfunction there = gpu.step();
  const CUstream stream = new_stream();
  OK(gpu.launch_on(stream, reinterpret_cast<CUfunction>(kernel)));
  OK(gpu.launch_on(stream, there));
  OK(cuda().cuCtxSynchronize());
  gpu.enter();
  OK(gpu.launch(kernel));
  OK(gpu.launch(own));
  OK(cuda().cuCtxSetCurrent(other));
  OK(cuda().cuStreamDestroy_v2(stream));
  OK(cuda().cuCtxDestroy_v2(other));
  gpu.enter();
  gpu.finish({.curated1 = 4}, {.hit = 4});
}

// Captures of several threads, in created and in per-thread streams, while contexts end: the end of
// one capture does not end another, and the shim keeps its records of captures.
CASE(captures_beside_ends) {
  constexpr int kThreads = 2;  // with more, one would always be capturing
  const Gpu gpu;
  const CUfunction step = gpu.step();
  std::vector<std::thread> threads;
  const auto capture = [&](CUstream stream) {
    CUgraph captured = nullptr;
    OK(cuda().cuStreamBeginCapture_v2_ptsz(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    Arguments own(gpu.marks(), 1, 7);
    OK(cuda().cuLaunchKernel_ptsz(step, 1, 1, 1, 32, 1, 1, 0, stream, own.params(), nullptr));
    OK(cuda().cuStreamEndCapture_ptsz(stream, &captured));
    CHECK(Graph(captured).first_kernel() == kStep);
  };
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      gpu.enter();
      const CUstream stream = new_stream();
      for (int k = 0; k < rounds_of_contexts(); ++k) {
        capture(nullptr);
        capture(stream);
        if (k % 8 == 0) {
          const CUcontext context = make_context(gpu);
          OK(cuda().cuStreamBeginCapture_v2_ptsz(nullptr, CU_STREAM_CAPTURE_MODE_RELAXED));
          OK(cuda().cuCtxDestroy_v2(context));
          gpu.enter();
        }
      }
      OK(cuda().cuStreamDestroy_v2(stream));
    });
  }
  for (std::thread& thread : threads) thread.join();
  gpu.finish({}, {});
}

// Two GPUs in one process, alike or not: each runs its own image.
CASE(several_devices) {
  OK(cuda().cuInit(0));
  int count = 0;
  OK(cuda().cuDeviceGetCount(&count));
  if (count < 2) skip("one GPU only");
  const Gpu first(0);
  const Gpu second(1);
  for (const Gpu* gpu : {&first, &second, &first, &second}) {
    gpu->enter();
    const CUfunction step = gpu->step();
    OK(gpu->launch(step, 1));
    OK(gpu->launch(gpu->kernel(gpu->load_library()), 2));
  }
  if (!cuda().is_simulated) {
    first.expect_ran({.curated1 = 2, .curated2 = 2});
    second.expect_ran({.curated1 = 2, .curated2 = 2});
    state({.curated1 = 4, .curated2 = 4}, {.hit = 8});
    return;
  }
  first.finish({.curated1 = 4, .curated2 = 4}, {.hit = 8});
}

// At first the driver does not return its devices: the shim decides nothing, and keeps no wrong
// answer.
CASE(devices_known_late) {
  using namespace conform;
  const Gpu first(0);
  const Gpu second(1);
  CHECK(cuda().simcuda_set_faults("cuDeviceGetCount=3") == 1);
  first.enter();
  const CUfunction step = first.step();
  const CUkernel kernel = first.kernel(first.load_library());
  OK(first.launch(step, 1));
  OK(first.launch(kernel, 1));
  CHECK(cuda().simcuda_set_faults("") == 1);
  for (int i = 0; i < 3; ++i) {
    first.enter();
    OK(first.launch(step, 1));
    OK(first.launch(kernel, 1));
    second.enter();
    OK(second.launch(kernel, 1));
  }
  second.finish({.step = 2, .curated1 = 9}, {.hit = 9, .in_capture = 2});
}

// A library loaded once serves all contexts; unloading it ends its functions everywhere.
GPU_CASE(library_in_several_contexts) {
  const CUcontext other = make_context(gpu);
  for (int i = 0; i < 20; ++i) {
    const CUlibrary library = gpu.load_library();
    for (const CUcontext context : {gpu.context(), other}) {
      OK(cuda().cuCtxSetCurrent(context));
      CUmodule module = nullptr;
      OK(cuda().cuLibraryGetModule(&module, library));
      OK(gpu.launch_on(nullptr, gpu.function(module)));
      OK(cuda().cuCtxSynchronize());
    }
    OK(cuda().cuLibraryUnload(library));
    const CUlibrary second = gpu.load_library(kOther);
    CUmodule module = nullptr;
    OK(cuda().cuLibraryGetModule(&module, second));
    Arguments own(Arguments::Other{}, gpu.marks(), 7);
    OK(cuda().cuLaunchKernel(gpu.function(module), 1, 1, 1, 32, 1, 1, 0, nullptr, own.params(),
                             nullptr));
    OK(cuda().cuCtxSynchronize());
    OK(cuda().cuLibraryUnload(second));
  }
  gpu.finish({.step = 20, .curated1 = 40}, {.hit = 40, .untracked = 20});
}

// Each context with a sticky error is reported once; a context that gets the same handle is a new
// one.
GPU_CASE(lost_contexts) {
  using namespace conform;
  CHECK(cuda().simcuda_set_faults("poison:conform_free=700") == 1);
  for (int i = 0; i < 2; ++i) {
    const CUcontext context = make_context(gpu);
    const CUmodule module = gpu.load_module();
    const auto launch = [&](const char* name) {
      return gpu.launch_on(nullptr, gpu.function(module, name));
    };
    if (i == 1) OK(launch(kStep));
    OK(launch(kFree));
    for (int k = 0; k < 3; ++k) {
      EXPECT_CODE(CUDA_ERROR_ILLEGAL_ADDRESS, cuda().cuCtxSynchronize());
      EXPECT_CODE(CUDA_ERROR_ILLEGAL_ADDRESS, cuda().cuStreamSynchronize(nullptr));
      CUfunction function = nullptr;
      EXPECT_CODE(CUDA_ERROR_ILLEGAL_ADDRESS, cuda().cuModuleGetFunction(&function, module, kStep));
    }
    OK(cuda().cuCtxDestroy_v2(context));
  }
  CHECK(cuda().simcuda_set_faults("") == 1);
  OK(cuda().cuCtxSetCurrent(gpu.context()));
  OK(gpu.launch(gpu.step()));
  gpu.finish({.free = 2, .curated1 = 2}, {.hit = 2, .untracked = 2});
}
