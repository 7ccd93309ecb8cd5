// A walk through everything that the shim does, for runs in which something around it fails: libc
// (lib_libc_faults.cc), memory, descriptors, disks, the config folder; or in which the process is
// killed, or gets many signals. Whatever the shim lacks, the host's calls succeed: a launch runs
// its original or its replacement, with its own arguments. With strict errors it may instead fail
// because its solution cannot be loaded.
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/time.h>

#include <array>
#include <atomic>
#include <thread>

#include "tests/conformance/hosts/faulted.h"
#include "tests/conformance/hosts/graphs.h"

namespace conform {
namespace {

struct Walked {
  Ran ran;
  long hits = 0;
  long launches = 0;
  long errors = 0;
};

void add(Walked* to, const Walked& more) {
  to->ran.step += more.ran.step;
  to->ran.free += more.ran.free;
  to->ran.curated1 += more.ran.curated1;
  to->ran.curated2 += more.ran.curated2;
  to->ran.curated3 += more.ran.curated3;
  to->hits += more.hits;
  to->launches += more.launches;
  to->errors += more.errors;
}

// Checks the thread's last launch, its kernel and the value that it got, and adds it to `walked`.
void add_what_ran(const char* kernel, const uint8_t* params, const char* original, int shape,
                  int value, long times, Walked* walked) {
  const bool is_original = strcmp(kernel, original) == 0;
  int got = 0;
  memcpy(&got, params + (is_original ? 12 : 0), sizeof got);
  EXPECT_EQUAL(value, got);
  if (is_original) {
    (strcmp(original, kStep) == 0 ? walked->ran.step : walked->ran.free) += times;
    return;
  }
  CHECK(strcmp(original, kStep) == 0 && kernel == "curated_n" + std::to_string(shape));
  add_curated(&walked->ran, shape, times);
}

void launch(const Gpu& gpu, CUfunction function, const char* original, int shape, Walked* walked) {
  const int value = 100 + static_cast<int>(walked->launches % 1000);
  ++walked->launches;
  const CUresult result = gpu.launch(function, shape, value);
  if (result != CUDA_SUCCESS) {
    CHECK(is_strict() && strcmp(original, kStep) == 0);
    ++walked->errors;
    return;
  }
  SimcudaLaunch last;
  CHECK(cuda().simcuda_last_launch_of_thread(&last) == 1);
  add_what_ran(last.kernel, last.params, original, shape, value, 1, walked);
  walked->hits += strcmp(last.kernel, original) != 0;
}

// A node is not a launch of its own: it is counted with its graph, if the shim could read that.
void capture_and_replay(const Gpu& gpu, CUstream stream, CUfunction step, Walked* walked) {
  OK(cuda().cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  constexpr int value = 77;
  OK(gpu.launch_on(stream, step, 1, value));
  CUgraph captured = nullptr;
  OK(cuda().cuStreamEndCapture(stream, &captured));
  const Graph graph(captured);
  const NodeParams2 params = params_of(graph.nodes().at(0));
  CHECK(kernel_name(params) == kStep);
  EXPECT_EQUAL(value, value_of(params));
  CUgraphExec executable = nullptr;
  const CUresult result = cuda().cuGraphInstantiateWithFlags(&executable, captured, 0);
  if (result != CUDA_SUCCESS) {
    CHECK(is_strict());
    return;
  }
  for (int i = 0; i < 2; ++i) {
    OK(cuda().cuGraphLaunch(executable, stream));
    SimcudaLaunch last;
    CHECK(cuda().simcuda_last_launch_of_thread(&last) == 1);
    add_what_ran(last.kernel, last.params, kStep, 1, value, 1, walked);
  }
  OK(cuda().cuGraphExecDestroy(executable));
}

Walked walk_once(const Gpu& gpu, bool captures = true) {
  Walked walked;
  gpu.enter();
  const CUstream stream = new_stream();
  for (int round = 0; round < 2; ++round) {
    const CUmodule module = gpu.load_module();
    const CUlibrary library = gpu.load_library();
    const CUfunction handles[] = {gpu.function(module),
                                  reinterpret_cast<CUfunction>(gpu.kernel(library))};
    const CUfunction free = gpu.function(module, kFree);
    for (const int shape : {1, 2, 3, kNoSolution}) {
      for (CUfunction handle : handles) launch(gpu, handle, kStep, shape, &walked);
      launch(gpu, free, kFree, shape, &walked);
    }
    if (captures) capture_and_replay(gpu, stream, handles[0], &walked);
    OK(cuda().cuModuleUnload(module));
    OK(cuda().cuLibraryUnload(library));
  }
  OK(cuda().cuStreamDestroy_v2(stream));
  return walked;
}

void finish(const Gpu& gpu, const Walked& walked) {
  gpu.expect_ran(walked.ran);
  state_faulted(walked.ran, walked.hits, walked.launches, walked.errors, walked.errors);
}

Walked walk_in_threads(const Gpu& gpu, int threads, int rounds) {
  std::vector<Walked> all(static_cast<size_t>(threads));
  std::vector<std::thread> others;
  const auto run = [&](size_t index) {
    for (int i = 0; i < rounds; ++i) add(&all[index], walk_once(gpu));
  };
  for (size_t i = 1; i < all.size(); ++i) others.emplace_back(run, i);
  run(0);
  for (std::thread& thread : others) thread.join();
  Walked sum;
  for (const Walked& one : all) add(&sum, one);
  return sum;
}

// ---- signals

std::atomic<long> g_signals{0};
int g_pipe[2];

void on_signal(int) {
  const int saved = errno;
  g_signals.fetch_add(1, std::memory_order_relaxed);
  char byte = 0;
  (void)!read(g_pipe[0], &byte, 1);  // the pipe is empty: sets errno
  errno = saved;
}

// Starts two timers with ten thousand signals a second, of real time and of processor time.
void start_storm(int flags, void (*handler)(int)) {
  struct sigaction action = {};
  action.sa_handler = handler;
  action.sa_flags = flags;
  CHECK(sigaction(SIGALRM, &action, nullptr) == 0);
  CHECK(sigaction(SIGPROF, &action, nullptr) == 0);
  const itimerval every = {{0, 100}, {0, 100}};
  CHECK(setitimer(ITIMER_REAL, &every, nullptr) == 0);
  CHECK(setitimer(ITIMER_PROF, &every, nullptr) == 0);
}

void end_storm() {
  const itimerval none = {};
  CHECK(setitimer(ITIMER_REAL, &none, nullptr) == 0);
  CHECK(setitimer(ITIMER_PROF, &none, nullptr) == 0);
}

// Handlers that launch: with SIMCUDA_FAST the driver itself may be interrupted within a launch.
const Gpu* g_gpu;
CUfunction g_step;
std::atomic<long> g_launched{0};

void on_signal_launch(int) {
  const int saved = errno;
  OK(g_gpu->launch(g_step));
  g_launched.fetch_add(1, std::memory_order_relaxed);
  errno = saved;
}

size_t address_space_bytes() {
  FILE* file = fopen("/proc/self/statm", "r");
  CHECK(file != nullptr);
  size_t pages = 0;
  CHECK(fscanf(file, "%zu", &pages) == 1);
  fclose(file);
  return pages * static_cast<size_t>(sysconf(_SC_PAGESIZE));
}

}  // namespace
}  // namespace conform

using namespace conform;

// `walk [ROUNDS]`
GPU_CASE(walk) {
  finish(gpu, walk_in_threads(gpu, 2, arguments.empty() ? 1 : atoi(arguments[0].c_str())));
}

// Execs another case, with a stderr that nobody reads.
CASE(without_reader) {
  int ends[2];
  CHECK(pipe(ends) == 0 && dup2(ends[1], STDERR_FILENO) == STDERR_FILENO);
  CHECK(close(ends[0]) == 0 && close(ends[1]) == 0);
  CHECK(signal(SIGPIPE, SIG_DFL) != SIG_ERR);
  execl("/proc/self/exe", "conform", arguments.at(0).c_str(), nullptr);
  CHECK(false);
}

// Walks until the process is killed.
GPU_CASE(walk_until_killed) {
  for (;;) (void)walk_once(gpu, false);
}

// The driver refuses to set a node's cluster (SIMCUDA_FAIL=cuGraphKernelNodeSetAttribute=801; only
// the shim calls it here): such a node keeps its original, and the others of its graph get their
// replacements.
GPU_CASE(node_without_cluster) {
  const CUfunction step = gpu.step();
  Arguments first(gpu.marks(), 1, 5);
  Arguments third(gpu.marks(), 3, 6);
  const Graph graph;
  const CUgraphNode one = graph.add(step, &first);
  const CUgraphNode node = graph.add(step, &third, one);
  CHECK(kernel_name(params_of(node)) == kStep);
  {
    const Executable executable(graph.get());
    executable.run_for(gpu, 6);
    gpu.expect_ran({.step = 1, .curated1 = 1});
    // A node of the first shape, which needs no cluster, is set to the third.
    const NodeParams2 params = node_params2(step, &third);
    OK(cuda().cuGraphExecKernelNodeSetParams_v2(executable.get(), one, &params));
    executable.run_for(gpu, 6);
  }
  gpu.finish({.step = 3, .curated1 = 1}, {.hit = 1, .refused = 1});
}

// Lets the process map only so much more, and returns the limit of before.
rlimit limit_memory(rlim_t kib) {
  rlimit before;
  CHECK(getrlimit(RLIMIT_AS, &before) == 0);
  // malloc keeps freed memory, so that host and driver have room.
  CHECK(mallopt(M_TRIM_THRESHOLD, 1 << 30) == 1 && mallopt(M_MMAP_MAX, 0) == 1);
  std::vector<char> room(32 << 20);
  room.at(1) = 1;
  std::vector<char>().swap(room);
  rlimit limit = before;
  limit.rlim_cur = address_space_bytes() + kib * 1024;
  CHECK(setrlimit(RLIMIT_AS, &limit) == 0);
  return before;
}

// `walk_limited memory KIB`: the process may map only so much more than driver and host have
// mapped; or `walk_limited descriptors COUNT`. malloc keeps enough room; lib_libc_faults.cc makes
// it fail.
CASE(walk_limited) {
  const auto much = static_cast<rlim_t>(atoll(arguments.at(1).c_str()));
  const Gpu gpu;
  (void)image(kImage);
  SimcudaLaunch unused;
  (void)cuda().simcuda_last_launch_of_thread(&unused);
  rlimit limit;
  if (arguments.at(0) == "memory") {
    (void)limit_memory(much);
  } else {
    CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
    const int next = dup(STDERR_FILENO);
    CHECK(next >= 0);
    close(next);
    limit.rlim_cur = static_cast<rlim_t>(next) + much;
    CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
  }
  finish(gpu, walk_in_threads(gpu, 1, 1));
}

// `exec_without_memory set|switch`: execs return to the host's own while there is no room for what
// is noted of their nodes; later the host sets or switches one.
CASE(exec_without_memory) {
  const Gpu gpu;
  const CUfunction step = gpu.step();
  const Graph graph;
  const CUgraphNode first = graph.add(step, Arguments(gpu.marks(), 3, 0));
  for (int i = 1; i < 6000; ++i) (void)graph.add(step, Arguments(gpu.marks(), kNoSolution, i));
  // The first of them find room that is left from the planning.
  const std::array<Executable, 4> executables = {Executable(graph.get()), Executable(graph.get()),
                                                 Executable(graph.get()), Executable(graph.get())};
  for (const Executable& one : executables) one.run(gpu);
  const rlimit before = limit_memory(64);
  for (const Executable& one : executables) {
    CHECK(cuda().simcuda_set_faults("cuGraphLaunch=801*1") == 1);
    OK(cuda().cuGraphLaunch(one.get(), gpu.stream()));
  }
  CHECK(setrlimit(RLIMIT_AS, &before) == 0);
  for (const Executable& one : executables) {
    if (arguments.at(0) == "set") {
      one.set(first, step, Arguments(gpu.marks(), kNoSolution, 2));
    } else {
      one.enable(first, false);
    }
    OK(cuda().cuGraphLaunch(one.get(), gpu.stream()));
  }
  const Ran ran = what_ran(gpu.marks());
  gpu.expect_ran(ran);
  EXPECT_EQUAL(4, ran.curated3);
  state_faulted(ran, 0, 0, 0, 0);
}

// `signal_storm restart|interrupt`
CASE(signal_storm) {
  CHECK(pipe(g_pipe) == 0);
  CHECK(fcntl(g_pipe[0], F_SETFL, O_NONBLOCK) == 0);
  start_storm(arguments.at(0) == "restart" ? SA_RESTART : 0, on_signal);
  const Gpu gpu;
  Walked walked;
  // Walk until so many signals have arrived, however fast the machine is.
  while (g_signals.load() < 500) add(&walked, walk_in_threads(gpu, 3, 5));
  end_storm();
  finish(gpu, walked);
}

GPU_CASE(launches_from_signal_handlers) {
  const CUfunction step = gpu.step();
  OK(gpu.launch(step, 1));
  g_gpu = &gpu;
  g_step = step;
  long launched = 1;
  start_storm(SA_RESTART, on_signal_launch);
  while (g_launched.load() < 500) {
    OK(gpu.launch(step, 1));
    ++launched;
  }
  end_storm();
  launched += g_launched.load();
  printf("launched %ld\n", launched);
}
