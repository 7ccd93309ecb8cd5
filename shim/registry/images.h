// Replacement kernels in the driver: which image for which GPU.
//
// Images are loaded with cuLibraryLoadData, so that one CUkernel serves every context, once for each
// content and kind of GPU (loaded_images.h). Loading holds no lock; of two threads that load the same
// image at once one lets go of its copy. Only success is remembered.
#ifndef FIBSHIM_SHIM_REGISTRY_IMAGES_H_
#define FIBSHIM_SHIM_REGISTRY_IMAGES_H_

#include <atomic>

#include "shim/driver/cuda_names.h"

#include "shim/abi/snapshot.h"
#include "shim/registry/devices_in_use.h"
#include "shim/registry/generation.h"

namespace fibshim {

// GPUs of one compute capability form a class. A launch needs to know its device only where a
// process sees more than one class.
inline constexpr uint32_t kMaxDeviceClasses = 8;
inline constexpr uint32_t kNoDeviceClass = UINT32_MAX;

enum class LoadState : uint8_t {
  ready,     // `kernel` may be launched
  no_image,  // no image for this GPU
  not_yet,   // could not be tried: the driver is not initialised
  failed,    // `error` says why; a message was logged
};

struct Replacement {
  LoadState state;
  CUresult error;
  CUfunction kernel;  // a CUkernel, as cuLaunchKernel takes it
};

// What of a snapshot's solutions is loaded: a row for each. Null: no memory.
struct ReplacementRow;
ReplacementRow* make_replacement_table(const Snapshot& snapshot);
void release_replacement_table(ReplacementRow* table, const Snapshot& snapshot);

// How many classes of GPU there are; 0 while the driver is not initialised.
uint32_t device_class_count();

// The current context's GPU and its class (kNoDevice, kNoDeviceClass: there is none); as one value, see
// devices_in_use.h.
int64_t current_device_key();
inline uint32_t current_device_class() { return class_of_key(current_device_key()); }

// Of the device that the driver numbers so. Where all GPUs are alike, an unknown one is of their class.
int64_t key_of_device(CUdevice device);

// 90 for compute capability 9.0; 0 for kNoDeviceClass.
uint32_t sm_of_device_class(uint32_t device_class);

// The solution's kernel for a class: loads it if need be. Calls the driver; slow path only.
// `binding` tells what the kernel's parameters must be.
Replacement load_replacement(const Generation& generation, const Binding& binding,
                             uint32_t device_class);

// The same without calling the driver: `not_yet` when it was not loaded before.
Replacement find_replacement(const Generation& generation, const Binding& binding,
                             uint32_t device_class);

// Whether a solution of it is broken, or an image that was to be loaded could not be: what `check` calls
// an error, or the driver refuses. `message` says which.
bool find_fault(const Generation& generation, char* message, size_t size);

// Into every primary context that is active, whatever of the generation is loaded: a lazy load at a
// launch would wait for the GPU. For threads that have no context of their own.
void load_into_contexts(const Generation& generation);

// For the atfork handlers.
void lock_images_for_fork();
void unlock_images_after_fork(bool is_child);

}  // namespace fibshim

#endif  // FIBSHIM_SHIM_REGISTRY_IMAGES_H_
