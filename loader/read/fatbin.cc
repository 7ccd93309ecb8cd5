#include "loader/read/fatbin.h"

#include "loader/read/image_reading.h"

namespace fibshim {
namespace {

constexpr uint32_t kFatbinMagic = 0xba55ed50;
constexpr size_t kFatbinHeaderBytes = 16;
constexpr size_t kFatbinEntryBytes = 64;  // the smallest header of an entry
constexpr uint64_t kFatbinIsLz4 = 0x2000;
constexpr uint64_t kFatbinIsZstd = 0x8000;

}  // namespace

bool has_fatbin_magic(std::string_view bytes) {
  return bytes.size() >= sizeof kFatbinMagic && read_at<uint32_t>(bytes, 0) == kFatbinMagic;
}

size_t fatbin_region_bytes(std::string_view bytes) {
  if (bytes.size() < kFatbinHeaderBytes || read_at<uint32_t>(bytes, 0) != kFatbinMagic) return 0;
  const auto header_bytes = read_at<uint16_t>(bytes, 6);
  const auto region_bytes = read_at<uint64_t>(bytes, 8);
  if (header_bytes < kFatbinHeaderBytes || header_bytes > bytes.size() ||
      region_bytes > bytes.size() - header_bytes) {
    return 0;
  }
  return header_bytes + static_cast<size_t>(region_bytes);
}

Result<FatbinInfo> read_fatbin(std::string_view bytes) {
  FatbinInfo info;
  size_t at = 0;
  if (bytes.size() < kFatbinHeaderBytes || read_at<uint32_t>(bytes, 0) != kFatbinMagic) {
    return invalid("not a fatbin: no magic number");
  }
  while (bytes.size() - at >= kFatbinHeaderBytes && read_at<uint32_t>(bytes, at) == kFatbinMagic) {
    const auto header_bytes = read_at<uint16_t>(bytes, at + 6);
    const auto region_bytes = read_at<uint64_t>(bytes, at + 8);
    if (header_bytes < kFatbinHeaderBytes || header_bytes > bytes.size() - at) {
      return invalid("the fatbin's header is damaged", at);
    }
    at += header_bytes;
    if (region_bytes > bytes.size() - at) return invalid("cut short: the fatbin's region", at);
    const size_t end = at + static_cast<size_t>(region_bytes);
    while (at < end) {
      if (end - at < kFatbinEntryBytes) return invalid("cut short: an entry of the fatbin", at);
      const auto entry_header = read_at<uint32_t>(bytes, at + 4);
      const auto padded_bytes = read_at<uint64_t>(bytes, at + 8);
      if (entry_header < kFatbinEntryBytes || entry_header > end - at ||
          padded_bytes > end - at - entry_header) {
        return invalid("an entry of the fatbin reaches past its end", at);
      }
      FatbinEntry entry{};
      entry.kind_number = read_at<uint16_t>(bytes, at);
      entry.kind = entry.kind_number == 1   ? FatbinEntryKind::ptx
                   : entry.kind_number == 2 ? FatbinEntryKind::elf
                                            : FatbinEntryKind::other;
      entry.sm = static_cast<uint16_t>(read_at<uint32_t>(bytes, at + 28));
      const auto flags = read_at<uint64_t>(bytes, at + 40);
      entry.compression = (flags & kFatbinIsZstd) != 0  ? FatbinCompression::zstd
                          : (flags & kFatbinIsLz4) != 0 ? FatbinCompression::lz4
                                                        : FatbinCompression::none;
      const auto compressed_bytes = read_at<uint32_t>(bytes, at + 16);
      entry.stored_bytes = entry.compression != FatbinCompression::none && compressed_bytes != 0
                               ? compressed_bytes
                               : padded_bytes;
      if (entry.stored_bytes > padded_bytes) {
        return invalid("an entry of the fatbin is larger than its place", at);
      }
      const auto raw_bytes = read_at<uint64_t>(bytes, at + 56);
      entry.raw_bytes = raw_bytes != 0 ? raw_bytes : entry.stored_bytes;
      entry.payload = bytes.substr(at + entry_header, static_cast<size_t>(entry.stored_bytes));
      info.entries.push_back(entry);
      at += entry_header + static_cast<size_t>(padded_bytes);
    }
  }
  if (info.entries.empty()) return invalid("the fatbin is empty");
  return info;
}

}  // namespace fibshim
