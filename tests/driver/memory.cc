// Memory. Device pointers are host pointers; copies and fills happen at once.
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "tests/driver/driver.h"

namespace simcuda {
namespace {

constexpr size_t kAlignment = 512;  // as cuMemAlloc on real devices
constexpr size_t kDeviceBytes = size_t{16} << 30;

CUresult allocate(void** pointer, size_t bytes, Context* context, bool is_host) {
  if (pointer == nullptr || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  if (bytes > kDeviceBytes) return CUDA_ERROR_OUT_OF_MEMORY;
  SIM_FIND(memory, aligned_alloc(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment),
           CUDA_ERROR_OUT_OF_MEMORY);
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

// True if [address, address + bytes) lies in one device or pinned allocation.
bool is_allocated(uintptr_t address, size_t bytes) {
  const Lock guard(driver().lock);
  const auto& allocations = driver().allocations;
  auto next = allocations.upper_bound(address);
  if (next == allocations.begin()) return false;
  --next;
  return address + bytes <= next->first + next->second.bytes && address + bytes >= address;
}

// True if the range lies in a module's global, which is device memory, too.
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

bool can_copy(const void* to, const void* from, size_t bytes, CUdeviceptr device_to,
              CUdeviceptr device_from) {
  return (device_to == 0 || is_device_range(device_to, bytes)) &&
         (device_from == 0 || is_device_range(device_from, bytes)) &&
         (bytes == 0 || (to != nullptr && from != nullptr));
}

// Synchronous calls use a default stream. This invalidates captures that forbid it.
CUresult before_synchronous(Context* context, bool is_ptds, Stream** stream) {
  SIM_TRY(find_stream(nullptr, is_ptds, context, stream));
  SIM_TRY(check_unsafe_call());
  return check_legacy_rule(**stream);
}

CUresult copy_now(Context* context, bool is_ptds, void* to, const void* from, size_t bytes,
                  CUdeviceptr device_to, CUdeviceptr device_from) {
  SIM_GET(Stream*, stream, before_synchronous(context, is_ptds, &stream));
  if (!can_copy(to, from, bytes, device_to, device_from)) return CUDA_ERROR_INVALID_VALUE;
  memmove(to, from, bytes);
  return CUDA_SUCCESS;
}

CUresult copy_in_stream(Context* context, CUstream handle, bool is_ptsz, void* to, const void* from,
                        size_t bytes, CUdeviceptr device_to, CUdeviceptr device_from) {
  SIM_GET(Stream*, stream, find_stream(handle, is_ptsz, context, &stream));
  if (!can_copy(to, from, bytes, device_to, device_from)) return CUDA_ERROR_INVALID_VALUE;
  return submit(
      *stream, CU_GRAPH_NODE_TYPE_MEMCPY, [=] { memmove(to, from, bytes); },
      [=](Node& node) {
        CUDA_MEMCPY3D& params = node.memcpy_params;
        const bool is_unified = device_to == 0 && device_from == 0;
        const CUmemorytype other = is_unified ? CU_MEMORYTYPE_UNIFIED : CU_MEMORYTYPE_HOST;
        params.srcMemoryType = device_from != 0 ? CU_MEMORYTYPE_DEVICE : other;
        params.dstMemoryType = device_to != 0 ? CU_MEMORYTYPE_DEVICE : other;
        params.srcHost = from;
        params.dstHost = to;
        params.srcDevice = reinterpret_cast<CUdeviceptr>(from);
        params.dstDevice = reinterpret_cast<CUdeviceptr>(to);
        params.WidthInBytes = bytes;
        params.Height = params.Depth = 1;
      });
}

template <class T>
CUresult fill_now(Context* context, bool is_ptds, CUdeviceptr to, T value, size_t count) {
  SIM_GET(Stream*, stream, before_synchronous(context, is_ptds, &stream));
  if (!is_device_range(to, count * sizeof(T)) || to % sizeof(T) != 0)
    return CUDA_ERROR_INVALID_VALUE;
  T* at = reinterpret_cast<T*>(to);
  std::fill(at, at + count, value);
  return CUDA_SUCCESS;
}

template <class T>
CUresult fill_in_stream(Context* context, CUstream handle, bool is_ptsz, CUdeviceptr to, T value,
                        size_t count) {
  SIM_GET(Stream*, stream, find_stream(handle, is_ptsz, context, &stream));
  if (!is_device_range(to, count * sizeof(T)) || to % sizeof(T) != 0)
    return CUDA_ERROR_INVALID_VALUE;
  return submit(
      *stream, CU_GRAPH_NODE_TYPE_MEMSET,
      [=] {
        T* at = reinterpret_cast<T*>(to);
        std::fill(at, at + count, value);
      },
      [=](Node& node) { node.memset_params = {to, 0, value, sizeof(T), count, 1}; });
}

CUresult allocate_in_stream(Context* context, CUdeviceptr* pointer, size_t bytes, CUstream handle,
                            bool is_ptsz) {
  SIM_GET(Stream*, stream, find_stream(handle, is_ptsz, context, &stream));
  SIM_TRY(check_legacy_rule(*stream));
  return allocate(reinterpret_cast<void**>(pointer), bytes, context, false);
}

CUresult free_in_stream(Context* context, CUdeviceptr pointer, CUstream handle, bool is_ptsz) {
  SIM_GET(Stream*, stream, find_stream(handle, is_ptsz, context, &stream));
  if (!is_allocated(pointer, 1)) return CUDA_ERROR_INVALID_VALUE;
  return submit(*stream, CU_GRAPH_NODE_TYPE_MEM_FREE, [=] { release(pointer, false); });
}

void* as_pointer(void* pointer) { return pointer; }
const void* as_pointer(const void* pointer) { return pointer; }
void* as_pointer(CUdeviceptr pointer) { return reinterpret_cast<void*>(pointer); }

}  // namespace

void free_memory_of(Context& context) {
  auto& allocations = driver().allocations;
  for (auto place = allocations.begin(); place != allocations.end();) {
    if (place->second.context != &context) {
      ++place;
      continue;
    }
    if (!place->second.is_registered) free(reinterpret_cast<void*>(place->first));
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
  SIM_TRY(check_unsafe_call());
  return allocate(reinterpret_cast<void**>(pointer), bytes, context, false);
}
CUresult cuMemAllocManaged(CUdeviceptr* pointer, size_t bytes, unsigned int flags) {
  SIM_ENTER_CONTEXT(cuMemAllocManaged);
  if (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST) return CUDA_ERROR_INVALID_VALUE;
  SIM_TRY(check_unsafe_call());
  return allocate(reinterpret_cast<void**>(pointer), bytes, context, false);
}
CUresult cuMemFree_v2(CUdeviceptr pointer) {
  SIM_ENTER_CONTEXT(cuMemFree_v2);
  if (pointer == 0) return CUDA_SUCCESS;
  SIM_TRY(check_unsafe_call());
  return release(pointer, false);
}
CUresult cuMemHostAlloc(void** pointer, size_t bytes, unsigned int) {
  SIM_ENTER_CONTEXT(cuMemHostAlloc);
  SIM_TRY(check_unsafe_call());
  return allocate(pointer, bytes, context, true);
}
CUresult cuMemAllocHost_v2(void** pointer, size_t bytes) {
  SIM_ENTER_CONTEXT(cuMemAllocHost_v2);
  SIM_TRY(check_unsafe_call());
  return allocate(pointer, bytes, context, true);
}
CUresult cuMemFreeHost(void* pointer) {
  SIM_ENTER_CONTEXT(cuMemFreeHost);
  SIM_TRY(check_unsafe_call());
  return release(reinterpret_cast<uintptr_t>(pointer), true);
}
CUresult cuMemHostRegister_v2(void* pointer, size_t bytes, unsigned int) {
  SIM_ENTER_CONTEXT(cuMemHostRegister_v2);
  SIM_TRY(check_unsafe_call());
  if (pointer == nullptr || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  const Lock guard(driver().lock);
  const auto address = reinterpret_cast<uintptr_t>(pointer);
  if (is_allocated(address, 1)) return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
  driver().allocations[address] = {bytes, context, true, true};
  return CUDA_SUCCESS;
}
CUresult cuMemHostUnregister(void* pointer) {
  SIM_ENTER_CONTEXT(cuMemHostUnregister);
  SIM_TRY(check_unsafe_call());
  const Lock guard(driver().lock);
  const auto found = driver().allocations.find(reinterpret_cast<uintptr_t>(pointer));
  if (found == driver().allocations.end() || !found->second.is_registered) {
    return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
  }
  driver().allocations.erase(found);
  return CUDA_SUCCESS;
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
// For an invalid pointer the attributes are 0, the range is not written, and the call succeeds.
CUresult cuPointerGetAttributes(unsigned int count, CUpointer_attribute* attributes, void** data,
                                CUdeviceptr pointer) {
  SIM_ENTER_CONTEXT(cuPointerGetAttributes);
  if (count == 0 || attributes == nullptr || data == nullptr) return CUDA_ERROR_INVALID_VALUE;
  for (unsigned int i = 0; i < count; ++i) {
    if (cuPointerGetAttribute(data[i], attributes[i], pointer) == CUDA_SUCCESS) continue;
    if (attributes[i] == CU_POINTER_ATTRIBUTE_RANGE_START_ADDR ||
        attributes[i] == CU_POINTER_ATTRIBUTE_RANGE_SIZE) {
      continue;
    }
    const bool is_wide = attributes[i] == CU_POINTER_ATTRIBUTE_CONTEXT ||
                         attributes[i] == CU_POINTER_ATTRIBUTE_DEVICE_POINTER ||
                         attributes[i] == CU_POINTER_ATTRIBUTE_HOST_POINTER;
    memset(data[i], 0, is_wide ? 8 : 4);
  }
  return CUDA_SUCCESS;
}
CUresult cuPointerGetAttribute(void* data, CUpointer_attribute attribute, CUdeviceptr pointer) {
  SIM_ENTER_CONTEXT(cuPointerGetAttribute);
  const Lock guard(driver().lock);
  if (data == nullptr || !is_allocated(pointer, 1)) return CUDA_ERROR_INVALID_VALUE;
  const auto& [begin, allocation] = *--driver().allocations.upper_bound(pointer);
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR: *static_cast<CUdeviceptr*>(data) = begin; break;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE: *static_cast<size_t*>(data) = allocation.bytes; break;
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

// Defines both forms of a call on a default stream: legacy, and per-thread (_ptds).
#define COPY_NOW(name, to_type, from_type, device_to, device_from) \
  ENTRY_PTDS(                                                      \
      name, (to_type to, from_type from, size_t bytes),            \
      copy_now(context, is_ptsz, as_pointer(to), as_pointer(from), bytes, device_to, device_from))
COPY_NOW(cuMemcpyHtoD_v2, CUdeviceptr, const void*, to, 0)
COPY_NOW(cuMemcpyDtoH_v2, void*, CUdeviceptr, 0, from)
COPY_NOW(cuMemcpyDtoD_v2, CUdeviceptr, CUdeviceptr, to, from)
COPY_NOW(cuMemcpy, CUdeviceptr, CUdeviceptr, 0, 0)

#define COPY_ASYNC(name, to_type, from_type, device_to, device_from)                           \
  ENTRY_PTSZ(name, (to_type to, from_type from, size_t bytes, CUstream stream),                \
             copy_in_stream(context, stream, is_ptsz, as_pointer(to), as_pointer(from), bytes, \
                            device_to, device_from))
COPY_ASYNC(cuMemcpyHtoDAsync_v2, CUdeviceptr, const void*, to, 0)
COPY_ASYNC(cuMemcpyDtoHAsync_v2, void*, CUdeviceptr, 0, from)
COPY_ASYNC(cuMemcpyDtoDAsync_v2, CUdeviceptr, CUdeviceptr, to, from)
COPY_ASYNC(cuMemcpyAsync, CUdeviceptr, CUdeviceptr, 0, 0)

#define FILL(name, type)                                                               \
  ENTRY_PTDS(name##_v2, (CUdeviceptr to, type value, size_t count),                    \
             fill_now(context, is_ptsz, to, value, count))                             \
  ENTRY_PTSZ(name##Async, (CUdeviceptr to, type value, size_t count, CUstream stream), \
             fill_in_stream(context, stream, is_ptsz, to, value, count))
FILL(cuMemsetD8, unsigned char)
FILL(cuMemsetD16, unsigned short)
FILL(cuMemsetD32, unsigned int)

ENTRY_PTSZ(cuMemAllocAsync, (CUdeviceptr * pointer, size_t bytes, CUstream stream),
           allocate_in_stream(context, pointer, bytes, stream, is_ptsz))
ENTRY_PTSZ(cuMemFreeAsync, (CUdeviceptr pointer, CUstream stream),
           free_in_stream(context, pointer, stream, is_ptsz))

}  // extern "C"
