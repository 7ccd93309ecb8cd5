// libfibshadow.so: memory, copies and comparisons for shadow checks, made with the driver
// (abi/shadow_api.h).
//
// g_lock guards all pools, and is not held during driver calls. g_making is held while a pool is
// made, with its driver calls, so that the pool's context is not dropped meanwhile.
#include "shim/abi/shadow_api.h"

#include <atomic>
#include <string.h>
#include <sys/mman.h>

#include "shim/base/mutex.h"
#include "shim/shadow/compare_image.h"
#include "shim/shadow/pool.h"

namespace fibshim {
namespace {

constexpr uint32_t kMaxPools = 16;

#define FIBSHIM_SHADOW_FUNCTIONS(CALL)                                    \
  CALL(cuCtxGetCurrent, PFN_cuCtxGetCurrent_v4000)                        \
  CALL(cuCtxPushCurrent_v2, PFN_cuCtxPushCurrent_v4000)                   \
  CALL(cuCtxPopCurrent_v2, PFN_cuCtxPopCurrent_v4000)                     \
  CALL(cuMemAlloc_v2, PFN_cuMemAlloc_v3020)                               \
  CALL(cuMemFree_v2, PFN_cuMemFree_v3020)                                 \
  CALL(cuMemHostRegister_v2, PFN_cuMemHostRegister_v6050)                 \
  CALL(cuMemHostUnregister, PFN_cuMemHostUnregister_v4000)                \
  CALL(cuMemHostGetDevicePointer_v2, PFN_cuMemHostGetDevicePointer_v3020) \
  CALL(cuMemcpyDtoDAsync_v2, PFN_cuMemcpyDtoDAsync_v3020)                 \
  CALL(cuMemsetD8Async, PFN_cuMemsetD8Async_v3020)                        \
  CALL(cuStreamCreate, PFN_cuStreamCreate_v2000)                          \
  CALL(cuStreamSynchronize, PFN_cuStreamSynchronize_v2000)                \
  CALL(cuStreamDestroy_v2, PFN_cuStreamDestroy_v4000)                     \
  CALL(cuLibraryLoadData, PFN_cuLibraryLoadData_v12000)                   \
  CALL(cuLibraryGetKernel, PFN_cuLibraryGetKernel_v12000)                 \
  CALL(cuLaunchKernel, PFN_cuLaunchKernel_v4000)                          \
  CALL(cuGraphAddMemcpyNode, PFN_cuGraphAddMemcpyNode_v10000)             \
  CALL(cuGraphAddKernelNode_v2, PFN_cuGraphAddKernelNode_v12000)          \
  CALL(cuThreadExchangeStreamCaptureMode, PFN_cuThreadExchangeStreamCaptureMode_v10010)

struct Functions {
#define CALL(name, type) type name;
  FIBSHIM_SHADOW_FUNCTIONS(CALL)
#undef CALL
};

const ShadowHost* g_host;
Mutex g_making;  // locked before g_lock
Mutex g_lock;
Functions g_driver;
std::atomic<bool> g_has_driver;
CUkernel g_kernel;
Pool g_pools[kMaxPools];
CUcontext g_wanted[kMaxPools];  // contexts without a pool in which a check would have begun

bool find_driver() {
  if (g_has_driver.load(std::memory_order_acquire)) return true;
  Functions found = {};
  bool has_all = true;
#define CALL(name, type)                                                    \
  found.name = reinterpret_cast<type>(g_host->find_driver_function(#name)); \
  has_all = has_all && found.name != nullptr;
  FIBSHIM_SHADOW_FUNCTIONS(CALL)
#undef CALL
  g_driver = found;
  g_has_driver.store(has_all, std::memory_order_release);
  return has_all;
}

// Requires g_lock.
Pool* find_pool(CUcontext context) {
  for (Pool& pool : g_pools) {
    if (pool.context == context) return &pool;
  }
  return nullptr;
}

void request_pool(CUcontext context) {
  for (CUcontext& wanted : g_wanted) {
    if (wanted == context) return;
    if (wanted != nullptr) continue;
    wanted = context;
    return;
  }
}

bool load_kernel() {
  if (g_kernel != nullptr) return true;
  CUlibrary library = nullptr;
  return g_driver.cuLibraryLoadData(&library, fibshim_compare_image, nullptr, nullptr, 0, nullptr,
                                    nullptr, 0) == CUDA_SUCCESS &&
         g_driver.cuLibraryGetKernel(&g_kernel, library, kCompareKernel) == CUDA_SUCCESS;
}

constexpr uint64_t kTotalsBytes = sizeof(ShadowTotals) * kMaxShadowOutputs * kAllSlots;
constexpr uint64_t kWordsBytes = sizeof(uint32_t) * kAllSlots;
constexpr uint64_t kAnswersBytes = sizeof(CompareAnswer) * kAllSlots;

bool fill_with_zeros(CUdeviceptr memory, uint64_t bytes) {
  CUstream stream = nullptr;
  if (g_driver.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) != CUDA_SUCCESS) return false;
  const bool is_fine = g_driver.cuMemsetD8Async(memory, 0, bytes, stream) == CUDA_SUCCESS &&
                       g_driver.cuStreamSynchronize(stream) == CUDA_SUCCESS;
  (void)g_driver.cuStreamDestroy_v2(stream);
  return is_fine;
}

// Allocates the pool's memory in the current context. Returns false, with nothing allocated, if the
// driver refuses a part.
bool make_memory(Pool* pool) {
  const uint64_t all_bytes = g_host->memory_bytes;
  pool->graph_bytes = all_bytes / kGraphShare;
  pool->bytes = all_bytes - pool->graph_bytes;
  void* const answers =
      mmap(nullptr, kAnswersBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (answers == MAP_FAILED) return false;
  pool->answers = static_cast<CompareAnswer*>(answers);
  CUresult result =
      g_driver.cuMemHostRegister_v2(answers, kAnswersBytes, CU_MEMHOSTREGISTER_DEVICEMAP);
  if (result == CUDA_SUCCESS) {
    result = g_driver.cuMemHostGetDevicePointer_v2(&pool->device_answers, answers, 0);
    if (result == CUDA_SUCCESS) {
      result = g_driver.cuMemAlloc_v2(&pool->memory, all_bytes + kTotalsBytes + kWordsBytes);
    }
    if (result == CUDA_SUCCESS) {
      pool->totals = pool->memory + all_bytes / 8 * 8;
      pool->blocks_done = pool->totals + kTotalsBytes;
      if (fill_with_zeros(pool->totals, kTotalsBytes + kWordsBytes) && load_kernel()) return true;
      (void)g_driver.cuMemFree_v2(pool->memory);
    }
    (void)g_driver.cuMemHostUnregister(answers);
  }
  munmap(answers, kAnswersBytes);
  pool->answers = nullptr;
  return false;
}

// Makes a pool for the current context. Requires g_making.
void make_pool(CUcontext context) {
  Pool* pool = nullptr;
  void* answers_before = nullptr;  // of a context that has ended
  {
    MutexGuard guard(g_lock);
    if (find_pool(context) != nullptr) return;
    pool = find_pool(nullptr);
    if (pool == nullptr) return;
    answers_before = pool->answers;
    memset(static_cast<void*>(pool), 0, sizeof *pool);
    pool->context = context;
  }
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  const bool is_relaxed = g_driver.cuThreadExchangeStreamCaptureMode(&mode) == CUDA_SUCCESS;
  const bool is_made = make_memory(pool);
  if (is_relaxed) (void)g_driver.cuThreadExchangeStreamCaptureMode(&mode);
  // Not earlier, for other addresses: the driver may still have these registered.
  if (answers_before != nullptr) munmap(answers_before, kAnswersBytes);
  MutexGuard guard(g_lock);
  pool->kernel = g_kernel;
  pool->is_ready = is_made;
  if (is_made) return;
  g_host->log(LogLevel::warn,
              "FIBSHIM_SHADOW: %llu bytes of GPU memory cannot be had; no launch is checked",
              static_cast<unsigned long long>(g_host->memory_bytes));
}

void start(const ShadowHost& host) { g_host = &host; }

void prepare() {
  MutexGuard making(g_making);
  CUcontext context = nullptr;
  if (find_driver() && g_driver.cuCtxGetCurrent(&context) == CUDA_SUCCESS && context != nullptr) {
    make_pool(context);
  }
}

void make_wanted_pools() {
  MutexGuard making(g_making);
  for (;;) {
    CUcontext context = nullptr;
    {
      MutexGuard guard(g_lock);
      for (CUcontext& wanted : g_wanted) {
        if (wanted == nullptr || context != nullptr) continue;
        context = wanted;
        wanted = nullptr;
      }
    }
    if (context == nullptr) return;
    if (g_driver.cuCtxPushCurrent_v2(context) != CUDA_SUCCESS) continue;
    make_pool(context);
    (void)g_driver.cuCtxPopCurrent_v2(&context);
  }
}

bool is_any_under_way(const Pool& pool) {
  bool is_any = pool.taken != 0;
  for (const GraphSlot& slot : pool.graph_slots) {
    is_any = is_any || (slot.number != 0 && slot.is_ended);
  }
  return is_any;
}

// Passes on the result of one finished check. False: there is none.
bool report_finished_check(bool* has_more) {
  ShadowResult result;
  bool is_abandoned = false;
  {
    MutexGuard guard(g_lock);
    *has_more = false;
    bool is_there = false;
    for (Pool& pool : g_pools) {
      if (!pool.is_ready || is_there) continue;
      *has_more = *has_more || is_any_under_way(pool);
      if (const Slot* const slot = pop_finished(&pool)) {
        result = slot->result;
        is_abandoned = slot->is_abandoned;
        is_there = true;
      } else if (const GraphSlot* const of_graph = pop_finished_in_graph(&pool)) {
        result = of_graph->result;
        is_there = true;
      }
    }
    if (!is_there) return false;
  }
  if (!is_abandoned) g_host->record_result(result);
  return true;
}

// Returns true if more results are to come.
bool report_finished_checks() {
  bool has_more = false;
  while (report_finished_check(&has_more)) {
  }
  return has_more;
}

bool work(bool may_call_driver) {
  if (g_host == nullptr) return false;
  const bool has_more = report_finished_checks();
  if (!may_call_driver) return has_more;
  bool is_wanted = false;
  {
    MutexGuard guard(g_lock);
    for (CUcontext wanted : g_wanted) is_wanted = is_wanted || wanted != nullptr;
  }
  if (is_wanted) make_wanted_pools();
  return has_more;
}

ShadowMiss begin(ShadowCheck* check) {
  CUcontext context = nullptr;
  if (!g_has_driver.load(std::memory_order_acquire)) {
    MutexGuard making(g_making);
    if (!find_driver()) return ShadowMiss::memory;
  }
  if (g_driver.cuCtxGetCurrent(&context) != CUDA_SUCCESS || context == nullptr) {
    return ShadowMiss::memory;
  }
  report_finished_checks();
  {
    MutexGuard guard(g_lock);
    Pool* const pool = find_pool(context);
    if (pool == nullptr) request_pool(context);
    if (pool == nullptr || !pool->is_ready) return ShadowMiss::memory;
    const ShadowMiss miss = reserve_room(pool, check);
    if (miss != ShadowMiss::none) return miss;
  }
  for (uint32_t i = 0; i < check->block_count; ++i) {
    const ShadowBlock& block = check->blocks[i];
    if (g_driver.cuMemcpyDtoDAsync_v2(block.copy, block.address, block.bytes, check->stream) ==
        CUDA_SUCCESS) {
      continue;
    }
    check->output_count = 0;
    return ShadowMiss::extent;
  }
  return ShadowMiss::none;
}

// Fills in the result's identity and the kernel's job. Returns the number of blocks for the kernel.
unsigned fill_job(const ShadowCheck& check, const Pool& pool, uint32_t number, ShadowResult* result,
                  CompareJob* job) {
  uint64_t elements = 1;
  result->entry = check.entry;
  result->action = check.action;
  result->matched_ratio = check.matched_ratio;
  result->output_count = check.output_count;
  for (uint32_t i = 0; i < check.output_count; ++i) {
    result->elements[i] = check.outputs[i].element;
    elements += element_count(check.outputs[i]);
  }
  memset(static_cast<void*>(job), 0, sizeof *job);
  memcpy(job->outputs, check.outputs, sizeof job->outputs);
  job->totals = totals_of_slot(pool, check.slot);
  job->blocks_done = reinterpret_cast<uint32_t*>(pool.blocks_done + check.slot * sizeof(uint32_t));
  job->answer = reinterpret_cast<CompareAnswer*>(pool.device_answers) + check.slot;
  job->output_count = check.output_count;
  job->number = number;
  constexpr uint64_t kOfBlock = uint64_t{kCompareThreads} * kCompareElementsOfThread;
  const uint64_t blocks = (elements + kOfBlock - 1) / kOfBlock;
  return static_cast<unsigned>(blocks < kMostCompareBlocks ? blocks : kMostCompareBlocks);
}

void compare(ShadowCheck* check) {
  Pool& pool = *static_cast<Pool*>(check->pool);
  CompareJob job;
  unsigned blocks;
  {
    MutexGuard guard(g_lock);
    if (!pool.is_ready) return;  // its context has ended
    Slot& slot = pool.slots[check->slot];
    slot.is_abandoned = check->output_count == 0;
    blocks = fill_job(*check, pool, slot.number, &slot.result, &job);
  }
  void* params[] = {&job};
  if (g_driver.cuLaunchKernel(reinterpret_cast<CUfunction>(pool.kernel), blocks, 1, 1,
                              kCompareThreads, 1, 1, 0, check->stream, params,
                              nullptr) == CUDA_SUCCESS) {
    return;
  }
  // Its answer will never come, so the room can never be released: give the pool up.
  MutexGuard guard(g_lock);
  pool.is_ready = false;
}

// Returns the slot of a check in a graph, or null if its context has ended. Requires g_lock.
GraphSlot* find_graph_slot(uint32_t number) {
  for (Pool& pool : g_pools) {
    for (GraphSlot& slot : pool.graph_slots) {
      if (pool.is_ready && slot.number == number) return &slot;
    }
  }
  return nullptr;
}

ShadowMiss begin_in_graph(ShadowCheck* check, ShadowNodes* nodes) {
  CUcontext context = nullptr;
  nodes->number = 0;
  nodes->copy_count = 0;
  prepare();
  if (!g_has_driver.load(std::memory_order_acquire) ||
      g_driver.cuCtxGetCurrent(&context) != CUDA_SUCCESS || context == nullptr) {
    return ShadowMiss::memory;
  }
  {
    MutexGuard guard(g_lock);
    Pool* const pool = find_pool(context);
    if (pool == nullptr || !pool->is_ready) return ShadowMiss::memory;
    ShadowMiss miss = ShadowMiss::none;
    const GraphSlot* const slot = reserve_graph_room(pool, check, &miss);
    if (slot == nullptr) return miss;
    nodes->number = slot->number;
  }
  for (uint32_t i = 0; i < check->block_count; ++i) {
    const ShadowBlock& block = check->blocks[i];
    CUDA_MEMCPY3D copy = {};
    copy.srcMemoryType = copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
    copy.srcDevice = block.address;
    copy.dstDevice = block.copy;
    copy.WidthInBytes = copy.srcPitch = copy.dstPitch = block.bytes;
    copy.Height = copy.Depth = copy.srcHeight = copy.dstHeight = 1;
    if (g_driver.cuGraphAddMemcpyNode(&nodes->copies[nodes->copy_count++], nodes->graph,
                                      nodes->before, nodes->before_count, &copy,
                                      context) != CUDA_SUCCESS) {
      return ShadowMiss::extent;
    }
  }
  return ShadowMiss::none;
}

CUgraphNode compare_in_graph(const ShadowCheck& check, const ShadowNodes& nodes, CUgraphNode node) {
  const Pool& pool = *static_cast<const Pool*>(check.pool);
  CompareJob job;
  CUDA_KERNEL_NODE_PARAMS_v2 params = {};
  {
    MutexGuard guard(g_lock);
    GraphSlot* const slot = find_graph_slot(nodes.number);
    if (slot == nullptr) return nullptr;
    params.gridDimX = fill_job(check, pool, nodes.number, &slot->result, &job);
  }
  void* arguments[] = {&job};
  params.kern = pool.kernel;
  params.gridDimY = params.gridDimZ = params.blockDimY = params.blockDimZ = 1;
  params.blockDimX = kCompareThreads;
  params.kernelParams = arguments;
  CUgraphNode added = nullptr;
  return g_driver.cuGraphAddKernelNode_v2(&added, nodes.graph, &node, 1, &params) == CUDA_SUCCESS
             ? added
             : nullptr;
}

void end_in_graph(uint32_t number, bool was_launched) {
  MutexGuard guard(g_lock);
  GraphSlot* const slot = find_graph_slot(number);
  if (slot != nullptr) end_graph_slot(slot, was_launched);
}

// Drops the pool of a context (null: of any). Results that have not come yet are lost.
void drop_context(CUcontext context) {
  (void)report_finished_checks();
  MutexGuard making(g_making);
  MutexGuard guard(g_lock);
  for (Pool& pool : g_pools) {
    if (pool.context == nullptr || (context != nullptr && pool.context != context)) continue;
    pool.is_ready = false;
    pool.context = nullptr;
  }
  memset(g_wanted, 0, sizeof g_wanted);
}

void lock_for_fork() {
  g_making.lock();
  g_lock.lock();
}

// The child cannot use the parent's contexts.
void unlock_after_fork(bool is_child) {
  if (is_child) memset(static_cast<void*>(g_pools), 0, sizeof g_pools);
  g_lock.unlock_after_fork(is_child);
  g_making.unlock_after_fork(is_child);
}

const ShadowApi kApi = {
    start,        prepare, begin,        compare,       begin_in_graph,   compare_in_graph,
    end_in_graph, work,    drop_context, lock_for_fork, unlock_after_fork};

}  // namespace
}  // namespace fibshim

extern "C" __attribute__((visibility("default"))) const fibshim::ShadowApi* fibshadow_api(
    uint32_t version) {
  return version == fibshim::kShadowApiVersion ? &fibshim::kApi : nullptr;
}
