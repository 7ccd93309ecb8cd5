#include "shim/registry/image_identity.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shim/registry/handles.h"
#include "shim/registry/image_bytes.h"
#include "shim/base/mutex.h"
#include "shim/base/pool.h"
#include "shim/registry/in_force.h"

namespace fibshim {
namespace {

struct Identity {
  uintptr_t owner;
  Identity* next;      // in its bucket
  const void* region;  // of a wrapper, not hashed yet; null once `image` holds
  ImageIdentity image;
};

constexpr uint32_t kBucketCount = 1024;

Mutex g_lock;  // guards the buckets
Pool g_pool;
Identity* g_buckets[kBucketCount];

Identity** bucket_of(uintptr_t owner) { return &g_buckets[hash_handle(owner) >> 54]; }
static_assert(kBucketCount == 1u << 10);

// Holding g_lock.
Identity** find_identity(uintptr_t owner) {
  Identity** at = bucket_of(owner);
  while (*at != nullptr && (*at)->owner != owner) at = &(*at)->next;
  return at;
}

bool identify(const void* image, ImageIdentity* out) {
  const ImageExtent extent = measure_image(image);
  out->kind = extent.kind;
  if (extent.kind == RecordedImage::unknown) return false;
  loader().hash_image(image, extent.bytes, &out->hash);
  return true;
}

void remember(uintptr_t owner, const void* region, const ImageIdentity& image) {
  auto* identity = static_cast<Identity*>(g_pool.allocate(sizeof(Identity)));
  if (identity == nullptr) return;
  identity->owner = owner;
  identity->region = region;
  identity->image = image;
  MutexGuard guard(g_lock);
  Identity** at = find_identity(owner);
  if (*at != nullptr) {
    identity->next = (*at)->next;
    g_pool.release(*at, sizeof(Identity));
  }
  *at = identity;
}

}  // namespace

void note_image(uintptr_t owner, const void* image) {
  if (image == nullptr || !has_started()) return;
  ImageIdentity identity = {};
  if (const void* region = region_of_wrapper(image)) {
    remember(owner, region, identity);
  } else if (identify(image, &identity)) {
    remember(owner, nullptr, identity);
  } else {
    forget_image(owner);  // the value may have been another module's
  }
}

void note_image_file(uintptr_t owner, const char* path) {
  if (path == nullptr || !has_started()) return;
  const int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return;
  struct stat status;
  void* bytes = MAP_FAILED;
  if (fstat(file, &status) == 0 && S_ISREG(status.st_mode) && status.st_size > 0) {
    bytes = mmap(nullptr, static_cast<size_t>(status.st_size), PROT_READ, MAP_PRIVATE, file, 0);
  }
  close(file);
  if (bytes == MAP_FAILED) return;
  ImageIdentity identity = {};
  identity.kind = kind_of_image(bytes, static_cast<uint64_t>(status.st_size));
  loader().hash_image(bytes, static_cast<size_t>(status.st_size), &identity.hash);
  munmap(bytes, static_cast<size_t>(status.st_size));
  remember(owner, nullptr, identity);
}

void forget_image(uintptr_t owner) {
  MutexGuard guard(g_lock);
  Identity** at = find_identity(owner);
  Identity* identity = *at;
  if (identity == nullptr) return;
  *at = identity->next;
  g_pool.release(identity, sizeof(Identity));
}

bool find_image(uintptr_t owner, ImageIdentity* out) {
  const void* region = nullptr;
  {
    MutexGuard guard(g_lock);
    const Identity* identity = *find_identity(owner);
    if (identity == nullptr) return false;
    region = identity->region;
    *out = identity->image;
  }
  if (region == nullptr) return true;
  if (!identify(region, out)) return false;
  remember(owner, nullptr, *out);
  return true;
}

void lock_image_identity_for_fork() {
  g_lock.lock();
  g_pool.lock_for_fork();
}

void unlock_image_identity_after_fork(bool is_child) {
  g_pool.unlock_after_fork(is_child);
  g_lock.unlock_after_fork(is_child);
}

}  // namespace fibshim
