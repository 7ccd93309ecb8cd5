// Which loader this is. What one loader has checked and compiled, no other takes over: its rules
// may be stricter, its structs laid out in another way.
#ifndef FIBSHIM_LOADER_CHECK_IDENTITY_H_
#define FIBSHIM_LOADER_CHECK_IDENTITY_H_

#include <stdint.h>

namespace fibshim {

// A hash of the loader's sources, made when it is built (loader.mk).
extern const uint64_t kLoaderIdentity;

}  // namespace fibshim

#endif  // FIBSHIM_LOADER_CHECK_IDENTITY_H_
