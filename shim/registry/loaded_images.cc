#include "shim/registry/loaded_images.h"

#include <stddef.h>
#include <string.h>

#include "shim/driver/driver.h"
#include "shim/base/mutex.h"
#include "shim/base/pool.h"

namespace fibshim {
namespace {

constexpr uint32_t kBucketCount = 1024;

Mutex g_lock;  // guards the lists
Pool g_pool;
LoadedImage* g_buckets[kBucketCount];

LoadedImage*& bucket_of(const uint8_t (&sha256)[32]) {
  return g_buckets[(sha256[0] | uint32_t{sha256[1]} << 8) % kBucketCount];
}

// Requires g_lock.
ImageKernel* kernel_named(const LoadedImage& image, const char* name) {
  ImageKernel* at = image.kernels;
  while (at != nullptr && strcmp(at->name, name) != 0) at = at->next;
  return at;
}

// Requires g_lock.
LoadedImage* image_of(const uint8_t (&sha256)[32], uint32_t device_class) {
  LoadedImage* at = bucket_of(sha256);
  while (at != nullptr &&
         (at->device_class != device_class || memcmp(at->sha256, sha256, sizeof at->sha256) != 0)) {
    at = at->next;
  }
  return at;
}

}  // namespace

LoadedImage* find_loaded_image(const uint8_t (&sha256)[32], uint32_t device_class) {
  MutexGuard guard(g_lock);
  return image_of(sha256, device_class);
}

LoadedImage* add_loaded_image(const uint8_t (&sha256)[32], uint32_t device_class,
                              uint64_t size_bytes, CUlibrary library) {
  MutexGuard guard(g_lock);
  LoadedImage* image = image_of(sha256, device_class);
  if (image != nullptr) return image;
  image = static_cast<LoadedImage*>(g_pool.allocate(sizeof(LoadedImage)));
  if (image == nullptr) return nullptr;
  memcpy(image->sha256, sha256, sizeof image->sha256);
  image->device_class = device_class;
  image->size_bytes = size_bytes;
  image->library = library;
  LoadedImage*& bucket = bucket_of(sha256);
  image->next = bucket;
  bucket = image;
  return image;
}

CUresult find_kernel(LoadedImage* image, const char* name, ImageKernel** out) {
  {
    MutexGuard guard(g_lock);
    *out = kernel_named(*image, name);
    if (*out != nullptr) return CUDA_SUCCESS;
  }
  CUkernel kernel = nullptr;
  const CUresult result = FIBSHIM_REAL(cuLibraryGetKernel)(&kernel, image->library, name);
  if (result != CUDA_SUCCESS) return result;
  MutexGuard guard(g_lock);
  *out = kernel_named(*image, name);
  if (*out != nullptr) return CUDA_SUCCESS;
  const size_t name_bytes = strlen(name) + 1;
  auto* added =
      static_cast<ImageKernel*>(g_pool.allocate(offsetof(ImageKernel, name) + name_bytes));
  if (added == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  added->kernel = kernel;
  added->image = image;
  memcpy(added->name, name, name_bytes);
  added->next = image->kernels;
  image->kernels = added;
  *out = added;
  return CUDA_SUCCESS;
}

ImageTotals image_totals(uint64_t generation) {
  ImageTotals totals = {};
  MutexGuard guard(g_lock);
  for (const LoadedImage* bucket : g_buckets) {
    for (const LoadedImage* at = bucket; at != nullptr; at = at->next) {
      ++totals.count;
      totals.size_bytes += at->size_bytes;
      if (at->last_used_by.load(std::memory_order_relaxed) >= generation) continue;
      ++totals.kept_count;
      totals.kept_size_bytes += at->size_bytes;
    }
  }
  return totals;
}

void lock_loaded_images_for_fork() {
  g_lock.lock();
  g_pool.lock_for_fork();
}

void unlock_loaded_images_after_fork(bool is_child) {
  g_pool.unlock_after_fork(is_child);
  g_lock.unlock_after_fork(is_child);
}

}  // namespace fibshim
