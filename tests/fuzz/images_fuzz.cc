// GPU images as they come: cubins, fatbins with packed entries, PTX, host libraries with images inside.
// Read by the loader, by `fibshim inspect`, and by the shim where a host passes one by pointer.
#include <string.h>
#include <sys/mman.h>

#include <memory>
#include <string>

#include <nlohmann/json.hpp>

#include "loader/read/cubin.h"
#include "loader/read/image_format.h"
#include "loader/read/ptx.h"
#include "shim/registry/image_bytes.h"
#include "tests/fuzz/fuzz.h"
#include "loader/read/fatbin_payload.h"
#include "loader/read/kernel_params.h"
#include "tools/images/image_report.h"

namespace fibshim::fuzz {
namespace {

constexpr size_t kPageBytes = 4096;
constexpr size_t kRoomBytes = size_t{1} << 20;

// Bytes that end where a page does, with nothing to read behind it.
const char* at_the_end_of_memory(std::string_view bytes) {
  static char* const room = [] {
    void* const pages = mmap(nullptr, kRoomBytes + kPageBytes, PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    require(pages != MAP_FAILED &&
                mprotect(static_cast<char*>(pages) + kRoomBytes, kPageBytes, PROT_NONE) == 0,
            "there is memory");
    return static_cast<char*>(pages);
  }();
  char* const at = room + kRoomBytes - bytes.size();
  memcpy(at, bytes.data(), bytes.size());
  return at;
}

void measure(std::string_view bytes) {
  const char* const image = at_the_end_of_memory(bytes);
  const ImageExtent extent = measure_image(image);
  require(extent.bytes <= bytes.size(), "an image ends before its memory does");
  require((extent.kind == RecordedImage::unknown) == (extent.bytes == 0),
          "what is measured has a kind");
  if (extent.kind == RecordedImage::fatbin) {
    require(extent.bytes >= 16, "a fat binary is as long as its header");
    // The loader's own reading of the same header, which may refuse more.
    const size_t known = fatbin_region_bytes(bytes);
    require(known == 0 || known == extent.bytes, "the shim and the loader agree about a region");
  }
  (void)region_of_wrapper(image);
}

void check_cubin(std::string_view bytes) {
  const auto cubin = read_cubin(bytes);
  if (!cubin) {
    require(!cubin.error().message.empty(), "a refusal says why");
    return;
  }
  require(cubin->sm != 0, "a cubin is for an SM");
  size_t name_bytes = 0;
  for (const CubinKernel& kernel : cubin->kernels) {
    name_bytes += kernel.name.size();
    require(cubin->find_kernel(kernel.name) == &kernel, "a kernel is found by its name");
    for (size_t i = 0; i < kernel.params.size(); ++i) {
      const KernelParam& param = kernel.params[i];
      require(param.ordinal == i && param.size != 0, "parameters are in order, without gaps");
      require(kernel.param_bytes == 0 || param.offset + param.size <= kernel.param_bytes,
              "parameters lie in their block");
    }
  }
  require(name_bytes <= 8 * bytes.size(), "names take memory in proportion to the file");
}

void check_fatbin(std::string_view bytes) {
  const auto fatbin = read_fatbin(bytes);
  if (!fatbin) return;
  std::string memory;
  for (const FatbinEntry& entry : fatbin->entries) {
    require(entry.payload.data() >= bytes.data() &&
                entry.payload.data() + entry.payload.size() <= bytes.data() + bytes.size(),
            "an entry lies in the fatbin");
    const auto raw = unpack_payload(entry, &memory);
    if (!raw) continue;
    require(entry.compression == FatbinCompression::none || raw->size() == entry.raw_bytes,
            "an entry unpacks to what it says");
    if (entry.kind == FatbinEntryKind::elf) check_cubin(*raw);
    if (entry.kind == FatbinEntryKind::ptx) (void)read_ptx(*raw);
  }
}

}  // namespace

FUZZ_TARGET(images) {
  const std::string_view bytes = as_text(data, size);
  if (size > kRoomBytes) return 0;
  // A copy that ends where the bytes do.
  const std::unique_ptr<char[]> copy(new char[size]);
  memcpy(copy.get(), data, size);
  const std::string_view exact(copy.get(), size);
  (void)count_kernel_params(exact);
  switch (detect_image_format(exact)) {
    case ImageFormat::cubin: check_cubin(exact); break;
    case ImageFormat::fatbin: check_fatbin(exact); break;
    case ImageFormat::ptx: (void)read_ptx(exact); break;
    case ImageFormat::unknown: break;
  }
  if (const auto image = tools::read_image(exact, {}, true)) {
    std::string json;
    tools::JsonWriter writer(&json);
    writer.open('{');
    tools::write_image(*image, &writer);
    writer.close();
    require(!tools::image_text(*image, "").empty() && nlohmann::json::accept(json),
            "what was read has a text");
  }
  measure(bytes);
  return 0;
}

}  // namespace fibshim::fuzz
