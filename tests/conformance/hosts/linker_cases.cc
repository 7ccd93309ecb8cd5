// The dynamic linker's answers to a host that does not use the driver, or mixes other lookups with
// it. Each case prints what it finds, without addresses: the test runs it with and without the
// shim, and both outputs must be identical.
#include <link.h>
#include <stdio.h>

#include "tests/conformance/hosts/host.h"

namespace conform {
namespace {

void* open_library(const char* name, int mode = RTLD_NOW | RTLD_LOCAL) {
  void* library = dlopen(data_path(name).c_str(), mode);
  if (library == nullptr) fail(__FILE__, __LINE__, dlerror());
  return library;
}

// Prints the error without its first part, which names the object of the lookup or the caller.
void print_error() {
  const char* error = dlerror();
  const char* colon = error == nullptr ? nullptr : strstr(error, ": ");
  printf("  dlerror: %s\n", error == nullptr ? "none" : colon == nullptr ? error : colon + 2);
}

void print_lookup(const char* what, const void* found) {
  printf("%s: %s\n", what, found == nullptr ? "null" : object_of(found).c_str());
}

}  // namespace
}  // namespace conform

using namespace conform;

// Facts 1: a process without any driver. No lookup finds one. A weak reference, which the shim's
// exports satisfy, can be called, and returns an error.
CASE(without_driver) {
  if (dlopen("libcuda.so.1", RTLD_NOW) != nullptr) skip("this machine has a driver");
  using WeakHook = CUresult (*(*)(int, const char**))(...);
  const auto weak_hook =
      reinterpret_cast<WeakHook>(dlsym(open_library("libconform_weak.so"), "conform_weak_hook"));
  const char* name = nullptr;
  int count = 0;
  for (CUresult (*bound)(...) = weak_hook(0, &name); name != nullptr;
       bound = weak_hook(++count, &name)) {
    CHECK(dlsym(RTLD_DEFAULT, name) == nullptr);
    CHECK(dlerror() != nullptr);
    CHECK(is_in_shim(reinterpret_cast<const void*>(bound)));
    const long none = 0;
    const CUresult result =
        bound(none, none, none, none, none, none, none, none, none, none, none, none, none);
    if (result != CUDA_ERROR_NOT_SUPPORTED) {
      fail(__FILE__, __LINE__, std::string(name) + " returns " + std::to_string(result));
    }
  }
  CHECK(count > 30);
}

// Each lookup sets dlerror as without the shim: no error is left over, none is lost.
CASE(dlerror_is_kept) {
  void* names = open_library("libconform_names.so");
  void* driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  const char* const kNames[] = {
      "cuLaunchKernel",      "cuInit", "cuNoSuchThing",     "noSuchThing", "cudnnCreate",
      "cuGetProcAddress_v2", "",       "cuLaunchKernel_v99"};
  for (void* library : {names, driver, RTLD_DEFAULT}) {
    for (const char* name : kNames) {
      // Under the shim, a driver opened with RTLD_LOCAL is visible to everyone.
      if (library == RTLD_DEFAULT && dlsym(driver, name) != nullptr) continue;
      (void)dlerror();
      void* found = dlsym(library, name);
      printf("%s: %s\n", name, found == nullptr ? "null" : "found");
      print_error();
      print_error();
      found = dlvsym(library, name, "NO_SUCH_VERSION");
      printf("%s of a version: %s\n", name, found == nullptr ? "null" : "found");
      print_error();
    }
  }
  // An earlier error stays pending while a lookup succeeds.
  (void)dlsym(names, "noSuchThing");
  (void)dlsym(driver, "cuLaunchKernel");
  print_error();
  CHECK(dlopen("libnosuchthing.so", RTLD_NOW) == nullptr);
  print_error();
}

// Names that begin like the driver's, and the driver's own names in someone else's library.
CASE(exact_names) {
  void* names = open_library("libconform_names.so", RTLD_NOW | RTLD_GLOBAL);
  const auto print_all = [&](const char* when) {
    printf("%s\n", when);
    for (const char* name : {"cu", "cuda", "cudnnCreate", "cublasCreate_v2", "curl_easy_init",
                             "cuLaunchKernelX", "culaunchkernel", "cuLaunchKernel",
                             "cuModuleGetFunction", "cuGetProcAddress", "_cuLaunchKernel"}) {
      print_lookup(name, dlsym(names, name));
    }
    using Says = const char* (*)();
    for (const char* name :
         {"cudnnCreate", "curl_easy_init", "cuLaunchKernel", "cuLaunchKernelX"}) {
      printf("%s says %s\n", name, reinterpret_cast<Says>(dlsym(names, name))());
    }
  };
  print_all("without a driver");
  for (const char* name : {"cuLaunchKernel", "cudnnCreate", "curl_easy_init", "cuInit"}) {
    print_lookup(name, dlsym(RTLD_DEFAULT, name));
  }
  (void)cuda();
  print_all("with a driver");
  for (const char* name : {"cudnnCreate", "curl_easy_init"}) {
    print_lookup(name, dlsym(RTLD_DEFAULT, name));
  }
}

// RTLD_NEXT and RTLD_DEFAULT depend on the caller: a chain of libraries, each calling the next.
CASE(next_and_default) {
  void* first = open_library("libconform_chain_a.so", RTLD_NOW | RTLD_GLOBAL);
  using Chain = const char* (*)();
  using Find = void* (*)(const char*);
  printf("%s\n", reinterpret_cast<Chain>(dlsym(first, "conform_chain"))());
  printf("%s\n", reinterpret_cast<Chain>(dlsym(first, "conform_chain_by_version"))());
  const auto next = reinterpret_cast<Find>(dlsym(first, "conform_next"));
  const auto by_default = reinterpret_cast<Find>(dlsym(first, "conform_default"));
  for (const char* name : {"conform_chain", "malloc", "fopen", "memcpy", "main", "no_such_thing",
                           "pthread_create", "cuInit", "cudnnCreate"}) {
    print_lookup(name, next(name));
    print_lookup(name, by_default(name));
    print_lookup(name, dlsym(RTLD_NEXT, name));
    print_lookup(name, dlsym(RTLD_DEFAULT, name));
  }
  // glibc's own are versioned.
  print_lookup("memcpy 2.2.5", dlvsym(RTLD_DEFAULT, "memcpy", "GLIBC_2.2.5"));
  print_lookup("memcpy 2.99", dlvsym(RTLD_DEFAULT, "memcpy", "GLIBC_2.99"));
  print_lookup("pthread_create", dlvsym(RTLD_NEXT, "pthread_create", "GLIBC_2.34"));
}

// Paths that depend on the caller of dlopen: $ORIGIN, and the caller's own run path.
CASE(origin) {
  for (const char* path : {"$ORIGIN/libconform_names.so", "$ORIGIN/libnosuchthing.so",
                           "libconform_chain_b.so", "libconform_private.so", "libc.so.6"}) {
    for (const int mode : {RTLD_LAZY | RTLD_LOCAL, RTLD_NOW | RTLD_GLOBAL, RTLD_NOW | RTLD_NOLOAD,
                           RTLD_NOW | RTLD_DEEPBIND}) {
      void* library = dlopen(path, mode);
      printf("%s, mode %d: %s\n", path, mode, library == nullptr ? "null" : "opened");
      if (library == nullptr) print_error();
    }
  }
  // A library opens it, and it is found only through that library's run path.
  void* chain = open_library("libconform_chain_a.so");
  using Open = void* (*)(const char*);
  const auto open_there = reinterpret_cast<Open>(dlsym(chain, "conform_open"));
  for (const char* path : {"libconform_private.so", "$ORIGIN/private/libconform_private.so"}) {
    printf("%s: %s\n", path, open_there(path) == nullptr ? "null" : "opened");
  }
  // A driver opened with RTLD_DEEPBIND works, too.
  print_lookup("deep", dlsym(dlopen("libcuda.so.1", RTLD_NOW | RTLD_DEEPBIND), "cuInit"));
}

// A host can find no symbol of the shim except the hooks.
CASE(helpers_are_hidden) {
  (void)cuda();
  void* shim = dlopen(kShimName, RTLD_NOW | RTLD_NOLOAD);
  if (is_shim_active()) CHECK(shim != nullptr);
  for (const char* name :
       {"fibshim_pick_dlsym", "fibshim_pick_dlvsym", "hook_cuLaunchKernel", "log_message",
        "_ZN7fibshim13remember_handleEPKvNS_10HandleKindEmPKc", "_ZN7fibshim8g_driverE"}) {
    CHECK(dlsym(RTLD_DEFAULT, name) == nullptr);
    if (shim != nullptr) CHECK(dlsym(shim, name) == nullptr);
  }
}

// Function names of the shim and the loader that a host may use for itself.
extern "C" __attribute__((visibility("default"), used)) const char* fibloader_api() {
  return "the host's own";
}
namespace fibshim {
__attribute__((visibility("default"), used, noinline)) int log_message() { return 42; }
}  // namespace fibshim

GPU_CASE(names_do_not_collide) {
  CHECK(strcmp(fibloader_api(), "the host's own") == 0);
  CHECK(fibshim::log_message() == 42);
  OK(gpu.launch(gpu.step()));
  gpu.finish({.curated1 = 1}, {.hit = 1});
}
