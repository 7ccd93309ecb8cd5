// See host.h and cuda.h.
#include "tests/conformance/hosts/host.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>

#include <map>
#include <mutex>

namespace conform {

const Case* g_cases = nullptr;

Cuda::Cuda(void* driver) : Functions(driver) {
#define FUNCTION(name) name = reinterpret_cast<decltype(name)>(dlsym(library, #name));
  CONFORM_SIMCUDA_FUNCTIONS(FUNCTION)
#undef FUNCTION
}

const Cuda& cuda() {
  static const Cuda functions = [] {
    void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) fail(__FILE__, __LINE__, dlerror());
    return Cuda(library);
  }();
  return functions;
}

void fail(const char* file, int line, const std::string& message) {
  fflush(stdout);
  fprintf(stderr, "%s:%d: %s\n", file, line, message.c_str());
  fflush(stderr);
  _exit(1);
}

void skip(const std::string& reason) {
  printf("skipped: %s\n", reason.c_str());
  fflush(stdout);
  _exit(77);
}

void expect_exit(pid_t child, int code) {
  int status = 0;
  CHECK(waitpid(child, &status, 0) == child);
  if (!WIFEXITED(status)) {
    fail(__FILE__, __LINE__, "a child was ended by signal " + std::to_string(WTERMSIG(status)));
  }
  EXPECT_EQUAL(code, WEXITSTATUS(status));
}

long resident_bytes() {
  FILE* const file = fopen("/proc/self/statm", "r");
  long all = 0;
  long resident = 0;
  CHECK(file != nullptr && fscanf(file, "%ld %ld", &all, &resident) == 2);
  fclose(file);
  return resident * sysconf(_SC_PAGESIZE);
}

CUstream new_stream() {
  CUstream stream = nullptr;
  OK(cuda().cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  return stream;
}

CUdeviceptr device_memory(size_t bytes) {
  CUdeviceptr memory = 0;
  OK(cuda().cuMemAlloc_v2(&memory, bytes));
  return memory;
}

void check_code(CUresult expected, CUresult got, const char* call, const char* file, int line) {
  if (got == expected) return;
  fail(file, line,
       std::string(call) + " returns " + std::to_string(static_cast<int>(got)) + ", expected " +
           std::to_string(static_cast<int>(expected)));
}

void check_equal(int64_t expected, int64_t got, const char* what, const char* file, int line) {
  if (got == expected) return;
  fail(file, line,
       std::string(what) + " is " + std::to_string(got) + ", expected " + std::to_string(expected));
}

// ---- images

std::string data_path(const std::string& name) {
  char path[PATH_MAX];
  const ssize_t length = readlink("/proc/self/exe", path, sizeof path);
  const std::string program(path, length > 0 ? static_cast<size_t>(length) : 0);
  return program.substr(0, program.rfind('/') + 1) + name;
}

const std::vector<char>& image(const std::string& name) {
  static std::mutex lock;
  static auto* images = new std::map<std::string, std::vector<char>>;
  const std::lock_guard guard(lock);
  std::vector<char>& bytes = (*images)[name];
  if (bytes.empty()) {
    FILE* file = fopen(data_path(name).c_str(), "rb");
    if (file == nullptr) fail(__FILE__, __LINE__, "cannot read " + data_path(name));
    char block[65536];
    for (size_t got; (got = fread(block, 1, sizeof block, file)) > 0;) {
      bytes.insert(bytes.end(), block, block + got);
    }
    fclose(file);
  }
  return bytes;
}

// ---- launches

namespace {

template <class T>
void* put(char* to, T value) {
  memcpy(to, &value, sizeof value);
  return to;
}

}  // namespace

Arguments::Arguments(uint32_t* marks, int shape, int value)
    : pointers_{put(packed_, marks), put(packed_ + 8, shape), put(packed_ + 12, value)},
      extra_{CU_LAUNCH_PARAM_BUFFER_POINTER, packed_, CU_LAUNCH_PARAM_BUFFER_SIZE, &packed_bytes_,
             CU_LAUNCH_PARAM_END} {}

Arguments::Arguments(Other, uint32_t* marks, int value)
    : pointers_{put(packed_, static_cast<int64_t>(value)), put(packed_ + 8, marks), nullptr},
      extra_{CU_LAUNCH_PARAM_BUFFER_POINTER, packed_, CU_LAUNCH_PARAM_BUFFER_SIZE, &packed_bytes_,
             CU_LAUNCH_PARAM_END} {}

Gpu::Gpu(int ordinal) {
  OK(cuda().cuInit(0));
  OK(cuda().cuDeviceGet(&device_, ordinal));
  OK(cuda().cuDevicePrimaryCtxRetain(&context_, device_));
  enter();
  OK(cuda().cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING));
  void* memory = nullptr;
  OK(cuda().cuMemHostAlloc(&memory, kMarksSize * sizeof(uint32_t), CU_MEMHOSTALLOC_PORTABLE));
  memset(memory, 0, kMarksSize * sizeof(uint32_t));
  marks_ = static_cast<uint32_t*>(memory);
}

void Gpu::enter() const { OK(cuda().cuCtxSetCurrent(context_)); }

CUmodule Gpu::load_module(const char* name) const {
  CUmodule module = nullptr;
  OK(cuda().cuModuleLoadData(&module, image(name).data()));
  return module;
}

CUlibrary Gpu::load_library(const char* name) const {
  CUlibrary library = nullptr;
  OK(cuda().cuLibraryLoadData(&library, image(name).data(), nullptr, nullptr, 0, nullptr, nullptr,
                              0));
  return library;
}

CUfunction Gpu::function(CUmodule module, const char* name) const {
  CUfunction function = nullptr;
  OK(cuda().cuModuleGetFunction(&function, module, name));
  return function;
}

CUkernel Gpu::kernel(CUlibrary library, const char* name) const {
  CUkernel kernel = nullptr;
  OK(cuda().cuLibraryGetKernel(&kernel, library, name));
  return kernel;
}

Gpu::Handles Gpu::handles() const {
  const CUmodule module = load_module();
  return {module, function(module), function(module, kFree)};
}

CUresult Gpu::launch_on(CUstream stream, CUfunction function, int shape, int value) const {
  Arguments arguments(marks_, shape, value);
  return cuda().cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, stream, arguments.params(), nullptr);
}

CUresult Gpu::launch(CUfunction function, int shape, int value) const {
  return launch_on(stream_, function, shape, value);
}

void Gpu::launch_and_unload_both(int shape) const {
  CUmodule module = load_module();
  OK(launch(function(module), shape));
  OK(cuda().cuModuleUnload(module));
  module = load_module(kOther);
  OK(launch_other(function(module)));
  OK(cuda().cuModuleUnload(module));
}

CUresult Gpu::launch(CUkernel kernel, int shape, int value) const {
  return launch(reinterpret_cast<CUfunction>(kernel), shape, value);
}

CUresult Gpu::launch_other(CUfunction function, int value) const {
  Arguments arguments(Arguments::Other{}, marks_, value);
  return cuda().cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, stream_, arguments.params(),
                               nullptr);
}

// ---- what ran

Ran what_ran(const uint32_t* marks) {
  Ran ran;
  const struct {
    long* count;
    const char* kernel;
    Mark mark;
  } rows[] = {{&ran.step, kStep, kMarkStep},
              {&ran.free, kFree, kMarkFree},
              {&ran.other, "conform_other", kMarkOther},
              {&ran.curated1, "curated_n1", kMarkCurated1},
              {&ran.curated2, "curated_n2", kMarkCurated2},
              {&ran.curated3, "curated_n3", kMarkCurated3},
              {&ran.curated5, "curated_n5", kMarkCurated5},
              {&ran.curated6, "curated_n6", kMarkCurated6},
              {&ran.split, "conform_split", kMarkSplit},
              {&ran.join, "conform_join", kMarkJoin},
              {&ran.joined, "curated_joined", kMarkJoined},
              {&ran.large, "conform_large", kMarkLarge}};
  for (const auto& row : rows) {
    *row.count = cuda().is_simulated ? static_cast<long>(cuda().simcuda_launch_count(row.kernel))
                                     : static_cast<long>(marks[row.mark]);
  }
  return ran;
}

void add_curated(Ran* ran, int shape, long count) {
  (shape == 1 ? ran->curated1 : shape == 2 ? ran->curated2 : ran->curated3) += count;
}

void Gpu::expect_ran(const Ran& expected) const {
  enter();
  OK(cuda().cuCtxSynchronize());
  const Ran ran = what_ran(marks_);
  EXPECT_EQUAL(expected.step, ran.step);
  EXPECT_EQUAL(expected.free, ran.free);
  EXPECT_EQUAL(expected.other, ran.other);
  EXPECT_EQUAL(expected.curated1, ran.curated1);
  EXPECT_EQUAL(expected.curated2, ran.curated2);
  EXPECT_EQUAL(expected.curated3, ran.curated3);
  EXPECT_EQUAL(expected.split, ran.split);
  EXPECT_EQUAL(expected.join, ran.join);
  EXPECT_EQUAL(expected.joined, ran.joined);
  EXPECT_EQUAL(expected.large, ran.large);
  EXPECT_EQUAL(expected.curated5, ran.curated5);
  EXPECT_EQUAL(expected.curated6, ran.curated6);
  if (cuda().is_simulated) EXPECT_EQUAL(0, cuda().simcuda_stale_launch_count());
}

namespace {

struct Stated {
  const char* name;
  long value;
};

// One write(), so that the lines of several processes do not mix.
void write_state(const Ran& ran, std::initializer_list<Stated> counts) {
  std::string line = "state " + std::to_string(getpid());
  const auto add = [&](const Stated& row) {
    if (row.value != 0) line += std::string(" ") + row.name + "=" + std::to_string(row.value);
  };
  for (const Stated& row : {Stated{"ran:conform_step", ran.step},
                            {"ran:conform_free", ran.free},
                            {"ran:conform_other", ran.other},
                            {"ran:curated_n1", ran.curated1},
                            {"ran:curated_n2", ran.curated2},
                            {"ran:curated_n3", ran.curated3},
                            {"ran:curated_n5", ran.curated5},
                            {"ran:curated_n6", ran.curated6},
                            {"ran:conform_void", ran.nothing},
                            {"ran:conform_split", ran.split},
                            {"ran:conform_join", ran.join},
                            {"ran:curated_joined", ran.joined},
                            {"ran:conform_large", ran.large}}) {
    add(row);
  }
  for (const Stated& row : counts) add(row);
  line += "\n";
  fflush(stdout);
  if (write(STDOUT_FILENO, line.data(), line.size()) < 0) _exit(1);
}

}  // namespace

void state(const Ran& ran, const Counts& counts) {
  write_state(ran, {{"hit", counts.hit},
                    {"fallback_no_solution", counts.no_solution},
                    {"fallback_where", counts.where},
                    {"fallback_arch", counts.arch},
                    {"fallback_refused", counts.refused},
                    {"fallback_in_capture", counts.in_capture},
                    {"error", counts.error},
                    {"error_fallback", counts.error_fallback},
                    {"fallback_graph", counts.graph},
                    {"absorbed", counts.absorbed},
                    {"observed", counts.observed},
                    {"shadowed", counts.shadowed},
                    {"untracked", counts.untracked},
                    {"in_bodies", counts.in_bodies}});
}

void state_faulted(const Ran& ran, long hits, long launches, long least_errors, long most_errors) {
  write_state(ran, {{"hit", hits},
                    {"launches", launches},
                    {"least_errors", least_errors},
                    {"most_errors", most_errors}});
}

void Gpu::finish(const Ran& expected, const Counts& counts) const {
  expect_ran(expected);
  state(expected, counts);
}

void Gpu::expect_last_value(int value) const {
  enter();
  OK(cuda().cuCtxSynchronize());
  if (!cuda().is_simulated) {
    EXPECT_EQUAL(value, marks_[kLastValue]);
    return;
  }
  const SimcudaLaunch last = last_launch(nullptr);
  // The arguments are (marks, shape, value) for the first image's originals, (value, marks) for
  // others.
  const bool is_original = last.param_bytes == 16 &&
                           (strcmp(last.kernel, kStep) == 0 || strcmp(last.kernel, kFree) == 0);
  uint32_t* marks = nullptr;
  int32_t got = 0;
  memcpy(&marks, last.params + (is_original ? 0 : 8), sizeof marks);
  memcpy(&got, last.params + (is_original ? 12 : 0), sizeof got);
  EXPECT_EQUAL(value, got);
  CHECK(marks == marks_);
}

// ---- dynamic linking

std::string object_of(const void* address) {
  Dl_info info;
  if (address == nullptr || dladdr(address, &info) == 0 || info.dli_fname == nullptr) return "";
  const char* slash = strrchr(info.dli_fname, '/');
  return slash == nullptr ? info.dli_fname : slash + 1;
}

bool is_in_shim(const void* address) { return object_of(address) == kShimName; }

bool is_shim_active() { return is_in_shim(reinterpret_cast<const void*>(cuda().cuLaunchKernel)); }

}  // namespace conform
