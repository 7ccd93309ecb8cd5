// The parts of every case of the host program `conform`: checks that end the process, one GPU with
// the images of conform_kernels.cu and engine_kernels.cu, launches, and the truth about what ran.
//
// The truth is the simulated driver's own record or, on a real GPU, the marks that the kernels
// leave. It never comes from the shim.
#pragma once

#include <string.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "tests/conformance/hosts/cuda.h"
#include "tests/conformance/hosts/marks.h"

namespace conform {

// ---- checks: the first that fails ends the process with exit status 1

[[noreturn]] void fail(const char* file, int line, const std::string& message);
// Exits with status 77: this driver or machine lacks what the case tests.
[[noreturn]] void skip(const std::string& reason);

void check_code(CUresult expected, CUresult got, const char* call, const char* file, int line);
void check_equal(int64_t expected, int64_t got, const char* what, const char* file, int line);

#define CHECK(condition) \
  if (!(condition)) ::conform::fail(__FILE__, __LINE__, #condition)
#define OK(call) ::conform::check_code(CUDA_SUCCESS, call, #call, __FILE__, __LINE__)
#define EXPECT_CODE(code, call) ::conform::check_code(code, call, #call, __FILE__, __LINE__)
#define EXPECT_EQUAL(expected, value)                                                         \
  ::conform::check_equal(static_cast<int64_t>(expected), static_cast<int64_t>(value), #value, \
                         __FILE__, __LINE__)

// GCC's AddressSanitizer and ThreadSanitizer do not acquire all of their allocators' locks around
// fork. In a child of a process with threads one may stay locked forever, and code that allocates
// or starts a thread there spins without end. The child of such a process calls this first: under
// these sanitizers it ends, after the shim's fork handlers.
inline void end_child_under_sanitizers() {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  _exit(0);
#endif
}

// Returns a value with all bytes 0, including those of unions and between members.
template <class T>
T zeroed() {
  T out;
  memset(&out, 0, sizeof out);
  return out;
}

// Waits for a child, and expects it to end with this status.
void expect_exit(pid_t child, int code = 0);

// The resident memory of this process.
long resident_bytes();

// How often a function was called (NAME* for several), and a kernel ran, as the simulated driver
// counts.
inline long calls(const char* name) { return static_cast<long>(cuda().simcuda_call_count(name)); }
inline long ran(const char* kernel) {
  return static_cast<long>(cuda().simcuda_launch_count(kernel));
}

// Both in the current context.
CUstream new_stream();
CUdeviceptr device_memory(size_t bytes);

// ---- the cases

struct Case {
  const char* name;
  void (*run)(const std::vector<std::string>& arguments);
  const Case* next;
};
extern const Case* g_cases;

#define CASE(name)                                                                    \
  static void run_##name([[maybe_unused]] const std::vector<std::string>& arguments); \
  static ::conform::Case case_##name = {#name, run_##name, ::conform::g_cases};       \
  [[maybe_unused]] static const bool is_##name##_known =                              \
      (::conform::g_cases = &case_##name) != nullptr;                                 \
  static void run_##name([[maybe_unused]] const std::vector<std::string>& arguments)

// A case on the first GPU.
#define GPU_CASE(name)                                                                       \
  static void run_on_gpu_##name(const ::conform::Gpu& gpu,                                   \
                                [[maybe_unused]] const std::vector<std::string>& arguments); \
  CASE(name) { run_on_gpu_##name(::conform::Gpu(), arguments); }                             \
  static void run_on_gpu_##name(const ::conform::Gpu& gpu,                                   \
                                [[maybe_unused]] const std::vector<std::string>& arguments)

// Of a case whose one argument is where its config folders lie: the one of this name.
inline std::string folder(const std::vector<std::string>& arguments, const char* name) {
  CHECK(arguments.size() == 1);
  return arguments[0] + "/" + name;
}

// ---- images

// Returns the path of one of this program's images or libraries.
std::string data_path(const std::string& name);
// Returns the whole file, which is kept until the process ends.
const std::vector<char>& image(const std::string& name);

inline constexpr char kImage[] = "conform.fatbin";  // conform_step, conform_free, conform_void
inline constexpr char kOther[] = "conform_other.fatbin";  // another conform_step, conform_other
// The kernels of engines.
inline constexpr char kEngines[] = "engines.fatbin";
inline constexpr char kEnginesOther[] = "engines_other.fatbin";
inline constexpr char kStep[] = "conform_step";
inline constexpr char kFree[] = "conform_free";

// ---- launches

// Shapes of conform_step: 1, 2 and 3 have solutions (3 with a cluster), 9 has none.
inline constexpr int kNoSolution = 9;
// A value that the pattern's `where` refuses.
inline constexpr int kRefusedValue = 13;

// The arguments of one launch, in each form in which they may be passed. Not movable, since the
// pointers point into it.
class Arguments {
 public:
  // For conform_step and conform_free.
  Arguments(uint32_t* marks, int shape, int value);
  // For the second image's kernels.
  struct Other {};
  Arguments(Other, uint32_t* marks, int value);
  Arguments(const Arguments&) = delete;
  Arguments& operator=(const Arguments&) = delete;

  void** params() { return pointers_; }
  void** extra() { return extra_; }
  void* packed() { return packed_; }
  size_t packed_bytes() const { return packed_bytes_; }

 private:
  alignas(8) char packed_[16];
  size_t packed_bytes_ = 16;
  void* pointers_[3];
  void* extra_[5];
};

// How often each kernel ran.
struct Ran {
  long step = 0, free = 0, other = 0;
  long curated1 = 0, curated2 = 0, curated3 = 0, curated5 = 0, curated6 = 0;
  long nothing = 0;  // conform_void, which leaves no mark: only the simulated driver counts it
  long split = 0, join = 0, joined = 0, large = 0;
};

// The required values of the process's counters.
struct Counts {
  long hit = 0, no_solution = 0, where = 0, arch = 0, refused = 0, in_capture = 0, error = 0,
       untracked = 0, error_fallback = 0, graph = 0, absorbed = 0, observed = 0, shadowed = 0;
  long in_bodies =
      0;  // kernels that ran in bodies of conditional nodes, of which nothing is counted
};

// States what this process must have run and counted in all. The test that started it compares this
// with the simulated driver's log and the counters. Every process of a case that uses CUDA calls
// this once. The output is flushed at once, so that the process may end in any way afterwards.
void state(const Ran& ran, const Counts& counts);

// With faults: states "hit" and "launches" exactly, and a range for "error".
void state_faulted(const Ran& ran, long hits, long launches, long least_errors, long most_errors);

// Calls cuInit, and makes a device's primary context current in the calling thread.
class Gpu {
 public:
  explicit Gpu(int ordinal = 0);
  // Makes the context current in a new thread, too.
  void enter() const;

  CUdevice device() const { return device_; }
  CUcontext context() const { return context_; }
  CUstream stream() const { return stream_; }
  uint32_t* marks() const { return marks_; }

  CUmodule load_module(const char* name = kImage) const;
  CUlibrary load_library(const char* name = kImage) const;
  CUfunction function(CUmodule module, const char* name = kStep) const;
  CUkernel kernel(CUlibrary library, const char* name = kStep) const;
  // conform_step of a new module, which stays loaded.
  CUfunction step() const { return function(load_module()); }

  // A new module, which stays loaded, and both of its kernels.
  struct Handles {
    CUmodule module;
    CUfunction step, free;
  };
  Handles handles() const;

  // Launches one block of 32 threads on this object's stream.
  CUresult launch(CUfunction function, int shape = 1, int value = 7) const;
  CUresult launch(CUkernel kernel, int shape = 1, int value = 7) const;
  // The same on any stream, in whichever context is current.
  CUresult launch_on(CUstream stream, CUfunction function, int shape = 1, int value = 7) const;
  // Launches a kernel of the second image.
  CUresult launch_other(CUfunction function, int value = 7) const;
  // Loads the first image, launches its kernel with shape `shape`, and unloads it. Then does the
  // same with the second image, which often gets the same handle.
  void launch_and_unload_both(int shape = 1) const;

  // Captures what `work` launches on this object's stream.
  template <class Work>
  CUgraph capture(Work work, CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED) const {
    CUgraph graph = nullptr;
    OK(cuda().cuStreamBeginCapture_v2(stream_, mode));
    work();
    OK(cuda().cuStreamEndCapture(stream_, &graph));
    return graph;
  }

  // Waits, and expects exactly this to have run since the process began, with no launch of a dead
  // handle.
  void expect_ran(const Ran& expected) const;
  // The same, and calls state().
  void finish(const Ran& expected, const Counts& counts) const;
  // Expects the last kernel that ran to have stored this value.
  void expect_last_value(int value) const;

 private:
  CUdevice device_ = 0;
  CUcontext context_ = nullptr;
  CUstream stream_ = nullptr;
  uint32_t* marks_ = nullptr;
};

// A context of the caller besides the primary one.
inline CUcontext make_context(const Gpu& gpu) {
  CUcontext context = nullptr;
  OK(cuda().cuCtxCreate_v2(&context, 0, gpu.device()));
  return context;
}

// What ran in this process, by the simulated driver's record or, with a real driver, by the marks.
Ran what_ran(const uint32_t* marks);

// Returns the simulated driver's record of the last launch of that kernel (null: any), which must
// exist.
inline SimcudaLaunch last_launch(const char* kernel = nullptr) {
  SimcudaLaunch last;
  CHECK(cuda().simcuda_last_launch(kernel, &last) == 1);
  return last;
}

// Adds `count` runs of the shape's curated kernel.
void add_curated(Ran* ran, int shape, long count = 1);

// ---- dynamic linking

// The file name, without folder, of the object that contains the address; "" if none does.
std::string object_of(const void* address);
inline constexpr char kShimName[] = "libfibshim.so";
bool is_in_shim(const void* address);
// True if the shim is preloaded and active.
bool is_shim_active();

}  // namespace conform
