#include "shim/registry/image_bytes.h"

#include <elf.h>
#include <fcntl.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

namespace fibshim {
namespace {

constexpr uint32_t kWrapperMagic = 0x466243b1;
constexpr uint32_t kFatbinMagic = 0xba55ed50;
// No page is smaller, and readable memory begins and ends at page boundaries.
constexpr uint64_t kPageBytes = 4096;
constexpr uint64_t kMaxImageBytes = uint64_t{8} << 30;

// Asks the operating system, which returns EFAULT where a read by the shim would crash the host.
class Prober {
 public:
  Prober() {
    if (pipe2(ends_, O_CLOEXEC | O_NONBLOCK) != 0) ends_[0] = ends_[1] = -1;
  }
  ~Prober() {
    if (ends_[0] < 0) return;
    close(ends_[0]);
    close(ends_[1]);
  }
  Prober(const Prober&) = delete;
  Prober& operator=(const Prober&) = delete;

  // Also false if no pipe could be made.
  bool is_readable(const void* from, uint64_t bytes) const {
    const auto begin = reinterpret_cast<uintptr_t>(from);
    if (ends_[0] < 0 || bytes > kMaxImageBytes || begin > UINTPTR_MAX - bytes) return false;
    constexpr size_t kAtOnce = 256;
    iovec pages[kAtOnce];
    char taken[kAtOnce];
    for (uintptr_t at = begin; at < begin + bytes;) {
      size_t count = 0;
      for (; count < kAtOnce && at < begin + bytes; ++count) {
        pages[count] = {reinterpret_cast<void*>(at), 1};
        at = (at / kPageBytes + 1) * kPageBytes;
      }
      const auto wanted = static_cast<ssize_t>(count);
      if (writev(ends_[1], pages, static_cast<int>(count)) != wanted ||
          read(ends_[0], taken, count) != wanted) {
        return false;
      }
    }
    return true;
  }

 private:
  int ends_[2];
};

template <class T>
T read_at(const void* image, uint64_t offset) {
  T value;
  memcpy(&value, static_cast<const char*>(image) + offset, sizeof value);
  return value;
}

// Returns the end of `count` items of `size` bytes at `offset`; UINT64_MAX on overflow.
uint64_t end_of(uint64_t offset, uint64_t count, uint64_t size) {
  uint64_t bytes;
  uint64_t end;
  return __builtin_mul_overflow(count, size, &bytes) || __builtin_add_overflow(offset, bytes, &end)
             ? UINT64_MAX
             : end;
}

uint64_t later(uint64_t a, uint64_t b) { return a > b ? a : b; }

// Returns 0 if it is not completely mapped.
uint64_t elf_bytes(const Prober& prober, const void* image) {
  if (!prober.is_readable(image, sizeof(Elf64_Ehdr))) return 0;
  const auto header = read_at<Elf64_Ehdr>(image, 0);
  uint64_t end = later(sizeof header, end_of(header.e_shoff, header.e_shnum, header.e_shentsize));
  end = later(end, end_of(header.e_phoff, header.e_phnum, header.e_phentsize));
  const uint64_t table_end = end_of(header.e_shoff, header.e_shnum, sizeof(Elf64_Shdr));
  if (header.e_shnum != 0 && !prober.is_readable(image, table_end)) return 0;
  for (uint32_t i = 0; i < header.e_shnum; ++i) {
    const auto section =
        read_at<Elf64_Shdr>(image, header.e_shoff + uint64_t{i} * sizeof(Elf64_Shdr));
    if (section.sh_type == SHT_NOBITS) continue;
    end = later(end, end_of(section.sh_offset, 1, section.sh_size));
  }
  return prober.is_readable(image, end) ? end : 0;
}

// The fat binary's header gives the size of what follows it.
uint64_t fatbin_bytes(const Prober& prober, const void* image) {
  constexpr uint16_t kHeaderBytes = 16;
  if (!prober.is_readable(image, kHeaderBytes)) return 0;
  const auto header_bytes = read_at<uint16_t>(image, 6);
  if (header_bytes < kHeaderBytes) return 0;
  const uint64_t end = end_of(header_bytes, 1, read_at<uint64_t>(image, 8));
  return prober.is_readable(image, end) ? end : 0;
}

// Searches the text's NUL page by page.
uint64_t text_bytes(const Prober& prober, const void* image) {
  const auto* const text = static_cast<const char*>(image);
  uint64_t length = 0;
  while (length < kMaxImageBytes) {
    const uint64_t step = kPageBytes - reinterpret_cast<uintptr_t>(text + length) % kPageBytes;
    if (!prober.is_readable(text + length, step)) return 0;
    const void* const nul = memchr(text + length, '\0', step);
    if (nul != nullptr) return static_cast<uint64_t>(static_cast<const char*>(nul) - text);
    length += step;
  }
  return 0;
}

}  // namespace

RecordedImage kind_of_image(const void* image, uint64_t bytes) {
  if (bytes < 4) return RecordedImage::unknown;
  if (memcmp(image, ELFMAG, SELFMAG) == 0) return RecordedImage::cubin;
  if (read_at<uint32_t>(image, 0) == kFatbinMagic) return RecordedImage::fatbin;
  // PTX is text: comments and directives.
  const char first = *static_cast<const char*>(image);
  const bool is_text = first == '/' || first == '.' || first == '\n' || first == '\r' ||
                       first == ' ' || first == '\t';
  return is_text ? RecordedImage::ptx : RecordedImage::unknown;
}

ImageExtent measure_image(const void* image) {
  const Prober prober;
  ImageExtent extent{RecordedImage::unknown, 0};
  if (prober.is_readable(image, 4)) extent.kind = kind_of_image(image, 4);
  switch (extent.kind) {
    case RecordedImage::unknown: break;
    case RecordedImage::cubin: extent.bytes = elf_bytes(prober, image); break;
    case RecordedImage::fatbin: extent.bytes = fatbin_bytes(prober, image); break;
    case RecordedImage::ptx: extent.bytes = text_bytes(prober, image); break;
  }
  if (extent.bytes == 0) extent.kind = RecordedImage::unknown;
  return extent;
}

const void* region_of_wrapper(const void* image) {
  const Prober prober;
  if (!prober.is_readable(image, 4) || read_at<uint32_t>(image, 0) != kWrapperMagic ||
      !prober.is_readable(image, 16)) {
    return nullptr;
  }
  return read_at<const void*>(image, 8);
}

}  // namespace fibshim
