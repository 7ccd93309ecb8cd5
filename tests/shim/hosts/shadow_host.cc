// A host whose launches never repeat: PyTorch's fused RMSNorm on rows of 128 elements, each time
// with other values and another number of rows, some in place. Prints a digest of all results, so
// that two runs can be compared bit for bit.
//
//   shadow_host [until] LAUNCHES [GRAPH_EVERY] [PAUSE_AFTER] [beside]
//   shadow_host many LAUNCHES SEED
//   shadow_host replay | replay_one REPLAYS CHECKS [COMMAND...]
//   shadow_host serve
//
// One of GRAPH_EVERY launches goes through a graph that is captured for it alone. After PAUSE_AFTER
// launches the host prints "paused" and waits for a line. "until": stops when the shim stops using
// the solution. "beside": while it captures, it makes the same launch in another stream.
// many: launches as fast as possible, on changing parts of a buffer that changes now and then.
// replay: launches a graph of several norms, or of one (replay_one), in two streams by turns, on
// the same few inputs again and again: REPLAYS times, and then until the simulated driver has made
// CHECKS comparisons; -1: until the shim stops using the solution. A time limit ends it, too.
// Prints how many results differed from earlier ones of the same input. Runs the first COMMAND
// after REPLAYS launches, the next after as many more; then counts only launches after the last.
// SHADOW_RESULTS names a file for a digest of each launch's or replay's results, one a line.
// serve: a request every three milliseconds until stdin ends; every second one replays a graph, of which
// there is one for each number of rows. TAKES_OVER: before each replay the graph is captured again,
// and its exec is updated to it. Prints "serving" after the first requests, and at the end the
// number of requests and how many had a wrong result.
#include <cuda.h>
#include <dlfcn.h>
#include <limits.h>
#include <math.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <string>
#include <vector>

namespace {

constexpr char kSymbol[] =
    "_ZN2at6native53_GLOBAL__N__a25d6a36_20_layer_norm_kernel_cu_9c5ada8a28vectorized_layer_norm_"
    "kernelIN3c108BFloat16EfLb1EEEviT0_PKT_S8_S8_PS5_S9_PS6_";
constexpr int kHidden = 128, kMostRows = 24;
constexpr float kEps = 1e-5f;

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

// Fills with bfloat16 values from about -4 to 4.
void fill(std::vector<uint16_t>* values) {
  for (uint16_t& value : *values) {
    const float number =
        static_cast<float>(static_cast<int64_t>(draw() >> 40) - (1 << 23)) / (1 << 21);
    uint32_t bits;
    memcpy(&bits, &number, sizeof bits);
    value = static_cast<uint16_t>(bits >> 16);
  }
}

constexpr uint64_t kNothing = 14695981039346656037u;
uint64_t g_digest = kNothing;
template <class T>
void digest(const std::vector<T>& values, size_t count, uint64_t* sum) {
  for (size_t i = 0; i < count; ++i) {
    uint32_t bits = 0;
    memcpy(&bits, &values[i], sizeof values[i]);
    *sum = (*sum ^ bits) * 1099511628211u;
  }
}

// Writes the digests of SHADOW_RESULTS, and updates the one of all results.
class Results {
 public:
  Results() {
    const char* const path = getenv("SHADOW_RESULTS");
    if (path != nullptr) file_ = fopen(path, "w");
  }
  ~Results() {
    if (file_ != nullptr) fclose(file_);
  }
  Results(const Results&) = delete;
  Results& operator=(const Results&) = delete;

  // The values behind the first `written` ones are from earlier launches.
  template <class T>
  void add(const std::vector<T>& values, size_t written) {
    digest(values, values.size(), &g_digest);
    if (file_ != nullptr) digest(values, written, &line_);
  }
  void end_line() {
    if (file_ != nullptr) fprintf(file_, "%016llx\n", static_cast<unsigned long long>(line_));
    line_ = kNothing;
  }

 private:
  FILE* file_ = nullptr;
  uint64_t line_ = kNothing;
};

#define FUNCTIONS(FUNCTION)                                          \
  FUNCTION(cuInit, cuInit)                                           \
  FUNCTION(cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain)       \
  FUNCTION(cuCtxSetCurrent, cuCtxSetCurrent)                         \
  FUNCTION(cuModuleLoad, cuModuleLoad)                               \
  FUNCTION(cuModuleGetFunction, cuModuleGetFunction)                 \
  FUNCTION(cuMemAlloc, cuMemAlloc_v2)                                \
  FUNCTION(cuMemcpyHtoD, cuMemcpyHtoD_v2)                            \
  FUNCTION(cuMemcpyDtoH, cuMemcpyDtoH_v2)                            \
  FUNCTION(cuStreamCreate, cuStreamCreate)                           \
  FUNCTION(cuStreamSynchronize, cuStreamSynchronize)                 \
  FUNCTION(cuStreamBeginCapture, cuStreamBeginCapture_v2)            \
  FUNCTION(cuStreamEndCapture, cuStreamEndCapture)                   \
  FUNCTION(cuGraphInstantiateWithFlags, cuGraphInstantiateWithFlags) \
  FUNCTION(cuGraphExecUpdate, cuGraphExecUpdate_v2)                  \
  FUNCTION(cuGraphLaunch, cuGraphLaunch)                             \
  FUNCTION(cuGraphExecDestroy, cuGraphExecDestroy)                   \
  FUNCTION(cuGraphDestroy, cuGraphDestroy)                           \
  FUNCTION(cuLaunchKernel, cuLaunchKernel)
#define FUNCTION(name, exported) decltype(&::name) name##_;
FUNCTIONS(FUNCTION)
#undef FUNCTION
#define MUST(call) must(call, #call)

CUfunction g_kernel;
CUstream g_stream;

void start() {
  g_library = dlopen("libcuda.so.1", RTLD_NOW);
  if (g_library == nullptr) {
    fprintf(stderr, "shadow_host: %s\n", dlerror());
    exit(1);
  }
#define FUNCTION(name, exported) name##_ = find<decltype(&::name)>(#exported);
  FUNCTIONS(FUNCTION)
#undef FUNCTION
  char self[PATH_MAX];
  const ssize_t length = readlink("/proc/self/exe", self, sizeof self);
  const std::string program(self, length > 0 ? static_cast<size_t>(length) : 0);
  const std::string image =
      program.substr(0, program.rfind('/')) + "/../data/engine_kernels.fatbin";
  CUcontext context = nullptr;
  CUmodule module = nullptr;
  MUST(cuInit_(0));
  MUST(cuDevicePrimaryCtxRetain_(&context, 0));
  MUST(cuCtxSetCurrent_(context));
  MUST(cuModuleLoad_(&module, image.c_str()));
  MUST(cuModuleGetFunction_(&g_kernel, module, kSymbol));
  MUST(cuStreamCreate_(&g_stream, CU_STREAM_NON_BLOCKING));
}

// The buffers of one norm.
struct Norm {
  CUdeviceptr x, weight, rstd, out;
  unsigned rows;
};

void launch(Norm norm, CUstream stream) {
  int hidden = kHidden;
  float eps = kEps;
  CUdeviceptr none = 0;
  void* params[] = {&hidden, &eps, &norm.x, &norm.weight, &none, &none, &norm.rstd, &norm.out};
  MUST(cuLaunchKernel_(g_kernel, norm.rows, 1, 1, 32, 4, 1, 0, stream, params, nullptr));
}

CUdeviceptr allocate(size_t bytes) {
  CUdeviceptr made = 0;
  MUST(cuMemAlloc_(&made, bytes));
  const std::vector<char> zeros(bytes);
  MUST(cuMemcpyHtoD_(made, zeros.data(), bytes));
  return made;
}

template <class Work>
CUgraph capture_graph(const Work& work) {
  CUgraph graph = nullptr;
  MUST(cuStreamBeginCapture_(g_stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  work();
  MUST(cuStreamEndCapture_(g_stream, &graph));
  return graph;
}

template <class Work>
CUgraphExec capture(const Work& work) {
  CUgraphExec exec = nullptr;
  CUgraph const graph = capture_graph(work);
  MUST(cuGraphInstantiateWithFlags_(&exec, graph, 0));
  MUST(cuGraphDestroy_(graph));
  return exec;
}

constexpr unsigned kRows[] = {1, 7, 24, 2, 21, 16, 13, 8, 24, 5};
constexpr int kNorms = sizeof kRows / sizeof kRows[0], kInputs = 7;
constexpr time_t kLimitS = 60;
constexpr long kAlone = 500;

int replay(int norm_count, long replays, long checks, char** commands) {
  const auto launch_count = find<uint64_t (*)(const char*)>("simcuda_launch_count");
  std::vector<uint16_t> x(kHidden * kMostRows), y(x.size()), weight(kHidden);
  std::vector<float> rstd(kMostRows);
  const CUdeviceptr weight_at = allocate(weight.size() * 2);
  std::vector<Norm> norms(static_cast<size_t>(norm_count));
  for (size_t i = 0; i < norms.size(); ++i) {
    norms[i] = {allocate(x.size() * 2), weight_at, allocate(rstd.size() * 4), 0, kRows[i]};
    norms[i].out = i % 4 == 2 ? norms[i].x : allocate(x.size() * 2);
  }
  CUstream streams[2] = {g_stream, nullptr};
  MUST(cuStreamCreate_(&streams[1], CU_STREAM_NON_BLOCKING));
  const CUgraphExec exec = capture([&] {
    for (const Norm& norm : norms) launch(norm, g_stream);
  });
  Results results;
  uint64_t known[kInputs] = {};
  const long between = replays;
  for (char** command = commands; *command != nullptr; ++command) replays += between;
  long done = 0;
  long unlike = 0;
  const time_t begun = time(nullptr);
  long last_ran = 0;
  uint64_t ran = 0;
  const auto is_over = [&] {
    if (checks >= 0) return static_cast<long>(launch_count("fibshim_shadow_compare")) >= checks;
    const uint64_t now = launch_count("rmsnorm_h128_bf16");
    if (now != ran) last_ran = done;
    ran = now;
    return done - last_ran > kAlone;
  };
  for (; !is_over() || done < replays; ++done) {
    if (done >= replays && time(nullptr) - begun > kLimitS) break;
    if (*commands != nullptr && done != 0 && done % between == 0) {
      if (system(*commands) != 0) fprintf(stderr, "shadow_host: failed: %s\n", *commands);
      ++commands;
      memset(known, 0, sizeof known);
      unlike = 0;
    }
    g_random = 88172645463325252u + static_cast<uint64_t>(done % kInputs) * 0x9e3779b97f4a7c15u;
    fill(&weight);
    MUST(cuMemcpyHtoD_(weight_at, weight.data(), weight.size() * 2));
    for (const Norm& norm : norms) {
      fill(&x);
      MUST(cuMemcpyHtoD_(norm.x, x.data(), x.size() * 2));
    }
    const CUstream stream = streams[done / 3 % 2];
    MUST(cuGraphLaunch_(exec, stream));
    MUST(cuStreamSynchronize_(stream));
    g_digest = kNothing;
    for (const Norm& norm : norms) {
      y.resize(norm.rows * kHidden);
      rstd.resize(norm.rows);
      MUST(cuMemcpyDtoH_(y.data(), norm.out, y.size() * 2));
      MUST(cuMemcpyDtoH_(rstd.data(), norm.rstd, rstd.size() * 4));
      results.add(y, y.size());
      results.add(rstd, rstd.size());
    }
    results.end_line();
    uint64_t& before = known[done % kInputs];
    if (before != 0 && before != g_digest) ++unlike;
    if (before == 0) before = g_digest;
    // Gives the thread that prepares checks time.
    if (done >= replays) usleep(1000);
  }
  MUST(cuGraphExecDestroy_(exec));
  g_digest = kNothing;
  for (const uint64_t one : known) g_digest = (g_digest ^ one) * 1099511628211u;
  printf("{\"launches\": %ld, \"unlike\": %ld, \"digest\": \"%016llx\"}\n", done, unlike,
         static_cast<unsigned long long>(g_digest));
  return 0;
}

int launch_many(long launches, uint64_t seed) {
  constexpr unsigned kAllRows = 512, kRowBytes = kHidden * 2, kMostOfLaunch = 8;
  constexpr long kRefill = 2000;
  std::vector<uint16_t> x(size_t{kHidden} * kAllRows), weight(kHidden);
  const CUdeviceptr x_at = allocate(x.size() * 2), y_at = allocate(x.size() * 2),
                    weight_at = allocate(weight.size() * 2), rstd_at = allocate(kAllRows * 4);
  g_random += seed * 0x9e3779b97f4a7c15u;
  for (long i = 0; i < launches; ++i) {
    if (i % kRefill == 0) {
      MUST(cuStreamSynchronize_(g_stream));
      fill(&x);
      fill(&weight);
      MUST(cuMemcpyHtoD_(x_at, x.data(), x.size() * 2));
      MUST(cuMemcpyHtoD_(weight_at, weight.data(), weight.size() * 2));
    }
    const auto rows = static_cast<unsigned>(1 + draw() % kMostOfLaunch);
    const CUdeviceptr from = draw() % (kAllRows - rows) * kRowBytes;
    const CUdeviceptr out = draw() % 64 == 0 ? x_at + from : y_at + from;
    launch({x_at + from, weight_at, rstd_at + from / kRowBytes * 4, out, rows}, g_stream);
  }
  MUST(cuStreamSynchronize_(g_stream));
  printf("{\"launches\": %ld}\n", launches);
  return 0;
}

double number_of(uint16_t bits) {
  const uint32_t wide = uint32_t{bits} << 16;
  float value;
  memcpy(&value, &wide, sizeof value);
  return value;
}

// True if all values are right, by a rule like the judge's.
bool is_right(const std::vector<uint16_t>& x, const std::vector<uint16_t>& weight, unsigned rows,
              float eps, const std::vector<uint16_t>& y) {
  for (unsigned row = 0; row < rows; ++row) {
    double sum = 0;
    for (int i = 0; i < kHidden; ++i) sum += pow(number_of(x[row * kHidden + i]), 2);
    const double factor = 1 / sqrt(sum / kHidden + eps);
    for (int i = 0; i < kHidden; ++i) {
      const double expected = number_of(x[row * kHidden + i]) * factor * number_of(weight[i]);
      const double difference = fabs(number_of(y[row * kHidden + i]) - expected);
      if (!(difference <= 2e-2 || difference <= 2e-2 * fabs(expected))) return false;
    }
  }
  return true;
}

bool has_stdin_ended() {
  pollfd in = {0, POLLIN, 0};
  char byte;
  return poll(&in, 1, 0) > 0 && read(0, &byte, 1) == 0;
}

int serve() {
  std::vector<uint16_t> x(kHidden * kMostRows), y(x.size()), weight(kHidden);
  Norm norm = {allocate(x.size() * 2), allocate(weight.size() * 2), allocate(kMostRows * 4),
               allocate(y.size() * 2), 0};
  CUgraphExec served[kMostRows + 1] = {};
  long requests = 0;
  long wrong = 0;
  const bool takes_over = getenv("TAKES_OVER") != nullptr;
  for (; !has_stdin_ended(); ++requests) {
    fill(&x);
    fill(&weight);
    MUST(cuMemcpyHtoD_(norm.x, x.data(), x.size() * 2));
    MUST(cuMemcpyHtoD_(norm.weight, weight.data(), weight.size() * 2));
    norm.rows = static_cast<unsigned>(1 + draw() % kMostRows);
    if (requests % 2 != 0) {
      CUgraphExec& exec = served[norm.rows];
      if (exec == nullptr) exec = capture([&] { launch(norm, g_stream); });
      if (takes_over) {
        CUgraph const graph = capture_graph([&] { launch(norm, g_stream); });
        CUgraphExecUpdateResultInfo info = {};
        MUST(cuGraphExecUpdate_(exec, graph, &info));
        MUST(cuGraphDestroy_(graph));
      }
      MUST(cuGraphLaunch_(exec, g_stream));
    } else {
      launch(norm, g_stream);
    }
    MUST(cuStreamSynchronize_(g_stream));
    MUST(cuMemcpyDtoH_(y.data(), norm.out, y.size() * 2));
    wrong += is_right(x, weight, norm.rows, kEps, y) ? 0 : 1;
    if (requests == 200) {
      printf("serving\n");
      fflush(stdout);
    }
    usleep(3000);
  }
  printf("{\"requests\": %ld, \"wrong\": %ld}\n", requests, wrong);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  start();
  if (argc > 1 && strcmp(argv[1], "serve") == 0) return serve();
  const bool replays_one = argc > 1 && strcmp(argv[1], "replay_one") == 0;
  if (argc > 3 && (replays_one || strcmp(argv[1], "replay") == 0))
    return replay(replays_one ? 1 : kNorms, atol(argv[2]), atol(argv[3]), argv + 4);
  if (argc > 3 && strcmp(argv[1], "many") == 0) {
    return launch_many(atol(argv[2]), strtoull(argv[3], nullptr, 10));
  }
  const bool is_until_left = argc > 1 && strcmp(argv[1], "until") == 0;
  if (is_until_left) {
    --argc;
    ++argv;
  }
  const auto launch_count = find<uint64_t (*)(const char*)>("simcuda_launch_count");
  uint64_t replaced = 0;
  long launches = argc > 1 ? atol(argv[1]) : 100;
  const long graph_every = argc > 2 ? atol(argv[2]) : 0;
  const long pause_after = argc > 3 ? atol(argv[3]) : -1;
  const bool launches_beside = argc > 4;
  CUstream other_stream = nullptr;
  MUST(cuStreamCreate_(&other_stream, CU_STREAM_NON_BLOCKING));
  std::vector<uint16_t> x(kHidden * kMostRows), y(kHidden * kMostRows), weight(kHidden);
  std::vector<float> rstd(kMostRows);
  const CUdeviceptr x_at = allocate(x.size() * 2), y_at = allocate(y.size() * 2),
                    weight_at = allocate(weight.size() * 2), rstd_at = allocate(rstd.size() * 4);
  Results results;
  for (long i = 0; i < launches; ++i) {
    if (is_until_left && i % kAlone == 0) {
      const uint64_t now = launch_count("rmsnorm_h128_bf16");
      if (i != 0 && now == replaced) launches = i;
      replaced = now;
    }
    if (i >= launches) break;
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
    const CUdeviceptr out = is_in_place ? x_at : y_at;
    const Norm norm = {x_at, weight_at, rstd_at, out, rows};
    if (graph_every > 0 && i % graph_every == 0) {
      const CUgraphExec exec = capture([&] {
        launch(norm, g_stream);
        if (launches_beside) launch(norm, other_stream);
      });
      MUST(cuStreamSynchronize_(other_stream));
      MUST(cuGraphLaunch_(exec, g_stream));
      MUST(cuStreamSynchronize_(g_stream));
      MUST(cuGraphExecDestroy_(exec));
    } else {
      launch(norm, g_stream);
      MUST(cuStreamSynchronize_(g_stream));
    }
    MUST(cuMemcpyDtoH_(y.data(), out, y.size() * 2));
    MUST(cuMemcpyDtoH_(rstd.data(), rstd_at, rstd.size() * 4));
    results.add(y, size_t{rows} * kHidden);
    results.add(rstd, rows);
    results.end_line();
  }
  printf("{\"launches\": %ld, \"digest\": \"%016llx\"}\n", launches,
         static_cast<unsigned long long>(g_digest));
  return 0;
}
