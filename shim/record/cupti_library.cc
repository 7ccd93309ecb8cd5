#include "shim/record/cupti_library.h"

#include <dlfcn.h>
#include <glob.h>
#include <limits.h>
#include <link.h>
#include <stdio.h>
#include <string.h>

#include <initializer_list>

namespace fibshim {
namespace {

constexpr int kMajors[] = {13, 12};
constexpr size_t kMostFolders = 8;

// Folders of loaded libraries that come with CUDA.
struct CudaFolders {
  char paths[kMostFolders][PATH_MAX];
  size_t count;
};

// Must not load anything, as the linker's lock is held.
int add_cuda_folder(dl_phdr_info* info, size_t, void* data) {
  auto* const out = static_cast<CudaFolders*>(data);
  const char* const slash = info->dlpi_name == nullptr ? nullptr : strrchr(info->dlpi_name, '/');
  if (slash == nullptr || out->count == kMostFolders) return 0;
  for (const char* const name : {"libcudart.so", "libcublas", "libnvrtc", "libcufft"}) {
    if (strncmp(slash + 1, name, strlen(name)) != 0) continue;
    char* const path = out->paths[out->count];
    const int length = static_cast<int>(slash - info->dlpi_name);
    if (snprintf(path, PATH_MAX, "%.*s", length, info->dlpi_name) >= PATH_MAX) continue;
    bool is_new = true;
    for (size_t i = 0; i < out->count; ++i) is_new = is_new && strcmp(out->paths[i], path) != 0;
    out->count += is_new;
    break;
  }
  return 0;
}

void* open_in(const RecorderHost& host, const char* folder, const char* tail, const char* name) {
  char path[PATH_MAX];
  if (snprintf(path, sizeof path, "%s%s/%s", folder, tail, name) >= PATH_MAX) return nullptr;
  return host.open_library(path, RTLD_NOW | RTLD_LOCAL);
}

void* open_beside_cuda(const RecorderHost& host, const CudaFolders& folders, const char* name) {
  // In a wheel of CUDA 13 (one folder for all libraries), in a toolkit, and in a wheel of CUDA 12
  // (one folder each).
  constexpr const char* kTails[] = {"", "/../extras/CUPTI/lib64", "/../../cuda_cupti/lib"};
  for (size_t i = 0; i < folders.count; ++i) {
    for (const char* const tail : kTails) {
      if (void* const library = open_in(host, folders.paths[i], tail, name)) return library;
    }
  }
  return nullptr;
}

void* open_of_toolkit(const RecorderHost& host, const char* name) {
  for (const char* const tail : {"extras/CUPTI/lib64", "lib64", "lib"}) {
    char pattern[PATH_MAX];
    snprintf(pattern, sizeof pattern, "/usr/local/cuda*/%s/%s", tail, name);
    glob_t found = {};
    void* library = nullptr;
    if (glob(pattern, 0, nullptr, &found) == 0) {
      for (size_t i = 0; i < found.gl_pathc && library == nullptr; ++i) {
        library = host.open_library(found.gl_pathv[i], RTLD_NOW | RTLD_LOCAL);
      }
    }
    globfree(&found);
    if (library != nullptr) return library;
  }
  return nullptr;
}

void* find_library(const RecorderHost& opener, int driver_version) {
  static CudaFolders folders;  // too large for some threads' stacks
  folders.count = 0;
  dl_iterate_phdr(add_cuda_folder, &folders);
  using Way = void* (*)(const RecorderHost& host, const char* name);
  const Way ways[] = {
      [](const RecorderHost& host, const char* name) {
        return host.open_library(name, RTLD_NOW | RTLD_NOLOAD);
      },
      [](const RecorderHost& host, const char* name) {
        return open_beside_cuda(host, folders, name);
      },
      [](const RecorderHost& host, const char* name) {
        return host.open_library(name, RTLD_NOW | RTLD_LOCAL);
      },
      open_of_toolkit,
  };
  for (const Way way : ways) {
    for (const int major : kMajors) {
      char name[32];
      snprintf(name, sizeof name, "libcupti.so.%d", major);
      if (driver_version < major * 1000) continue;
      if (void* const library = way(opener, name)) return library;
    }
  }
  return nullptr;
}

}  // namespace

bool open_cupti(const RecorderHost& host, int driver_version, CuptiFunctions* out) {
  void* const library = find_library(host, driver_version);
  (void)dlerror();  // clears errors of look-ups, which do not concern the host
  if (library == nullptr) return false;
  bool has_all = true;
#define CALL(name, parameters)                                                               \
  out->name = reinterpret_cast<CuptiResult(*) parameters>(host.find_symbol(library, #name)); \
  has_all = has_all && out->name != nullptr;
  FIBSHIM_CUPTI_FUNCTIONS(CALL)
#undef CALL
  return has_all;
}

}  // namespace fibshim
