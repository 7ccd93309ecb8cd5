// Initialisation, devices, contexts, green contexts, error names.
#include "tests/driver/driver.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>

namespace simcuda {

std::atomic<DriverState> g_state{DriverState::uninitialized};
__thread ThreadState* t_state __attribute__((tls_model("initial-exec"))) = nullptr;

namespace {

pthread_key_t g_thread_key;
std::atomic<uint64_t> g_next_thread_id{1};

void end_thread(void* state) {
  auto* thread = static_cast<ThreadState*>(state);
  release_records(thread->records);
  t_state = nullptr;
  delete thread;
}

void read_devices(Driver& all) {
  const char* list = getenv("SIMCUDA_DEVICES");
  if (list == nullptr || *list == 0) list = "90";
  while (*list != 0 && all.devices.size() < kMaxDevices) {
    char* end = nullptr;
    const int sm = static_cast<int>(strtol(list, &end, 10));
    if (end == list || sm <= 0) break;
    Device device{};
    device.ordinal = static_cast<int>(all.devices.size());
    device.sm = sm;
    snprintf(device.name, sizeof device.name, "Simulated GPU (sm_%d)", sm);
    all.devices.push_back(device);
    list = *end == ',' ? end + 1 : end;
  }
}

// As with the real driver, a forked child cannot use CUDA if the parent has initialised it.
void after_fork_in_child() {
  renew_records_in_child(t_state == nullptr ? nullptr : t_state->records);
  if (g_state.load() == DriverState::ready) g_state.store(DriverState::forked);
}

void at_exit() { g_state.store(DriverState::deinitialized); }

__attribute__((constructor)) void load_driver() {
  pthread_key_create(&g_thread_key, end_thread);
  pthread_atfork(nullptr, nullptr, after_fork_in_child);
  const char* fast = getenv("SIMCUDA_FAST");
  g_is_fast = fast != nullptr && *fast == '1';
  if (const char* path = getenv("SIMCUDA_LOG"); path != nullptr && *path != 0) {
    g_log_fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (g_log_fd < 0) fprintf(stderr, "simcuda: cannot open SIMCUDA_LOG=%s\n", path);
  }
  if (const char* faults = getenv("SIMCUDA_FAIL"); faults != nullptr && !simcuda_set_faults(faults))
    fprintf(stderr, "simcuda: SIMCUDA_FAIL is not understood: %s\n", faults);
  driver();
}

// Requires the lock. Ends a primary context whose retain count fell to zero, or that is being
// reset.
void deactivate_primary(Device& device) {
  if (device.primary == nullptr || !device.primary->is_active) return;
  end_context(*device.primary);
}

// Requires the lock.
Context* activate_primary(Device& device) {
  if (device.primary == nullptr) {
    device.primary = make_context(device, device.primary_flags);
    device.primary->is_primary = true;
  } else if (!device.primary->is_active) {
    device.primary->is_active = true;
    device.primary->flags = device.primary_flags;
    device.primary->legacy = make_stream(*device.primary, simcuda_stream_legacy, 0);
  }
  return device.primary;
}

CUresult retain_primary(CUcontext* handle, CUdevice ordinal) {
  const Lock guard(driver().lock);
  SIM_FIND(device, find_device(ordinal), CUDA_ERROR_INVALID_DEVICE);
  if (handle == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *handle = reinterpret_cast<CUcontext>(activate_primary(*device));
  ++device->retain_count;
  return CUDA_SUCCESS;
}

CUresult release_primary(CUdevice ordinal) {
  const Lock guard(driver().lock);
  SIM_FIND(device, find_device(ordinal), CUDA_ERROR_INVALID_DEVICE);
  if (device->retain_count == 0) return CUDA_ERROR_INVALID_CONTEXT;
  if (--device->retain_count == 0) deactivate_primary(*device);
  return CUDA_SUCCESS;
}

// Ends everything in the context. If it is retained, it becomes active again, empty.
CUresult reset_primary(CUdevice ordinal) {
  const Lock guard(driver().lock);
  SIM_FIND(device, find_device(ordinal), CUDA_ERROR_INVALID_DEVICE);
  deactivate_primary(*device);
  if (device->retain_count > 0) activate_primary(*device);
  return CUDA_SUCCESS;
}

CUresult set_primary_flags(CUdevice ordinal, unsigned flags) {
  const Lock guard(driver().lock);
  SIM_FIND(device, find_device(ordinal), CUDA_ERROR_INVALID_DEVICE);
  device->primary_flags = flags;
  if (device->primary != nullptr) device->primary->flags = flags;
  return CUDA_SUCCESS;
}

void push_context(Context* context) {
  ThreadState& thread = thread_state();
  if (thread.current.context != nullptr) thread.below.push_back(thread.current);
  thread.current = {context, context->generation};
}

CUresult pop_context(CUcontext* handle) {
  ThreadState& thread = thread_state();
  if (thread.current.context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if (handle != nullptr) *handle = reinterpret_cast<CUcontext>(thread.current.context);
  thread.current = {nullptr, 0};
  if (!thread.below.empty()) {
    thread.current = thread.below.back();
    thread.below.pop_back();
  }
  return CUDA_SUCCESS;
}

CUresult create_context(CUcontext* handle, unsigned flags, CUdevice ordinal) {
  const Lock guard(driver().lock);
  SIM_FIND(device, find_device(ordinal), CUDA_ERROR_INVALID_DEVICE);
  if (handle == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Context* context = make_context(*device, flags);
  push_context(context);
  *handle = reinterpret_cast<CUcontext>(context);
  return CUDA_SUCCESS;
}

CUresult destroy_context(CUcontext handle) {
  const Lock guard(driver().lock);
  Context* context = find_context(handle);
  if (context == nullptr || context->is_primary || context->is_green)
    return CUDA_ERROR_INVALID_CONTEXT;
  ThreadState& thread = thread_state();
  if (thread.current.context == context) pop_context(nullptr);
  end_context(*context);
  return CUDA_SUCCESS;
}

CUresult copy_uuid(CUuuid* uuid, CUdevice ordinal) {
  SIM_FIND(device, find_device(ordinal), CUDA_ERROR_INVALID_DEVICE);
  if (uuid == nullptr) return CUDA_ERROR_INVALID_VALUE;
  memcpy(uuid->bytes, "simulated-gpu-0", 16);
  uuid->bytes[15] = static_cast<char>('0' + device->ordinal);
  return CUDA_SUCCESS;
}

// Finds the context, or the thread's current one if `handle` is null.
CUresult named_context(CUcontext handle, Context** context) {
  if (handle == nullptr) return current_context(context);
  *context = find_context(handle);
  return *context != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult push_named(CUcontext handle) {
  SIM_FIND(context, find_context(handle), CUDA_ERROR_INVALID_CONTEXT);
  push_context(context);
  return CUDA_SUCCESS;
}

struct ErrorText {
  int code;
  const char *name, *words;
};
constexpr ErrorText kErrorTexts[] = {
#define ERROR(name, code, words) {code, #name, words},
#include "tests/driver/errors.def"
#undef ERROR
};

const ErrorText* find_error(CUresult error) {
  for (const ErrorText& one : kErrorTexts)
    if (one.code == static_cast<int>(error)) return &one;
  return nullptr;
}

CUresult synchronize(Context& context) {
  SIM_TRY(check_unsafe_call());
  const Lock guard(driver().lock);
  for (Stream* stream : context.streams) {
    if (!stream->is_capturing.load(std::memory_order_relaxed)) continue;
    stream->capture->is_invalid = true;
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  return CUDA_SUCCESS;
}

}  // namespace

Driver& driver() {
  static Driver* instance = [] {
    auto* all = new Driver;
    read_devices(*all);
    return all;
  }();
  return *instance;
}

ThreadState& make_thread_state() {
  auto* state = new ThreadState;
  state->id = g_next_thread_id.fetch_add(1);
  state->records = acquire_records();
  t_state = state;
  pthread_setspecific(g_thread_key, state);
  return *state;
}

void crash_like_the_real_driver(const char* reason) {
  fprintf(stderr, "simcuda: %s: the real driver ends with SIGSEGV here, and so does this one\n",
          reason);
  signal(SIGSEGV, SIG_DFL);
  raise(SIGSEGV);
  abort();  // in case the signal is blocked
}

CUresult not_ready() {
  return g_state.load() == DriverState::deinitialized ? CUDA_ERROR_DEINITIALIZED
                                                      : CUDA_ERROR_NOT_INITIALIZED;
}

Device* find_device(CUdevice device) {
  std::vector<Device>& devices = driver().devices;
  if (device < 0 || static_cast<size_t>(device) >= devices.size()) return nullptr;
  return &devices[static_cast<size_t>(device)];
}

Context* find_context(CUcontext handle) {
  return driver().pools.contexts.find(handle, Kind::context);
}

Context* make_context(Device& device, unsigned flags) {
  Context* context = driver().pools.contexts.allocate(Kind::context);
  context->device = &device;
  context->flags = flags;
  context->is_active = true;
  context->id = driver().next_id++;
  context->legacy = make_stream(*context, simcuda_stream_legacy, 0);
  return context;
}

void end_context(Context& context) {
  invalidate_captures_of(context);
  while (!context.modules.empty()) end_module(*context.modules.back());
  while (!context.events.empty()) {
    driver().pools.events.release(context.events.back());
    context.events.pop_back();
  }
  while (!context.streams.empty()) end_stream(*context.streams.back());
  context.legacy = nullptr;
  context.per_thread.clear();
  free_memory_of(context);
  context.is_active = false;
  context.sticky_error.store(CUDA_SUCCESS);
  if (!context.is_primary) driver().pools.contexts.release(&context);
}

}  // namespace simcuda

using namespace simcuda;

extern "C" {

CUresult cuInit(unsigned int flags) {
  count_call(*thread_state().records, Api::cuInit);
  if (g_has_faults.load()) SIM_TRY(find_fault(Api::cuInit, nullptr));
  const Lock guard(driver().lock);
  switch (g_state.load()) {
    case DriverState::ready: return CUDA_SUCCESS;
    case DriverState::forked: return CUDA_ERROR_NOT_INITIALIZED;
    case DriverState::deinitialized: return CUDA_ERROR_DEINITIALIZED;
    case DriverState::uninitialized: break;
  }
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  if (driver().devices.empty()) return CUDA_ERROR_NO_DEVICE;
  atexit(at_exit);
  g_state.store(DriverState::ready);
  return CUDA_SUCCESS;
}

CUresult cuDriverGetVersion(int* version) {
  count_call(*thread_state().records, Api::cuDriverGetVersion);
  return give(version, kDriverVersion);
}

#define ERROR_TEXT(function, name_or_words)                            \
  CUresult function(CUresult error, const char** text) {               \
    count_call(*thread_state().records, Api::function);                \
    if (text == nullptr) return CUDA_ERROR_INVALID_VALUE;              \
    const ErrorText* found = find_error(error);                        \
    *text = found != nullptr ? found->name_or_words : nullptr;         \
    return found != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE; \
  }
ERROR_TEXT(cuGetErrorName, name)
ERROR_TEXT(cuGetErrorString, words)

CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  SIM_ENTER(cuDeviceGet);
  if (device == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (find_device(ordinal) == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  *device = ordinal;
  return CUDA_SUCCESS;
}

ENTRY(cuDeviceGetCount, (int* count), give(count, driver().devices.size()))

CUresult cuDeviceGetName(char* name, int length, CUdevice ordinal) {
  SIM_ENTER(cuDeviceGetName);
  SIM_FIND(device, find_device(ordinal), CUDA_ERROR_INVALID_DEVICE);
  if (name == nullptr || length <= 0) return CUDA_ERROR_INVALID_VALUE;
  snprintf(name, static_cast<size_t>(length), "%s", device->name);
  return CUDA_SUCCESS;
}

ENTRY(cuDeviceGetUuid, (CUuuid * uuid, CUdevice ordinal), copy_uuid(uuid, ordinal))
ENTRY(cuDeviceGetUuid_v2, (CUuuid * uuid, CUdevice ordinal), copy_uuid(uuid, ordinal))

CUresult cuDeviceTotalMem_v2(size_t* bytes, CUdevice ordinal) {
  SIM_ENTER(cuDeviceTotalMem_v2);
  if (find_device(ordinal) == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  return give(bytes, size_t{16} << 30);
}

CUresult cuDeviceGetPCIBusId(char* text, int length, CUdevice ordinal) {
  SIM_ENTER(cuDeviceGetPCIBusId);
  if (find_device(ordinal) == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  if (text == nullptr || length < 13) return CUDA_ERROR_INVALID_VALUE;
  snprintf(text, static_cast<size_t>(length), "0000:%02X:00.0", ordinal + 1);
  return CUDA_SUCCESS;
}

CUresult cuDeviceComputeCapability(int* major, int* minor, CUdevice ordinal) {
  SIM_ENTER(cuDeviceComputeCapability);
  SIM_FIND(device, find_device(ordinal), CUDA_ERROR_INVALID_DEVICE);
  if (major == nullptr || minor == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *major = device->sm / 10;
  *minor = device->sm % 10;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice ordinal) {
  SIM_ENTER(cuDeviceGetAttribute);
  SIM_FIND(device, find_device(ordinal), CUDA_ERROR_INVALID_DEVICE);
  if (value == nullptr || attribute < 1 || attribute >= CU_DEVICE_ATTRIBUTE_MAX)
    return CUDA_ERROR_INVALID_VALUE;
  switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: *value = device->sm / 10; break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: *value = device->sm % 10; break;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: *value = device->sm_count(); break;
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK: *value = 1024; break;
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X:
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y: *value = 1024; break;
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z: *value = 64; break;
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X: *value = 0x7fffffff; break;
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y:
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z: *value = 65535; break;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK: *value = 48 * 1024; break;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN:
      *value = device->max_shared_mem_optin();
      break;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR:
      *value = device->max_shared_mem_per_sm();
      break;
    case CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK: *value = 1024; break;
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR: *value = 2048; break;
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR: *value = 32; break;
    case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK:
    case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR: *value = 65536; break;
    case CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY: *value = 65536; break;
    case CU_DEVICE_ATTRIBUTE_WARP_SIZE: *value = 32; break;
    case CU_DEVICE_ATTRIBUTE_MAX_PITCH: *value = 0x7fffffff; break;
    case CU_DEVICE_ATTRIBUTE_CLOCK_RATE: *value = 1980000; break;
    case CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE: *value = 3201000; break;
    case CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH: *value = 6144; break;
    case CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE: *value = 50 << 20; break;
    case CU_DEVICE_ATTRIBUTE_PCI_BUS_ID: *value = device->ordinal + 1; break;
    case CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH: *value = device->sm >= 90; break;
    case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING:
    case CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS:
    case CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH:
    case CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_COMPUTE_PREEMPTION_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY: *value = 1; break;
    case CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT: *value = 3; break;
    default: *value = 0;
  }
  return CUDA_SUCCESS;
}

ENTRY(cuDevicePrimaryCtxRetain, (CUcontext * context, CUdevice device),
      retain_primary(context, device))
ENTRY(cuDevicePrimaryCtxRelease, (CUdevice device), release_primary(device))
ENTRY(cuDevicePrimaryCtxRelease_v2, (CUdevice device), release_primary(device))
ENTRY(cuDevicePrimaryCtxReset, (CUdevice device), reset_primary(device))
ENTRY(cuDevicePrimaryCtxReset_v2, (CUdevice device), reset_primary(device))
ENTRY(cuDevicePrimaryCtxSetFlags, (CUdevice device, unsigned int flags),
      set_primary_flags(device, flags))
ENTRY(cuDevicePrimaryCtxSetFlags_v2, (CUdevice device, unsigned int flags),
      set_primary_flags(device, flags))
CUresult cuDevicePrimaryCtxGetState(CUdevice ordinal, unsigned int* flags, int* active) {
  SIM_ENTER_LOCKED(cuDevicePrimaryCtxGetState);
  SIM_FIND(device, find_device(ordinal), CUDA_ERROR_INVALID_DEVICE);
  if (flags != nullptr) *flags = device->primary_flags;
  if (active != nullptr) *active = device->primary != nullptr && device->primary->is_active;
  return CUDA_SUCCESS;
}

ENTRY(cuCtxCreate, (CUcontext * context, unsigned int flags, CUdevice device),
      create_context(context, flags, device))
ENTRY(cuCtxCreate_v2, (CUcontext * context, unsigned int flags, CUdevice device),
      create_context(context, flags, device))
ENTRY(cuCtxCreate_v3,
      (CUcontext * context, CUexecAffinityParam*, int, unsigned int flags, CUdevice device),
      create_context(context, flags, device))
ENTRY(cuCtxCreate_v4,
      (CUcontext * context, CUctxCreateParams*, unsigned int flags, CUdevice device),
      create_context(context, flags, device))
ENTRY(cuCtxDestroy, (CUcontext context), destroy_context(context))
ENTRY(cuCtxDestroy_v2, (CUcontext context), destroy_context(context))
CUresult cuCtxAttach(CUcontext* handle, unsigned int flags) {
  SIM_ENTER_CONTEXT(cuCtxAttach);
  if (handle == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  const Lock guard(driver().lock);
  ++context->attach_count;
  *handle = reinterpret_cast<CUcontext>(context);
  return CUDA_SUCCESS;
}
CUresult cuCtxDetach(CUcontext handle) {
  SIM_ENTER(cuCtxDetach);
  {
    const Lock guard(driver().lock);
    Context* context = find_context(handle);
    if (context == nullptr || context->is_primary) return CUDA_ERROR_INVALID_CONTEXT;
    if (--context->attach_count > 0) return CUDA_SUCCESS;
  }
  return destroy_context(handle);
}

CUresult cuCtxSetCurrent(CUcontext handle) {
  SIM_ENTER(cuCtxSetCurrent);
  ThreadState& thread = thread_state();
  if (handle == nullptr) {
    if (thread.current.context != nullptr) pop_context(nullptr);
    return CUDA_SUCCESS;
  }
  SIM_FIND(context, find_context(handle), CUDA_ERROR_INVALID_CONTEXT);
  thread.current = {context, context->generation};
  return CUDA_SUCCESS;
}
ENTRY(cuCtxGetCurrent, (CUcontext * handle),
      give(handle, reinterpret_cast<CUcontext>(thread_state().current.context)))
ENTRY(cuCtxPushCurrent, (CUcontext handle), push_named(handle))
ENTRY(cuCtxPushCurrent_v2, (CUcontext handle), push_named(handle))
ENTRY(cuCtxPopCurrent, (CUcontext * handle), pop_context(handle))
ENTRY(cuCtxPopCurrent_v2, (CUcontext * handle), pop_context(handle))
ENTRY_IN_CONTEXT(cuCtxGetDevice, (CUdevice * device), give(device, context->device->ordinal))
CUresult cuCtxGetDevice_v2(CUdevice* device, CUcontext handle) {
  SIM_ENTER(cuCtxGetDevice_v2);
  if (device == nullptr) return CUDA_ERROR_INVALID_VALUE;
  SIM_GET(Context*, context, named_context(handle, &context));
  *device = context->device->ordinal;
  return CUDA_SUCCESS;
}
CUresult cuCtxGetId(CUcontext handle, unsigned long long* id) {
  SIM_ENTER(cuCtxGetId);
  SIM_GET(Context*, context, named_context(handle, &context));
  return give(id, context->id);
}
ENTRY_IN_CONTEXT(cuCtxGetFlags, (unsigned int* flags), give(flags, context->flags))
CUresult cuCtxGetApiVersion(CUcontext handle, unsigned int* version) {
  SIM_ENTER(cuCtxGetApiVersion);
  if (handle != nullptr && find_context(handle) == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  return give(version, 3020);
}
CUresult cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  SIM_ENTER_CONTEXT(cuCtxGetStreamPriorityRange);
  if (least != nullptr) *least = 0;
  if (greatest != nullptr) *greatest = -5;
  return CUDA_SUCCESS;
}
ENTRY_IN_CONTEXT(cuCtxSynchronize, (void), synchronize(*context))
CUresult cuCtxSynchronize_v2(CUcontext handle) {
  SIM_ENTER(cuCtxSynchronize_v2);
  SIM_GET(Context*, context, named_context(handle, &context));
  SIM_TRY(context->sticky_error.load());
  return synchronize(*context);
}

// Green contexts: only their lifetimes are modelled, not their partitions.
CUresult cuDeviceGetDevResource(CUdevice ordinal, CUdevResource* resource, CUdevResourceType type) {
  SIM_ENTER(cuDeviceGetDevResource);
  SIM_FIND(device, find_device(ordinal), CUDA_ERROR_INVALID_DEVICE);
  if (resource == nullptr || type != CU_DEV_RESOURCE_TYPE_SM)
    return CUDA_ERROR_INVALID_RESOURCE_TYPE;
  memset(resource, 0, sizeof *resource);
  resource->type = type;
  resource->sm.smCount = static_cast<unsigned>(device->sm_count());
  return CUDA_SUCCESS;
}
CUresult cuDevResourceGenerateDesc(CUdevResourceDesc* desc, CUdevResource* resources,
                                   unsigned int count) {
  SIM_ENTER(cuDevResourceGenerateDesc);
  if (desc == nullptr || resources == nullptr || count == 0) return CUDA_ERROR_INVALID_VALUE;
  static char all_of_it;  // all partitions are alike here, so one descriptor is enough
  *desc = reinterpret_cast<CUdevResourceDesc>(&all_of_it);
  return CUDA_SUCCESS;
}
CUresult cuGreenCtxCreate(CUgreenCtx* handle, CUdevResourceDesc desc, CUdevice ordinal,
                          unsigned int flags) {
  SIM_ENTER_LOCKED(cuGreenCtxCreate);
  SIM_FIND(device, find_device(ordinal), CUDA_ERROR_INVALID_DEVICE);
  if (handle == nullptr || desc == nullptr || flags != CU_GREEN_CTX_DEFAULT_STREAM)
    return CUDA_ERROR_INVALID_VALUE;
  activate_primary(*device);
  ++device->retain_count;
  GreenContext* green = driver().pools.green_contexts.allocate(Kind::green_context);
  green->device = device;
  green->context = make_context(*device, 0);
  green->context->is_green = true;
  *handle = reinterpret_cast<CUgreenCtx>(green);
  return CUDA_SUCCESS;
}
CUresult cuGreenCtxDestroy(CUgreenCtx handle) {
  SIM_ENTER(cuGreenCtxDestroy);
  SIM_FIND(green, driver().pools.green_contexts.find(handle, Kind::green_context),
           CUDA_ERROR_INVALID_HANDLE);
  const Lock guard(driver().lock);
  end_context(*green->context);
  Device* device = green->device;
  driver().pools.green_contexts.release(green);
  return release_primary(device->ordinal);
}
CUresult cuCtxFromGreenCtx(CUcontext* context, CUgreenCtx handle) {
  SIM_ENTER(cuCtxFromGreenCtx);
  SIM_FIND(green, driver().pools.green_contexts.find(handle, Kind::green_context),
           CUDA_ERROR_INVALID_HANDLE);
  return give(context, reinterpret_cast<CUcontext>(green->context));
}
CUresult cuGreenCtxStreamCreate(CUstream* stream, CUgreenCtx handle, unsigned int flags,
                                int priority) {
  SIM_ENTER(cuGreenCtxStreamCreate);
  SIM_FIND(green, driver().pools.green_contexts.find(handle, Kind::green_context),
           CUDA_ERROR_INVALID_HANDLE);
  if (stream == nullptr || flags != CU_STREAM_NON_BLOCKING) return CUDA_ERROR_INVALID_VALUE;
  const Lock guard(driver().lock);
  Stream* made = make_stream(*green->context, simcuda_stream_created, flags);
  made->priority = priority;
  *stream = reinterpret_cast<CUstream>(made);
  return CUDA_SUCCESS;
}

}  // extern "C"
