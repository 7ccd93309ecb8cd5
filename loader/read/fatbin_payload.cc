#include "loader/read/fatbin_payload.h"

#include <elf.h>
#include <limits.h>

#include <algorithm>
#include <memory>

#include <lz4.h>
#include <zstd.h>

#include "loader/read/file.h"
#include "loader/read/image_format.h"

namespace fibshim {

Result<std::string_view> unpack_payload(const FatbinEntry& entry, std::string* memory) {
  if (entry.compression == FatbinCompression::none) return entry.payload;
  static_assert(kMaxImageBytes <= INT_MAX);
  if (entry.raw_bytes > kMaxImageBytes || entry.payload.size() > kMaxImageBytes) {
    return fail(ErrorCode::invalid_image,
                "it claims to unpack to " + std::to_string(entry.raw_bytes) + " bytes");
  }
  const auto size = static_cast<size_t>(entry.raw_bytes);
  if (memory->size() < size) memory->resize(size);
  bool is_whole = false;
  if (entry.compression == FatbinCompression::zstd) {
    const size_t got =
        ZSTD_decompress(memory->data(), size, entry.payload.data(), entry.payload.size());
    is_whole = ZSTD_isError(got) == 0 && got == size;
  } else {
    // An LZ4 block without a frame: only the entry states its size.
    const int got =
        LZ4_decompress_safe(entry.payload.data(), memory->data(),
                            static_cast<int>(entry.payload.size()), static_cast<int>(size));
    is_whole = got >= 0 && static_cast<size_t>(got) == size;
  }
  if (!is_whole) return fail(ErrorCode::invalid_image, "its compressed bytes are damaged");
  return std::string_view(*memory).substr(0, size);
}

std::optional<UnpackedFrame> unpack_cubin_frame(std::string_view bytes, uint64_t* budget) {
  if (*budget < kFrameProbeBytes) return std::nullopt;
  *budget -= kFrameProbeBytes;
  const std::unique_ptr<ZSTD_DStream, decltype(&ZSTD_freeDStream)> stream(ZSTD_createDStream(),
                                                                          ZSTD_freeDStream);
  UnpackedFrame frame{std::string(EI_NIDENT, '\0'), 0};
  ZSTD_inBuffer in{bytes.data(), std::min(bytes.size(), kFrameProbeBytes), 0};
  ZSTD_outBuffer out{frame.raw.data(), frame.raw.size(), 0};
  size_t left = ZSTD_decompressStream(stream.get(), &out, &in);
  if (ZSTD_isError(left) != 0 || out.pos < out.size ||
      detect_image_format(frame.raw) != ImageFormat::cubin) {
    return std::nullopt;
  }
  in.size = bytes.size();
  while (left != 0) {
    if (out.pos < out.size && in.pos == in.size) return std::nullopt;  // cut short
    if (out.pos == out.size) {
      const size_t more = ZSTD_DStreamOutSize();
      if (*budget < more || out.size + more > kMaxImageBytes) return std::nullopt;
      *budget -= more;
      frame.raw.resize(out.size + more);
      out.dst = frame.raw.data();
      out.size = frame.raw.size();
    }
    left = ZSTD_decompressStream(stream.get(), &out, &in);
    if (ZSTD_isError(left) != 0) return std::nullopt;
  }
  frame.raw.resize(out.pos);
  frame.stored_bytes = in.pos;
  return frame;
}

}  // namespace fibshim
