// How many parameters the kernels in a GPU image take, so that the driver need not be asked past the last one.
#pragma once

#include <stdint.h>

#include <map>
#include <string>
#include <string_view>

namespace fibshim {

// What is unpacked of one fat binary at most; libcublasLt has a hundred times as much.
inline constexpr size_t kMaxListedBytes = size_t{64} << 20;

// By the kernels' names. Of a fat binary the cubins of the first architecture in it, or its PTX where it has
// none: the kernels of the others are the same. Nothing of what cannot be read, or is beyond the limit.
std::map<std::string, uint32_t> count_kernel_params(std::string_view image);

}  // namespace fibshim
