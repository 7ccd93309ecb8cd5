// What a cubin does, as a hash that survives what a just-in-time compiler changes from process to process: names of
// kernels and sections, debug sections, the order of sections, notes of the tools, and texts that begin with "/" (the
// file that an assertion in device code names).
//
// Hashed are: the GPU that it is for, machine code with its register count, constants, initialised variables each for
// itself, the size of others, the relocations of these (type, place, addend, what the symbol stands for), and the
// attributes of each kernel (parameters, shared memory, bounds). Another compiler version, another option that
// changes the code, or a specialised constant makes another hash.
#pragma once

#include <optional>
#include <string_view>

#include "shim/abi/snapshot.h"

namespace fibshim {

// Of a cubin, or of the one image in a fatbin, as compilers make them at run time for the GPU at hand. `image` may be any bytes.
// Nothing: it is neither, not whole, or without code.
std::optional<ImageHash> hash_code(std::string_view image);

}  // namespace fibshim
