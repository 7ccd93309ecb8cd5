// Google Benchmark programs for launches and lookups. One process measures one way of preloading
// (none, the forwarder, the shim); run.cc starts it for each and compares. All times are those of
// a call into the simulated driver, however it got there.
//
//   launch_bench [--benchmark_...]   which benchmarks: --benchmark_filter, as ever
#include <benchmark/benchmark.h>
#include <stdlib.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <map>
#include <mutex>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/bench/engine.h"

namespace fibshim::bench {
namespace {

// Samples of a millisecond or so: most see no interruption, and the median drops those that do.
constexpr int kLaunchesPerSample = 20000;
constexpr int kSamples = 15;

// A power of two, so that choosing the next one costs an AND.
template <class T>
std::vector<T> in_random_order(std::vector<T> values) {
  std::shuffle(values.begin(), values.end(), std::mt19937(1));
  size_t size = 1;
  while (size < values.size()) size *= 2;
  for (size_t i = 0; values.size() < size; ++i) values.push_back(values[i]);
  return values;
}

// One handle for all that ask with the same words. `seen`: shapes that it will have been launched
// with.
CUfunction shared_kernel(const char* name, int seen = 1) {
  static std::mutex lock;
  static std::map<std::pair<std::string, int>, CUfunction> kernels;
  const std::lock_guard guard(lock);
  CUfunction& kernel = kernels[{name, seen}];
  if (kernel == nullptr) kernel = load_kernel("launches", name);
  return kernel;
}

// --- one kernel, one shape, again and again

void launch_one_kernel(benchmark::State& state, const char* name) {
  static const CUstream stream = start_thread();
  const CUfunction kernel = shared_kernel(name);
  const auto function = cuda().launch;
  Arguments arguments;
  for (auto _ : state) {
    if (launch(function, kernel, stream, arguments) != CUDA_SUCCESS) state.SkipWithError("launch");
  }
}

// --- threads

void launch_from_threads(benchmark::State& state, const char* name, bool is_one_handle) {
  const CUstream stream = start_thread();
  const CUfunction kernel = is_one_handle ? shared_kernel(name) : load_kernel("launches", name);
  const auto function = cuda().launch;
  Arguments arguments;
  for (auto _ : state) {
    if (launch(function, kernel, stream, arguments) != CUDA_SUCCESS) state.SkipWithError("launch");
  }
  state.SetItemsProcessed(state.iterations());
}

// --- shapes and handles: `in_use` of `seen`, in random order

void launch_shapes(benchmark::State& state, const char* name) {
  static const CUstream stream = start_thread();
  const auto seen = static_cast<int>(state.range(0));
  const auto in_use = static_cast<int>(state.range(1));
  const CUfunction kernel = shared_kernel(name, seen);
  const auto function = cuda().launch;
  Arguments arguments;
  std::vector<int> shapes(static_cast<size_t>(seen));
  std::iota(shapes.begin(), shapes.end(), 1);
  for (const int shape : shapes) {
    arguments.set_columns(shape);
    require(launch(function, kernel, stream, arguments), "cuLaunchKernel");
  }
  shapes.resize(static_cast<size_t>(in_use));
  shapes = in_random_order(shapes);
  // As long for one shape as for many: the loop reads the same memory.
  const std::vector<int> order = [&] {
    std::vector<int> all(1 << 14);
    for (size_t i = 0; i < all.size(); ++i) all[i] = shapes[i % shapes.size()];
    return all;
  }();
  size_t next = 0;
  for (auto _ : state) {
    arguments.set_columns(order[next++ & (order.size() - 1)]);
    if (launch(function, kernel, stream, arguments) != CUDA_SUCCESS) state.SkipWithError("launch");
  }
}

// Resident memory of this process, in bytes.
double resident_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmRSS:")) return strtod(line.c_str() + 6, nullptr) * 1024;
  }
  return 0;
}

// Memory that came with the handles given so far, in bytes.
double g_handle_bytes;

// Handles that the process has been given so far: of untracked kernels, by the library.
const std::vector<CUfunction>& seen_handles(size_t count) {
  static std::vector<CUfunction> handles;
  const std::vector<std::string>& names = many_kernel_names();
  handles.reserve(count);
  const double before = resident_bytes();
  while (handles.size() < count) {
    CUlibrary library = nullptr;
    require(cuda().load_library(&library, image("many_kernels").data(), nullptr, nullptr, 0,
                                nullptr, nullptr, 0),
            "cuLibraryLoadData");
    for (const std::string& name : names) {
      if (handles.size() == count) break;
      CUkernel kernel = nullptr;
      require(cuda().get_kernel(&kernel, library, name.c_str()), "cuLibraryGetKernel");
      handles.push_back(reinterpret_cast<CUfunction>(kernel));
    }
  }
  g_handle_bytes += resident_bytes() - before;
  return handles;
}

// `name`: null for the kernels of many_kernels themselves.
void launch_handles(benchmark::State& state, const char* name) {
  static const CUstream stream = start_thread();
  const auto seen = static_cast<size_t>(state.range(0));
  const auto in_use = static_cast<size_t>(state.range(1));
  std::vector<CUfunction> handles = seen_handles(seen);
  handles.resize(in_use);
  if (name != nullptr) {
    for (CUfunction& handle : handles) handle = shared_kernel(name);
  }
  handles = in_random_order(handles);
  const auto function = cuda().launch;
  Arguments arguments;
  size_t next = 0;
  for (auto _ : state) {
    const CUfunction handle = handles[next++ & (handles.size() - 1)];
    if (launch(function, handle, stream, arguments) != CUDA_SUCCESS) state.SkipWithError("launch");
  }
  state.counters["handle_bytes"] = g_handle_bytes;
}

// --- lookups: every kernel of an image, by name; again: the second time

template <class Load, class Get, class Unload>
void look_up(benchmark::State& state, bool is_again, const Load& load, const Get& get,
             const Unload& unload) {
  using Clock = std::chrono::steady_clock;
  static const CUstream stream = start_thread();
  benchmark::DoNotOptimize(stream);
  const std::vector<std::string>& names = many_kernel_names();
  for (auto _ : state) {
    const auto owner = load();
    for (const std::string& name : names) {
      if (is_again) get(owner, name.c_str());
    }
    const auto begin = Clock::now();
    for (const std::string& name : names) get(owner, name.c_str());
    const std::chrono::duration<double> elapsed = Clock::now() - begin;
    unload(owner);
    state.SetIterationTime(elapsed.count() / static_cast<double>(names.size()));
  }
}

void look_up_kernels(benchmark::State& state, bool is_again) {
  look_up(
      state, is_again,
      [] {
        CUlibrary library = nullptr;
        require(cuda().load_library(&library, image("many_kernels").data(), nullptr, nullptr, 0,
                                    nullptr, nullptr, 0),
                "cuLibraryLoadData");
        return library;
      },
      [](CUlibrary library, const char* name) {
        CUkernel kernel = nullptr;
        require(cuda().get_kernel(&kernel, library, name), "cuLibraryGetKernel");
      },
      [](CUlibrary library) { require(cuda().unload_library(library), "cuLibraryUnload"); });
}

void look_up_functions(benchmark::State& state, bool is_again) {
  look_up(
      state, is_again,
      [] {
        CUmodule module = nullptr;
        require(cuda().load_module(&module, image("many_kernels").data()), "cuModuleLoadData");
        return module;
      },
      [](CUmodule module, const char* name) {
        CUfunction function = nullptr;
        require(cuda().get_function(&function, module, name), "cuModuleGetFunction");
      },
      [](CUmodule module) { require(cuda().unload_module(module), "cuModuleUnload"); });
}

void register_all() {
  const char* const kernels[] = {"bench_untracked", "bench_fallback", "bench_hit",
                                 "bench_hit_remap"};
  for (const char* kernel : kernels) {
    benchmark::RegisterBenchmark((std::string("launch/") + kernel).c_str(), launch_one_kernel,
                                 kernel)
        ->Iterations(kLaunchesPerSample)
        ->Repetitions(kSamples);
  }

  const int cores = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  for (const char* kernel : kernels) {
    for (const bool is_one_handle : {true, false}) {
      auto* bench = benchmark::RegisterBenchmark(
          (std::string("threads/") + kernel + (is_one_handle ? "/one" : "/distinct")).c_str(),
          launch_from_threads, kernel, is_one_handle);
      bench->UseRealTime()->Iterations(400000)->Repetitions(5);
      // Powers of two, and all of them.
      for (int threads = 1; threads < std::min(cores, 64); threads *= 2) bench->Threads(threads);
      bench->Threads(std::min(cores, 64));
    }
  }

  for (const char* kernel : {"bench_fallback", "bench_hit"}) {
    benchmark::RegisterBenchmark((std::string("shapes/") + kernel).c_str(), launch_shapes, kernel)
        ->Iterations(kLaunchesPerSample)
        ->Repetitions(kSamples)
        ->Args({1, 1})
        ->Args({10000, 1})
        ->Args({10000, 10000});
  }

  const char* const wanted = getenv("BENCH_HANDLES");
  const int64_t handles = wanted == nullptr ? 1000000 : atol(wanted);
  for (const int64_t seen : {int64_t{1}, handles}) {
    for (const int64_t in_use : {int64_t{1}, handles}) {
      if (in_use > seen) continue;
      benchmark::RegisterBenchmark("handles/untracked", launch_handles, nullptr)
          ->Iterations(in_use == 1 ? kLaunchesPerSample : 1 << 20)
          ->Repetitions(in_use == 1 ? kSamples : 3)
          ->Args({seen, in_use});
    }
    benchmark::RegisterBenchmark("handles/bench_hit", launch_handles, "bench_hit")
        ->Iterations(kLaunchesPerSample)
        ->Repetitions(kSamples)
        ->Args({seen, 1});
  }

  for (const bool is_again : {false, true}) {
    const std::string suffix = is_again ? "/again" : "/first";
    benchmark::RegisterBenchmark(("lookup/cuLibraryGetKernel" + suffix).c_str(), look_up_kernels,
                                 is_again)
        ->UseManualTime()
        ->Iterations(20)
        ->Repetitions(kSamples);
    benchmark::RegisterBenchmark(("lookup/cuModuleGetFunction" + suffix).c_str(), look_up_functions,
                                 is_again)
        ->UseManualTime()
        ->Iterations(20)
        ->Repetitions(kSamples);
  }
}

}  // namespace
}  // namespace fibshim::bench

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  fibshim::bench::register_all();
  return benchmark::RunSpecifiedBenchmarks() == 0 ? 1 : 0;
}
