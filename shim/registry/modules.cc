#include "shim/registry/modules.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shim/base/hash_map.h"
#include "shim/base/mutex.h"
#include "shim/base/pool.h"
#include "shim/driver/driver.h"
#include "shim/registry/generation.h"
#include "shim/registry/handles.h"
#include "shim/registry/image_bytes.h"

namespace fibshim {
namespace {

struct Module {
  uint64_t key;  // the CUmodule or CUlibrary
  Module* next;
  uintptr_t library;    // of a library's module; 0: it is no such
  CUcontext context;    // null: not known
  const void* region;   // of a wrapper, not hashed yet; null once `image` holds
  ImageIdentity image;  // unknown: not known
};

constinit Mutex g_lock;  // guards the map
constinit Pool g_pool;
constinit HashMap<Module> g_modules{&g_pool};

CUcontext current_context() {
  const auto get_current = FIBSHIM_REAL(cuCtxGetCurrent);
  CUcontext context = nullptr;
  return get_current != nullptr && get_current(&context) == CUDA_SUCCESS ? context : nullptr;
}

bool identify(const void* image, ImageIdentity* out) {
  const ImageExtent extent = measure_image(image);
  out->kind = extent.kind;
  if (extent.kind == RecordedImage::unknown) return false;
  loader().identify_image(image, extent.bytes, &out->hashes);
  return true;
}

// Replaces any earlier entry: the handle value may have been another module's.
void record(const Module& made) {
  MutexGuard guard(g_lock);
  Module* module = g_modules.get(made.key);
  if (module == nullptr) {
    module = static_cast<Module*>(g_pool.allocate(sizeof(Module)));
    if (module == nullptr) return;
    module->key = made.key;
    if (!g_modules.insert(module)) return g_pool.release(module, sizeof(Module));
  }
  Module* const next = module->next;
  *module = made;
  module->next = next;
}

// Unlinks one of the library's modules. 0: there is none left.
uintptr_t take_module_of(uintptr_t library) {
  MutexGuard guard(g_lock);
  Module* found = nullptr;
  g_modules.for_each([&](Module* module) {
    if (module->library == library) found = module;
    return found == nullptr;
  });
  if (found == nullptr) return 0;
  const uintptr_t key = found->key;
  g_pool.release(g_modules.take(key), sizeof(Module));
  return key;
}

}  // namespace

void record_image(uintptr_t owner, const void* image) {
  if (image == nullptr || !has_generation()) return;
  Module made = {owner, nullptr, 0, current_context(), region_of_wrapper(image), {}};
  if (made.region == nullptr) (void)identify(image, &made.image);
  record(made);
}

void record_image_file(uintptr_t owner, const char* path) {
  if (path == nullptr || !has_generation()) return;
  Module made = {owner, nullptr, 0, current_context(), nullptr, {}};
  const int file = open(path, O_RDONLY | O_CLOEXEC);
  struct stat status;
  void* bytes = MAP_FAILED;
  if (file >= 0 && fstat(file, &status) == 0 && S_ISREG(status.st_mode) && status.st_size > 0) {
    bytes = mmap(nullptr, static_cast<size_t>(status.st_size), PROT_READ, MAP_PRIVATE, file, 0);
  }
  if (file >= 0) close(file);
  if (bytes != MAP_FAILED) {
    const auto size = static_cast<size_t>(status.st_size);
    made.image.kind = kind_of_image(bytes, size);
    loader().identify_image(bytes, size, &made.image.hashes);
    munmap(bytes, size);
  }
  record(made);
}

void record_library_module(uintptr_t module, uintptr_t library) {
  if (has_generation()) record({module, nullptr, library, current_context(), nullptr, {}});
}

void forget_module(uintptr_t owner) {
  if (!has_generation()) return;
  forget_owner(owner);
  while (const uintptr_t module = take_module_of(owner)) forget_owner(module);
  MutexGuard guard(g_lock);
  Module* const module = g_modules.take(owner);
  if (module != nullptr) g_pool.release(module, sizeof(Module));
}

bool find_image(uintptr_t owner, ImageIdentity* out) {
  Module module = {};
  {
    MutexGuard guard(g_lock);
    const Module* found = g_modules.get(owner);
    // A module that cuLibraryGetModule gave has its library's image.
    if (found != nullptr && found->library != 0) found = g_modules.get(found->library);
    if (found == nullptr) return false;
    module = *found;
  }
  if (module.region != nullptr) {
    if (!identify(module.region, &module.image)) return false;
    module.region = nullptr;
    record(module);
  }
  *out = module.image;
  return module.image.kind != RecordedImage::unknown || module.image.hashes.file.low != 0;
}

CUcontext context_of_module(uintptr_t module) {
  MutexGuard guard(g_lock);
  const Module* const found = g_modules.get(module);
  return found == nullptr ? nullptr : found->context;
}

void lock_modules_for_fork() {
  g_lock.lock();
  g_pool.lock_for_fork();
}

void unlock_modules_after_fork(bool is_child) {
  g_pool.unlock_after_fork(is_child);
  g_lock.unlock_after_fork(is_child);
}

}  // namespace fibshim
