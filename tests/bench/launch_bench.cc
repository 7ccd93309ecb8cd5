// Google Benchmark programs for launches and lookups. One process measures one way of preloading
// (none, the forwarder, the shim); run.cc starts a process for each and compares. All times are
// those of a call into the simulated driver, by whatever way.
//
//   launch_bench [--benchmark_...]   --benchmark_filter selects benchmarks
#include <benchmark/benchmark.h>
#include <stdlib.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <chrono>
#include <fstream>
#include <map>
#include <memory>
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

// Samples take about a millisecond: the few that are interrupted do not affect the median.
constexpr int kLaunchesPerSample = 20000;
constexpr int kSamples = 15;

// The size becomes a power of two, so that choosing the next one costs an AND.
template <class T>
std::vector<T> in_random_order(std::vector<T> values) {
  std::shuffle(values.begin(), values.end(), std::mt19937(1));
  size_t size = 1;
  while (size < values.size()) size *= 2;
  for (size_t i = 0; values.size() < size; ++i) values.push_back(values[i]);
  return values;
}

// One handle for all calls with the same arguments. `seen`: the number of shapes with which it will
// have been launched.
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

void launch_packed(benchmark::State& state) {
  PackedLaunch launch(start_thread());
  const CUfunction kernel = shared_kernel("bench_packed");
  for (auto _ : state) {
    if (launch(kernel) != CUDA_SUCCESS) state.SkipWithError("launch");
  }
}

// --- threads

// Measures throughput over a period in which all threads launch. If each thread made a fixed number
// of launches instead, the delay of the last thread would count for all.
class Window {
 public:
  // Waits until all threads have called it. Returns the time at which the window ends.
  int64_t enter(int threads) {
    if (++entered_ == threads) end_ns_ = now_ns() + kLength_ns;
    while (end_ns_ == 0) std::this_thread::yield();
    return end_ns_;
  }
  void leave(int64_t launches, int64_t cpu_ns) {
    launches_ += launches;
    cpu_ns_ += cpu_ns;
  }
  double launches_per_s() const { return static_cast<double>(launches_) * 1e9 / kLength_ns; }
  // This number does not depend on the load by other programs.
  double cpu_ns_per_launch() const {
    return static_cast<double>(cpu_ns_) / static_cast<double>(launches_);
  }

  static int64_t now_ns(clockid_t clock = CLOCK_MONOTONIC) {
    timespec now;
    clock_gettime(clock, &now);
    return now.tv_sec * int64_t{1'000'000'000} + now.tv_nsec;
  }

 private:
  static constexpr int64_t kLength_ns = 60'000'000;
  std::atomic<int> entered_ = 0;
  std::atomic<int64_t> end_ns_ = 0;
  std::atomic<int64_t> launches_ = 0;
  std::atomic<int64_t> cpu_ns_ = 0;
};
std::unique_ptr<Window> g_window;

void launch_from_threads(benchmark::State& state, const char* name, bool is_one_handle) {
  constexpr int kLaunchesPerLook = 1000;
  const CUstream stream = start_thread();
  const CUfunction kernel = is_one_handle ? shared_kernel(name) : load_kernel("launches", name);
  const auto function = cuda().launch;
  Arguments arguments;
  // Makes the decision, and gives the thread its counters, before the clock starts.
  require(launch(function, kernel, stream, arguments), "cuLaunchKernel");
  if (state.thread_index() == 0) g_window = std::make_unique<Window>();
  // The benchmark library holds all threads at the beginning of this loop and at its end.
  for (auto _ : state) {
    const int64_t end_ns = g_window->enter(state.threads());
    const int64_t cpu_before_ns = Window::now_ns(CLOCK_THREAD_CPUTIME_ID);
    int64_t launches = 0;
    for (; Window::now_ns() < end_ns; launches += kLaunchesPerLook) {
      for (int i = 0; i < kLaunchesPerLook; ++i) {
        require(launch(function, kernel, stream, arguments), "cuLaunchKernel");
      }
    }
    g_window->leave(launches, Window::now_ns(CLOCK_THREAD_CPUTIME_ID) - cpu_before_ns);
  }
  if (state.thread_index() == 0) {
    state.counters["launches_per_s"] = g_window->launches_per_s();
    state.counters["cpu_ns_per_launch"] = g_window->cpu_ns_per_launch();
  }
}

// --- shapes and handles: `in_use` of `seen`, in random order

// Resident memory of this process, in bytes.
double resident_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmRSS:")) return strtod(line.c_str() + 6, nullptr) * 1024;
  }
  return 0;
}

// The memory that any lookup of one among `count` things reads, and any counting of them writes: a
// slot of a hash table at half load, and a record of so many cache lines.
class TouchedMemory {
 public:
  TouchedMemory(size_t count, size_t record_lines)
      : slots_(2 * std::bit_ceil(count)),
        lines_(count * record_lines),
        record_lines_(record_lines) {}

  void touch(size_t i) {
    // The record's place depends on the slot's contents, as in a real table.
    const Slot& slot = slots_[(i * 0x9e3779b97f4a7c15 >> 32) & (slots_.size() - 1)];
    const size_t record = (i + slot.key + slot.value) * record_lines_;
    for (size_t line = 0; line < record_lines_; ++line) ++lines_[record + line].words[0];
    benchmark::DoNotOptimize(record);
  }

 private:
  struct Slot {
    uint64_t key, value;
  };
  struct alignas(64) Line {
    uint64_t words[8];
  };
  std::vector<Slot> slots_;
  std::vector<Line> lines_;
  size_t record_lines_;
};

// The cache lines of a decision: two that a launch reads, and one of counters.
constexpr size_t kShapeLines = 3;

// The memory, in bytes, that a kernel's shapes have needed so far.
std::map<std::string, double> g_shape_bytes;

// `is_touching`: the benchmark itself reads as much memory as a lookup of the shape must.
void launch_shapes(benchmark::State& state, const char* name, bool is_touching) {
  static const CUstream stream = start_thread();
  const auto seen = static_cast<int>(state.range(0));
  const auto in_use = static_cast<int>(state.range(1));
  const CUfunction kernel = shared_kernel(name, seen);
  const auto function = cuda().launch;
  Arguments arguments;
  TouchedMemory touched(static_cast<size_t>(seen) + 1, kShapeLines);
  const double before = resident_bytes();
  std::vector<int> shapes(static_cast<size_t>(seen));
  std::iota(shapes.begin(), shapes.end(), 1);
  for (const int shape : shapes) {
    arguments.set_columns(shape);
    require(launch(function, kernel, stream, arguments), "cuLaunchKernel");
  }
  g_shape_bytes[name] += resident_bytes() - before;
  shapes.resize(static_cast<size_t>(in_use));
  shapes = in_random_order(shapes);
  // The order is as long for one shape as for many, so that the loop reads the same memory.
  const std::vector<int> order = [&] {
    std::vector<int> all(1 << 14);
    for (size_t i = 0; i < all.size(); ++i) all[i] = shapes[i % shapes.size()];
    return all;
  }();
  size_t next = 0;
  for (auto _ : state) {
    const int shape = order[next++ & (order.size() - 1)];
    if (is_touching) touched.touch(static_cast<size_t>(shape));
    arguments.set_columns(shape);
    if (launch(function, kernel, stream, arguments) != CUDA_SUCCESS) state.SkipWithError("launch");
  }
  // Not if it is 0: the benchmark library turns that into NaN, which is not JSON.
  if (g_shape_bytes[name] > 0) state.counters["shape_bytes"] = g_shape_bytes[name];
}

// The memory, in bytes, that the handles have needed so far.
double g_handle_bytes;

// All handles of untracked kernels that the process has got so far, from cuLibraryGetKernel.
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
void launch_handles(benchmark::State& state, const char* name, bool is_touching) {
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
  TouchedMemory touched(handles.size(), 0);
  size_t next = 0;
  for (auto _ : state) {
    const size_t at = next++ & (handles.size() - 1);
    const CUfunction handle = handles[at];
    if (is_touching) touched.touch(at);
    if (launch(function, handle, stream, arguments) != CUDA_SUCCESS) state.SkipWithError("launch");
  }
  state.counters["handle_bytes"] = g_handle_bytes;
}

// --- lookups of every kernel of an image, by name; is_again: for the second time

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
  const auto register_launch = [](const char* kernel) {
    benchmark::RegisterBenchmark((std::string("launch/") + kernel).c_str(), launch_one_kernel,
                                 kernel)
        ->Iterations(kLaunchesPerSample)
        ->Repetitions(kSamples);
  };
  for (const char* kernel : kernels) register_launch(kernel);
  register_launch("bench_hit_chosen");
  register_launch("bench_hit_computed");

  benchmark::RegisterBenchmark("packed/bench_packed", launch_packed)
      ->Iterations(kLaunchesPerSample)
      ->Repetitions(kSamples);

  const int cores = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  for (const char* kernel : kernels) {
    for (const bool is_one_handle : {true, false}) {
      auto* bench = benchmark::RegisterBenchmark(
          (std::string("threads/") + kernel + (is_one_handle ? "/one" : "/distinct")).c_str(),
          launch_from_threads, kernel, is_one_handle);
      bench->UseRealTime()->Iterations(1)->Repetitions(3);
      // Powers of two, all processors, and 64 if there are fewer processors.
      for (int threads = 1; threads < cores; threads *= 2) bench->Threads(threads);
      bench->Threads(cores);
      if (cores < 64) bench->Threads(64);
    }
  }

  benchmark::RegisterBenchmark("shapes/touching", launch_shapes, "bench_untracked", true)
      ->Iterations(kLaunchesPerSample)
      ->Repetitions(kSamples)
      ->Args({10000, 10000});
  for (const char* kernel : {"bench_fallback", "bench_hit"}) {
    benchmark::RegisterBenchmark((std::string("shapes/") + kernel).c_str(), launch_shapes, kernel,
                                 false)
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
      benchmark::RegisterBenchmark("handles/untracked", launch_handles, nullptr, false)
          ->Iterations(in_use == 1 ? kLaunchesPerSample : 1 << 20)
          ->Repetitions(in_use == 1 ? kSamples : 3)
          ->Args({seen, in_use});
    }
    benchmark::RegisterBenchmark("handles/bench_hit", launch_handles, "bench_hit", false)
        ->Iterations(kLaunchesPerSample)
        ->Repetitions(kSamples)
        ->Args({seen, 1});
  }
  benchmark::RegisterBenchmark("handles/touching", launch_handles, nullptr, true)
      ->Iterations(1 << 20)
      ->Repetitions(3)
      ->Args({handles, handles});

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
