// The GPUs: their classes, which of them the process uses, and if launches are told apart.
//
// A CUfunction belongs to one context, so all its launches go to one device, which is queried once,
// when a decision is made. A CUkernel can be launched in any context: while contexts exist on one
// device only, all its launches go there. From the second device on, or at once if the GPUs differ,
// launches of CUkernels take the slow side, query the driver, and have decisions and counts per
// device. With FIBSHIM_DEVICES=together they stay on the fast side if the GPUs are alike, and are
// counted without a device. Any thread; slow paths.
#pragma once

#include "shim/registry/generation.h"

namespace fibshim {

inline constexpr uint32_t kMaxDevices = 64;
inline constexpr uint32_t kNoDeviceClass = UINT32_MAX;

struct Devices {
  uint32_t count;
  uint32_t class_count;
  uint32_t class_of[kMaxDevices];
  uint32_t class_sm[kMaxDeviceClasses];  // 90 for compute capability 9.0
  CUdevice device[kMaxDevices];
};

// Returns all GPUs that the driver reports, or null while it is not initialised.
const Devices* known_devices();

inline constexpr int32_t kNoDevice = -1;
inline constexpr int32_t kSeveralDevices = -2;

// Packs a device and its class into one part of a decision's key. kNoDevice: not told apart.
constexpr int64_t device_key(int32_t device, uint32_t device_class) {
  return static_cast<int64_t>(device + 1) << 32 | device_class;
}
constexpr int32_t device_of_key(int64_t key) { return static_cast<int32_t>(key >> 32) - 1; }
constexpr uint32_t class_of_key(int64_t key) { return static_cast<uint32_t>(key); }

// Returns the key of a device. If all GPUs are alike, an unknown device is of their class.
int64_t key_of_device(CUdevice device);

// Returns the key of the current context's device; without a context, that of an unknown device.
int64_t current_device_key();

// Returns the SM of the current context's GPU, or 0 without one.
uint32_t current_sm();

// Returns the one device on which contexts were made, or one of the two constants above.
int32_t only_device_in_use();

// Called when a context on a device was made, before anything can be launched there.
void record_device_use(CUdevice device);

// Called once the settings are known: earlier uses may now tell devices apart.
void apply_device_setting();

bool are_devices_told_apart();

// For the atfork handlers.
void lock_devices_for_fork();
void unlock_devices_after_fork(bool is_child);

}  // namespace fibshim
