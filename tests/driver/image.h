// Reads the images that a program passes to cuModuleLoadData: cubins, fatbins, fatbin wrappers,
// PTX.
//
// Written from the format notes, and shares no code with the loader, so that a mistake in one
// reader shows in the other. The API does not state sizes, so an image's own headers say where it
// ends, and memory that cannot be read is an invalid image, not a crash.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/driver/cuda_api.h"
#include "tests/driver/host_kernels.h"

namespace simcuda {

struct Param {
  uint32_t offset, size;  // bytes
};

// What the driver knows about one kernel's code. Interned and never freed, so a launch may use it
// while its module is unloaded.
struct KernelInfo {
  std::string name;
  uint32_t name_id = 0;  // index of the kernel's counters
  std::vector<Param> params;
  uint32_t param_bytes = 0;
  uint32_t register_count = 0;
  uint32_t static_shared_mem = 0;  // without the reserve of sm_90 and later
  uint32_t const_bytes = 0;
  uint32_t max_threads = 1024;
  uint32_t cluster[3] = {0, 0, 0};  // from __cluster_dims__; zeros: none
  int sm = 0;
  HostKernel emulate = nullptr;  // null: its launches are only recorded
  bool waits = true;             // see waits_by_itself()
};

struct Global {
  std::string name;
  size_t size;
  std::vector<uint8_t> initial;  // empty: zeros
};

struct Image {
  std::vector<const KernelInfo*> kernels;
  std::vector<Global> globals;

  const KernelInfo* find(const std::string& name) const;
};

// Returns an image's format by its first bytes. `limit`: the number of bytes known to be there (0:
// unknown).
enum class ImageFormat { elf, fatbin, fatbin_wrapper, ptx, unknown };
ImageFormat format_of(const void* image, size_t limit);

// True if a file's bytes are an ELF image that by its own headers is longer than the file.
bool is_truncated_elf(const std::vector<uint8_t>& bytes);

// Copies an image, so that the caller may free its memory. The image's own headers say where it
// ends.
CUresult copy_image(const void* image, size_t limit, std::vector<uint8_t>* bytes);

// Reads a copied image for a device. Errors: INVALID_IMAGE, NO_BINARY_FOR_GPU, INVALID_PTX.
CUresult read_image(const std::vector<uint8_t>& bytes, int device_sm, Image* image);

}  // namespace simcuda
