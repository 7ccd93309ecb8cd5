// The libraries beside libfibshim.so, opened when they are needed and never closed, as their code
// and data stay in use. Opening one takes the dynamic linker's lock, so no thread may wait for a
// thread that opens one.
#pragma once

#include "shim/abi/recorder_api.h"
#include "shim/abi/shadow_api.h"
#include "shim/abi/snapshot.h"

namespace fibshim {

using Message = char[1024];

// Each returns null if it fails, and `message` says why.
const LoaderApi* load_loader_library(Message& message);
const RecorderApi* load_recorder_library(Message& message);
const ShadowApi* load_shadow_library(Message& message);

}  // namespace fibshim
