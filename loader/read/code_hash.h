// What a cubin does, as a hash that survives what a just-in-time compiler changes from process to process: names of
// kernels and sections, debug sections, paths, the order of sections, notes of the tools.
//
// Hashed are: the GPU that it is for, machine code with its register count, constants, initialised and
// uninitialised data, the relocations of these (type, place, addend, value of the symbol), and the
// attributes of each kernel (parameters, shared memory, bounds). Another compiler version, another option that
// changes the code, or a specialised constant makes another hash.
#pragma once

#include <optional>
#include <string_view>

#include "shim/abi/snapshot.h"

namespace fibshim {

// `image` may be any bytes. Nothing: it is no whole cubin, or one without code.
std::optional<ImageHash> hash_code(std::string_view image);

}  // namespace fibshim
