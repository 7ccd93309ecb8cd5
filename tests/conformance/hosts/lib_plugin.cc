// libconform_plugin.so: a library that uses CUDA in its constructor, under the dynamic linker's
// lock, and in its destructor. It launches a tracked and an untracked kernel.
//
// CONFORM_MARKS  the address where the kernels leave their marks; if unset, memory of its own
// CONFORM_WAIT   first calls the program's conform_let_other_thread_start
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <string>
#include <vector>

#include "tests/driver/cuda_api.h"

namespace {

CUmodule g_module;
long g_launches;

void* library() {
  static void* opened = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  return opened;
}

#define CALL(name) reinterpret_cast<decltype(&::name)>(dlsym(library(), #name))

void must(CUresult result, const char* call) {
  if (result == CUDA_SUCCESS) return;
  fprintf(stderr, "libconform_plugin.so: %s returns %d\n", call, result);
  _Exit(1);
}
#define MUST(name, ...) must(CALL(name)(__VA_ARGS__), #name)

std::vector<char> read_image() {
  Dl_info info;
  dladdr(reinterpret_cast<void*>(&read_image), &info);
  std::string path = info.dli_fname;
  path = path.substr(0, path.rfind('/') + 1) + "conform.fatbin";
  std::vector<char> bytes;
  FILE* file = fopen(path.c_str(), "rb");
  if (file == nullptr) return bytes;
  char block[65536];
  for (size_t got; (got = fread(block, 1, sizeof block, file)) > 0;) {
    bytes.insert(bytes.end(), block, block + got);
  }
  fclose(file);
  return bytes;
}

void* find_marks() {
  if (const char* text = getenv("CONFORM_MARKS")) {
    return reinterpret_cast<void*>(strtoull(text, nullptr, 10));
  }
  void* memory = nullptr;
  MUST(cuMemHostAlloc, &memory, 64, CU_MEMHOSTALLOC_PORTABLE);
  memset(memory, 0, 64);
  return memory;
}

__attribute__((constructor)) void begin() {
  if (getenv("CONFORM_WAIT") != nullptr) {
    const auto wait =
        reinterpret_cast<void (*)()>(dlsym(RTLD_DEFAULT, "conform_let_other_thread_start"));
    if (wait == nullptr) _Exit(1);
    wait();
  }
  MUST(cuInit, 0);
  CUdevice device = 0;
  MUST(cuDeviceGet, &device, 0);
  CUcontext context = nullptr;
  MUST(cuDevicePrimaryCtxRetain, &context, device);
  MUST(cuCtxSetCurrent, context);
  const std::vector<char> image = read_image();
  MUST(cuModuleLoadData, &g_module, image.data());
  void* marks = find_marks();
  int shape = 1;
  int value = 7;
  void* params[] = {&marks, &shape, &value};
  for (const char* name : {"conform_step", "conform_free"}) {
    CUfunction function = nullptr;
    MUST(cuModuleGetFunction, &function, g_module, name);
    MUST(cuLaunchKernel, function, 1, 1, 1, 32, 1, 1, 0, nullptr, params, nullptr);
    ++g_launches;
  }
  MUST(cuCtxSynchronize, );
}

// At dlclose the driver is still there; at the end of the process it may not be.
__attribute__((destructor)) void end() { (void)CALL(cuModuleUnload)(g_module); }

}  // namespace

extern "C" __attribute__((visibility("default"))) long conform_plugin_launches() {
  return g_launches;
}
