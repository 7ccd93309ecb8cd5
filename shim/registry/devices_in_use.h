// Which GPUs the process uses, and whether launches are told apart by them.
//
// A CUfunction lives in one context, so all its launches go to one device, which is asked once, when a
// decision is made. A CUkernel is launched in any context: as long as contexts on one device alone were
// made, all its launches go there. From the second device on, or at once where GPUs are unlike, launches of
// CUkernels take the slow side, ask the driver, and have a decision and counts for each device.
// FIBSHIM_DEVICES=together leaves them on the fast side where GPUs are alike; they are counted without a
// device then.
#ifndef FIBSHIM_SHIM_REGISTRY_DEVICES_IN_USE_H_
#define FIBSHIM_SHIM_REGISTRY_DEVICES_IN_USE_H_

#include <atomic>
#include <stdint.h>

#include "shim/driver/cuda_names.h"

namespace fibshim {

extern std::atomic<bool> g_tells_devices_apart;

// GPUs are of unlike kinds, or the like.
void tell_devices_apart();

// A context on it was made. Called before anything can be launched there.
void note_device_use(CUdevice device);

// The settings are known: what was noted before may tell devices apart now.
void apply_device_setting();

inline constexpr int32_t kNoDevice = -1;
inline constexpr int32_t kSeveralDevices = -2;
// The one on which contexts were made.
int32_t only_device_in_use();

// A device and its class (images.h), as one value of a decision's key. kNoDevice: not told apart.
constexpr int64_t device_key(int32_t device, uint32_t device_class) {
  return static_cast<int64_t>(device + 1) << 32 | device_class;
}
constexpr int32_t device_of_key(int64_t key) { return static_cast<int32_t>(key >> 32) - 1; }
constexpr uint32_t class_of_key(int64_t key) { return static_cast<uint32_t>(key); }

}  // namespace fibshim

#endif  // FIBSHIM_SHIM_REGISTRY_DEVICES_IN_USE_H_
