// Which image a module or library came from, for patterns that ask (tools/doc/contract.md,
// "Pattern": `image`).
//
// The hash is XXH3-128 over the ELF file, the PTX text (without its NUL) or the fat binary's
// region. It is computed also where no pattern asks for it: one of the next folder may. Then
//   * at once for what the host passes from memory of its own, which it may free after the call;
//   * for a fat binary wrapper, as compilers lay it into a program, only when a kernel of it is
//     looked up whose symbol such a pattern fits, or is launched and recorded: a framework's gigabytes
//     stay unread at import.
// Any thread; never holds a lock while hashing.
#ifndef FIBSHIM_SHIM_REGISTRY_IMAGE_IDENTITY_H_
#define FIBSHIM_SHIM_REGISTRY_IMAGE_IDENTITY_H_

#include <stdint.h>

#include "shim/abi/snapshot.h"
#include "shim/abi/recording_format.h"

namespace fibshim {

// After a successful load. `owner` is the CUmodule or CUlibrary.
void note_image(uintptr_t owner, const void* image);
void note_image_file(uintptr_t owner, const char* path);

// Before an unload.
void forget_image(uintptr_t owner);

struct ImageIdentity {
  ImageHash hash;
  RecordedImage kind;
};

// False: the owner's image is not known, or cannot be read.
bool find_image(uintptr_t owner, ImageIdentity* out);

// For the atfork handlers.
void lock_image_identity_for_fork();
void unlock_image_identity_after_fork(bool is_child);

}  // namespace fibshim

#endif  // FIBSHIM_SHIM_REGISTRY_IMAGE_IDENTITY_H_
