#include "shim/graphs/graphs.h"

#include <string.h>

#include "shim/driver/driver.h"
#include "shim/registry/handles.h"
#include "shim/base/mutex.h"
#include "shim/base/pool.h"

namespace fibshim {

// The arrays follow it in the same block.
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

namespace {

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
SavedNode* save(const NodeParams& original, const LaunchPlan& plan) {
  const Record& record = *plan.record;
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

// The replacement's CUkernel, whichever form the driver reads a node's kernel in. Where the driver
// does not tell, it is taken for it: the host must not be shown a kernel that is not its own.
bool is_same_kernel(const NodeParams& current, CUfunction replacement) {
  auto* kernel = reinterpret_cast<CUkernel>(replacement);
  if (current.kern == kernel || current.func == replacement) return true;
  const auto get_function = FIBSHIM_REAL(cuKernelGetFunction);
  CUfunction in_context = nullptr;
  return current.func != nullptr &&
         (get_function == nullptr || get_function(&in_context, kernel) != CUDA_SUCCESS ||
          in_context == current.func);
}

bool has_saved() {
  MutexGuard guard(g_lock);
  return g_saved_count != 0;
}

// The graph that a node holds, or null.
CUgraph child_of(CUgraphNode node) {
  const auto get_type = FIBSHIM_REAL(cuGraphNodeGetType);
  const auto get_child = FIBSHIM_REAL(cuGraphChildGraphNodeGetGraph);
  CUgraphNodeType type = CU_GRAPH_NODE_TYPE_EMPTY;
  CUgraph child = nullptr;
  return get_type != nullptr && get_child != nullptr && get_type(node, &type) == CUDA_SUCCESS &&
                 type == CU_GRAPH_NODE_TYPE_GRAPH && get_child(node, &child) == CUDA_SUCCESS
             ? child
             : nullptr;
}

// The nodes of a graph, in the driver's order; none when it cannot tell.
class NodeList {
 public:
  explicit NodeList(CUgraph graph) {
    const auto get_nodes = FIBSHIM_REAL(cuGraphGetNodes);
    size_t count = 0;
    if (get_nodes == nullptr || get_nodes(graph, nullptr, &count) != CUDA_SUCCESS || count == 0) {
      return;
    }
    bytes_ = count * sizeof(CUgraphNode);
    nodes_ = static_cast<CUgraphNode*>(g_pool.allocate(bytes_));
    if (nodes_ != nullptr && get_nodes(graph, nodes_, &count) == CUDA_SUCCESS) count_ = count;
  }
  ~NodeList() { g_pool.release(nodes_, bytes_); }
  NodeList(const NodeList&) = delete;
  NodeList& operator=(const NodeList&) = delete;

  size_t count() const { return count_; }
  CUgraphNode operator[](size_t index) const { return nodes_[index]; }

 private:
  size_t bytes_ = 0;
  size_t count_ = 0;
  CUgraphNode* nodes_ = nullptr;
};

// Whether two nodes hold the same launch of a replacement, as the driver has them.
bool is_same_node(CUgraphNode one, CUgraphNode other, CUfunction replacement) {
  const auto get_params = FIBSHIM_REAL(cuGraphKernelNodeGetParams_v2);
  const auto get_info = FIBSHIM_REAL(cuKernelGetParamInfo);
  NodeParams first;
  NodeParams second;
  memset(&first, 0, sizeof first);
  memset(&second, 0, sizeof second);
  if (get_params == nullptr || get_info == nullptr || get_params(one, &first) != CUDA_SUCCESS ||
      get_params(other, &second) != CUDA_SUCCESS || !is_same_kernel(first, replacement) ||
      !is_same_kernel(second, replacement)) {
    return false;
  }
  uint32_t geometry[7];
  uint32_t other_geometry[7];
  copy_geometry(first, geometry);
  copy_geometry(second, other_geometry);
  if (memcmp(geometry, other_geometry, sizeof geometry) != 0) return false;
  if (first.kernelParams == nullptr || second.kernelParams == nullptr) return false;
  size_t offset = 0;
  size_t size = 0;
  for (uint32_t i = 0;
       get_info(reinterpret_cast<CUkernel>(replacement), i, &offset, &size) == CUDA_SUCCESS; ++i) {
    if (memcmp(first.kernelParams[i], second.kernelParams[i], size) != 0) return false;
  }
  return true;
}

// Puts an entry into the table in the place of what is there.
void put_saved(SavedNode* saved) {
  MutexGuard guard(g_lock);
  drop_saved(find_saved(saved->node));
  SavedNode** bucket = bucket_of(saved->node);
  saved->next = *bucket;
  *bucket = saved;
  ++g_saved_count;
}

// What was kept of a node is kept of its copy.
void copy_saved(CUgraphNode node, CUgraphNode copy) {
  SavedNode* made = nullptr;
  {
    MutexGuard guard(g_lock);
    const SavedNode* saved = *find_saved(node);
    if (saved == nullptr) return;
    made = static_cast<SavedNode*>(g_pool.allocate(saved->block_bytes));
    if (made == nullptr) return;
    memcpy(static_cast<void*>(made), static_cast<const void*>(saved), saved->block_bytes);
    // The pointers lead into the block.
    auto** pointers = reinterpret_cast<void**>(made + 1);
    for (uint32_t i = 0; i < saved->param_count; ++i) {
      const ptrdiff_t at = static_cast<const char*>(saved->original.kernelParams[i]) -
                           reinterpret_cast<const char*>(saved);
      pointers[i] = reinterpret_cast<char*>(made) + at;
    }
    made->original.kernelParams = pointers;
  }
  made->node = copy;
  if (is_same_node(node, copy, made->function)) return put_saved(made);
  g_pool.release(made, made->block_bytes);
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

SavedNode* save_original(const NodeParams& original, NodePlan* plan) {
  SavedNode* saved = save(original, plan->launch);
  if (saved == nullptr) return nullptr;
  const Decision& decision = *plan->launch.decision;
  const Binding& binding = *decision.binding;
  void** const kept = saved->original.kernelParams;
  if (binding.is_identity != 0) {
    plan->params.kernelParams = kept;
    return saved;
  }
  const ArgumentMap* const arguments = decision.snapshot->begin(binding.arguments);
  for (uint32_t i = 0; i < binding.arguments.count; ++i) {
    const ArgumentMap& argument = arguments[i];
    if (argument.kind != ArgumentMap::Kind::pass) continue;
    plan->launch.pointers[i] = static_cast<char*>(kept[argument.param]) + argument.offset;
  }
  return saved;
}

const NodeParams& saved_params(const SavedNode& saved) { return saved.original; }

void release_saved(SavedNode* saved) {
  if (saved != nullptr) g_pool.release(saved, saved->block_bytes);
}

void remember_node(CUgraphNode node, SavedNode* saved) {
  MutexGuard guard(g_lock);
  SavedNode** before = find_saved(node);
  if (saved != nullptr && *before != nullptr) {
    memcpy(saved->cluster, (*before)->cluster, sizeof saved->cluster);
  }
  drop_saved(before);
  if (saved == nullptr) return;
  saved->node = node;
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
  if (!has_saved()) return;
  const CUgraph child = child_of(node);
  if (child != nullptr) forget_graph(child);
  MutexGuard guard(g_lock);
  drop_saved(find_saved(node));
}

void forget_graph(CUgraph graph) {
  if (!has_saved()) return;
  const NodeList nodes(graph);
  for (size_t i = 0; i < nodes.count(); ++i) forget_node(nodes[i]);
}

void remember_copy(CUgraph graph, CUgraph copy) {
  if (!has_saved()) return;
  const NodeList from(graph);
  const NodeList to(copy);
  // The driver copies nodes in order. copy_saved sees for itself that a node holds the same.
  if (from.count() != to.count()) return;
  for (size_t i = 0; i < from.count(); ++i) {
    const CUgraph child = child_of(from[i]);
    const CUgraph child_copy = child == nullptr ? nullptr : child_of(to[i]);
    if (child_copy != nullptr) {
      remember_copy(child, child_copy);
    } else {
      copy_saved(from[i], to[i]);
    }
  }
}

void remember_child_copy(CUgraph graph, CUgraphNode child_node) {
  const CUgraph copy = has_saved() ? child_of(child_node) : nullptr;
  if (copy != nullptr) remember_copy(graph, copy);
}

SavedNode* save_launch(const LaunchRequest& request, const LaunchPlan& plan) {
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
  return save(original, plan);
}

void remember_captured_node(const LaunchRequest& request, SavedNode* saved) {
  const auto get_info = FIBSHIM_REAL(cuStreamGetCaptureInfo_v2);
  CUstream stream = request.stream;
  if (request.is_per_thread_stream && stream == nullptr) stream = CU_STREAM_PER_THREAD;
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  const CUgraphNode* dependencies = nullptr;
  size_t count = 0;
  // What the next node would depend on is the node that this launch has become.
  const bool is_captured =
      get_info != nullptr &&
      get_info(stream, &status, nullptr, nullptr, &dependencies, &count) == CUDA_SUCCESS &&
      status == CU_STREAM_CAPTURE_STATUS_ACTIVE;
  if (is_captured && count == 1) {
    remember_node(dependencies[0], saved);
  } else {
    release_saved(saved);
  }
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
