#include "shim/graphs/graphs.h"

#include <string.h>

#include "shim/base/hash_map.h"
#include "shim/base/mutex.h"
#include "shim/base/pool.h"
#include "shim/driver/driver.h"

namespace fibshim {

// The arrays follow it in the same block.
struct SavedNode {
  uint64_t key;  // the node
  SavedNode* next;
  uint32_t block_bytes;
  uint32_t param_count;
  NodeParams original;  // kernelParams points into this block
  // What was put in its place, to tell whether the node still holds it.
  CUkernel kernel;
  CUfunction launched;  // as it was launched into a capture
  uint32_t launched_param_count;
  uint32_t geometry[7];
  uint32_t cluster[3];           // the original's, where the host has given it one
  uint32_t replaced_cluster[3];  // the replacement's, where it has one
};

namespace {

constinit Mutex g_lock;  // guards the map
constinit Pool g_pool;
constinit HashMap<SavedNode> g_saved{&g_pool};

uint64_t key_of(CUgraphNode node) { return reinterpret_cast<uint64_t>(node); }

// Holding g_lock.
SavedNode* find_saved(CUgraphNode node) { return g_saved.get(key_of(node)); }

// Holding g_lock.
void drop_saved(CUgraphNode node) {
  SavedNode* const saved = g_saved.take(key_of(node));
  if (saved != nullptr) g_pool.release(saved, saved->block_bytes);
}

void copy_geometry(const NodeParams& params, uint32_t (&out)[7]) {
  const uint32_t values[7] = {params.gridDimX,      params.gridDimY,  params.gridDimZ,
                              params.blockDimX,     params.blockDimY, params.blockDimZ,
                              params.sharedMemBytes};
  memcpy(out, values, sizeof out);
}

// Whether a node holds the replacement, in whichever form the driver reads its kernel. Where the driver does not
// tell, it is taken for it: the host must not be shown a kernel that is not its own.
bool holds_replacement(const NodeParams& current, CUkernel kernel, CUfunction launched) {
  if (current.kern == kernel || (current.func != nullptr && current.func == launched)) return true;
  const auto get_function = FIBSHIM_REAL(cuKernelGetFunction);
  CUfunction in_context = nullptr;
  return current.func != nullptr &&
         (get_function == nullptr || get_function(&in_context, kernel) != CUDA_SUCCESS ||
          in_context == current.func);
}

bool has_saved() {
  MutexGuard guard(g_lock);
  return g_saved.count() != 0;
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
bool is_same_node(CUgraphNode one, CUgraphNode other, const SavedNode& saved) {
  const auto get_params = FIBSHIM_REAL(cuGraphKernelNodeGetParams_v2);
  const auto get_info = FIBSHIM_REAL(cuKernelGetParamInfo);
  NodeParams first;
  NodeParams second;
  memset(&first, 0, sizeof first);
  memset(&second, 0, sizeof second);
  if (get_params == nullptr || get_info == nullptr || get_params(one, &first) != CUDA_SUCCESS ||
      get_params(other, &second) != CUDA_SUCCESS ||
      !holds_replacement(first, saved.kernel, saved.launched) ||
      !holds_replacement(second, saved.kernel, saved.launched)) {
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
  for (uint32_t i = 0; i < saved.launched_param_count; ++i) {
    // Where the driver does not tell, as in a thread without a context, it is taken for the same.
    if (get_info(saved.kernel, i, &offset, &size) != CUDA_SUCCESS) return true;
    if (memcmp(first.kernelParams[i], second.kernelParams[i], size) != 0) return false;
  }
  return true;
}

// In the place of what is there.
void put_saved(CUgraphNode node, SavedNode* saved) {
  MutexGuard guard(g_lock);
  drop_saved(node);
  saved->key = key_of(node);
  if (!g_saved.insert(saved)) g_pool.release(saved, saved->block_bytes);
}

// What was kept of a node is kept of its copy.
void copy_saved(CUgraphNode node, CUgraphNode copy) {
  SavedNode* made = nullptr;
  {
    MutexGuard guard(g_lock);
    const SavedNode* const saved = find_saved(node);
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
  if (is_same_node(node, copy, *made)) return put_saved(copy, made);
  g_pool.release(made, made->block_bytes);
}

}  // namespace

SavedNode* save_node(const NodeParams& original, const LaunchPlan& plan) {
  const Record& record = *plan.record;
  const size_t pointer_bytes = record.param_count * sizeof(void*);
  const size_t block_bytes = sizeof(SavedNode) + pointer_bytes + record.params_bytes;
  auto* const saved = static_cast<SavedNode*>(g_pool.allocate(block_bytes));
  if (saved == nullptr) return nullptr;
  auto** const pointers = reinterpret_cast<void**>(saved + 1);
  char* const bytes = reinterpret_cast<char*>(pointers) + pointer_bytes;
  for (uint32_t i = 0; i < record.param_count; ++i) {
    const Param& param = record.params[i];
    memcpy(bytes + param.offset, plan.arguments[i], param.size);
    pointers[i] = bytes + param.offset;
  }
  saved->block_bytes = static_cast<uint32_t>(block_bytes);
  saved->param_count = record.param_count;
  saved->original = original;
  saved->original.kernelParams = pointers;
  saved->original.extra = nullptr;
  saved->kernel = plan.decision->node_kernel;
  saved->launched = plan.decision->kernel;
  saved->launched_param_count = plan.decision->binding->arguments.count;
  for (int i = 0; i < 3 && has_cluster(plan); ++i) {
    saved->replaced_cluster[i] = plan.geometry[kClusterX + i];
  }
  memcpy(saved->geometry, plan.geometry, 6 * sizeof plan.geometry[0]);
  saved->geometry[6] = plan.geometry[kSharedMem];
  return saved;
}

const NodeParams& saved_params(const SavedNode& saved) { return saved.original; }

void release_saved(SavedNode* saved) {
  if (saved != nullptr) g_pool.release(saved, saved->block_bytes);
}

void remember_node(CUgraphNode node, SavedNode* saved) {
  {
    MutexGuard guard(g_lock);
    const SavedNode* const before = find_saved(node);
    if (saved != nullptr && before != nullptr) {
      memcpy(saved->cluster, before->cluster, sizeof saved->cluster);
    }
    if (saved == nullptr) return drop_saved(node);
  }
  put_saved(node, saved);
}

bool find_original_params(CUgraphNode node, const NodeParams& current, NodeParams* original) {
  CUkernel kernel = nullptr;
  CUfunction launched = nullptr;
  {
    MutexGuard guard(g_lock);
    const SavedNode* const saved = find_saved(node);
    if (saved == nullptr) return false;
    uint32_t geometry[7];
    copy_geometry(current, geometry);
    if (memcmp(geometry, saved->geometry, sizeof geometry) != 0) return false;
    kernel = saved->kernel;
    launched = saved->launched;
    *original = saved->original;
  }
  // The node's value may have been reused for a node that we know nothing of.
  if (holds_replacement(current, kernel, launched)) return true;
  forget_node(node);
  return false;
}

bool keep_original_cluster(CUgraphNode node, const uint32_t (&cluster)[3]) {
  MutexGuard guard(g_lock);
  SavedNode* const saved = find_saved(node);
  if (saved == nullptr) return false;
  memcpy(saved->cluster, cluster, sizeof cluster);
  return true;
}

bool find_replaced_cluster(CUgraphNode node, uint32_t (&original)[3], uint32_t (&replaced)[3]) {
  MutexGuard guard(g_lock);
  const SavedNode* const saved = find_saved(node);
  if (saved == nullptr || saved->replaced_cluster[0] == 0) return false;
  for (int i = 0; i < 3; ++i) original[i] = saved->cluster[i] == 0 ? 1 : saved->cluster[i];
  memcpy(replaced, saved->replaced_cluster, sizeof replaced);
  return true;
}

bool is_redirected_node(CUgraphNode node) {
  MutexGuard guard(g_lock);
  return find_saved(node) != nullptr;
}

void forget_node(CUgraphNode node) {
  if (!has_saved()) return;
  const CUgraph child = child_of(node);
  if (child != nullptr) forget_graph(child);
  MutexGuard guard(g_lock);
  drop_saved(node);
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

void lock_graphs_for_fork() {
  g_lock.lock();
  g_pool.lock_for_fork();
}

void unlock_graphs_after_fork(bool is_child) {
  g_pool.unlock_after_fork(is_child);
  g_lock.unlock_after_fork(is_child);
}

}  // namespace fibshim
