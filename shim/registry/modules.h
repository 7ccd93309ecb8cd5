// The modules and libraries that the host has loaded: the image and the context of each.
//
// An image's hash is XXH3-128 of the ELF file, the PTX text (without its NUL) or the fat binary's
// region. An ELF file also has a hash of its code (fibshim-config(5), match.image). Both are
// computed even if no pattern needs them, since a pattern of the next folder may:
//   * at once for an image in the host's own memory, which it may free after the call;
//   * for a fat binary wrapper, as compilers embed it in a program, only when a kernel of it is
//     looked up whose symbol fits a pattern with an image, or is launched and recorded: a
//     framework's gigabytes stay unread at import.
// Any thread; never holds a lock while hashing or calling the driver.
#pragma once

#include <stdint.h>

#include "shim/abi/recording_format.h"
#include "shim/abi/snapshot.h"
#include "shim/driver/cuda_names.h"

namespace fibshim {

// Called after a successful load. `owner`: a CUmodule, of the current context, or a CUlibrary.
void record_image(uintptr_t owner, bool is_library, const void* image);
void record_image_file(uintptr_t owner, bool is_library, const char* path);

// Called after cuLibraryGetModule. The module, of the current context, ends with the library.
void record_library_module(uintptr_t module, uintptr_t library);

// Called before an unload. Removes the owner, a library's modules, and all their handles.
void forget_module(uintptr_t owner);

// Called when a context ends, null: any of them. Removes its modules, whose handles
// forget_functions() removes.
void forget_modules_of_context(CUcontext context);

struct ImageIdentity {
  ImageHashes hashes;
  RecordedImage kind;
};

// Returns false if the owner's image is unknown or cannot be read.
bool find_image(uintptr_t owner, ImageIdentity* out);

// Finds the number of parameters of a kernel in the image. False: the image is unknown or lacks it.
bool find_param_count(uintptr_t owner, const char* symbol, uint32_t* count);

// Returns the library that a module is of, or 0.
uintptr_t library_of_module(uintptr_t module);

// Returns the context that a module was loaded into, or null if unknown, or of a library.
CUcontext context_of_module(uintptr_t module);

// For the atfork handlers.
void lock_modules_for_fork();
void unlock_modules_after_fork(bool is_child);

}  // namespace fibshim
