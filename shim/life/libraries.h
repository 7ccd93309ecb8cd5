// The libraries beside libfibshim.so, opened where they are needed and never closed: their code and their data stay in
// use. Opening one takes the dynamic linker's lock: nobody may wait for who opens one.
#pragma once

#include "shim/abi/recorder_api.h"
#include "shim/abi/shadow_api.h"
#include "shim/abi/snapshot.h"

namespace fibshim {

using Message = char[1024];

// Null: `message` says why.
const LoaderApi* load_loader_library(Message& message);
const RecorderApi* load_recorder_library(Message& message);
const ShadowApi* load_shadow_library(Message& message);

}  // namespace fibshim
