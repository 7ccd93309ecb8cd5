// Hashes what a cubin does. The hash ignores what a just-in-time compiler changes from process to
// process: names of kernels and sections, debug sections, the order of sections, notes of the
// tools, and texts that begin with "/" (the file that an assertion in device code names).
//
// The hash covers the GPU that the cubin is for, machine code with its register count, constants,
// each initialised variable by itself, the size of other variables, the relocations of all these
// (type, place, addend, meaning of the symbol), and the attributes of each kernel (parameters,
// shared memory, bounds). Another compiler version, another option that changes the code, or a
// specialised constant gives another hash.
#pragma once

#include <optional>
#include <string_view>

#include "shim/abi/snapshot.h"

namespace fibshim {

// Hashes a cubin, or the cubin in a fatbin that holds one image only, as run-time compilers make
// them. `image` may be any bytes. Returns nothing if it is neither of the two, is cut short, or has
// no code.
std::optional<ImageHash> hash_code(std::string_view image);

// The same of one kernel of a cubin: what other kernels stand beside it makes no difference. Functions that no host can launch,
// and variables, are hashed with it, whether it uses them or not. Nothing: there is no such kernel, or no whole cubin.
std::optional<ImageHash> hash_kernel(std::string_view cubin, std::string_view kernel);

}  // namespace fibshim
