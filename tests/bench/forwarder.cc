// The least that a preload can do: hand out its own launch functions, which do nothing but call the
// driver's. What it adds to a launch is the price of standing in between at all; the shim's own
// work is what it costs beyond that.
//
// For the benchmark only: as a dlsym that calls dlsym it breaks other libraries' RTLD_NEXT, which
// the shim's own does not.
#include <cudaTypedefs.h>
#include <dlfcn.h>
#include <string.h>

namespace {

using Dlsym = void* (*)(void*, const char*);

Dlsym real_dlsym() {
  static Dlsym real;
  static const char* const versions[] = {"GLIBC_2.34", "GLIBC_2.2.5", "GLIBC_2.17"};
  for (const char* version : versions) {
    if (real == nullptr) real = reinterpret_cast<Dlsym>(dlvsym(RTLD_NEXT, "dlsym", version));
  }
  return real;
}

PFN_cuLaunchKernel_v4000 g_launch;
PFN_cuLaunchKernel_v7000_ptsz g_launch_ptsz;
PFN_cuLaunchKernelEx_v11060 g_launch_ex;
PFN_cuLaunchKernelEx_v11060_ptsz g_launch_ex_ptsz;
PFN_cuGetProcAddress_v11030 g_get_proc_address;
PFN_cuGetProcAddress_v12000 g_get_proc_address_v2;

CUresult forward_launch(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                        unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_mem,
                        CUstream stream, void** params, void** extra) {
  return g_launch(function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_mem, stream,
                  params, extra);
}

CUresult forward_launch_ptsz(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                             unsigned block_x, unsigned block_y, unsigned block_z,
                             unsigned shared_mem, CUstream stream, void** params, void** extra) {
  return g_launch_ptsz(function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_mem,
                       stream, params, extra);
}

CUresult forward_launch_ex(const CUlaunchConfig* config, CUfunction function, void** params,
                           void** extra) {
  return g_launch_ex(config, function, params, extra);
}

CUresult forward_launch_ex_ptsz(const CUlaunchConfig* config, CUfunction function, void** params,
                                void** extra) {
  return g_launch_ex_ptsz(config, function, params, extra);
}

CUresult forward_get_proc_address(const char* symbol, void** out, int version, cuuint64_t flags);
CUresult forward_get_proc_address_v2(const char* symbol, void** out, int version, cuuint64_t flags,
                                     CUdriverProcAddressQueryResult* status);

struct Row {
  const char* name;
  void** real;
  void* forward;
};

template <class Function>
Row row(const char* name, Function* real, Function forward) {
  return {name, reinterpret_cast<void**>(real), reinterpret_cast<void*>(forward)};
}

const Row kRows[] = {
    row("cuLaunchKernel", &g_launch, &forward_launch),
    row("cuLaunchKernel_ptsz", &g_launch_ptsz, &forward_launch_ptsz),
    row("cuLaunchKernelEx", &g_launch_ex, &forward_launch_ex),
    row("cuLaunchKernelEx_ptsz", &g_launch_ex_ptsz, &forward_launch_ex_ptsz),
    row("cuGetProcAddress", &g_get_proc_address, &forward_get_proc_address),
    row("cuGetProcAddress_v2", &g_get_proc_address_v2, &forward_get_proc_address_v2),
};

// The forwarding function for a name whose real one was found, or the real one.
void* exchange_by_name(const char* name, void* real) {
  for (const Row& one : kRows) {
    if (strcmp(name, one.name) != 0) continue;
    *one.real = real;
    return one.forward;
  }
  return real;
}

// The suffix of what the driver gave out. Guessed from names and versions, which is enough here.
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
  void* const real = real_dlsym()(handle, name);
  return real == nullptr ? nullptr : exchange_by_name(name, real);
}
