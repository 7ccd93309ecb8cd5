#include "tools/images/fatbin_payload.h"

#include <limits.h>

#include <fmt/format.h>
#include <lz4.h>
#include <zstd.h>

#include "loader/read/file.h"

namespace fibshim::tools {

Result<std::string> unpack_payload(const FatbinEntry& entry) {
  if (entry.compression == FatbinCompression::none) return std::string(entry.payload);
  static_assert(kMaxImageBytes <= INT_MAX);
  if (entry.raw_bytes > kMaxImageBytes || entry.payload.size() > kMaxImageBytes) {
    return fail(ErrorCode::invalid_image,
                fmt::format("it claims to unpack to {} bytes", entry.raw_bytes));
  }
  std::string out(static_cast<size_t>(entry.raw_bytes), '\0');
  bool is_whole = false;
  if (entry.compression == FatbinCompression::zstd) {
    const size_t got =
        ZSTD_decompress(out.data(), out.size(), entry.payload.data(), entry.payload.size());
    is_whole = ZSTD_isError(got) == 0 && got == out.size();
  } else {
    // A block without a frame: its size is known only from the entry.
    const int got =
        LZ4_decompress_safe(entry.payload.data(), out.data(),
                            static_cast<int>(entry.payload.size()), static_cast<int>(out.size()));
    is_whole = got >= 0 && static_cast<size_t>(got) == out.size();
  }
  if (!is_whole) return fail(ErrorCode::invalid_image, "its compressed bytes are damaged");
  return out;
}

}  // namespace fibshim::tools
