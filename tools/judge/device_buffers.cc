#include "tools/judge/device_buffers.h"

#include <string.h>

#include <algorithm>

#include <fmt/format.h>

namespace fibshim::judge {
namespace {

// Guard zones before and after every buffer hold values that are NaN in every floating-point type
// of two or four bytes: a kernel that reads them computes NaN, a kernel that writes them is found.
constexpr size_t kGuardBytes = 4096;
constexpr uint32_t kGuardWord = 0xffc1ffc1;
constexpr size_t kWord = sizeof kGuardWord;

// From the first to the last.
int64_t elements_of(const BufferSpec& spec) {
  const int64_t count = Tensor{spec.type, spec.shape, {}}.count();
  if (spec.strides.empty() || count == 0) return count;
  int64_t last = 0;
  for (size_t i = 0; i < spec.shape.size(); ++i) last += (spec.shape[i] - 1) * spec.strides[i];
  return last + 1;
}

}  // namespace

DeviceBuffers::~DeviceBuffers() {
  for (const Item& item : items_) (void)gpu_->release(item.base);
}

Result<void> DeviceBuffers::allocate(bool is_misaligned) {
  for (const BufferSpec& spec : specs_) {
    if (!spec.shares.empty()) continue;
    const size_t bytes = static_cast<size_t>(elements_of(spec)) * spec.type->bytes;
    const size_t offset = kGuardBytes + (is_misaligned ? spec.type->bytes : 0);
    const size_t total = (offset + bytes + kGuardBytes + kWord - 1) / kWord * kWord;
    items_.push_back({&spec, FIBSHIM_TRY(gpu_->allocate(total)), offset, bytes, total});
    addresses_[spec.name] = items_.back().data();
  }
  for (const BufferSpec& spec : specs_) {
    if (!spec.shares.empty()) addresses_.emplace(spec.name, addresses_.at(spec.shares));
  }
  return {};
}

Result<void> DeviceBuffers::prepare(const CaseData& data) {
  for (const Item& item : items_) {
    FIBSHIM_TRY(gpu_->fill32(item.base, kGuardWord, item.total / kWord));
    FIBSHIM_TRY(gpu_->fill8(item.data(), kPoison, item.bytes));
  }
  FIBSHIM_TRY(gpu_->synchronize());
  for (const Item& item : items_) {
    if (item.spec->is_output) continue;
    const Tensor& tensor = data.tensors.at(item.spec->name);
    FIBSHIM_TRY(gpu_->to_device(item.data(), tensor.bytes.data(), tensor.bytes.size()));
  }
  return {};
}

Result<std::string> DeviceBuffers::find_overrun() {
  std::vector<uint8_t> zone;
  for (const Item& item : items_) {
    const size_t zones[2][2] = {{0, item.offset}, {item.offset + item.bytes, item.total}};
    for (const auto& [begin, end] : zones) {
      zone.resize(end - begin);
      FIBSHIM_TRY(gpu_->to_host(zone.data(), item.base + begin, zone.size()));
      for (size_t i = 0; i < zone.size(); ++i) {
        if (zone[i] == static_cast<uint8_t>(kGuardWord >> 8 * ((begin + i) % kWord))) continue;
        const bool is_before = begin == 0;
        return fmt::format("it writes {} \"{}\": {} bytes {} it", is_before ? "before" : "past",
                           item.spec->name, is_before ? item.offset - i : i + 1,
                           is_before ? "ahead of" : "beyond");
      }
    }
  }
  return std::string();
}

// True if an output is written into this input's buffer.
bool DeviceBuffers::is_written(const Item& item) const {
  return std::ranges::any_of(specs_, [&](const BufferSpec& spec) {
    return spec.is_output && spec.shares == item.spec->name;
  });
}

Result<std::string> DeviceBuffers::find_changed_input(const CaseData& data) {
  for (const Item& item : items_) {
    if (item.spec->is_output || is_written(item)) continue;
    const Tensor& tensor = data.tensors.at(item.spec->name);
    if (FIBSHIM_TRY(read(item.spec->name)).bytes != tensor.bytes) {
      return fmt::format("it writes the input \"{}\"", item.spec->name);
    }
  }
  return std::string();
}

Result<Tensor> DeviceBuffers::read(const std::string& name) {
  const BufferSpec& spec = *std::ranges::find(specs_, name, &BufferSpec::name);
  Tensor tensor{spec.type, spec.shape, {}};
  const size_t element = spec.type->bytes;
  std::vector<uint8_t> memory(static_cast<size_t>(elements_of(spec)) * element);
  FIBSHIM_TRY(gpu_->to_host(memory.data(), addresses_.at(spec.name), memory.size()));
  if (spec.strides.empty()) {
    tensor.bytes = std::move(memory);
    return tensor;
  }
  tensor.allocate();
  for (int64_t i = 0; i < tensor.count(); ++i) {
    int64_t rest = i, at = 0;
    for (size_t axis = spec.shape.size(); axis-- > 0; rest /= spec.shape[axis]) {
      at += rest % spec.shape[axis] * spec.strides[axis];
    }
    memcpy(&tensor.bytes[static_cast<size_t>(i) * element],
           &memory[static_cast<size_t>(at) * element], element);
  }
  return tensor;
}

int64_t DeviceBuffers::moved_bytes() const {
  size_t bytes = 0;
  for (const Item& item : items_) {
    bytes += item.bytes;
    for (const BufferSpec& spec : specs_) bytes += spec.shares == item.spec->name ? item.bytes : 0;
  }
  return static_cast<int64_t>(bytes);
}

}  // namespace fibshim::judge
