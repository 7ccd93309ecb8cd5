#include "shim/life/libraries.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "shim/base/settings_in_force.h"
#include "shim/driver/real_dl.h"

namespace fibshim {
namespace {

// Finds a library in the folder of this library.
bool find_beside(const char* name, char* out, size_t out_size) {
  Dl_info info;
  if (dladdr(reinterpret_cast<void*>(&find_beside), &info) == 0 || info.dli_fname == nullptr) {
    return false;
  }
  char self[PATH_MAX];
  if (!make_absolute(info.dli_fname, self, sizeof self)) return false;
  char* slash = strrchr(self, '/');
  if (slash == nullptr) return false;
  *slash = 0;
  const int length = snprintf(out, out_size, "%s/%s", self, name);
  return length > 0 && static_cast<size_t>(length) < out_size;
}

// Opens the library and gets its functions from its only entry point. Null: `message` says why.
template <class Api>
const Api* load_library(const char* name, const char* entry_name, uint32_t version,
                        Message& message) {
  char path[PATH_MAX];
  if (!find_beside(name, path, sizeof path)) {
    snprintf(message, sizeof message, "cannot find %s: the folder of libfibshim.so is not known",
             name);
    return nullptr;
  }
  // Never closed, since its code and data stay in use.
  void* library = real_dlopen()(path, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    snprintf(message, sizeof message, "%s", dlerror());
    return nullptr;
  }
  using Entry = const Api* (*)(uint32_t);
  const auto entry = reinterpret_cast<Entry>(real_dlsym()(library, entry_name));
  const Api* api = entry == nullptr ? nullptr : entry(version);
  if (api == nullptr) {
    snprintf(message, sizeof message, "%.900s is of another version than libfibshim.so", path);
  }
  return api;
}

}  // namespace

const LoaderApi* load_loader_library(Message& message) {
  return load_library<LoaderApi>("libfibloader.so", "fibloader_api", kLoaderApiVersion, message);
}

const RecorderApi* load_recorder_library(Message& message) {
  return load_library<RecorderApi>("libfibrecord.so", "fibrecord_api", kRecorderApiVersion,
                                   message);
}

const ShadowApi* load_shadow_library(Message& message) {
  return load_library<ShadowApi>("libfibshadow.so", "fibshadow_api", kShadowApiVersion, message);
}

}  // namespace fibshim
