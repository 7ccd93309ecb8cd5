#include "loader/read/kernel_params.h"

#include "loader/read/cubin.h"
#include "loader/read/fatbin_payload.h"
#include "loader/read/image_format.h"
#include "loader/read/ptx.h"

namespace fibshim {
namespace {

using Counts = std::map<std::string, uint32_t>;

void add_cubin(std::string_view bytes, Counts* counts) {
  const auto cubin = read_cubin(bytes);
  if (!cubin) return;
  for (const CubinKernel& kernel : cubin->kernels) {
    counts->emplace(kernel.name, static_cast<uint32_t>(kernel.params.size()));
  }
}

void add_ptx(std::string_view bytes, Counts* counts) {
  const auto ptx = read_ptx(bytes);
  if (!ptx) return;
  for (size_t i = 0; i < ptx->kernels.size(); ++i) {
    counts->emplace(ptx->kernels[i], ptx->param_counts[i]);
  }
}

// Adds the entries of one kind, those for the first architecture only.
void add_entries(const FatbinInfo& fatbin, FatbinEntryKind kind, Counts* counts) {
  std::optional<uint16_t> sm;
  std::string memory;
  size_t budget = kMaxListedBytes;
  for (const FatbinEntry& entry : fatbin.entries) {
    if (entry.kind != kind || sm.value_or(entry.sm) != entry.sm) continue;
    sm = entry.sm;
    if (entry.raw_bytes > budget) return;
    budget -= static_cast<size_t>(entry.raw_bytes);
    const auto raw = unpack_payload(entry, &memory);
    if (raw) (kind == FatbinEntryKind::elf ? add_cubin : add_ptx)(*raw, counts);
  }
}

}  // namespace

Counts count_kernel_params(std::string_view image) {
  Counts counts;
  switch (detect_image_format(image)) {
    case ImageFormat::unknown: break;
    case ImageFormat::cubin:
      if (image.size() <= kMaxListedBytes) add_cubin(image, &counts);
      break;
    case ImageFormat::ptx:
      if (image.size() <= kMaxListedBytes) add_ptx(image, &counts);
      break;
    case ImageFormat::fatbin:
      if (const auto fatbin = read_fatbin(image)) {
        add_entries(*fatbin, FatbinEntryKind::elf, &counts);
        if (counts.empty()) add_entries(*fatbin, FatbinEntryKind::ptx, &counts);
      }
      break;
  }
  return counts;
}

}  // namespace fibshim
