// Makes what runs in place of a host's exec: a rewritten copy of the originals, and an exec of it.
#pragma once

#include "shim/graphs/rewrites.h"

namespace fibshim {

enum class Made : uint8_t {
  rewritten,  // the variant has a graph of its own
  unchanged,  // nothing would be replaced: the variant has no graph, and the host's exec runs
  failed,     // the log says why
};

// Makes a variant of the generation in force, without its exec. Requires a read section.
Made make_rewritten(const Originals& originals, Variant** out);

// Makes the variant's graph an unchanged copy of the originals and lists its kernels. False: the
// driver refuses.
bool copy_originals(const Originals& originals, Variant* variant, Block<CopiedKernel>* kernels);

// Makes the variant's exec. False: the driver refuses.
bool instantiate_variant(const Originals& originals, Variant* variant);
// Uploads the exec, so that its first launch need not. Waits for it; for background threads.
void upload_variant(const Variant& variant);

}  // namespace fibshim
