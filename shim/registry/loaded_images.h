// Images in the driver, by content: each is loaded once per kind of GPU, however many solutions and
// successive folders share it.
//
// An image stays loaded for the life of the process. A captured graph may hold its kernels, and so
// may a launch that has left its read section for the driver, and no grace period covers these.
// Images that the folder in force does not use are counted and shown by `fibshim stats`. Slow paths
// only; one mutex, never held across a driver call.
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
  std::atomic<uint32_t> shared_mem;  // the largest dynamic shared memory that was set for it
  char name[8];                      // extends beyond the struct
};

struct LoadedImage {
  uint8_t sha256[32];
  uint32_t device_class;
  uint32_t reserved;
  uint64_t size_bytes;  // of its file
  CUlibrary library;
  LoadedImage* next;                   // in its bucket
  std::atomic<ImageKernel*> kernels;   // those that were looked up
  std::atomic<uint64_t> last_used_by;  // number of the newest generation that uses a kernel of it
};

// Returns null if it is not loaded.
LoadedImage* find_loaded_image(const uint8_t (&sha256)[32], uint32_t device_class);

// Adds an image that the caller has loaded. If another thread was faster, returns that thread's
// image, and the caller unloads `library`. Null: no memory.
LoadedImage* add_loaded_image(const uint8_t (&sha256)[32], uint32_t device_class,
                              uint64_t size_bytes, CUlibrary library);

// Finds the image's kernel of that name. Calls the driver the first time.
CUresult find_kernel(LoadedImage* image, const char* name, ImageKernel** out);

struct ImageTotals {
  uint64_t count, size_bytes;
  uint64_t kept_count, kept_size_bytes;  // not used by that generation or a newer one
};
ImageTotals image_totals(uint64_t generation);

// For the atfork handlers.
void lock_loaded_images_for_fork();
void unlock_loaded_images_after_fork(bool is_child);

}  // namespace fibshim
