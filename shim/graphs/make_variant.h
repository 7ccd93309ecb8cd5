// Makes what runs in the place of a host's exec: a copy of the originals, rewritten, and an exec of that.
#pragma once

#include "shim/graphs/rewrites.h"

namespace fibshim {

enum class Made : uint8_t {
  rewritten,  // it has a graph of its own
  unchanged,  // nothing in it would be replaced: it has none, and the host's exec runs
  failed,     // and the log says why
};

// Makes a variant of the generation in force, without its exec. Within a read section.
Made make_rewritten(const Originals& originals, Variant** out);

// Makes a variant's graph a copy of the originals, as they are; `kernels`: its nodes. False: the driver refuses.
bool copy_originals(const Originals& originals, Variant* variant, Block<CopiedKernel>* kernels);

// Gives it its exec. False: the driver refuses.
bool instantiate_variant(const Originals& originals, Variant* variant);
// Puts what a launch needs on the device, so that the first one need not. In the background.
void upload_variant(const Variant& variant);

}  // namespace fibshim
