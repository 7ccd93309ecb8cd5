// Counts the parameters of the kernels in a GPU image, so that the driver is not asked past the
// last one.
#pragma once

#include <stdint.h>

#include <map>
#include <string>
#include <string_view>

namespace fibshim {

// At most this much of one fatbin is unpacked; libcublasLt has a hundred times as much.
inline constexpr size_t kMaxListedBytes = size_t{64} << 20;

// Returns the parameter counts by kernel name. Of a fatbin it reads the cubins of the first
// architecture, or the PTX if there are no cubins; other architectures have the same kernels.
// Leaves out images that cannot be read or are beyond the limit.
std::map<std::string, uint32_t> count_kernel_params(std::string_view image);

}  // namespace fibshim
