// A small inference engine: loads an image, launches PyTorch's fused RMSNorm, and checks the
// results against float64. Options choose its way to the driver (how functions are resolved, which
// module API, which launch call, how arguments are passed), so that one program stands for all the
// ways that tools/doc/driver_facts.md, section 1, lists. It runs with any driver, real or
// simulated, with or without the shim: the numbers must be right in every case.
//
// Prints one line of JSON. Exit status: 1 a call failed or a number is wrong, 2 wrong usage.
#include <cuda.h>
#include <dlfcn.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "shim/abi/hash.h"

namespace {

// ---- the driver, as a table ----

#define TEXT(x) #x
#define EXPANDED_TEXT(x) TEXT(x)  // cuda.h's renames applied: cuMemAlloc gives "cuMemAlloc_v2"

// FUNCTION(name, CUDA version to ask for, suffix of the form for per-thread default streams)
#define FUNCTIONS(FUNCTION)                        \
  FUNCTION(cuInit, 2000, "")                       \
  FUNCTION(cuDriverGetVersion, 2020, "")           \
  FUNCTION(cuGetErrorName, 6000, "")               \
  FUNCTION(cuDeviceGet, 2000, "")                  \
  FUNCTION(cuDeviceGetName, 2000, "")              \
  FUNCTION(cuDevicePrimaryCtxRetain, 7000, "")     \
  FUNCTION(cuDevicePrimaryCtxRelease, 11000, "")   \
  FUNCTION(cuCtxSetCurrent, 4000, "")              \
  FUNCTION(cuCtxSynchronize, 2000, "")             \
  FUNCTION(cuModuleLoad, 2000, "")                 \
  FUNCTION(cuModuleLoadData, 2000, "")             \
  FUNCTION(cuModuleUnload, 2000, "")               \
  FUNCTION(cuModuleGetFunction, 2000, "")          \
  FUNCTION(cuModuleGetFunctionCount, 12040, "")    \
  FUNCTION(cuModuleEnumerateFunctions, 12040, "")  \
  FUNCTION(cuLibraryLoadData, 12000, "")           \
  FUNCTION(cuLibraryLoadFromFile, 12000, "")       \
  FUNCTION(cuLibraryUnload, 12000, "")             \
  FUNCTION(cuLibraryGetKernel, 12000, "")          \
  FUNCTION(cuLibraryGetKernelCount, 12040, "")     \
  FUNCTION(cuLibraryEnumerateKernels, 12040, "")   \
  FUNCTION(cuFuncGetName, 12030, "")               \
  FUNCTION(cuKernelGetName, 12030, "")             \
  FUNCTION(cuMemAlloc, 3020, "")                   \
  FUNCTION(cuMemFree, 3020, "")                    \
  FUNCTION(cuMemcpyHtoD, 7000, "_ptds")            \
  FUNCTION(cuMemcpyDtoH, 7000, "_ptds")            \
  FUNCTION(cuMemsetD8, 7000, "_ptds")              \
  FUNCTION(cuStreamCreate, 2000, "")               \
  FUNCTION(cuStreamDestroy, 4000, "")              \
  FUNCTION(cuStreamSynchronize, 7000, "_ptsz")     \
  FUNCTION(cuStreamBeginCapture, 10010, "_ptsz")   \
  FUNCTION(cuStreamEndCapture, 10000, "_ptsz")     \
  FUNCTION(cuGraphGetNodes, 10000, "")             \
  FUNCTION(cuGraphKernelNodeGetParams, 12000, "")  \
  FUNCTION(cuGraphInstantiateWithFlags, 11040, "") \
  FUNCTION(cuGraphLaunch, 10000, "_ptsz")          \
  FUNCTION(cuGraphExecDestroy, 10000, "")          \
  FUNCTION(cuGraphDestroy, 10000, "")              \
  FUNCTION(cuLaunchKernel, 7000, "_ptsz")          \
  FUNCTION(cuLaunchKernelEx, 11060, "_ptsz")

// Members have the plain name with a trailing underscore, since cuda.h renames the name itself.
struct Driver {
#define MEMBER(name, version, suffix) decltype(&::name) name##_ = nullptr;
  FUNCTIONS(MEMBER)
#undef MEMBER
};

struct Options {
  std::string resolve = "dlsym";
  std::string module_api = "library";
  std::string load = "data";
  std::string lookup = "name";
  std::string launch_api = "launch";
  std::string pass = "params";
  std::string stream = "created";
  std::string dtype = "bf16";
  std::string kernel;
  std::string image;
  int threads = 1;
  int launches = 1;
  int pause_after = -1;
  int step_us = 0;
  std::string slow_file;
  int rounds = 1;
  int hidden = 4096;
  int rows = 64;
  int device = 0;
  bool halves = false;
  bool is_ptsz = false;
  bool is_capturing = false;
  bool wants_verify = true;
  bool is_demo = false;
};

[[noreturn]] void usage_error(const std::string& message) {
  fprintf(stderr, "engine: %s\nengine: --help lists the options\n", message.c_str());
  exit(2);
}

// ---- options ----

struct TextOption {
  const char* name;
  std::string Options::*value;
  const char* choices;  // separated by '|'; null: free text
  const char* meaning;
};
struct NumberOption {
  const char* name;
  int Options::*value;
  int least;
  const char* meaning;
};
struct FlagOption {
  const char* name;
  bool Options::*value;
  bool set_to;
  const char* meaning;
};

#ifdef ENGINE_IS_LINKED
constexpr char kResolveChoices[] = "linked";
#else
constexpr char kResolveChoices[] = "dlsym|dlvsym|getproc4|getproc5";
#endif

constexpr TextOption kTextOptions[] = {
    {"--resolve", &Options::resolve, kResolveChoices, "how driver functions are found"},
    {"--module", &Options::module_api, "module|library", "CUmodule or CUlibrary"},
    {"--load", &Options::load, "data|file", "the image from memory, or by its path"},
    {"--lookup", &Options::lookup, "name|enumerate", "the kernel by name, or out of all"},
    {"--api", &Options::launch_api, "launch|ex", "cuLaunchKernel or cuLaunchKernelEx"},
    {"--pass", &Options::pass, "params|extra", "arguments one by one, or in a packed buffer"},
    {"--stream", &Options::stream, "created|default", "a stream for each thread, or stream 0"},
    {"--dtype", &Options::dtype, "bf16|fp16", ""},
    {"--kernel", &Options::kernel, nullptr, "symbol; PyTorch's fused RMSNorm when not given"},
    {"--image", &Options::image, nullptr, "cubin or fatbin; the one built with this program"},
    {"--slow-file", &Options::slow_file, nullptr, "while it is there, --step-us counts twice"},
};
constexpr NumberOption kNumberOptions[] = {
    {"--threads", &Options::threads, 1, ""},
    {"--launches", &Options::launches, 0, "by each thread in each round"},
    {"--pause-after", &Options::pause_after, 0,
     "after so many launches by each thread print \"paused\" and wait for a line on stdin; 0: "
     "before "
     "the kernel is loaded"},
    {"--rounds", &Options::rounds, 1, "load, launch and unload so often"},
    {"--step-us", &Options::step_us, 0, "wait so long before each launch of a graph"},
    {"--hidden", &Options::hidden, 1, "elements in a row"},
    {"--rows", &Options::rows, 1, ""},
    {"--device", &Options::device, 0, "ordinal"},
};
constexpr FlagOption kFlagOptions[] = {
    {"--ptsz", &Options::is_ptsz, true, "the per-thread default stream forms"},
    {"--capture", &Options::is_capturing, true,
     "capture one launch, without warm-up, and replay it --launches times"},
    {"--halves", &Options::halves, true,
     "every second launch, from the first on, is of half a row"},
    {"--no-verify", &Options::wants_verify, false, "do not look at the results"},
    {"--demo", &Options::is_demo, true, "a few lines for a person instead of JSON"},
};

bool is_choice(const char* choices, const std::string& value) {
  if (choices == nullptr) return true;
  return (std::string("|") + choices + "|").find("|" + value + "|") != std::string::npos &&
         !value.empty();
}

void print_help() {
  printf("usage: engine [OPTION]...\n");
  for (const TextOption& option : kTextOptions)
    printf("  %s=%s  %s\n", option.name, option.choices != nullptr ? option.choices : "TEXT",
           option.meaning);
  for (const NumberOption& option : kNumberOptions)
    printf("  %s=N  %s\n", option.name, option.meaning);
  for (const FlagOption& option : kFlagOptions) printf("  %s  %s\n", option.name, option.meaning);
}

bool parse_one(const std::string& argument, Options* options) {
  const size_t equals = argument.find('=');
  const std::string name = argument.substr(0, equals);
  if (equals == std::string::npos) {
    for (const FlagOption& option : kFlagOptions) {
      if (name != option.name) continue;
      options->*option.value = option.set_to;
      return true;
    }
    return false;
  }
  const std::string value = argument.substr(equals + 1);
  for (const TextOption& option : kTextOptions) {
    if (name != option.name) continue;
    if (!is_choice(option.choices, value))
      usage_error(name + " takes " + option.choices + ", not \"" + value + "\"");
    options->*option.value = value;
    return true;
  }
  for (const NumberOption& option : kNumberOptions) {
    if (name != option.name) continue;
    char* end = nullptr;
    const long number = strtol(value.c_str(), &end, 10);
    if (end == value.c_str() || *end != 0 || number < option.least || number > INT_MAX)
      usage_error(name + " takes a number from " + std::to_string(option.least) + " on, not \"" +
                  value + "\"");
    options->*option.value = static_cast<int>(number);
    return true;
  }
  return false;
}

Options parse_options(int argc, char** argv) {
  Options options;
#ifdef ENGINE_IS_LINKED
  options.resolve = "linked";
#endif
  for (int i = 1; i < argc; ++i) {
    if (strcmp(argv[i], "--help") == 0) {
      print_help();
      exit(0);
    }
    if (!parse_one(argv[i], &options)) usage_error(std::string("unknown option ") + argv[i]);
  }
  if (options.kernel.empty()) {
    options.kernel =
        "_ZN2at6native53_GLOBAL__N__a25d6a36_20_layer_norm_kernel_cu_9c5ada8a"
        "28vectorized_layer_norm_kernelI";
    options.kernel += options.dtype == "bf16" ? "N3c108BFloat16E" : "N3c104HalfE";
    options.kernel += "fLb1EEEviT0_PKT_S8_S8_PS5_S9_PS6_";
  }
  if (options.image.empty()) {
    char path[PATH_MAX];
    const ssize_t length = readlink("/proc/self/exe", path, sizeof path);
    const std::string program(path, length > 0 ? static_cast<size_t>(length) : 0);
    options.image = program.substr(0, program.rfind('/')) + "/../data/engine_kernels.fatbin";
  }
  if (options.is_capturing && options.stream == "default" && !options.is_ptsz)
    usage_error("--capture needs --stream=created or --ptsz: the legacy stream cannot capture");
  return options;
}

// ---- errors ----

const Driver* g_driver = nullptr;

std::string error_name(CUresult error) {
  const char* name = nullptr;
  if (g_driver != nullptr && g_driver->cuGetErrorName_ != nullptr &&
      g_driver->cuGetErrorName_(error, &name) == CUDA_SUCCESS && name != nullptr)
    return name;
  return "CUDA error " + std::to_string(static_cast<int>(error));
}

// Ends the program if the call failed.
void must(CUresult error, const char* what) {
  if (error == CUDA_SUCCESS) return;
  printf("{\"error\":\"%s\",\"code\":%d,\"call\":\"%s\"}\n", error_name(error).c_str(),
         static_cast<int>(error), what);
  fflush(stdout);
  _exit(1);
}

[[noreturn]] void fail(const std::string& reason) {
  printf("{\"error\":\"%s\"}\n", reason.c_str());
  fflush(stdout);
  _exit(1);
}

#define MUST(call) must(call, #call)

// ---- resolving ----

using GetProc4 = CUresult (*)(const char*, void**, int, cuuint64_t);
using GetProc5 = CUresult (*)(const char*, void**, int, cuuint64_t,
                              CUdriverProcAddressQueryResult*);

#ifdef ENGINE_IS_LINKED

#define DECLARE_PTSZ(name) extern "C" decltype(::name) name##_ptsz;
}  // namespace
DECLARE_PTSZ(cuLaunchKernel)
DECLARE_PTSZ(cuLaunchKernelEx)
DECLARE_PTSZ(cuStreamSynchronize)
DECLARE_PTSZ(cuStreamEndCapture)
DECLARE_PTSZ(cuGraphLaunch)
extern "C" CUresult cuStreamBeginCapture_v2_ptsz(CUstream, CUstreamCaptureMode);
namespace {

void* resolve_all(const Options& options, Driver* driver) {
#define LINKED(name, version, suffix) driver->name##_ = &::name;
  FUNCTIONS(LINKED)
#undef LINKED
  if (options.is_ptsz) {
    driver->cuLaunchKernel_ = &::cuLaunchKernel_ptsz;
    driver->cuLaunchKernelEx_ = &::cuLaunchKernelEx_ptsz;
    driver->cuStreamSynchronize_ = &::cuStreamSynchronize_ptsz;
    driver->cuStreamBeginCapture_ = &::cuStreamBeginCapture_v2_ptsz;
    driver->cuStreamEndCapture_ = &::cuStreamEndCapture_ptsz;
    driver->cuGraphLaunch_ = &::cuGraphLaunch_ptsz;
  }
  return RTLD_DEFAULT;
}

#else

// Resolves as cudart does: gets the resolver by dlsym, and the rest from the resolver.
void* get_proc(const Options& options, void* library, const char* base, int version,
               bool has_ptsz) {
  const bool is_four = options.resolve == "getproc4";
  void* resolver = dlsym(library, is_four ? "cuGetProcAddress" : "cuGetProcAddress_v2");
  if (resolver == nullptr) fail("no cuGetProcAddress in the driver");
  const cuuint64_t flags = options.is_ptsz ? CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM : 0;
  // The plain forms of the old calls are older than those for per-thread default streams.
  const int asked = !options.is_ptsz && has_ptsz ? std::min(version, 4000) : version;
  void* function = nullptr;
  for (const int wanted : {asked, version}) {
    if (is_four)
      reinterpret_cast<GetProc4>(resolver)(base, &function, wanted, flags);
    else
      reinterpret_cast<GetProc5>(resolver)(base, &function, wanted, flags, nullptr);
    if (function != nullptr) return function;
  }
  return nullptr;
}

void* find_function(const Options& options, void* library, const char* base, const char* exported,
                    int version, const char* suffix) {
  if (options.resolve == "getproc4" || options.resolve == "getproc5")
    return get_proc(options, library, base, version, *suffix != 0);
  std::string name = exported;
  if (options.is_ptsz) name += suffix;
  // Real drivers have no symbol versions, so dlvsym finds nothing; build/sim/versioned has one.
  return options.resolve == "dlvsym" ? dlvsym(library, name.c_str(), "libcuda.so.1")
                                     : dlsym(library, name.c_str());
}

void* resolve_all(const Options& options, Driver* driver) {
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) fail(std::string("cannot load libcuda.so.1: ") + dlerror());
#define RESOLVE(name, version, suffix)                                               \
  driver->name##_ = reinterpret_cast<decltype(driver->name##_)>(                     \
      find_function(options, library, #name, EXPANDED_TEXT(name), version, suffix)); \
  if (driver->name##_ == nullptr) fail("the driver has no " EXPANDED_TEXT(name));
  FUNCTIONS(RESOLVE)
#undef RESOLVE
  return library;
}

#endif

// ---- numbers ----

// Converts a 16-bit float of either kind to and from float, to nearest, ties to even.
float from_bits(uint16_t bits, bool is_bf16) {
  if (is_bf16) {
    const uint32_t wide = uint32_t{bits} << 16;
    float value;
    memcpy(&value, &wide, sizeof value);
    return value;
  }
  const int exponent = (bits >> 10) & 31, fraction = bits & 1023;
  if (exponent == 31) return fraction != 0 ? NAN : bits & 0x8000 ? -INFINITY : INFINITY;
  const float value = exponent == 0 ? ldexpf(static_cast<float>(fraction), -24)
                                    : ldexpf(static_cast<float>(fraction + 1024), exponent - 25);
  return bits & 0x8000 ? -value : value;
}

uint16_t to_bits(float value, bool is_bf16) {
  if (is_bf16) {
    uint32_t wide;
    memcpy(&wide, &value, sizeof wide);
    return static_cast<uint16_t>((wide + 0x7fff + ((wide >> 16) & 1)) >> 16);
  }
  // Works for normal numbers of moderate size; the inputs are such.
  int exponent = 0;
  const float fraction = frexpf(fabsf(value), &exponent);
  if (value == 0 || exponent < -13) return 0;
  const auto rounded = static_cast<uint32_t>(nearbyintf(ldexpf(fraction, 11)));
  const uint32_t bits = (static_cast<uint32_t>(exponent + 14 - 1) << 10) + rounded;
  return static_cast<uint16_t>(bits | (value < 0 ? 0x8000 : 0));
}

// A number in [-1, 1) that depends only on the seed.
float pseudo_random(uint64_t seed) {
  seed = fibshim::scramble(seed + fibshim::kHashFactor);
  return static_cast<float>(static_cast<int32_t>(seed >> 32)) / 2147483648.0f;
}

constexpr float kEps = 1e-6f;
constexpr size_t kGuardBytes = 512;  // behind each output; must not change
constexpr uint8_t kPoison = 0xcb;
// Relative tolerance against float64: half a unit in the last place of a 16-bit output, and 1% of
// that for the arithmetic before the rounding.
constexpr double kTolerance[2] = {1.01 / 2048, 1.01 / 256};  // fp16, bf16
constexpr double kRstdTolerance = 1e-6;
constexpr double kSmallest = 1e-3;

struct Errors {
  double y = 0, rstd = 0;
  bool are_guards_whole = true;

  void take(const Errors& other) {
    y = std::max(y, other.y);
    rstd = std::max(rstd, other.rstd);
    are_guards_whole = are_guards_whole && other.are_guards_whole;
  }
};

// One thread's buffers on the device, and copies of their inputs.
struct Buffers {
  CUdeviceptr x = 0, weight = 0, y = 0, rstd = 0;
  std::vector<uint16_t> host_x, host_weight;

  Buffers(const Options& options, int thread) {
    const Driver& cuda = *g_driver;
    const bool is_bf16 = options.dtype == "bf16";
    const auto hidden = static_cast<size_t>(options.hidden),
               rows = static_cast<size_t>(options.rows);
    host_x.resize(hidden * rows);
    host_weight.resize(hidden);
    for (size_t i = 0; i < host_x.size(); ++i) {
      const float value = 3 * pseudo_random(i + (static_cast<uint64_t>(thread) << 40));
      host_x[i] = to_bits(value, is_bf16);
    }
    for (size_t i = 0; i < hidden; ++i)
      host_weight[i] = to_bits(1 + 0.5f * pseudo_random(i + (uint64_t{1} << 60)), is_bf16);
    MUST(cuda.cuMemAlloc_(&x, host_x.size() * 2));
    MUST(cuda.cuMemAlloc_(&weight, hidden * 2));
    MUST(cuda.cuMemAlloc_(&y, host_x.size() * 2 + kGuardBytes));
    MUST(cuda.cuMemAlloc_(&rstd, rows * 4 + kGuardBytes));
    MUST(cuda.cuMemcpyHtoD_(x, host_x.data(), host_x.size() * 2));
    MUST(cuda.cuMemcpyHtoD_(weight, host_weight.data(), hidden * 2));
    poison(options);
  }

  void poison(const Options& options) const {
    const Driver& cuda = *g_driver;
    MUST(cuda.cuMemsetD8_(y, kPoison, host_x.size() * 2 + kGuardBytes));
    MUST(cuda.cuMemsetD8_(rstd, kPoison, static_cast<size_t>(options.rows) * 4 + kGuardBytes));
    MUST(cuda.cuCtxSynchronize_());
  }

  Errors verify(const Options& options) const {
    const Driver& cuda = *g_driver;
    const bool is_bf16 = options.dtype == "bf16";
    const auto hidden = static_cast<size_t>(options.hidden),
               rows = static_cast<size_t>(options.rows);
    std::vector<uint16_t> got(host_x.size() + kGuardBytes / 2);
    std::vector<float> got_rstd(rows + kGuardBytes / 4);
    MUST(cuda.cuMemcpyDtoH_(got.data(), y, got.size() * 2));
    MUST(cuda.cuMemcpyDtoH_(got_rstd.data(), rstd, got_rstd.size() * 4));
    Errors errors;
    for (size_t row = 0; row < rows; ++row) {
      double sum = 0;
      for (size_t i = 0; i < hidden; ++i) {
        const double value = from_bits(host_x[row * hidden + i], is_bf16);
        sum += value * value;
      }
      const double factor = 1 / sqrt(sum / static_cast<double>(hidden) + kEps);
      errors.rstd = std::max(errors.rstd, relative(got_rstd[row], factor));
      for (size_t i = 0; i < hidden; ++i) {
        const double expected = from_bits(host_x[row * hidden + i], is_bf16) * factor *
                                from_bits(host_weight[i], is_bf16);
        errors.y =
            std::max(errors.y, relative(from_bits(got[row * hidden + i], is_bf16), expected));
      }
    }
    const auto is_poison = [](const void* at, size_t bytes) {
      const auto* byte = static_cast<const uint8_t*>(at);
      return std::all_of(byte, byte + bytes, [](uint8_t one) { return one == kPoison; });
    };
    errors.are_guards_whole = is_poison(got.data() + host_x.size(), kGuardBytes) &&
                              is_poison(got_rstd.data() + rows, kGuardBytes);
    return errors;
  }

  void release() const {
    const Driver& cuda = *g_driver;
    for (const CUdeviceptr memory : {x, weight, y, rstd}) MUST(cuda.cuMemFree_(memory));
  }

 private:
  // NaN, which the poison is, counts as infinitely wrong.
  static double relative(double got, double expected) {
    const double error = fabs(got - expected) / std::max(fabs(expected), kSmallest);
    return error == error ? error : INFINITY;
  }
};

// ---- images ----

std::vector<char> read_whole_file(const std::string& path) {
  FILE* file = fopen(path.c_str(), "rb");
  if (file == nullptr) fail("cannot read " + path);
  std::vector<char> bytes;
  char block[65536];
  for (size_t got; (got = fread(block, 1, sizeof block, file)) > 0;)
    bytes.insert(bytes.end(), block, block + got);
  fclose(file);
  return bytes;
}

// The kernel as the launch call accepts it: a CUfunction, or a CUkernel cast to one.
struct LoadedKernel {
  CUmodule module = nullptr;
  CUlibrary library = nullptr;
  CUfunction function = nullptr;
};

CUfunction pick_by_name(const std::vector<CUfunction>& functions, const std::string& wanted,
                        bool are_kernels) {
  for (const CUfunction function : functions) {
    const char* name = nullptr;
    MUST(are_kernels ? g_driver->cuKernelGetName_(&name, reinterpret_cast<CUkernel>(function))
                     : g_driver->cuFuncGetName_(&name, function));
    if (wanted == name) return function;
  }
  fail("the image has no kernel " + wanted);
}

LoadedKernel load_kernel(const Options& options, const std::vector<char>& image) {
  const Driver& cuda = *g_driver;
  LoadedKernel loaded;
  const bool is_file = options.load == "file";
  unsigned count = 0;
  if (options.module_api == "module") {
    MUST(is_file ? cuda.cuModuleLoad_(&loaded.module, options.image.c_str())
                 : cuda.cuModuleLoadData_(&loaded.module, image.data()));
    if (options.lookup == "name") {
      MUST(cuda.cuModuleGetFunction_(&loaded.function, loaded.module, options.kernel.c_str()));
      return loaded;
    }
    MUST(cuda.cuModuleGetFunctionCount_(&count, loaded.module));
    std::vector<CUfunction> functions(count);
    MUST(cuda.cuModuleEnumerateFunctions_(functions.data(), count, loaded.module));
    loaded.function = pick_by_name(functions, options.kernel, false);
    return loaded;
  }
  MUST(is_file ? cuda.cuLibraryLoadFromFile_(&loaded.library, options.image.c_str(), nullptr,
                                             nullptr, 0, nullptr, nullptr, 0)
               : cuda.cuLibraryLoadData_(&loaded.library, image.data(), nullptr, nullptr, 0,
                                         nullptr, nullptr, 0));
  if (options.lookup == "name") {
    MUST(cuda.cuLibraryGetKernel_(reinterpret_cast<CUkernel*>(&loaded.function), loaded.library,
                                  options.kernel.c_str()));
    return loaded;
  }
  MUST(cuda.cuLibraryGetKernelCount_(&count, loaded.library));
  std::vector<CUfunction> kernels(count);
  MUST(cuda.cuLibraryEnumerateKernels_(reinterpret_cast<CUkernel*>(kernels.data()), count,
                                       loaded.library));
  loaded.function = pick_by_name(kernels, options.kernel, true);
  return loaded;
}

void unload(const LoadedKernel& loaded) {
  if (loaded.module != nullptr) MUST(g_driver->cuModuleUnload_(loaded.module));
  if (loaded.library != nullptr) MUST(g_driver->cuLibraryUnload_(loaded.library));
}

// ---- launching ----

// The arguments of PyTorch's kernel: (N, eps, X, gamma, beta, mean, rstd, Y).
struct Arguments {
  int32_t row_length;
  float eps;
  CUdeviceptr x, gamma, beta, mean, rstd, y;
};
static_assert(sizeof(Arguments) == 56, "the packed form has no holes");

CUresult launch(const Options& options, CUfunction function, CUstream stream, Arguments arguments) {
  const Driver& cuda = *g_driver;
  const auto grid = static_cast<unsigned>(options.rows);
  constexpr unsigned block_x = 32, block_y = 4, shared_mem = 24;  // PyTorch's geometry
  void* params[] = {&arguments.row_length, &arguments.eps,  &arguments.x,    &arguments.gamma,
                    &arguments.beta,       &arguments.mean, &arguments.rstd, &arguments.y};
  size_t size = sizeof arguments;
  void* packed[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &arguments, CU_LAUNCH_PARAM_BUFFER_SIZE, &size,
                    CU_LAUNCH_PARAM_END};
  const bool is_packed = options.pass == "extra";
  void** one_by_one = is_packed ? nullptr : params;
  void** extra = is_packed ? packed : nullptr;
  if (options.launch_api == "launch")
    return cuda.cuLaunchKernel_(function, grid, 1, 1, block_x, block_y, 1, shared_mem, stream,
                                one_by_one, extra);
  CUlaunchConfig config{};
  config.gridDimX = grid;
  config.gridDimY = config.gridDimZ = 1;
  config.blockDimX = block_x;
  config.blockDimY = block_y;
  config.blockDimZ = 1;
  config.sharedMemBytes = shared_mem;
  config.hStream = stream;
  return cuda.cuLaunchKernelEx_(&config, function, one_by_one, extra);
}

// The results of one thread.
struct Outcome {
  std::map<int, uint64_t> launch_codes;
  std::string captured_kernel;  // the name that is read back from the graph's node
  Errors errors;
};

std::string name_in_graph(CUgraph graph) {
  const Driver& cuda = *g_driver;
  size_t count = 1;
  CUgraphNode node = nullptr;
  if (cuda.cuGraphGetNodes_(graph, &node, &count) != CUDA_SUCCESS || count == 0) return "";
  CUDA_KERNEL_NODE_PARAMS params{};
  if (cuda.cuGraphKernelNodeGetParams_(node, &params) != CUDA_SUCCESS) return "";
  const char* name = nullptr;
  if (params.func != nullptr && cuda.cuFuncGetName_(&name, params.func) == CUDA_SUCCESS)
    return name;
  const CUkernel kernel =
      params.func != nullptr ? reinterpret_cast<CUkernel>(params.func) : params.kern;
  return cuda.cuKernelGetName_(&name, kernel) == CUDA_SUCCESS ? name : "";
}

// One thread of the engine: its buffers and stream, which it keeps over pauses.
class Worker {
 public:
  Worker(const Options& options, CUcontext context, CUfunction function, int thread)
      : options_(options), context_(context), function_(function) {
    enter();
    if (options.stream == "created") MUST(g_driver->cuStreamCreate_(&stream_, stream_flags()));
    buffers_ = new Buffers(options, thread);
  }

  void run(int launches) {
    enter();
    if (options_.is_capturing) {
      replay(launches);
    } else {
      for (int i = 0; i < launches; ++i)
        ++outcome_.launch_codes[launch(options_, function_, stream_,
                                       arguments(options_.halves && i % 2 == 0 ? 2 : 1))];
    }
    MUST(g_driver->cuStreamSynchronize_(stream_));
  }

  const Outcome& finish() {
    enter();
    if (options_.wants_verify && has_launched()) outcome_.errors = buffers_->verify(options_);
    if (exec_ != nullptr) MUST(g_driver->cuGraphExecDestroy_(exec_));
    buffers_->release();
    delete buffers_;
    if (stream_ != nullptr) MUST(g_driver->cuStreamDestroy_(stream_));
    return outcome_;
  }

 private:
  void enter() const { MUST(g_driver->cuCtxSetCurrent_(context_)); }

  // Simultaneous captures of several threads must not involve the legacy stream, which they share.
  unsigned stream_flags() const {
    return options_.is_capturing ? CU_STREAM_NON_BLOCKING : CU_STREAM_DEFAULT;
  }

  bool has_launched() const {
    return !outcome_.launch_codes.empty() && outcome_.launch_codes.begin()->first == 0 &&
           outcome_.launch_codes.size() == 1;
  }

  Arguments arguments(int divisor = 1) const {
    return {options_.hidden / divisor,
            kEps,
            buffers_->x,
            buffers_->weight,
            0,
            0,
            buffers_->rstd,
            buffers_->y};
  }

  void replay(int launches) {
    if (exec_ == nullptr) {
      const Driver& cuda = *g_driver;
      CUgraph graph = nullptr;
      MUST(cuda.cuStreamBeginCapture_(stream_, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
      const CUresult code = launch(options_, function_, stream_, arguments());
      const CUresult ended = cuda.cuStreamEndCapture_(stream_, &graph);
      if (code != CUDA_SUCCESS) {
        ++outcome_.launch_codes[code];
        return;
      }
      MUST(ended);
      outcome_.captured_kernel = name_in_graph(graph);
      MUST(cuda.cuGraphInstantiateWithFlags_(&exec_, graph, 0));
      MUST(cuda.cuGraphDestroy_(graph));
    }
    for (int i = 0; i < launches; ++i) {
      wait_for_step();
      ++outcome_.launch_codes[g_driver->cuGraphLaunch_(exec_, stream_)];
    }
  }

  void wait_for_step() const {
    if (options_.step_us == 0) return;
    const bool is_slow =
        !options_.slow_file.empty() && access(options_.slow_file.c_str(), F_OK) == 0;
    usleep(static_cast<useconds_t>(options_.step_us) * (is_slow ? 2 : 1));
  }

  const Options& options_;
  CUcontext context_;
  CUfunction function_;
  CUstream stream_ = nullptr;
  Buffers* buffers_ = nullptr;
  CUgraphExec exec_ = nullptr;
  Outcome outcome_;
};

// Runs `work` for each worker, each in its own thread.
template <class Work>
void in_parallel(std::vector<Worker*>& workers, Work work) {
  std::vector<std::thread> threads;
  for (size_t i = 1; i < workers.size(); ++i)
    threads.emplace_back([&workers, &work, i] { work(*workers[i]); });
  work(*workers[0]);
  for (std::thread& thread : threads) thread.join();
}

void wait_for_line() {
  printf("paused\n");
  fflush(stdout);
  int byte;
  while ((byte = getchar()) != '\n' && byte != EOF) {
  }
}

Outcome run_round(const Options& options, CUcontext context, const std::vector<char>& image) {
  if (options.pause_after == 0) wait_for_line();
  const LoadedKernel loaded = load_kernel(options, image);
  std::vector<Worker*> workers;
  for (int i = 0; i < options.threads; ++i)
    workers.push_back(new Worker(options, context, loaded.function, i));
  const int first =
      options.pause_after > 0 ? std::min(options.pause_after, options.launches) : options.launches;
  in_parallel(workers, [first](Worker& worker) { worker.run(first); });
  if (options.pause_after > 0) {
    wait_for_line();
    const int rest = options.launches - first;
    if (rest > 0) in_parallel(workers, [rest](Worker& worker) { worker.run(rest); });
  }
  Outcome sum;
  MUST(g_driver->cuCtxSetCurrent_(context));
  for (Worker* worker : workers) {
    const Outcome& one = worker->finish();
    for (const auto& [code, count] : one.launch_codes) sum.launch_codes[code] += count;
    sum.errors.take(one.errors);
    sum.captured_kernel = one.captured_kernel;
    delete worker;
  }
  unload(loaded);
  return sum;
}

// ---- reporting ----

std::string json_number(double value) {
  if (!isfinite(value)) return "\"Infinity\"";
  char text[40];
  snprintf(text, sizeof text, "%.4g", value);
  return text;
}

// How often a kernel really ran or was captured, if the driver can tell. The rest of this
// program sees the driver through the shim, which returns captured nodes as the host made them.
uint64_t simulated_count(void* library, const char* control, const char* kernel) {
  const auto count = reinterpret_cast<uint64_t (*)(const char*)>(dlsym(library, control));
  return count != nullptr ? count(kernel) : 0;
}
uint64_t ran(void* library, const char* kernel) {
  return simulated_count(library, "simcuda_launch_count", kernel);
}
uint64_t captured(void* library, const char* kernel) {
  return simulated_count(library, "simcuda_captured_count", kernel);
}
constexpr char kCuratedKernels[] = "rmsnorm_h*";

void report(const Options& options, const Outcome& outcome, const std::string& device,
            void* library, bool is_right) {
  const bool is_simulated = dlsym(library, "simcuda_is_simulated") != nullptr;
  std::string codes;
  uint64_t launches = 0;
  for (const auto& [code, count] : outcome.launch_codes) {
    codes +=
        (codes.empty() ? "" : ",") + ("\"" + std::to_string(code)) + "\":" + std::to_string(count);
    launches += count;
  }
  if (options.is_demo) {
    printf("driver     %s\n",
           is_simulated ? ("the simulated driver: " + device + " (no GPU is used)").c_str()
                        : device.c_str());
    printf("launches   %llu of PyTorch's fused RMSNorm, %d rows x %d, %s\n",
           static_cast<unsigned long long>(launches), options.rows, options.hidden,
           options.dtype.c_str());
    if (is_simulated)
      printf("ran        %llu times PyTorch's own kernel, %llu times the curated one\n",
             static_cast<unsigned long long>(ran(library, options.kernel.c_str())),
             static_cast<unsigned long long>(ran(library, kCuratedKernels)));
    for (const auto& [code, count] : outcome.launch_codes)
      if (code != 0)
        printf("failed     %llu launches: %s\n", static_cast<unsigned long long>(count),
               error_name(static_cast<CUresult>(code)).c_str());
    if (options.wants_verify)
      printf("numbers    %s: largest relative error against float64: y %.3g, rstd %.3g\n",
             is_right ? "right" : "WRONG", outcome.errors.y, outcome.errors.rstd);
    return;
  }
  printf(
      "{\"device\":\"%s\",\"simulated\":%s,\"resolve\":\"%s\",\"kernel\":\"%s\",\"dtype\":\"%s\","
      "\"hidden\":%d,\"rows\":%d,\"threads\":%d,\"launches\":%llu,\"codes\":{%s},",
      device.c_str(), is_simulated ? "true" : "false", options.resolve.c_str(),
      options.kernel.c_str(), options.dtype.c_str(), options.hidden, options.rows, options.threads,
      static_cast<unsigned long long>(launches), codes.c_str());
  if (options.is_capturing) printf("\"captured_kernel\":\"%s\",", outcome.captured_kernel.c_str());
  if (is_simulated)
    printf(
        "\"ran_original\":%llu,\"ran_curated\":%llu,\"driver_errors\":%llu,",
        static_cast<unsigned long long>(ran(library, options.kernel.c_str())),
        static_cast<unsigned long long>(ran(library, kCuratedKernels)),
        static_cast<unsigned long long>(simulated_count(library, "simcuda_error_count", nullptr)));
  if (is_simulated && options.is_capturing)
    printf("\"captured_original\":%llu,\"captured_curated\":%llu,",
           static_cast<unsigned long long>(captured(library, options.kernel.c_str())),
           static_cast<unsigned long long>(captured(library, kCuratedKernels)));
  if (options.wants_verify)
    printf("\"max_relative_error_y\":%s,\"max_relative_error_rstd\":%s,\"guards\":%s,",
           json_number(outcome.errors.y).c_str(), json_number(outcome.errors.rstd).c_str(),
           outcome.errors.are_guards_whole ? "true" : "false");
  printf("\"ok\":%s}\n", is_right ? "true" : "false");
}

}  // namespace

int main(int argc, char** argv) {
  const Options options = parse_options(argc, argv);
  Driver driver;
  void* library = resolve_all(options, &driver);
  g_driver = &driver;
  MUST(driver.cuInit_(0));
  CUdevice device = 0;
  MUST(driver.cuDeviceGet_(&device, options.device));
  char name[128] = "";
  MUST(driver.cuDeviceGetName_(name, sizeof name, device));
  CUcontext context = nullptr;
  MUST(driver.cuDevicePrimaryCtxRetain_(&context, device));
  MUST(driver.cuCtxSetCurrent_(context));

  const std::vector<char> image = read_whole_file(options.image);
  Outcome outcome;
  for (int round = 0; round < options.rounds; ++round) {
    const Outcome one = run_round(options, context, image);
    for (const auto& [code, count] : one.launch_codes) outcome.launch_codes[code] += count;
    outcome.errors.take(one.errors);
    outcome.captured_kernel = one.captured_kernel;
  }
  const bool has_failed = std::any_of(outcome.launch_codes.begin(), outcome.launch_codes.end(),
                                      [](const auto& one) { return one.first != 0; });
  const bool is_right = !has_failed && outcome.errors.are_guards_whole &&
                        outcome.errors.y <= kTolerance[options.dtype == "bf16"] &&
                        outcome.errors.rstd <= kRstdTolerance;
  report(options, outcome, name, library, is_right);
  MUST(driver.cuDevicePrimaryCtxRelease_(device));
  return is_right ? 0 : 1;
}
