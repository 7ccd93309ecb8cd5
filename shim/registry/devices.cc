#include "shim/registry/devices.h"

#include "shim/base/pool.h"
#include "shim/base/settings_in_force.h"
#include "shim/base/upcalls.h"
#include "shim/counters/counters.h"
#include "shim/driver/driver.h"

namespace fibshim {
namespace {

// Published complete once cuInit has succeeded; null before.
std::atomic<const Devices*> g_devices;
Pool g_pool;

std::atomic<uint64_t> g_used{0};  // bit per device
constinit std::atomic<bool> g_are_told_apart{false};

bool is_several(uint64_t devices) { return (devices & (devices - 1)) != 0; }

void tell_devices_apart() {
  // Set before the walk over the handles, so that a handle that is added meanwhile sees it.
  if (!g_are_told_apart.exchange(true)) upcalls().move_kernels_to_slow_side();
}

// False: the driver does not report them.
bool read_device(int ordinal, CUdevice* device, uint32_t* sm) {
  const auto get_device = FIBSHIM_REAL(cuDeviceGet);
  const auto get_attribute = FIBSHIM_REAL(cuDeviceGetAttribute);
  int major = 0;
  int minor = 0;
  if (get_device(device, ordinal) != CUDA_SUCCESS ||
      get_attribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, *device) !=
          CUDA_SUCCESS ||
      get_attribute(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, *device) !=
          CUDA_SUCCESS) {
    return false;
  }
  *sm = static_cast<uint32_t>(major * 10 + minor);
  return true;
}

const Devices* ask_devices() {
  const auto get_count = FIBSHIM_REAL(cuDeviceGetCount);
  const auto get_name = FIBSHIM_REAL(cuDeviceGetName);
  int count = 0;
  if (get_count == nullptr || FIBSHIM_REAL(cuDeviceGet) == nullptr ||
      FIBSHIM_REAL(cuDeviceGetAttribute) == nullptr || get_count(&count) != CUDA_SUCCESS ||
      count <= 0) {
    return nullptr;
  }
  auto* const devices = static_cast<Devices*>(g_pool.allocate(sizeof(Devices)));
  if (devices == nullptr) return nullptr;
  const auto known = static_cast<uint32_t>(count);
  devices->count = known < kMaxDevices ? known : kMaxDevices;
  for (uint32_t i = 0; i < devices->count; ++i) {
    uint32_t sm = 0;
    if (!read_device(static_cast<int>(i), &devices->device[i], &sm)) {
      g_pool.release(devices, sizeof(Devices));
      return nullptr;
    }
    uint32_t device_class = 0;
    while (device_class < devices->class_count && devices->class_sm[device_class] != sm) {
      ++device_class;
    }
    if (device_class == devices->class_count && device_class < kMaxDeviceClasses) {
      devices->class_sm[devices->class_count++] = sm;
    }
    devices->class_of[i] = device_class < kMaxDeviceClasses ? device_class : kNoDeviceClass;
    char name[128] = "";
    if (get_name != nullptr) (void)get_name(name, sizeof name, devices->device[i]);
    name[sizeof name - 1] = 0;
    describe_device(i, sm, name);
  }
  // Do this before any thread can make decisions with these devices.
  if (devices->class_count > 1) tell_devices_apart();
  const Devices* expected = nullptr;
  if (!g_devices.compare_exchange_strong(expected, devices, std::memory_order_acq_rel)) {
    g_pool.release(devices, sizeof(Devices));
    return expected;
  }
  return devices;
}

}  // namespace

const Devices* known_devices() {
  const Devices* const devices = g_devices.load(std::memory_order_acquire);
  return devices != nullptr ? devices : ask_devices();
}

int64_t key_of_device(CUdevice device) {
  const Devices* const devices = known_devices();
  if (devices == nullptr) return device_key(kNoDevice, kNoDeviceClass);
  for (uint32_t i = 0; i < devices->count; ++i) {
    if (devices->device[i] == device) {
      return device_key(static_cast<int32_t>(i), devices->class_of[i]);
    }
  }
  return device_key(kNoDevice, devices->class_count == 1 ? 0 : kNoDeviceClass);
}

int64_t current_device_key() {
  const auto get_device = FIBSHIM_REAL(cuCtxGetDevice);
  CUdevice device = -1;
  if (get_device == nullptr || get_device(&device) != CUDA_SUCCESS) device = -1;
  return key_of_device(device);
}

uint32_t current_sm() {
  const Devices* const devices = known_devices();
  const uint32_t device_class = class_of_key(current_device_key());
  return devices == nullptr || device_class >= devices->class_count
             ? 0
             : devices->class_sm[device_class];
}

int32_t only_device_in_use() {
  const uint64_t used = g_used.load(std::memory_order_relaxed);
  if (used == 0) return kNoDevice;
  return is_several(used) ? kSeveralDevices : __builtin_ctzll(used);
}

void record_device_use(CUdevice device) {
  if (device < 0 || device >= static_cast<CUdevice>(kMaxDevices)) return;
  const uint64_t bit = uint64_t{1} << device;
  const uint64_t before = g_used.fetch_or(bit);
  // Without a generation the settings may not be known yet.
  if (is_several(before | bit) && has_generation()) apply_device_setting();
}

void apply_device_setting() {
  if (is_several(g_used.load()) && counts_devices_apart()) tell_devices_apart();
}

bool are_devices_told_apart() { return g_are_told_apart.load(std::memory_order_acquire); }

void lock_devices_for_fork() { g_pool.lock_for_fork(); }

void unlock_devices_after_fork(bool is_child) { g_pool.unlock_after_fork(is_child); }

}  // namespace fibshim
