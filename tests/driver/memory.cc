// Memory: device pointers are host pointers, copies and fills happen at once.
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "tests/driver/driver.h"

namespace simcuda {
namespace {

constexpr size_t kAlignment = 512;  // of cuMemAlloc on real devices
constexpr size_t kDeviceBytes = size_t{16} << 30;

CUresult allocate(void** pointer, size_t bytes, Context* context, bool is_host) {
  if (pointer == nullptr || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  if (bytes > kDeviceBytes) return CUDA_ERROR_OUT_OF_MEMORY;
  void* memory = aligned_alloc(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment);
  if (memory == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  const Lock guard(driver().lock);
  driver().allocations[reinterpret_cast<uintptr_t>(memory)] = {bytes, context, is_host};
  *pointer = memory;
  return CUDA_SUCCESS;
}

CUresult release(uintptr_t address, bool is_host) {
  const Lock guard(driver().lock);
  auto& allocations = driver().allocations;
  const auto found = allocations.find(address);
  if (found == allocations.end() || found->second.is_host != is_host)
    return CUDA_ERROR_INVALID_VALUE;
  allocations.erase(found);
  free(reinterpret_cast<void*>(address));
  return CUDA_SUCCESS;
}

// Whether [address, address + bytes) lies in one device or pinned allocation.
bool is_allocated(uintptr_t address, size_t bytes) {
  const Lock guard(driver().lock);
  const auto& allocations = driver().allocations;
  auto next = allocations.upper_bound(address);
  if (next == allocations.begin()) return false;
  --next;
  return address + bytes <= next->first + next->second.bytes && address + bytes >= address;
}

// Module globals are device memory too.
bool is_global(uintptr_t address, size_t bytes) {
  const Lock guard(driver().lock);
  for (Device& device : driver().devices) {
    if (device.primary == nullptr) continue;
    for (const Module* module : device.primary->modules)
      for (const auto& [name, memory] : module->globals)
        for (const Global& global : module->image->globals)
          if (global.name == name) {
            const auto base = reinterpret_cast<uintptr_t>(memory.get());
            if (address >= base && address + bytes <= base + global.size) return true;
          }
  }
  return false;
}

bool is_device_range(CUdeviceptr address, size_t bytes) {
  return bytes == 0 || is_allocated(address, bytes) || is_global(address, bytes);
}

// The synchronous calls work on a default stream: they break captures that forbid this.
CUresult before_synchronous(Context* context, bool is_ptds, Stream** stream) {
  if (const CUresult error = find_stream(nullptr, is_ptds, context, stream); error != CUDA_SUCCESS)
    return error;
  if (const CUresult error = check_unsafe_call(); error != CUDA_SUCCESS) return error;
  return check_legacy_rule(**stream);
}

CUresult copy_now(Context* context, bool is_ptds, void* to, const void* from, size_t bytes,
                  CUdeviceptr device_to, CUdeviceptr device_from) {
  Stream* stream = nullptr;
  if (const CUresult error = before_synchronous(context, is_ptds, &stream); error != CUDA_SUCCESS)
    return error;
  if ((device_to != 0 && !is_device_range(device_to, bytes)) ||
      (device_from != 0 && !is_device_range(device_from, bytes)) ||
      (bytes != 0 && (to == nullptr || from == nullptr)))
    return CUDA_ERROR_INVALID_VALUE;
  memmove(to, from, bytes);
  return CUDA_SUCCESS;
}

CUresult copy_in_stream(Context* context, CUstream handle, bool is_ptsz, void* to, const void* from,
                        size_t bytes, CUdeviceptr device_to, CUdeviceptr device_from) {
  Stream* stream = nullptr;
  if (const CUresult error = find_stream(handle, is_ptsz, context, &stream); error != CUDA_SUCCESS)
    return error;
  if ((device_to != 0 && !is_device_range(device_to, bytes)) ||
      (device_from != 0 && !is_device_range(device_from, bytes)) ||
      (bytes != 0 && (to == nullptr || from == nullptr)))
    return CUDA_ERROR_INVALID_VALUE;
  return submit(*stream, CU_GRAPH_NODE_TYPE_MEMCPY, [=] { memmove(to, from, bytes); });
}

template <class T>
CUresult fill_now(Context* context, bool is_ptds, CUdeviceptr to, T value, size_t count) {
  Stream* stream = nullptr;
  if (const CUresult error = before_synchronous(context, is_ptds, &stream); error != CUDA_SUCCESS)
    return error;
  if (!is_device_range(to, count * sizeof(T)) || to % sizeof(T) != 0)
    return CUDA_ERROR_INVALID_VALUE;
  T* at = reinterpret_cast<T*>(to);
  std::fill(at, at + count, value);
  return CUDA_SUCCESS;
}

template <class T>
CUresult fill_in_stream(Context* context, CUstream handle, bool is_ptsz, CUdeviceptr to, T value,
                        size_t count) {
  Stream* stream = nullptr;
  if (const CUresult error = find_stream(handle, is_ptsz, context, &stream); error != CUDA_SUCCESS)
    return error;
  if (!is_device_range(to, count * sizeof(T)) || to % sizeof(T) != 0)
    return CUDA_ERROR_INVALID_VALUE;
  return submit(*stream, CU_GRAPH_NODE_TYPE_MEMSET, [=] {
    T* at = reinterpret_cast<T*>(to);
    std::fill(at, at + count, value);
  });
}

CUresult allocate_in_stream(Context* context, CUdeviceptr* pointer, size_t bytes, CUstream handle,
                            bool is_ptsz) {
  Stream* stream = nullptr;
  if (const CUresult error = find_stream(handle, is_ptsz, context, &stream); error != CUDA_SUCCESS)
    return error;
  if (const CUresult error = check_legacy_rule(*stream); error != CUDA_SUCCESS) return error;
  return allocate(reinterpret_cast<void**>(pointer), bytes, context, false);
}

CUresult free_in_stream(Context* context, CUdeviceptr pointer, CUstream handle, bool is_ptsz) {
  Stream* stream = nullptr;
  if (const CUresult error = find_stream(handle, is_ptsz, context, &stream); error != CUDA_SUCCESS)
    return error;
  if (!is_allocated(pointer, 1)) return CUDA_ERROR_INVALID_VALUE;
  return submit(*stream, CU_GRAPH_NODE_TYPE_MEM_FREE, [=] { release(pointer, false); });
}

template <class T>
T* at(CUdeviceptr pointer) {
  return reinterpret_cast<T*>(pointer);
}

}  // namespace

void free_memory_of(Context& context) {
  auto& allocations = driver().allocations;
  for (auto place = allocations.begin(); place != allocations.end();) {
    if (place->second.context != &context) {
      ++place;
      continue;
    }
    free(reinterpret_cast<void*>(place->first));
    place = allocations.erase(place);
  }
}

}  // namespace simcuda

using namespace simcuda;

extern "C" {

CUresult cuMemGetInfo_v2(size_t* free_bytes, size_t* total) {
  SIM_ENTER_CONTEXT(cuMemGetInfo_v2);
  if (free_bytes == nullptr || total == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const Lock guard(driver().lock);
  size_t used = 0;
  for (const auto& [address, allocation] : driver().allocations)
    if (!allocation.is_host && allocation.context->device == context->device)
      used += allocation.bytes;
  *total = kDeviceBytes;
  *free_bytes = used < kDeviceBytes ? kDeviceBytes - used : 0;
  return CUDA_SUCCESS;
}

CUresult cuMemAlloc_v2(CUdeviceptr* pointer, size_t bytes) {
  SIM_ENTER_CONTEXT(cuMemAlloc_v2);
  if (const CUresult error = check_unsafe_call(); error != CUDA_SUCCESS) return error;
  return allocate(reinterpret_cast<void**>(pointer), bytes, context, false);
}
CUresult cuMemAllocManaged(CUdeviceptr* pointer, size_t bytes, unsigned int flags) {
  SIM_ENTER_CONTEXT(cuMemAllocManaged);
  if (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult error = check_unsafe_call(); error != CUDA_SUCCESS) return error;
  return allocate(reinterpret_cast<void**>(pointer), bytes, context, false);
}
CUresult cuMemFree_v2(CUdeviceptr pointer) {
  SIM_ENTER_CONTEXT(cuMemFree_v2);
  if (pointer == 0) return CUDA_SUCCESS;
  if (const CUresult error = check_unsafe_call(); error != CUDA_SUCCESS) return error;
  return release(pointer, false);
}
CUresult cuMemHostAlloc(void** pointer, size_t bytes, unsigned int) {
  SIM_ENTER_CONTEXT(cuMemHostAlloc);
  if (const CUresult error = check_unsafe_call(); error != CUDA_SUCCESS) return error;
  return allocate(pointer, bytes, context, true);
}
CUresult cuMemAllocHost_v2(void** pointer, size_t bytes) {
  SIM_ENTER_CONTEXT(cuMemAllocHost_v2);
  if (const CUresult error = check_unsafe_call(); error != CUDA_SUCCESS) return error;
  return allocate(pointer, bytes, context, true);
}
CUresult cuMemFreeHost(void* pointer) {
  SIM_ENTER_CONTEXT(cuMemFreeHost);
  if (const CUresult error = check_unsafe_call(); error != CUDA_SUCCESS) return error;
  return release(reinterpret_cast<uintptr_t>(pointer), true);
}
CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr* pointer, void* host, unsigned int) {
  SIM_ENTER_CONTEXT(cuMemHostGetDevicePointer_v2);
  if (pointer == nullptr || !is_allocated(reinterpret_cast<uintptr_t>(host), 1))
    return CUDA_ERROR_INVALID_VALUE;
  *pointer = reinterpret_cast<CUdeviceptr>(host);
  return CUDA_SUCCESS;
}
CUresult cuMemGetAddressRange_v2(CUdeviceptr* base, size_t* size, CUdeviceptr pointer) {
  SIM_ENTER_CONTEXT(cuMemGetAddressRange_v2);
  const Lock guard(driver().lock);
  const auto& allocations = driver().allocations;
  auto next = allocations.upper_bound(pointer);
  if (next == allocations.begin()) return CUDA_ERROR_NOT_FOUND;
  --next;
  if (pointer >= next->first + next->second.bytes) return CUDA_ERROR_NOT_FOUND;
  if (base != nullptr) *base = next->first;
  if (size != nullptr) *size = next->second.bytes;
  return CUDA_SUCCESS;
}
CUresult cuPointerGetAttribute(void* data, CUpointer_attribute attribute, CUdeviceptr pointer) {
  SIM_ENTER_CONTEXT(cuPointerGetAttribute);
  const Lock guard(driver().lock);
  if (data == nullptr || !is_allocated(pointer, 1)) return CUDA_ERROR_INVALID_VALUE;
  const Driver::Allocation& allocation = (--driver().allocations.upper_bound(pointer))->second;
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT: *static_cast<void**>(data) = allocation.context; break;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      *static_cast<unsigned*>(data) =
          allocation.is_host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
      break;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
    case CU_POINTER_ATTRIBUTE_HOST_POINTER: *static_cast<CUdeviceptr*>(data) = pointer; break;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      *static_cast<int*>(data) = allocation.context->device->ordinal;
      break;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED: *static_cast<unsigned*>(data) = 0; break;
    default: return CUDA_ERROR_NOT_SUPPORTED;
  }
  return CUDA_SUCCESS;
}

// Both spellings of a call on a default stream: legacy, and the thread's own (_ptds).
#define COPY_NOW(name, is_ptds, parameters, to, from, device_to, device_from)   \
  CUresult name parameters {                                                    \
    SIM_ENTER_CONTEXT(name);                                                    \
    return copy_now(context, is_ptds, to, from, bytes, device_to, device_from); \
  }
#define COPY_NOW_BOTH(name, ...)     \
  COPY_NOW(name, false, __VA_ARGS__) \
  COPY_NOW(name##_ptds, true, __VA_ARGS__)

COPY_NOW_BOTH(cuMemcpyHtoD_v2, (CUdeviceptr to, const void* from, size_t bytes), at<void>(to), from,
              to, 0)
COPY_NOW_BOTH(cuMemcpyDtoH_v2, (void* to, CUdeviceptr from, size_t bytes), to, at<void>(from), 0,
              from)
COPY_NOW_BOTH(cuMemcpyDtoD_v2, (CUdeviceptr to, CUdeviceptr from, size_t bytes), at<void>(to),
              at<void>(from), to, from)
COPY_NOW_BOTH(cuMemcpy, (CUdeviceptr to, CUdeviceptr from, size_t bytes), at<void>(to),
              at<void>(from), 0, 0)

#define COPY_ASYNC(name, is_ptsz, parameters, to, from, device_to, device_from)               \
  CUresult name parameters {                                                                  \
    SIM_ENTER_CONTEXT(name);                                                                  \
    return copy_in_stream(context, stream, is_ptsz, to, from, bytes, device_to, device_from); \
  }
#define COPY_ASYNC_BOTH(name, ...)     \
  COPY_ASYNC(name, false, __VA_ARGS__) \
  COPY_ASYNC(name##_ptsz, true, __VA_ARGS__)

COPY_ASYNC_BOTH(cuMemcpyHtoDAsync_v2,
                (CUdeviceptr to, const void* from, size_t bytes, CUstream stream), at<void>(to),
                from, to, 0)
COPY_ASYNC_BOTH(cuMemcpyDtoHAsync_v2, (void* to, CUdeviceptr from, size_t bytes, CUstream stream),
                to, at<void>(from), 0, from)
COPY_ASYNC_BOTH(cuMemcpyDtoDAsync_v2,
                (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream), at<void>(to),
                at<void>(from), to, from)
COPY_ASYNC_BOTH(cuMemcpyAsync, (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream),
                at<void>(to), at<void>(from), 0, 0)

#define FILL_BOTH(name, type)                                                            \
  CUresult name##_v2(CUdeviceptr to, type value, size_t count) {                         \
    SIM_ENTER_CONTEXT(name##_v2);                                                        \
    return fill_now(context, false, to, value, count);                                   \
  }                                                                                      \
  CUresult name##_v2_ptds(CUdeviceptr to, type value, size_t count) {                    \
    SIM_ENTER_CONTEXT(name##_v2_ptds);                                                   \
    return fill_now(context, true, to, value, count);                                    \
  }                                                                                      \
  CUresult name##Async(CUdeviceptr to, type value, size_t count, CUstream stream) {      \
    SIM_ENTER_CONTEXT(name##Async);                                                      \
    return fill_in_stream(context, stream, false, to, value, count);                     \
  }                                                                                      \
  CUresult name##Async_ptsz(CUdeviceptr to, type value, size_t count, CUstream stream) { \
    SIM_ENTER_CONTEXT(name##Async_ptsz);                                                 \
    return fill_in_stream(context, stream, true, to, value, count);                      \
  }
FILL_BOTH(cuMemsetD8, unsigned char)
FILL_BOTH(cuMemsetD16, unsigned short)
FILL_BOTH(cuMemsetD32, unsigned int)

CUresult cuMemAllocAsync(CUdeviceptr* pointer, size_t bytes, CUstream stream) {
  SIM_ENTER_CONTEXT(cuMemAllocAsync);
  return allocate_in_stream(context, pointer, bytes, stream, false);
}
CUresult cuMemAllocAsync_ptsz(CUdeviceptr* pointer, size_t bytes, CUstream stream) {
  SIM_ENTER_CONTEXT(cuMemAllocAsync_ptsz);
  return allocate_in_stream(context, pointer, bytes, stream, true);
}
CUresult cuMemFreeAsync(CUdeviceptr pointer, CUstream stream) {
  SIM_ENTER_CONTEXT(cuMemFreeAsync);
  return free_in_stream(context, pointer, stream, false);
}
CUresult cuMemFreeAsync_ptsz(CUdeviceptr pointer, CUstream stream) {
  SIM_ENTER_CONTEXT(cuMemFreeAsync_ptsz);
  return free_in_stream(context, pointer, stream, true);
}

}  // extern "C"
