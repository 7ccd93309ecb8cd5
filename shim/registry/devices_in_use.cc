#include "shim/registry/devices_in_use.h"

#include "shim/registry/handles.h"
#include "shim/registry/in_force.h"
#include "shim/base/settings_in_force.h"

namespace fibshim {

constinit std::atomic<bool> g_tells_devices_apart{false};

namespace {

constexpr int kMostDevices = 64;
std::atomic<uint64_t> g_used{0};  // bit per device

bool is_several(uint64_t devices) { return (devices & (devices - 1)) != 0; }

}  // namespace

void tell_devices_apart() {
  // Before the records are looked through: one that comes meanwhile sees it.
  if (!g_tells_devices_apart.exchange(true)) take_kernels_off_fast_side();
}

void note_device_use(CUdevice device) {
  if (device < 0 || device >= kMostDevices) return;
  const uint64_t bit = uint64_t{1} << device;
  const uint64_t before = g_used.fetch_or(bit);
  // Without a snapshot the settings may not be known yet.
  if (is_several(before | bit) && has_started()) apply_device_setting();
}

void apply_device_setting() {
  if (is_several(g_used.load()) && counts_devices_apart()) tell_devices_apart();
}

int32_t only_device_in_use() {
  const uint64_t used = g_used.load(std::memory_order_relaxed);
  if (used == 0) return kNoDevice;
  return is_several(used) ? kSeveralDevices : __builtin_ctzll(used);
}

}  // namespace fibshim
