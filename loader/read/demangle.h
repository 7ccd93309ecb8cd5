// Demangles C++ symbols, within bounds. A mangled name of 300 bytes can stand for gigabytes:
// its substitutions double with every few bytes. abi::__cxa_demangle expands all of them, so
// untrusted symbols must be demangled with this function instead.
#pragma once

#include <stddef.h>

#include <string>

namespace fibshim {

inline constexpr size_t kMaxReadableNameBytes = size_t{32} << 10;
inline constexpr size_t kMaxReadableShare = 64;  // times the symbol's bytes; engines stay below 10

// Returns "" if `symbol` is not a C++ symbol or its readable name would exceed either limit.
std::string demangle(const std::string& symbol);

}  // namespace fibshim
