// Readable names of C++ symbols, within bounds. A mangled name of 300 bytes can stand for gigabytes:
// its substitutions double with every few bytes. abi::__cxa_demangle makes all of them, so whoever
// reads symbols that come from elsewhere asks here.
#pragma once

#include <stddef.h>

#include <string>

namespace fibshim {

inline constexpr size_t kMaxReadableNameBytes = size_t{32} << 10;
inline constexpr size_t kMaxReadableShare = 64;  // of a symbol's bytes: engines' own stay below 10

// Empty for what is no C++ symbol, and for one whose readable name would be longer than that.
std::string demangle(const std::string& symbol);

}  // namespace fibshim
