// Launches, occupancy and the old launch calls (cuLaunchGrid). A plain launch takes no lock: it
// reads handle, stream and context through atomics, and counters belong to the thread.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <algorithm>
#include <mutex>
#include <set>

#include "tests/driver/driver.h"

namespace simcuda {
namespace {

constexpr int kDefaultSharedMem = 48 * 1024;
constexpr uint32_t kPortableClusterSize = 8, kMaxClusterSize = 16;

uint64_t product(const uint32_t (&extent)[3]) {
  return uint64_t{extent[0]} * extent[1] * extent[2];
}

// Reads the argument buffer of `extra`.
CUresult read_extra(void** extra, const uint8_t** buffer, size_t* size) {
  *buffer = nullptr;
  *size = 0;
  for (; *extra != CU_LAUNCH_PARAM_END; extra += 2) {
    if (*extra == CU_LAUNCH_PARAM_BUFFER_POINTER)
      *buffer = static_cast<const uint8_t*>(extra[1]);
    else if (*extra == CU_LAUNCH_PARAM_BUFFER_SIZE)
      *size = *static_cast<const size_t*>(extra[1]);
    else
      return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

struct Call {
  Api api;
  bool is_ptsz;
  CUfunction function;
  uint32_t grid[3], block[3];
  uint32_t shared_mem;
  CUstream stream;
  void** params;
  void** extra;
  bool is_cooperative;
  const CUlaunchAttribute* attributes = nullptr;
  uint32_t attribute_count = 0;
};

// Returns the error for an invalid handle. Counts it if it was valid once.
[[gnu::noinline]] CUresult bad_handle(const void* handle) {
  const Function* slot = driver().pools.functions.contains(handle);
  if (slot != nullptr) g_stale_launches.fetch_add(1, std::memory_order_relaxed);
  return CUDA_ERROR_INVALID_HANDLE;
}

// True if the kernel may begin before the one before it has ended.
bool is_programmatic(const Launch& launch) {
  for (uint32_t i = 0; i < launch.attribute_count; ++i) {
    const CUlaunchAttribute& attribute = launch.attributes[i];
    if (attribute.id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION)
      return attribute.value.programmaticStreamSerializationAllowed != 0;
  }
  return false;
}

[[gnu::noinline]] CUresult capture_launch(Stream& stream, const Launch& launch,
                                          bool* was_captured) {
  const Lock guard(driver().lock);
  *was_captured = stream.capture != nullptr;
  if (!*was_captured) return CUDA_SUCCESS;
  if (stream.capture->is_invalid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  Node* node = capture_node(stream, CU_GRAPH_NODE_TYPE_KERNEL);
  node->kernel = OwnedLaunch(launch);
  for (size_t i = 0; i < node->dependencies.size() && is_programmatic(launch); ++i) {
    if (node->dependencies[i]->type != CU_GRAPH_NODE_TYPE_KERNEL) continue;
    node->dependency_data[i].from_port = CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC;
    node->dependency_data[i].type = CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC;
  }
  bump(counts_of(*thread_state().records, launch.info->name_id).captured);
  return CUDA_SUCCESS;
}

CUresult launch_call(const Call& call) {
  SIM_TRY(enter(call.api));
  SIM_GET(Context*, context, current_context(&context));
  Function* handle = driver().pools.functions.contains(call.function);
  const Kind kind = handle != nullptr ? handle->kind.load(std::memory_order_acquire) : Kind::none;
  if (kind != Kind::function && kind != Kind::kernel) [[unlikely]]
    return bad_handle(call.function);
  SIM_GET(Stream*, stream, find_stream(call.stream, call.is_ptsz, context, &stream));
  // A CUkernel runs in the context of the stream; a CUfunction only in its own.
  if (kind == Kind::function && handle->context != stream->context)
    return CUDA_ERROR_INVALID_HANDLE;

  Launch launch;
  launch.handle = handle;
  launch.generation = handle->generation;
  launch.context = stream->context;
  SIM_TRY(code_on(*handle, *launch.context->device, &launch.info));
  if (g_has_faults.load(std::memory_order_relaxed)) [[unlikely]] {
    SIM_TRY(find_fault(call.api, launch.info->name.c_str()));
  }
  memcpy(launch.grid, call.grid, sizeof launch.grid);
  memcpy(launch.block, call.block, sizeof launch.block);
  launch.shared_mem = call.shared_mem;
  launch.is_cooperative = call.is_cooperative;
  launch.attributes = call.attributes;
  launch.attribute_count = call.attribute_count;
  SIM_TRY(check_launch(&launch));
  SIM_TRY(pack_params(*launch.info, call.params, call.extra, &launch));

  if (stream->is_capturing.load(std::memory_order_acquire)) {
    bool was_captured = false;
    const CUresult error = capture_launch(*stream, launch, &was_captured);
    if (was_captured) return error;
  }
  SIM_TRY(check_legacy_rule(*stream));
  run_launch(launch, {call.api, call.is_ptsz, false, call.extra != nullptr}, *stream, call.stream);
  return CUDA_SUCCESS;
}

CUresult launch_ex(Api api, bool is_ptsz, const CUlaunchConfig* config, CUfunction function,
                   void** params, void** extra) {
  if (config == nullptr || (config->numAttrs > 0 && config->attrs == nullptr)) {
    const CUresult error = enter(api);
    return error != CUDA_SUCCESS ? error : CUDA_ERROR_INVALID_VALUE;
  }
  return launch_call(
      Call(api, is_ptsz, function, {config->gridDimX, config->gridDimY, config->gridDimZ},
           {config->blockDimX, config->blockDimY, config->blockDimZ}, config->sharedMemBytes,
           config->hStream, params, extra, false, config->attrs, config->numAttrs));
}

// For cuLaunch, cuLaunchGrid and cuLaunchGridAsync: block shape and arguments were set on the
// function.
CUresult launch_legacy(Api api, CUfunction handle, int width, int height, CUstream stream) {
  Function* function = find_function(handle);
  if (function == nullptr) {
    const CUresult error = enter(api);
    return error != CUDA_SUCCESS ? error : CUDA_ERROR_INVALID_HANDLE;
  }
  std::vector<uint8_t> params = function->legacy_params;
  params.resize(std::max<size_t>(params.size(), function->info->param_bytes));
  size_t size = params.size();
  void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, params.data(), CU_LAUNCH_PARAM_BUFFER_SIZE,
                   &size, CU_LAUNCH_PARAM_END};
  const uint32_t* block = function->legacy_block;
  return launch_call(Call(
      api, false, handle, {static_cast<uint32_t>(width), static_cast<uint32_t>(height), 1},
      {block[0], block[1], block[2]}, function->legacy_shared_mem, stream, nullptr, extra, false));
}

CUresult set_legacy_param(CUfunction handle, int offset, const void* data, size_t size) {
  SIM_FIND(function, find_function(handle), CUDA_ERROR_INVALID_HANDLE);
  if (offset < 0 || data == nullptr || static_cast<size_t>(offset) + size > 4096)
    return CUDA_ERROR_INVALID_VALUE;
  auto& params = function->legacy_params;
  params.resize(std::max(params.size(), static_cast<size_t>(offset) + size));
  memcpy(params.data() + offset, data, size);
  return CUDA_SUCCESS;
}

// Finds a CUfunction or a CUkernel, for the occupancy calls, which accept both.
CUresult find_either(CUfunction handle, Function** function) {
  *function = find_function(handle);
  if (*function == nullptr) *function = find_kernel(handle);
  return *function != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult max_blocks(int* count, CUfunction handle, int threads, size_t dynamic_bytes,
                    const Context& context) {
  SIM_GET(Function*, function, find_either(handle, &function));
  if (count == nullptr || threads <= 0) return CUDA_ERROR_INVALID_VALUE;
  *count =
      max_active_blocks(*function, *context.device, static_cast<uint32_t>(threads), dynamic_bytes);
  return CUDA_SUCCESS;
}

CUresult best_block_size(int* min_grid, int* block, CUfunction handle,
                         CUoccupancyB2DSize dynamic_bytes_of, size_t dynamic_bytes, int limit,
                         const Context& context) {
  SIM_GET(Function*, function, find_either(handle, &function));
  if (min_grid == nullptr || block == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const int most = limit > 0 ? std::min<int>(limit, static_cast<int>(function->info->max_threads))
                             : static_cast<int>(function->info->max_threads);
  int best_threads = 0;
  for (int threads = std::max(32, most / 32 * 32); threads >= 32; threads -= 32) {
    const size_t bytes = dynamic_bytes_of != nullptr ? dynamic_bytes_of(threads) : dynamic_bytes;
    const int blocks =
        max_active_blocks(*function, *context.device, static_cast<uint32_t>(threads), bytes);
    if (blocks * threads <= best_threads) continue;
    best_threads = blocks * threads;
    *block = threads;
    *min_grid = blocks * context.device->sm_count();
  }
  return best_threads > 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

}  // namespace

OwnedLaunch::OwnedLaunch(const Launch& other) : launch(other) {
  if (other.attribute_count > 0)
    attributes.assign(other.attributes, other.attributes + other.attribute_count);
  params.assign(other.params, other.params + other.info->param_bytes);
  point_at_own();
}

OwnedLaunch& OwnedLaunch::operator=(const OwnedLaunch& other) {
  launch = other.launch;
  attributes = other.attributes;
  params = other.params;
  point_at_own();
  return *this;
}

void OwnedLaunch::point_at_own() {
  launch.attributes = attributes.data();
  launch.attribute_count = static_cast<uint32_t>(attributes.size());
  launch.params = params.data();
  param_pointers.clear();
  if (launch.info == nullptr) return;
  for (const Param& param : launch.info->params)
    param_pointers.push_back(params.data() + param.offset);
}

void** OwnedLaunch::extra() const {
  if (launch.extra_size == 0) return nullptr;
  void* const words[] = {CU_LAUNCH_PARAM_BUFFER_SIZE, const_cast<size_t*>(&launch.extra_size),
                         CU_LAUNCH_PARAM_BUFFER_POINTER, const_cast<uint8_t*>(params.data()),
                         CU_LAUNCH_PARAM_END};
  memcpy(extra_, words, sizeof extra_);
  return extra_;
}

int default_max_dynamic_shared_mem(const KernelInfo& info) {
  return std::max(0, kDefaultSharedMem - static_cast<int>(info.static_shared_mem));
}

int max_active_blocks(const Function& function, const Device& device, uint32_t threads,
                      size_t dynamic_bytes) {
  const KernelInfo& info = *function.info;
  if (threads > info.max_threads) return 0;
  int64_t blocks = std::min<int64_t>(32, 2048 / ((threads + 31) / 32 * 32));
  const auto shared = static_cast<int64_t>(dynamic_bytes + info.static_shared_mem + 1024);
  blocks = std::min(blocks, device.max_shared_mem_per_sm() / shared);
  const int64_t registers = int64_t{(info.register_count + 7) / 8 * 8} * ((threads + 31) / 32 * 32);
  if (registers > 0) blocks = std::min(blocks, 65536 / registers);
  return static_cast<int>(blocks);
}

CUresult check_launch(Launch* launch) {
  const KernelInfo& info = *launch->info;
  const Device& device = *launch->context->device;
  const KernelSettings& settings = launch->handle->settings(device.ordinal);
  const uint64_t threads = product(launch->block);
  if (product(launch->grid) == 0 || threads == 0 || threads > 1024 || launch->block[0] > 1024 ||
      launch->block[1] > 1024 || launch->block[2] > 64 || launch->grid[0] > 0x7fffffff ||
      launch->grid[1] > 65535 || launch->grid[2] > 65535 || threads > info.max_threads)
    return CUDA_ERROR_INVALID_VALUE;

  const int limit = settings.max_dynamic_shared_mem >= 0 ? settings.max_dynamic_shared_mem
                                                         : default_max_dynamic_shared_mem(info);
  if (launch->shared_mem > static_cast<uint32_t>(limit)) return CUDA_ERROR_INVALID_VALUE;

  for (int i = 0; i < 3; ++i) {
    launch->cluster[i] = info.cluster[i] != 0      ? info.cluster[i]
                         : settings.cluster[0] > 0 ? static_cast<uint32_t>(settings.cluster[i])
                                                   : 1;
  }
  for (uint32_t i = 0; i < launch->attribute_count; ++i) {
    const CUlaunchAttribute& attribute = launch->attributes[i];
    switch (attribute.id) {
      case CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION: {
        const auto& wanted = attribute.value.clusterDim;
        const uint32_t cluster[3] = {wanted.x, wanted.y, wanted.z};
        if (product(cluster) == 0) return CUDA_ERROR_INVALID_VALUE;
        if (info.cluster[0] != 0 && memcmp(cluster, info.cluster, sizeof cluster) != 0)
          return CUDA_ERROR_INVALID_CLUSTER_SIZE;
        memcpy(launch->cluster, cluster, sizeof cluster);
        break;
      }
      case CU_LAUNCH_ATTRIBUTE_COOPERATIVE:
        launch->is_cooperative = attribute.value.cooperative != 0;
        break;
      default: break;
    }
  }
  const uint64_t cluster_size = product(launch->cluster);
  if (cluster_size > 1) {
    if (device.sm < 90) return CUDA_ERROR_NOT_SUPPORTED;
    if (cluster_size > (settings.non_portable_cluster ? kMaxClusterSize : kPortableClusterSize))
      return CUDA_ERROR_INVALID_CLUSTER_SIZE;
    for (int i = 0; i < 3; ++i)
      if (launch->grid[i] % launch->cluster[i] != 0) return CUDA_ERROR_INVALID_CLUSTER_SIZE;
  }
  if (launch->is_cooperative) {
    const int blocks = max_active_blocks(*launch->handle, device, static_cast<uint32_t>(threads),
                                         launch->shared_mem);
    if (product(launch->grid) > static_cast<uint64_t>(blocks) * device.sm_count())
      return CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE;
  }
  return CUDA_SUCCESS;
}

CUresult pack_params(const KernelInfo& info, void** params, void** extra, Launch* out) {
  if (params != nullptr && extra != nullptr) return CUDA_ERROR_INVALID_VALUE;
  out->params = nullptr;
  out->extra_size = 0;
  std::vector<uint8_t>& buffer = thread_state().pack_buffer;
  if (extra != nullptr) {
    SIM_TRY(read_extra(extra, &out->params, &out->extra_size));
    if (out->extra_size >= info.param_bytes && (out->params != nullptr || info.param_bytes == 0))
      return CUDA_SUCCESS;
    if (out->params == nullptr || out->extra_size <= info.params.back().offset)
      return CUDA_ERROR_INVALID_VALUE;
    buffer.assign(out->params, out->params + out->extra_size);
    buffer.resize(info.param_bytes);
    out->params = buffer.data();
    return CUDA_SUCCESS;
  }
  if (info.params.empty()) return CUDA_SUCCESS;
  if (params == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (buffer.size() < info.param_bytes) buffer.resize(info.param_bytes);
  for (size_t i = 0; i < info.params.size(); ++i) {
    const Param& param = info.params[i];
    if (param.size == 8)  // fast path: most are pointers
      memcpy(buffer.data() + param.offset, params[i], 8);
    else
      memcpy(buffer.data() + param.offset, params[i], param.size);
  }
  out->params = buffer.data();
  return CUDA_SUCCESS;
}

void describe(const Launch& launch, SimcudaLaunch* out) {
  const KernelInfo& info = *launch.info;
  const size_t name_bytes = std::min(info.name.size(), sizeof out->kernel - 1);
  memcpy(out->kernel, info.name.data(), name_bytes);
  out->kernel[name_bytes] = 0;
  memcpy(out->grid, launch.grid, sizeof out->grid);
  memcpy(out->block, launch.block, sizeof out->block);
  memcpy(out->cluster, launch.cluster, sizeof out->cluster);
  out->shared_mem = launch.shared_mem;
  out->is_cooperative = launch.is_cooperative;
  out->handle_kind =
      launch.handle->library != nullptr ? simcuda_handle_kernel : simcuda_handle_function;
  out->device = launch.context->device->ordinal;
  out->handle = launch.handle;
  out->context = launch.context;
  out->attribute_count = launch.attribute_count;
  for (uint32_t i = 0; i < launch.attribute_count && i < 16; ++i) {
    out->attribute_ids[i] = launch.attributes[i].id;
    if (i < 8) memcpy(out->attribute_values[i], &launch.attributes[i].value, 64);
  }
  out->param_bytes = info.param_bytes;
  if (info.param_bytes > 0)
    memcpy(out->params, launch.params, std::min<size_t>(info.param_bytes, sizeof out->params));
}

// For users of fibshim run --simulate: outputs that were not computed must not look like results.
const bool g_tells = getenv("SIMCUDA_TELL") != nullptr;

static void tell_once(const std::string& kernel) {
  static std::mutex lock;
  static std::set<std::string> told;
  const std::lock_guard guard(lock);
  if (!told.insert(kernel).second) return;
  fprintf(stderr,
          "simulated driver: kernel %s is counted, but not computed: what it would write stays as "
          "it is\n",
          kernel.c_str());
}

namespace {
std::atomic<void (*)(const SimcudaLaunch*)> g_observer{nullptr};
}

void run_launch(const Launch& launch, const Origin& origin, const Stream& stream,
                CUstream stream_handle) {
  const KernelInfo& info = *launch.info;
  ThreadRecords& records = *thread_state().records;
  bump(counts_of(records, info.name_id).launched);
  if (g_is_fast) return;
  if (g_has_faults.load(std::memory_order_relaxed)) [[unlikely]] {
    // Only later calls see the error, not the launching one.
    const CUresult poison = find_poison(info.name.c_str());
    if (poison != CUDA_SUCCESS) launch.context->sticky_error.store(poison);
  }
  if (info.emulate != nullptr) {
    HostCall call{info, launch.params, {}, {}, {}};
    memcpy(call.grid, launch.grid, sizeof call.grid);
    memcpy(call.block, launch.block, sizeof call.block);
    memcpy(call.cluster, launch.cluster, sizeof call.cluster);
    info.emulate(call);
  } else if (g_tells) {
    tell_once(info.name);
  }
  const std::lock_guard guard(records.ring_lock);
  SimcudaLaunch& record = next_record(records);
  describe(launch, &record);
  strncpy(record.api, api_name(origin.api), sizeof record.api - 1);
  record.is_ptsz = origin.is_ptsz;
  record.is_from_graph = origin.is_from_graph;
  record.stream_kind = stream.stream_kind;
  record.was_packed = origin.was_packed;
  record.was_emulated = info.emulate != nullptr;
  record.stream = stream_handle;
  if (g_log_fd >= 0) write_log_line(record);
  if (const auto observe = g_observer.load(std::memory_order_acquire)) observe(&record);
}

}  // namespace simcuda

using namespace simcuda;

extern "C" {

void simcuda_observe(void (*observe)(const SimcudaLaunch* launch)) {
  g_observer.store(observe, std::memory_order_release);
}

#define LAUNCH_FORM(name, is_ptsz, is_cooperative, extra_parameter, extra_argument)        \
  CUresult name(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,    \
                unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_mem, \
                CUstream stream, void** params extra_parameter) {                          \
    return launch_call(Call(Api::name, is_ptsz, function, {grid_x, grid_y, grid_z},        \
                            {block_x, block_y, block_z}, shared_mem, stream, params,       \
                            extra_argument, is_cooperative));                              \
  }
#define WITH_EXTRA , void** extra
#define WITHOUT_EXTRA
LAUNCH_FORM(cuLaunchKernel, false, false, WITH_EXTRA, extra)
LAUNCH_FORM(cuLaunchKernel_ptsz, true, false, WITH_EXTRA, extra)
LAUNCH_FORM(cuLaunchCooperativeKernel, false, true, WITHOUT_EXTRA, nullptr)
LAUNCH_FORM(cuLaunchCooperativeKernel_ptsz, true, true, WITHOUT_EXTRA, nullptr)

CUresult cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction function, void** params,
                          void** extra) {
  return launch_ex(Api::cuLaunchKernelEx, false, config, function, params, extra);
}
CUresult cuLaunchKernelEx_ptsz(const CUlaunchConfig* config, CUfunction function, void** params,
                               void** extra) {
  return launch_ex(Api::cuLaunchKernelEx_ptsz, true, config, function, params, extra);
}

CUresult cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS* launches, unsigned int count,
                                              unsigned int) {
  SIM_ENTER(cuLaunchCooperativeKernelMultiDevice);
  if (launches == nullptr || count == 0 || count > driver().devices.size())
    return CUDA_ERROR_INVALID_VALUE;
  for (unsigned i = 0; i < count; ++i) {
    const CUDA_LAUNCH_PARAMS& one = launches[i];
    SIM_FIND(stream, driver().pools.streams.find(one.hStream, Kind::stream),
             CUDA_ERROR_INVALID_HANDLE);
    ThreadState& thread = thread_state();
    const ContextRef before = thread.current;
    thread.current = {stream->context, stream->context->generation};
    const CUresult error = launch_call(Call(
        Api::cuLaunchCooperativeKernelMultiDevice, false, one.function,
        {one.gridDimX, one.gridDimY, one.gridDimZ}, {one.blockDimX, one.blockDimY, one.blockDimZ},
        one.sharedMemBytes, one.hStream, one.kernelParams, nullptr, true));
    thread.current = before;
    if (error != CUDA_SUCCESS) return error;
  }
  return CUDA_SUCCESS;
}

CUresult cuFuncSetBlockShape(CUfunction handle, int x, int y, int z) {
  SIM_ENTER(cuFuncSetBlockShape);
  SIM_FIND(function, find_function(handle), CUDA_ERROR_INVALID_HANDLE);
  if (x <= 0 || y <= 0 || z <= 0) return CUDA_ERROR_INVALID_VALUE;
  function->legacy_block[0] = static_cast<uint32_t>(x);
  function->legacy_block[1] = static_cast<uint32_t>(y);
  function->legacy_block[2] = static_cast<uint32_t>(z);
  return CUDA_SUCCESS;
}
CUresult cuFuncSetSharedSize(CUfunction handle, unsigned int bytes) {
  SIM_ENTER(cuFuncSetSharedSize);
  SIM_FIND(function, find_function(handle), CUDA_ERROR_INVALID_HANDLE);
  function->legacy_shared_mem = bytes;
  return CUDA_SUCCESS;
}
CUresult cuParamSetSize(CUfunction handle, unsigned int bytes) {
  SIM_ENTER(cuParamSetSize);
  SIM_FIND(function, find_function(handle), CUDA_ERROR_INVALID_HANDLE);
  if (bytes > 4096) return CUDA_ERROR_INVALID_VALUE;
  function->legacy_params.resize(bytes);
  return CUDA_SUCCESS;
}
ENTRY(cuParamSeti, (CUfunction handle, int offset, unsigned int value),
      set_legacy_param(handle, offset, &value, sizeof value))
ENTRY(cuParamSetf, (CUfunction handle, int offset, float value),
      set_legacy_param(handle, offset, &value, sizeof value))
ENTRY(cuParamSetv, (CUfunction handle, int offset, void* data, unsigned int bytes),
      set_legacy_param(handle, offset, data, bytes))
CUresult cuLaunch(CUfunction function) {
  return launch_legacy(Api::cuLaunch, function, 1, 1, nullptr);
}
CUresult cuLaunchGrid(CUfunction function, int width, int height) {
  return launch_legacy(Api::cuLaunchGrid, function, width, height, nullptr);
}
CUresult cuLaunchGridAsync(CUfunction function, int width, int height, CUstream stream) {
  return launch_legacy(Api::cuLaunchGridAsync, function, width, height, stream);
}

ENTRY_IN_CONTEXT(cuOccupancyMaxActiveBlocksPerMultiprocessor,
                 (int* blocks, CUfunction function, int threads, size_t dynamic_bytes),
                 max_blocks(blocks, function, threads, dynamic_bytes, *context))
ENTRY_IN_CONTEXT(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags,
                 (int* blocks, CUfunction function, int threads, size_t dynamic_bytes,
                  unsigned int),
                 max_blocks(blocks, function, threads, dynamic_bytes, *context))
ENTRY_IN_CONTEXT(cuOccupancyMaxPotentialBlockSize,
                 (int* min_grid, int* block, CUfunction function,
                  CUoccupancyB2DSize dynamic_bytes_of, size_t dynamic_bytes, int limit),
                 best_block_size(min_grid, block, function, dynamic_bytes_of, dynamic_bytes, limit,
                                 *context))
ENTRY_IN_CONTEXT(cuOccupancyMaxPotentialBlockSizeWithFlags,
                 (int* min_grid, int* block, CUfunction function,
                  CUoccupancyB2DSize dynamic_bytes_of, size_t dynamic_bytes, int limit,
                  unsigned int),
                 best_block_size(min_grid, block, function, dynamic_bytes_of, dynamic_bytes, limit,
                                 *context))
CUresult cuOccupancyAvailableDynamicSMemPerBlock(size_t* bytes, CUfunction handle, int blocks,
                                                 int threads) {
  SIM_ENTER_CONTEXT(cuOccupancyAvailableDynamicSMemPerBlock);
  SIM_GET(Function*, function, find_either(handle, &function));
  if (bytes == nullptr || blocks <= 0 || threads <= 0) return CUDA_ERROR_INVALID_VALUE;
  const int64_t room = context->device->max_shared_mem_per_sm() / blocks -
                       int64_t{function->info->static_shared_mem} - 1024;
  *bytes = static_cast<size_t>(std::max<int64_t>(0, room));
  return CUDA_SUCCESS;
}
CUresult cuOccupancyMaxPotentialClusterSize(int* size, CUfunction handle,
                                            const CUlaunchConfig* config) {
  SIM_ENTER_CONTEXT(cuOccupancyMaxPotentialClusterSize);
  SIM_GET(Function*, function, find_either(handle, &function));
  if (size == nullptr || config == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (context->device->sm < 90) return CUDA_ERROR_NOT_SUPPORTED;
  const bool is_non_portable =
      function->settings(context->device->ordinal).non_portable_cluster != 0;
  *size = static_cast<int>(is_non_portable ? kMaxClusterSize : kPortableClusterSize);
  return CUDA_SUCCESS;
}
CUresult cuOccupancyMaxActiveClusters(int* count, CUfunction handle, const CUlaunchConfig* config) {
  SIM_ENTER_CONTEXT(cuOccupancyMaxActiveClusters);
  SIM_GET(Function*, function, find_either(handle, &function));
  if (count == nullptr || config == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (context->device->sm < 90) return CUDA_ERROR_NOT_SUPPORTED;
  uint32_t cluster = 1;
  for (unsigned i = 0; i < config->numAttrs; ++i)
    if (config->attrs[i].id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION)
      cluster = config->attrs[i].value.clusterDim.x * config->attrs[i].value.clusterDim.y *
                config->attrs[i].value.clusterDim.z;
  if (cluster == 0) return CUDA_ERROR_INVALID_VALUE;
  const int blocks = max_active_blocks(*function, *context->device,
                                       config->blockDimX * config->blockDimY * config->blockDimZ,
                                       config->sharedMemBytes);
  *count = blocks * context->device->sm_count() / static_cast<int>(cluster);
  return CUDA_SUCCESS;
}

}  // extern "C"
