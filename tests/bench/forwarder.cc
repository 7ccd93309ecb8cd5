// The minimal preload: returns its own launch functions, which only call the
// driver's. It adds to a launch the cost of any interception; the shim's own
// work is what the shim costs beyond that.
//
// As libswitch.so (FORWARDER_HAS_SWITCH), preloaded before another library, it passes launches to
// that library or directly to the driver, depending on a variable: then both ways can be measured
// by turns in one process, where everything else is equal.
//
// For the benchmarks only: it guesses the driver's names for versions and flags, which the shim does not.
#include <cudaTypedefs.h>
#include <dlfcn.h>
#include <string.h>

#ifdef FORWARDER_HAS_SWITCH
#include "shim/driver/real_dl.h"
#endif

namespace {

using Dlsym = void* (*)(void*, const char*);

// The next dlsym: libc's, or that of the preload behind this one.
Dlsym next_dlsym() {
  static Dlsym next;
#ifdef FORWARDER_HAS_SWITCH
  // With a version, as below, only libc's would be found.
  if (next == nullptr) {
    next = reinterpret_cast<Dlsym>(fibshim::real_dlsym()(RTLD_NEXT, "dlsym"));
  }
#endif
  static const char* const versions[] = {"GLIBC_2.34", "GLIBC_2.2.5", "GLIBC_2.17"};
  for (const char* version : versions) {
    if (next == nullptr) next = reinterpret_cast<Dlsym>(dlvsym(RTLD_NEXT, "dlsym", version));
  }
  return next;
}

#ifdef FORWARDER_HAS_SWITCH
extern "C" __attribute__((visibility("default"))) int forwarder_is_direct;
int forwarder_is_direct = 0;

// A launch function of the next preload, and the same of the driver.
template <class Function>
struct Real {
  Function next;
  Function driver;
  Function operator()() const { return forwarder_is_direct != 0 ? driver : next; }
};
void* driver_function(const char* name) {
  void* const driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  return driver == nullptr ? nullptr : fibshim::real_dlsym()(driver, name);
}
#else
template <class Function>
struct Real {
  Function next;
  Function operator()() const { return next; }
};
#endif

Real<PFN_cuLaunchKernel_v4000> g_launch;
Real<PFN_cuLaunchKernel_v7000_ptsz> g_launch_ptsz;
Real<PFN_cuLaunchKernelEx_v11060> g_launch_ex;
Real<PFN_cuLaunchKernelEx_v11060_ptsz> g_launch_ex_ptsz;
PFN_cuGetProcAddress_v11030 g_get_proc_address;
PFN_cuGetProcAddress_v12000 g_get_proc_address_v2;

CUresult forward_launch(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                        unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_mem,
                        CUstream stream, void** params, void** extra) {
  return g_launch()(function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_mem, stream,
                    params, extra);
}

CUresult forward_launch_ptsz(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                             unsigned block_x, unsigned block_y, unsigned block_z,
                             unsigned shared_mem, CUstream stream, void** params, void** extra) {
  return g_launch_ptsz()(function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_mem,
                         stream, params, extra);
}

CUresult forward_launch_ex(const CUlaunchConfig* config, CUfunction function, void** params,
                           void** extra) {
  return g_launch_ex()(config, function, params, extra);
}

CUresult forward_launch_ex_ptsz(const CUlaunchConfig* config, CUfunction function, void** params,
                                void** extra) {
  return g_launch_ex_ptsz()(config, function, params, extra);
}

CUresult forward_get_proc_address(const char* symbol, void** out, int version, cuuint64_t flags);
CUresult forward_get_proc_address_v2(const char* symbol, void** out, int version, cuuint64_t flags,
                                     CUdriverProcAddressQueryResult* status);

struct Row {
  const char* name;
  void** next;
  void** driver;  // null: not wanted
  void* forward;
};

template <class Function>
Row row(const char* name, Function* next, Function forward) {
  return {name, reinterpret_cast<void**>(next), nullptr, reinterpret_cast<void*>(forward)};
}
template <class Function>
Row row(const char* name, Real<Function>* real, Function forward) {
  void** driver = nullptr;
#ifdef FORWARDER_HAS_SWITCH
  driver = reinterpret_cast<void**>(&real->driver);
#endif
  return {name, reinterpret_cast<void**>(&real->next), driver, reinterpret_cast<void*>(forward)};
}

const Row kRows[] = {
    row("cuLaunchKernel", &g_launch, &forward_launch),
    row("cuLaunchKernel_ptsz", &g_launch_ptsz, &forward_launch_ptsz),
    row("cuLaunchKernelEx", &g_launch_ex, &forward_launch_ex),
    row("cuLaunchKernelEx_ptsz", &g_launch_ex_ptsz, &forward_launch_ex_ptsz),
    row("cuGetProcAddress", &g_get_proc_address, &forward_get_proc_address),
    row("cuGetProcAddress_v2", &g_get_proc_address_v2, &forward_get_proc_address_v2),
};

// The forwarding function for a name, after storing the real one; for other names the real one.
void* exchange_by_name(const char* name, void* real) {
  for (const Row& one : kRows) {
    if (strcmp(name, one.name) != 0) continue;
    *one.next = real;
#ifdef FORWARDER_HAS_SWITCH
    if (one.driver != nullptr && (*one.driver = driver_function(name)) == nullptr) return real;
#endif
    return one.forward;
  }
  return real;
}

// The suffix of the function that the driver returned, guessed from names and versions.
const char* suffix_of(const char* symbol, int version, cuuint64_t flags) {
  if (strcmp(symbol, "cuGetProcAddress") == 0) return version >= 12000 ? "_v2" : "";
  return (flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0 ? "_ptsz" : "";
}

void exchange(const char* symbol, void** out, int version, cuuint64_t flags) {
  char name[64];
  if (out == nullptr || *out == nullptr || strlen(symbol) + 6 > sizeof name) return;
  strcpy(name, symbol);
  strcat(name, suffix_of(symbol, version, flags));
  *out = exchange_by_name(name, *out);
}

CUresult forward_get_proc_address(const char* symbol, void** out, int version, cuuint64_t flags) {
  const CUresult result = g_get_proc_address(symbol, out, version, flags);
  if (result == CUDA_SUCCESS) exchange(symbol, out, version, flags);
  return result;
}

CUresult forward_get_proc_address_v2(const char* symbol, void** out, int version, cuuint64_t flags,
                                     CUdriverProcAddressQueryResult* status) {
  const CUresult result = g_get_proc_address_v2(symbol, out, version, flags, status);
  if (result == CUDA_SUCCESS) exchange(symbol, out, version, flags);
  return result;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) void* dlsym(void* handle,
                                                              const char* name) noexcept {
  // For other names this must be a jump: RTLD_NEXT means the library after the caller.
  if (strncmp(name, "cu", 2) != 0) return next_dlsym()(handle, name);
  void* const real = next_dlsym()(handle, name);
  return real == nullptr ? nullptr : exchange_by_name(name, real);
}
