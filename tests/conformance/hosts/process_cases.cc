// Processes: fork in every order, spawn, exec, daemons, exits and kills with launches in flight,
// libraries that use CUDA while they are loaded. Facts 10, 12 to 15, 20 and 21. Each process that
// uses CUDA states for itself what it must have run and counted.
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <atomic>
#include <thread>

#include "tests/conformance/hosts/graphs.h"

namespace conform {
namespace {

// Launches a tracked and an untracked kernel `launches` times each, and states it.
void use_cuda(int launches) {
  const Gpu gpu;
  const auto own = gpu.handles();
  for (int i = 0; i < launches; ++i) {
    OK(gpu.launch(own.step, 1));
    OK(gpu.launch(own.free, 1));
  }
  gpu.finish({.free = launches, .curated1 = launches}, {.hit = launches, .untracked = launches});
}

template <class Work>
pid_t in_child(Work work) {
  const pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    work();
    fflush(stdout);
    _exit(0);
  }
  return child;
}

std::string self() {
  char path[4096];
  const ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
  CHECK(length > 0);
  return std::string(path, static_cast<size_t>(length));
}

pid_t spawn(const std::vector<std::string>& words, char* const* environment = environ) {
  std::vector<char*> argv;
  const std::string program = self();
  argv.push_back(const_cast<char*>(program.c_str()));
  for (const std::string& word : words) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  pid_t child = 0;
  EXPECT_EQUAL(0, posix_spawn(&child, program.c_str(), nullptr, nullptr, argv.data(), environment));
  return child;
}

// A forked child cannot use CUDA if its parent has used it: every call returns an error.
void use_cuda_in_vain(const Gpu& gpu, CUfunction step, CUfunction free) {
  EXPECT_CODE(CUDA_ERROR_NOT_INITIALIZED, cuda().cuInit(0));
  EXPECT_CODE(CUDA_ERROR_NOT_INITIALIZED, gpu.launch(step, 1));
  EXPECT_CODE(CUDA_ERROR_NOT_INITIALIZED, gpu.launch(free, 1));
  CUmodule module = nullptr;
  EXPECT_CODE(CUDA_ERROR_NOT_INITIALIZED, cuda().cuModuleLoadData(&module, image(kImage).data()));
  EXPECT_CODE(CUDA_ERROR_NOT_INITIALIZED, cuda().cuModuleUnload(nullptr));
  EXPECT_CODE(CUDA_ERROR_NOT_INITIALIZED, cuda().cuCtxDestroy_v2(gpu.context()));
}

}  // namespace
}  // namespace conform

using namespace conform;

// `use LAUNCHES`: the case that the cases below start.
CASE(use) { use_cuda(atoi(arguments.at(0).c_str())); }

// ---- fork

CASE(fork_before_cuda) {
  std::vector<pid_t> children;
  for (int i = 1; i <= 4; ++i) children.push_back(in_child([i] { use_cuda(i); }));
  use_cuda(10);
  for (const pid_t child : children) expect_exit(child, 0);
}

// The driver is loaded and its functions are found, but it is not initialised, as after `import
// torch`.
CASE(fork_after_import) {
  (void)cuda();
  void* found = nullptr;
  OK(cuda().cuGetProcAddress_v2("cuLaunchKernel", &found, 12000, 0, nullptr));
  std::vector<pid_t> children;
  for (int i = 1; i <= 4; ++i) children.push_back(in_child([i] { use_cuda(i); }));
  use_cuda(10);
  for (const pid_t child : children) expect_exit(child, 0);
}

// The child has counters of its own for the calls that it tried. The parent's stay correct, even if
// the child ends by exit(), which runs all destructors.
GPU_CASE(fork_after_cuda) {
  const auto own = gpu.handles();
  OK(gpu.launch(own.step, 1));
  expect_exit(in_child([&] {
                use_cuda_in_vain(gpu, own.step, own.free);
                state({}, {.error = 1, .untracked = 1});
              }),
              0);
  const pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) exit(0);
  expect_exit(child, 0);
  // A child of a child, neither of which uses CUDA.
  expect_exit(in_child([] { expect_exit(in_child([] {}), 0); }), 0);
  OK(gpu.launch(own.step, 1));
  OK(gpu.launch(own.free, 1));
  gpu.finish({.free = 1, .curated1 = 2}, {.hit = 2, .untracked = 1});
}

// While other threads launch, load and unload, any lock may be held: no child hangs, and the parent
// loses no counts.
GPU_CASE(fork_under_load) {
  const auto own = gpu.handles();
  std::atomic<bool> is_over{false};
  std::atomic<long> launches{0};
  std::atomic<long> loads{0};
  std::thread launcher([&] {
    gpu.enter();
    while (!is_over) {
      OK(gpu.launch(own.step, 1));
      OK(gpu.launch(own.free, 1));
      ++launches;
    }
  });
  std::thread loader([&] {
    gpu.enter();
    while (!is_over) {
      const CUmodule module = gpu.load_module();
      OK(gpu.launch(gpu.function(module), 2));
      OK(cuda().cuModuleUnload(module));
      ++loads;
    }
  });
  for (int i = 0; i < 40; ++i) {
    expect_exit(in_child([&] {
                  end_child_under_sanitizers();
                  // The slow paths that take locks: looking up, forgetting, counting in a new file.
                  CUfunction function = nullptr;
                  CHECK(cuda().cuModuleGetFunction(&function, own.module, kStep) != CUDA_SUCCESS);
                  CHECK(cuda().cuModuleUnload(own.module) != CUDA_SUCCESS);
                  CHECK(gpu.launch(own.free, 1) != CUDA_SUCCESS);
                  state({}, {.untracked = 1});
                }),
                0);
  }
  is_over = true;
  launcher.join();
  loader.join();
  gpu.finish({.free = launches, .curated1 = launches, .curated2 = loads},
             {.hit = launches + loads, .untracked = launches});
}

// The same while another thread adds conditional nodes.
GPU_CASE(fork_beside_conditional_nodes) {
  std::atomic<bool> is_over{false};
  (void)gpu.step();
  std::thread adder([&] {
    gpu.enter();
    while (!is_over) {
      const Graph graph;
      for (int i = 0; i < 10; ++i) (void)add_conditional(gpu, graph.get());
    }
  });
  const Graph graph;
  const auto unknown = reinterpret_cast<CUgraphExec>(graph.get());
  for (int i = 0; i < 300; ++i) {
    expect_exit(in_child([&] {
                  end_child_under_sanitizers();
                  alarm(20);
                  auto info = zeroed<CUgraphExecUpdateResultInfo>();
                  CHECK(cuda().cuGraphExecUpdate_v2(unknown, graph.get(), &info) != CUDA_SUCCESS);
                }),
                0);
  }
  is_over = true;
  adder.join();
  gpu.finish({}, {});
}

// A process forks while another thread starts the shim: the child starts it anew.
CASE(fork_while_starting) {
  for (int round = 0; round < 10; ++round) {
    expect_exit(in_child([] {
                  (void)cuda();
                  std::atomic<bool> is_started{false};
                  // Starts the shim before cuInit.
                  std::thread starter([&] {
                    CUmodule module = nullptr;
                    is_started = true;
                    (void)cuda().cuModuleLoadData(&module, nullptr);
                  });
                  while (!is_started) {
                  }
                  const pid_t child = in_child([] {
                    end_child_under_sanitizers();
                    use_cuda(3);
                  });
                  expect_exit(child, 0);
                  starter.join();
                }),
                0);
  }
}

// ---- spawn and exec

CASE(spawn_before_and_after) {
  std::vector<pid_t> children = {spawn({"use", "2"})};
  use_cuda(3);
  children.push_back(spawn({"use", "4"}));
  const pid_t vforked = vfork();
  CHECK(vforked >= 0);
  if (vforked == 0) {
    execl("/proc/self/exe", "conform", "use", "5", nullptr);
    _exit(127);
  }
  children.push_back(vforked);
  for (const pid_t child : children) expect_exit(child, 0);
}

// A program that execs another one: pid and start time stay the same, and the counts must be kept.
CASE(exec_after_cuda) {
  const int round = arguments.empty() ? 0 : atoi(arguments[0].c_str());
  use_cuda(5 + round);
  if (round == 2) return;
  const std::string next = std::to_string(round + 1);
  execl(self().c_str(), "conform", "exec_after_cuda", next.c_str(), nullptr);
  fail(__FILE__, __LINE__, strerror(errno));
}

// A worker whose LD_PRELOAD was rewritten is not under the shim, and does not affect it.
CASE(worker_without_preload) {
  std::vector<std::string> kept;
  for (char** at = environ; *at != nullptr; ++at) {
    if (strncmp(*at, "LD_PRELOAD=", 11) != 0) kept.emplace_back(*at);
  }
  std::vector<char*> environment;
  for (std::string& one : kept) environment.push_back(one.data());
  environment.push_back(nullptr);
  use_cuda(2);
  expect_exit(spawn({"plain"}, environment.data()), 0);
}

// Not under the shim: the original runs. States only what it ran.
GPU_CASE(plain) {
  CHECK(!is_shim_active());
  OK(gpu.launch(gpu.step(), 1));
  gpu.finish({.step = 1}, {});
}

// ---- daemons

// A worker that leaves its parent and closes every descriptor, before or after its first use.
CASE(daemon_closes_descriptors) {
  const bool is_used_before = !arguments.empty() && arguments[0] == "used";
  int ends[2];
  CHECK(pipe(ends) == 0);
  const pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    setsid();
    if (fork() != 0) _exit(0);
    const int out = dup(STDOUT_FILENO);
    Gpu* gpu = is_used_before ? new Gpu : nullptr;
    if (is_used_before) OK(gpu->launch(gpu->step(), 1));
    for (int descriptor = 0; descriptor < 256; ++descriptor) {
      if (descriptor != ends[1] && descriptor != out) close(descriptor);
    }
    // Files of the host's own get the closed descriptors' numbers.
    const std::string path = "/proc/self/exe";
    int held[3];
    for (int& one : held) one = open(path.c_str(), O_RDONLY);
    if (gpu == nullptr) gpu = new Gpu;
    const CUmodule module = gpu->load_module();
    std::thread([&] {
      gpu->enter();
      OK(gpu->launch(gpu->function(module), 2));
    }).join();
    for (int one : held) CHECK(fcntl(one, F_GETFD) >= 0);
    dup2(out, STDOUT_FILENO);
    const long before = is_used_before ? 1 : 0;
    gpu->finish({.curated1 = before, .curated2 = 1}, {.hit = before + 1});
    _exit(write(ends[1], "k", 1) == 1 ? 0 : 1);
  }
  close(ends[1]);
  expect_exit(child, 0);
  char byte = 0;
  CHECK(read(ends[0], &byte, 1) == 1 && byte == 'k');
}

// ---- ends

// exit() while other threads launch: they are interrupted anywhere, and nothing crashes or hangs.
// The counters have at least the launches that had returned.
CASE(exit_in_flight) {
  static const Gpu gpu;
  static const CUfunction step = gpu.step();
  static std::atomic<long> launched{0};
  for (int i = 0; i < 4; ++i) {
    std::thread([] {
      // This thread may begin after the driver's end, when nothing can be launched any more.
      (void)cuda().cuCtxSetCurrent(gpu.context());
      while (true) {
        // After the driver has shut down, launches return its error.
        if (gpu.launch(step, 1) != CUDA_SUCCESS) continue;
        ++launched;
      }
    }).detach();
  }
  while (launched < 1000) std::this_thread::yield();
  printf("launched %ld\n", launched.load());
  fflush(stdout);
  exit(0);
}

// A static object uses CUDA when it is destroyed, after the driver has shut down.
CASE(destructors_use_cuda) {
  static CUmodule module = nullptr;
  static CUfunction step = nullptr;
  static const Gpu* gpu = nullptr;
  static const struct AtEnd {
    ~AtEnd() {
      if (gpu->launch(step, 1) != CUDA_ERROR_DEINITIALIZED) _exit(3);
      if (cuda().cuModuleUnload(module) != CUDA_ERROR_DEINITIALIZED) _exit(4);
      state({.curated1 = 1}, {.hit = 1, .error = 1});
    }
  } at_end;  // made before cuInit registers the driver's own exit handler
  gpu = new Gpu;
  module = gpu->load_module();
  step = gpu->function(module);
  OK(gpu->launch(step, 1));
}

// Hundreds of threads start and end: the counts of each are kept.
GPU_CASE(many_threads) {
  const CUmodule module = gpu.load_module();
  const CUfunction step = gpu.function(module);
  constexpr int waves = 50;
  constexpr int threads = 16;
  for (int wave = 0; wave < waves; ++wave) {
    std::vector<std::thread> all;
    for (int i = 0; i < threads; ++i) {
      all.emplace_back([&] {
        gpu.enter();
        for (int k = 0; k < 10; ++k) OK(gpu.launch(step, 1 + k % 2));
      });
    }
    for (std::thread& one : all) one.join();
  }
  constexpr long each = waves * threads * 5;
  gpu.finish({.curated1 = each, .curated2 = each}, {.hit = 2 * each});
}

// Facts 13: a process that is killed at any moment leaves nothing locked, and its counts are
// readable.
CASE(killed_children) {
  const char* const real = getenv("FIBSHIM_TEST_REAL_DRIVER");  // only the children use CUDA
  const int children = real == nullptr || *real == 0 ? 20 : 5;
  for (int i = 0; i < children; ++i) {
    int ends[2];
    CHECK(pipe(ends) == 0);
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
      const Gpu gpu;
      const CUfunction step = gpu.step();
      for (int k = 0; k < 50; ++k) OK(gpu.launch(step, 1));
      gpu.finish({.curated1 = 50}, {.hit = 50});
      if (write(ends[1], "k", 1) != 1) _exit(1);
      while (true) (void)cuda().cuCtxSynchronize();
    }
    char byte = 0;
    CHECK(read(ends[0], &byte, 1) == 1);
    CHECK(kill(child, SIGKILL) == 0);
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child && WIFSIGNALED(status));
    close(ends[0]);
    close(ends[1]);
  }
  use_cuda(1);
}

// ---- many at once

// Facts 14: `herd COUNT` starts COUNT processes at once.
CASE(herd) {
  const int count = atoi(arguments.at(0).c_str());
  std::vector<pid_t> children;
  for (int i = 0; i < count; ++i) children.push_back(spawn({"use", "3"}));
  for (const pid_t child : children) expect_exit(child, 0);
}

// ---- libraries that use CUDA

namespace {

using Launches = long (*)();

void* open_plugin() {
  void* plugin = dlopen(data_path("libconform_plugin.so").c_str(), RTLD_NOW | RTLD_LOCAL);
  if (plugin == nullptr) fail(__FILE__, __LINE__, dlerror());
  return plugin;
}

long launches_of(void* plugin) {
  return reinterpret_cast<Launches>(dlsym(plugin, "conform_plugin_launches"))();
}

}  // namespace

// A library whose constructor launches and whose destructor unloads is opened and closed
// repeatedly.
GPU_CASE(library_uses_cuda) {
  setenv("CONFORM_MARKS", std::to_string(reinterpret_cast<uintptr_t>(gpu.marks())).c_str(), 1);
  for (int i = 0; i < 20; ++i) {
    void* plugin = open_plugin();
    EXPECT_EQUAL(2, launches_of(plugin));
    CHECK(dlclose(plugin) == 0);
  }
  OK(gpu.launch(gpu.step(), 2));
  gpu.finish({.free = 20, .curated1 = 20, .curated2 = 1}, {.hit = 21, .untracked = 20});
}

// The process's first use of CUDA is in the constructor of a library, under the dynamic linker's
// lock.
CASE(library_starts_cuda) {
  unsetenv("CONFORM_MARKS");
  void* plugin = open_plugin();
  EXPECT_EQUAL(2, launches_of(plugin));
  CHECK(dlclose(plugin) == 0);
  state({.free = 1, .curated1 = 1}, {.hit = 1, .untracked = 1});
}

// `library_binds_deep [clear]`: a library opened with RTLD_DEEPBIND finds libc's own dlsym, and so
// the driver's own functions, unless a setting makes the shim remove that flag.
CASE(library_binds_deep) {
  const bool is_cleared = !arguments.empty() && arguments[0] == "clear";
  const Gpu gpu;
  setenv("CONFORM_MARKS", std::to_string(reinterpret_cast<uintptr_t>(gpu.marks())).c_str(), 1);
  void* plugin =
      dlopen(data_path("libconform_plugin.so").c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
  if (plugin == nullptr) fail(__FILE__, __LINE__, dlerror());
  EXPECT_EQUAL(2, launches_of(plugin));
  if (is_cleared) {
    gpu.finish({.free = 1, .curated1 = 1}, {.hit = 1, .untracked = 1});
  } else {
    gpu.finish({.step = 1, .free = 1}, {});
  }
}

namespace {

std::atomic<int> g_starter_tid{0};
std::atomic<bool> g_may_start{false};
std::atomic<bool> g_has_started{false};

}  // namespace

// Facts 10: called by libconform_plugin.so from its constructor, under the dynamic linker's lock.
// Lets the other thread begin, and returns once that thread waits for this lock, or is done.
extern "C" __attribute__((visibility("default"))) void conform_let_other_thread_start() {
  g_may_start = true;
  while (g_starter_tid == 0 && !g_has_started) std::this_thread::yield();
  const std::string path = "/proc/self/task/" + std::to_string(g_starter_tid) + "/syscall";
  while (!g_has_started) {
    char text[64] = "";
    const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (file >= 0) {
      const ssize_t length = read(file, text, sizeof text - 1);
      text[length > 0 ? length : 0] = 0;
      close(file);
    }
    if (atoi(text) == SYS_futex && text[0] != 'r') return;
    std::this_thread::yield();
  }
}

CASE(library_starts_cuda_beside_another_thread) {
  (void)cuda();
  OK(cuda().cuInit(0));
  std::thread starter([] {
    while (!g_may_start) std::this_thread::yield();
    g_starter_tid = static_cast<int>(syscall(SYS_gettid));
    // The call that starts the shim: it opens the loader, and so waits for the lock.
    CUmodule module = nullptr;
    (void)cuda().cuModuleLoadData(&module, nullptr);
    g_has_started = true;
  });
  setenv("CONFORM_WAIT", "1", 1);
  void* plugin = open_plugin();
  starter.join();
  EXPECT_EQUAL(2, launches_of(plugin));
  const Gpu gpu;
  OK(gpu.launch(gpu.step(), 2));
  gpu.enter();
  OK(cuda().cuCtxSynchronize());
  state({.free = 1, .curated1 = 1, .curated2 = 1}, {.hit = 2, .untracked = 1});
}
