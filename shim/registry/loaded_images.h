// Images in the driver, by content: what any folder brings is loaded once per kind of GPU, however
// many solutions, and folders one after the other, share it.
//
// An image stays loaded for the life of the process. A captured graph may hold its kernels, and so
// may a launch that has left its read section for the driver: no grace period tells that both are
// over. What that keeps, once the folder is no longer in force, is counted and shown by `fibshim
// stats`. Slow paths only; one mutex, never held across a driver call.
#pragma once

#include <atomic>
#include <stdint.h>

#include "shim/driver/cuda_names.h"

namespace fibshim {

struct LoadedImage;

// A kernel of a loaded image, for all solutions that launch it.
struct ImageKernel {
  CUkernel kernel;
  LoadedImage* image;
  ImageKernel* next;                 // of the same image
  std::atomic<uint32_t> shared_mem;  // the most dynamic shared memory that it was made ready for
  char name[8];                      // and as many bytes more as it takes
};

struct LoadedImage {
  uint8_t sha256[32];
  uint32_t device_class;
  uint32_t reserved;
  uint64_t size_bytes;  // of its file
  CUlibrary library;
  LoadedImage* next;                  // in its bucket
  std::atomic<ImageKernel*> kernels;  // those that were asked for
  std::atomic<uint64_t>
      last_used_by;  // number of the newest generation that has taken a kernel of it
};

// Null: not loaded.
LoadedImage* find_loaded_image(const uint8_t (&sha256)[32], uint32_t device_class);

// Remembers an image that the caller has loaded. Returns the existing one when another thread was
// faster: the caller then unloads `library`. Null: no memory.
LoadedImage* add_loaded_image(const uint8_t (&sha256)[32], uint32_t device_class,
                              uint64_t size_bytes, CUlibrary library);

// The image's kernel of that name. Asks the driver at the first time.
CUresult find_kernel(LoadedImage* image, const char* name, ImageKernel** out);

struct ImageTotals {
  uint64_t count, size_bytes;
  uint64_t kept_count, kept_size_bytes;  // not taken by that generation, nor by a newer one
};
ImageTotals image_totals(uint64_t generation);

// For the atfork handlers.
void lock_loaded_images_for_fork();
void unlock_loaded_images_after_fork(bool is_child);

}  // namespace fibshim
