// The modules and libraries that the host has loaded: which image each came from, which context it lives in.
//
// An image's hash is XXH3-128 over the ELF file, the PTX text (without its NUL) or the fat binary's region; an ELF
// file also has one of its code (fibshim-config(5), match.image). They are computed also where no
// pattern asks for them: one of the next folder may. Then
//   * at once for what the host passes from memory of its own, which it may free after the call;
//   * for a fat binary wrapper, as compilers lay it into a program, only when a kernel of it is
//     looked up whose symbol such a pattern fits, or is launched and recorded: a framework's gigabytes
//     stay unread at import.
// Any thread; never holds a lock while hashing or calling the driver.
#pragma once

#include <stdint.h>

#include "shim/abi/recording_format.h"
#include "shim/abi/snapshot.h"
#include "shim/driver/cuda_names.h"

namespace fibshim {

// After a successful load. `owner` is the CUmodule or CUlibrary; the context is the current one.
void record_image(uintptr_t owner, const void* image);
void record_image_file(uintptr_t owner, const char* path);

// After cuLibraryGetModule: the library's module in the current context, which ends with the library.
void record_library_module(uintptr_t module, uintptr_t library);

// Before an unload: the owner, and a library's modules, are forgotten with all their handles.
void forget_module(uintptr_t owner);

struct ImageIdentity {
  ImageHashes hashes;
  RecordedImage kind;
};

// False: the owner's image is not known, or cannot be read.
bool find_image(uintptr_t owner, ImageIdentity* out);

// How many parameters the image says that its kernel of that name takes. False: the image is not known, or does
// not tell.
bool find_param_count(uintptr_t owner, const char* symbol, uint32_t* count);

// The context that a module was loaded into; null: not known.
CUcontext context_of_module(uintptr_t module);

// For the atfork handlers.
void lock_modules_for_fork();
void unlock_modules_after_fork(bool is_child);

}  // namespace fibshim
