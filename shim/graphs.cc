#include "shim/graphs.h"

#include <string.h>

#include "shim/driver.h"
#include "shim/handles.h"
#include "shim/mutex.h"
#include "shim/pool.h"

namespace fibshim {

constinit std::atomic<int> g_active_captures{0};

namespace {

// The original of one redirected node. The arrays follow it in the same block.
struct SavedNode {
  CUgraphNode node;
  SavedNode* next;  // in its bucket
  uint32_t block_bytes;
  uint32_t param_count;
  NodeParams original;  // kernelParams points into this block
  // What was put in its place, to tell whether the node still holds it.
  CUfunction function;
  uint32_t geometry[7];
  uint32_t cluster[3];           // the original's, where the host has given it one
  uint32_t replaced_cluster[3];  // the replacement's, where it has one
};

constexpr uint32_t kBucketCount = 4096;

Mutex g_lock;  // guards all below
Pool g_pool;
SavedNode* g_buckets[kBucketCount];
uint32_t g_saved_count;

SavedNode** bucket_of(CUgraphNode node) {
  return &g_buckets[hash_handle(reinterpret_cast<uintptr_t>(node)) >> 52];
}
static_assert(kBucketCount == 1u << 12);

// Holding g_lock. Where the node's entry hangs; points at null when there is none.
SavedNode** find_saved(CUgraphNode node) {
  SavedNode** at = bucket_of(node);
  while (*at != nullptr && (*at)->node != node) at = &(*at)->next;
  return at;
}

// Holding g_lock.
void drop_saved(SavedNode** at) {
  SavedNode* saved = *at;
  if (saved == nullptr) return;
  *at = saved->next;
  --g_saved_count;
  g_pool.release(saved, saved->block_bytes);
}

const void* handle_of(const NodeParams& params) {
  return params.func != nullptr ? static_cast<const void*>(params.func)
                                : static_cast<const void*>(params.kern);
}

void copy_geometry(const NodeParams& params, uint32_t (&out)[7]) {
  const uint32_t values[7] = {params.gridDimX,      params.gridDimY,  params.gridDimZ,
                              params.blockDimX,     params.blockDimY, params.blockDimZ,
                              params.sharedMemBytes};
  memcpy(out, values, sizeof out);
}

// A parameter of the original, however the host passed it. Null when it cannot be found.
const void* original_param(const Record& record, const NodeParams& original, uint32_t index) {
  if (original.kernelParams != nullptr) return original.kernelParams[index];
  if (original.extra == nullptr) return nullptr;
  for (void** at = original.extra; *at != CU_LAUNCH_PARAM_END; at += 2) {
    if (at[0] == CU_LAUNCH_PARAM_BUFFER_POINTER) {
      return static_cast<const char*>(at[1]) + record.params[index].offset;
    }
  }
  return nullptr;
}

// A copy of the original that outlives the host's own. Null: no memory.
SavedNode* save(CUgraphNode node, const NodeParams& original, const Record& record,
                const LaunchPlan& plan) {
  const size_t pointer_bytes = record.param_count * sizeof(void*);
  const size_t block_bytes = sizeof(SavedNode) + pointer_bytes + record.params_bytes;
  auto* saved = static_cast<SavedNode*>(g_pool.allocate(block_bytes));
  if (saved == nullptr) return nullptr;
  auto** pointers = reinterpret_cast<void**>(saved + 1);
  char* bytes = reinterpret_cast<char*>(pointers) + pointer_bytes;
  for (uint32_t i = 0; i < record.param_count; ++i) {
    const Param& param = record.params[i];
    const void* from = original_param(record, original, i);
    if (from == nullptr) {
      g_pool.release(saved, block_bytes);
      return nullptr;
    }
    memcpy(bytes + param.offset, from, param.size);
    pointers[i] = bytes + param.offset;
  }
  saved->node = node;
  saved->block_bytes = static_cast<uint32_t>(block_bytes);
  saved->param_count = record.param_count;
  saved->original = original;
  saved->original.kernelParams = pointers;
  saved->original.extra = nullptr;
  saved->function = plan.kernel;
  for (int i = 0; i < 3 && plan.decision->binding->has_cluster != 0; ++i) {
    saved->replaced_cluster[i] = plan.geometry[kClusterX + i];
  }
  memcpy(saved->geometry, plan.geometry, 6 * sizeof plan.geometry[0]);
  saved->geometry[6] = plan.geometry[kSharedMem];
  return saved;
}

// The replacement's CUkernel, whichever form the driver reads a node's kernel in.
bool is_same_kernel(const NodeParams& current, CUfunction replacement) {
  auto* kernel = reinterpret_cast<CUkernel>(replacement);
  if (current.kern == kernel || current.func == replacement) return true;
  const auto get_function = FIBSHIM_REAL(cuKernelGetFunction);
  CUfunction in_context = nullptr;
  return get_function != nullptr && get_function(&in_context, kernel) == CUDA_SUCCESS &&
         in_context == current.func;
}

}  // namespace

LaunchAction plan_node(const NodeParams& original, NodePlan* plan) {
  LaunchRequest request;
  memset(&request, 0, sizeof request);
  request.handle = handle_of(original);
  request.view.params = original.kernelParams;
  request.extra = original.extra;
  uint32_t geometry[7];
  copy_geometry(original, geometry);
  memcpy(request.view.geometry, geometry, 6 * sizeof geometry[0]);
  request.view.geometry[kClusterX] = 1;
  request.view.geometry[kClusterY] = 1;
  request.view.geometry[kClusterZ] = 1;
  request.view.geometry[kSharedMem] = geometry[6];
  plan_launch(&request, &plan->launch);
  if (plan->launch.action != LaunchAction::redirect) return plan->launch.action;

  const uint32_t* planned = plan->launch.geometry;
  NodeParams& params = plan->params;
  params = original;
  params.func = nullptr;
  params.kern = reinterpret_cast<CUkernel>(plan->launch.kernel);
  // With `func` the context was the function's own; a kernel takes the current one when it is null.
  if (original.func != nullptr) params.ctx = nullptr;
  params.gridDimX = planned[kGridX];
  params.gridDimY = planned[kGridY];
  params.gridDimZ = planned[kGridZ];
  params.blockDimX = planned[kBlockX];
  params.blockDimY = planned[kBlockY];
  params.blockDimZ = planned[kBlockZ];
  params.sharedMemBytes = planned[kSharedMem];
  params.kernelParams = plan->launch.params;
  params.extra = nullptr;
  return LaunchAction::redirect;
}

void remember_node(CUgraphNode node, const NodeParams& original, const LaunchPlan& plan) {
  SavedNode* saved = save(node, original, *plan.record, plan);
  MutexGuard guard(g_lock);
  SavedNode** before = find_saved(node);
  if (saved != nullptr && *before != nullptr) {
    memcpy(saved->cluster, (*before)->cluster, sizeof saved->cluster);
  }
  drop_saved(before);
  if (saved == nullptr) return;
  SavedNode** bucket = bucket_of(node);
  saved->next = *bucket;
  *bucket = saved;
  ++g_saved_count;
}

bool find_original_params(CUgraphNode node, const NodeParams& current, NodeParams* original) {
  CUfunction replacement = nullptr;
  {
    MutexGuard guard(g_lock);
    const SavedNode* saved = *find_saved(node);
    if (saved == nullptr) return false;
    uint32_t geometry[7];
    copy_geometry(current, geometry);
    if (memcmp(geometry, saved->geometry, sizeof geometry) != 0) return false;
    replacement = saved->function;
    *original = saved->original;
  }
  // The node's value may have been reused for a node that we know nothing of.
  if (is_same_kernel(current, replacement)) return true;
  forget_node(node);
  return false;
}

bool keep_original_cluster(CUgraphNode node, const uint32_t (&cluster)[3]) {
  MutexGuard guard(g_lock);
  SavedNode* saved = *find_saved(node);
  if (saved == nullptr) return false;
  memcpy(saved->cluster, cluster, sizeof cluster);
  return true;
}

bool find_replaced_cluster(CUgraphNode node, uint32_t (&original)[3], uint32_t (&replaced)[3]) {
  MutexGuard guard(g_lock);
  const SavedNode* saved = *find_saved(node);
  if (saved == nullptr || saved->replaced_cluster[0] == 0) return false;
  for (int i = 0; i < 3; ++i) original[i] = saved->cluster[i] == 0 ? 1 : saved->cluster[i];
  memcpy(replaced, saved->replaced_cluster, sizeof replaced);
  return true;
}

bool is_redirected_node(CUgraphNode node) {
  MutexGuard guard(g_lock);
  return *find_saved(node) != nullptr;
}

void forget_node(CUgraphNode node) {
  MutexGuard guard(g_lock);
  drop_saved(find_saved(node));
}

void forget_graph(CUgraph graph) {
  {
    MutexGuard guard(g_lock);
    if (g_saved_count == 0) return;
  }
  const auto get_nodes = FIBSHIM_REAL(cuGraphGetNodes);
  size_t count = 0;
  if (get_nodes == nullptr || get_nodes(graph, nullptr, &count) != CUDA_SUCCESS || count == 0) {
    return;
  }
  const size_t bytes = count * sizeof(CUgraphNode);
  auto* nodes = static_cast<CUgraphNode*>(g_pool.allocate(bytes));
  if (nodes == nullptr) return;
  if (get_nodes(graph, nodes, &count) == CUDA_SUCCESS) {
    for (size_t i = 0; i < count; ++i) forget_node(nodes[i]);
  }
  g_pool.release(nodes, bytes);
}

void remember_captured_node(const LaunchRequest& request, const LaunchPlan& plan) {
  const auto get_info = FIBSHIM_REAL(cuStreamGetCaptureInfo_v2);
  if (get_info == nullptr) return;
  CUstream stream = request.stream;
  if (request.is_per_thread_stream && stream == nullptr) stream = CU_STREAM_PER_THREAD;
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  const CUgraphNode* dependencies = nullptr;
  size_t count = 0;
  // What the next node would depend on is the node that this launch has become.
  if (get_info(stream, &status, nullptr, nullptr, &dependencies, &count) != CUDA_SUCCESS ||
      status != CU_STREAM_CAPTURE_STATUS_ACTIVE || count != 1) {
    return;
  }
  const CUgraphNode node = dependencies[0];
  NodeParams original;
  memset(&original, 0, sizeof original);
  if (plan.record->kind == HandleKind::kernel) {
    original.kern = static_cast<CUkernel>(const_cast<void*>(request.handle));
  } else {
    original.func = static_cast<CUfunction>(const_cast<void*>(request.handle));
  }
  const uint32_t* geometry = request.view.geometry;
  original.gridDimX = geometry[kGridX];
  original.gridDimY = geometry[kGridY];
  original.gridDimZ = geometry[kGridZ];
  original.blockDimX = geometry[kBlockX];
  original.blockDimY = geometry[kBlockY];
  original.blockDimZ = geometry[kBlockZ];
  original.sharedMemBytes = geometry[kSharedMem];
  original.kernelParams = const_cast<void**>(request.view.params);
  remember_node(node, original, plan);
}

void lock_graphs_for_fork() {
  g_lock.lock();
  g_pool.lock_for_fork();
}

void unlock_graphs_after_fork(bool is_child) {
  g_pool.unlock_after_fork(is_child);
  g_lock.unlock_after_fork(is_child);
}

}  // namespace fibshim
