#include "shim/registry/modules.h"

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shim/base/hash_map.h"
#include "shim/base/mutex.h"
#include "shim/base/pool.h"
#include "shim/driver/context_scope.h"
#include "shim/registry/generation.h"
#include "shim/registry/handles.h"
#include "shim/registry/image_bytes.h"
#include "shim/registry/kept_images.h"

namespace fibshim {
namespace {

// The numbers of parameters of an image's kernels, by the hashes of their names.
struct KernelParams {
  uint64_t name_hash;
  uint32_t count;
};
struct KernelList {
  KernelParams* kernels;
  uint32_t count, capacity;
};

// The identity and kernels of an image.
struct ImageFacts {
  ImageIdentity identity;  // its kind is `unknown` without an image
  KernelList list;
};

struct Module {
  uint64_t key;  // the CUmodule or CUlibrary
  Module* next;
  uintptr_t library;  // of a library's module; 0: not one
  bool is_library;
  CUcontext context;   // of a module; null: unknown
  const void* region;  // of a wrapper that was not read yet; null once `facts` are valid
  ImageFacts facts;
};

constinit Mutex g_lock;  // guards the map
constinit Pool g_pool;
constinit HashMap<Module> g_modules{&g_pool};

Module new_module(uintptr_t owner, bool is_library) {
  Module made = {};
  made.key = owner;
  made.is_library = is_library;
  if (!is_library) made.context = current_context();
  return made;
}

// The result of list_kernels().
struct Listing {
  KernelList list;
  bool has_kept_kernel;  // the image is to be kept because of one of its kernels
};

void add_kernel(void* context, const char* name, uint32_t param_count) {
  auto& listing = *static_cast<Listing*>(context);
  KernelList& list = listing.list;
  listing.has_kept_kernel = listing.has_kept_kernel || is_image_kept_for(name);
  if (list.count == list.capacity) {
    const uint32_t capacity = list.capacity == 0 ? 4 : list.capacity * 2;
    auto* const grown =
        static_cast<KernelParams*>(g_pool.allocate(capacity * sizeof(KernelParams)));
    if (grown == nullptr) return;
    if (list.count != 0) memcpy(grown, list.kernels, list.count * sizeof(KernelParams));
    g_pool.release(list.kernels, list.capacity * sizeof(KernelParams));
    list.kernels = grown;
    list.capacity = capacity;
  }
  list.kernels[list.count++] = {hash_of_text(name), param_count};
}

void release_list(const KernelList& list) {
  g_pool.release(list.kernels, list.capacity * sizeof(KernelParams));
}

// Reads the facts of an image of which `bytes` bytes are readable.
void read_facts(const void* image, uint64_t bytes, RecordedImage kind, ImageFacts* out) {
  out->identity.kind = kind;
  loader().identify_image(image, bytes, &out->identity.hashes);
  Listing listing = {};
  loader().list_kernels(image, bytes, &listing, add_kernel);
  out->list = listing.list;
  if (listing.has_kept_kernel) keep_image(out->identity.hashes.file, kind, image, bytes);
}

// Returns false if it is no image, or not completely mapped.
bool read_facts(const void* image, ImageFacts* out) {
  const ImageExtent extent = measure_image(image);
  if (extent.kind == RecordedImage::unknown) return false;
  read_facts(image, extent.bytes, extent.kind, out);
  return true;
}

// Replaces any earlier entry, since the handle may have been another module's.
void record(const Module& made) {
  MutexGuard guard(g_lock);
  Module* module = g_modules.get(made.key);
  if (module == nullptr) {
    module = static_cast<Module*>(g_pool.allocate(sizeof(Module)));
    if (module == nullptr) return;
    module->key = made.key;
    if (!g_modules.insert(module)) return g_pool.release(module, sizeof(Module));
  }
  release_list(module->facts.list);
  Module* const next = module->next;
  *module = made;
  module->next = next;
}

// Requires g_lock.
void release(Module* module) {
  if (module == nullptr) return;
  release_list(module->facts.list);
  g_pool.release(module, sizeof(Module));
}

// Requires g_lock. Null: unknown.
Module* module_with_image(uintptr_t owner) {
  Module* const found = g_modules.get(owner);
  // A module that cuLibraryGetModule has returned has its library's image.
  return found != nullptr && found->library != 0 ? g_modules.get(found->library) : found;
}

// Calls `use` with the image's facts, with g_lock held. Reads the image of a wrapper at first use.
// False: the image is unknown or cannot be read, or `use` returned false.
template <class Use>
bool with_facts(uintptr_t owner, const Use& use) {
  uint64_t key = 0;
  const void* region = nullptr;
  {
    MutexGuard guard(g_lock);
    const Module* const module = module_with_image(owner);
    if (module == nullptr) return false;
    if (module->region == nullptr) return use(module->facts);
    key = module->key;
    region = module->region;
  }
  ImageFacts facts = {};
  if (!read_facts(region, &facts)) return false;
  MutexGuard guard(g_lock);
  Module* const module = g_modules.get(key);
  if (module == nullptr || module->region != region) {  // unloaded, or another thread was faster
    release_list(facts.list);
    return module != nullptr && module->region == nullptr && use(module->facts);
  }
  module->facts = facts;
  module->region = nullptr;
  return use(module->facts);
}

// Removes a module for which `is(module)` and returns it, or 0 if none is left.
template <class Is>
uintptr_t remove_module(const Is& is) {
  MutexGuard guard(g_lock);
  const Module* found = nullptr;
  g_modules.for_each([&](Module* module) {
    if (is(*module)) found = module;
    return found == nullptr;
  });
  if (found == nullptr) return 0;
  const uintptr_t key = found->key;
  release(g_modules.remove(key));
  return key;
}

}  // namespace

void record_image(uintptr_t owner, bool is_library, const void* image) {
  if (image == nullptr || !has_generation()) return;
  Module made = new_module(owner, is_library);
  made.region = region_of_wrapper(image);
  if (made.region == nullptr) (void)read_facts(image, &made.facts);
  record(made);
}

void record_image_file(uintptr_t owner, bool is_library, const char* path) {
  if (path == nullptr || !has_generation()) return;
  Module made = new_module(owner, is_library);
  const int file = open(path, O_RDONLY | O_CLOEXEC);
  struct stat status;
  void* bytes = MAP_FAILED;
  if (file >= 0 && fstat(file, &status) == 0 && S_ISREG(status.st_mode) && status.st_size > 0) {
    bytes = mmap(nullptr, static_cast<size_t>(status.st_size), PROT_READ, MAP_PRIVATE, file, 0);
  }
  if (file >= 0) close(file);
  if (bytes != MAP_FAILED) {
    const auto size = static_cast<size_t>(status.st_size);
    read_facts(bytes, size, kind_of_image(bytes, size), &made.facts);
    munmap(bytes, size);
  }
  record(made);
}

void record_library_module(uintptr_t module, uintptr_t library) {
  if (!has_generation()) return;
  Module made = new_module(module, false);
  made.library = library;
  record(made);
}

void forget_module(uintptr_t owner) {
  if (!has_generation()) return;
  forget_owner(owner);
  const auto is_of_owner = [owner](const Module& module) { return module.library == owner; };
  while (const uintptr_t module = remove_module(is_of_owner)) forget_owner(module);
  MutexGuard guard(g_lock);
  release(g_modules.remove(owner));
}

void forget_modules_of_context(CUcontext context) {
  const auto is_ending = [context](const Module& module) {
    return !module.is_library &&
           (context == nullptr || module.context == nullptr || module.context == context);
  };
  while (remove_module(is_ending) != 0) {
  }
}

bool find_image(uintptr_t owner, ImageIdentity* out) {
  return with_facts(owner, [&](const ImageFacts& facts) {
    *out = facts.identity;
    return out->kind != RecordedImage::unknown || out->hashes.file.low != 0;
  });
}

bool find_param_count(uintptr_t owner, const char* symbol, uint32_t* count) {
  const uint64_t wanted = hash_of_text(symbol);
  return with_facts(owner, [&](const ImageFacts& facts) {
    for (uint32_t i = 0; i < facts.list.count; ++i) {
      if (facts.list.kernels[i].name_hash != wanted) continue;
      *count = facts.list.kernels[i].count;
      return true;
    }
    return false;
  });
}

uintptr_t library_of_module(uintptr_t module) {
  MutexGuard guard(g_lock);
  const Module* const found = g_modules.get(module);
  return found == nullptr ? 0 : found->library;
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
