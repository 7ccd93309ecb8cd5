// The GPUs: their classes, which of them the process uses, and whether launches are told apart by them.
//
// A CUfunction lives in one context, so all its launches go to one device, which is asked once, when a
// decision is made. A CUkernel is launched in any context: as long as contexts on one device alone were
// made, all its launches go there. From the second device on, or at once where GPUs are unlike, launches of
// CUkernels take the slow side, ask the driver, and have a decision and counts for each device.
// FIBSHIM_DEVICES=together leaves them on the fast side where GPUs are alike; they are counted without a
// device then. Any thread; slow paths.
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

// All GPUs that the driver shows; null while it is not initialised.
const Devices* known_devices();

inline constexpr int32_t kNoDevice = -1;
inline constexpr int32_t kSeveralDevices = -2;

// A device and its class, as one value of a decision's key. kNoDevice: not told apart.
constexpr int64_t device_key(int32_t device, uint32_t device_class) {
  return static_cast<int64_t>(device + 1) << 32 | device_class;
}
constexpr int32_t device_of_key(int64_t key) { return static_cast<int32_t>(key >> 32) - 1; }
constexpr uint32_t class_of_key(int64_t key) { return static_cast<uint32_t>(key); }

// Returns the key of a device by its ordinal. If all GPUs are alike, an unknown one is of their
// class.
int64_t key_of_device(CUdevice device);

// Returns the key of the current context's device (kNoDevice, kNoDeviceClass: there is no context).
int64_t current_device_key();

// The SM of the current context's GPU; 0: there is none.
uint32_t current_sm();

// The one device on which contexts were made, or one of the two constants above.
int32_t only_device_in_use();

// A context on a device was made. Called before anything can be launched there.
void record_device_use(CUdevice device);

// The settings are known: uses that were recorded before may tell devices apart now.
void apply_device_setting();

bool are_devices_told_apart();

// For the atfork handlers.
void lock_devices_for_fork();
void unlock_devices_after_fork(bool is_child);

}  // namespace fibshim
