// Graphs. Nodes hold their parameters by value. An executable graph is a private copy, whose nodes
// run in dependency order when it is launched.
#include <stdlib.h>
#include <string.h>

#include <algorithm>
#include <random>
#include <set>
#include <utility>

#include "tests/driver/later.h"

namespace simcuda {
namespace {

// Requires the lock.
void end_node(Node& node) {
  if (node.child != nullptr) end_graph(*node.child);
  node.child = nullptr;
  for (Graph* body : node.bodies) end_graph(*body);
  driver().pools.nodes.release(&node);
}

// Sorts each node after those that it depends on. Returns false if there is a cycle.
bool order_nodes(const Graph& graph, std::vector<Node*>* order) {
  std::set<const Node*> placed;
  order->clear();
  while (order->size() < graph.nodes.size()) {
    const size_t before = order->size();
    for (Node* node : graph.nodes) {
      if (placed.count(node) != 0) continue;
      const bool is_ready = std::all_of(node->dependencies.begin(), node->dependencies.end(),
                                        [&](const Node* on) { return placed.count(on) != 0; });
      if (!is_ready) continue;
      placed.insert(node);
      order->push_back(node);
    }
    if (order->size() == before) return false;
  }
  return true;
}

const bool g_is_order_random = getenv("SIMCUDA_ORDER") != nullptr;

// Returns a random order that the edges permit. A kernel that does not wait by itself may run
// before a kernel that it depends on by a programmatic edge.
std::vector<Node*> random_order(const Graph& graph) {
  thread_local std::minstd_rand random(
      static_cast<unsigned>(strtoul(getenv("SIMCUDA_ORDER"), nullptr, 10)));
  std::vector<Node*> left = graph.nodes;
  std::vector<Node*> order;
  std::set<const Node*> placed;
  const auto is_ready = [&](const Node* node) {
    const bool waits = node->type != CU_GRAPH_NODE_TYPE_KERNEL || node->kernel.launch.info->waits;
    for (size_t i = 0; i < node->dependencies.size(); ++i) {
      const bool is_early = node->dependency_data[i].type == CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC;
      if ((waits || !is_early) && placed.count(node->dependencies[i]) == 0) return false;
    }
    return true;
  };
  while (!left.empty()) {
    const auto ready = std::partition(left.begin(), left.end(), is_ready);
    const auto one = left.begin() +
                     static_cast<long>(random() % static_cast<unsigned long>(ready - left.begin()));
    placed.insert(*one);
    order.push_back(*one);
    left.erase(one);
  }
  return order;
}

CUDA_KERNEL_NODE_PARAMS_v2 widen(const CUDA_KERNEL_NODE_PARAMS_v1& params) {
  CUDA_KERNEL_NODE_PARAMS_v2 wide{};
  memcpy(&wide, &params, sizeof params);
  return wide;
}

// Copies the params, whose two types have the same members.
CUDA_KERNEL_NODE_PARAMS_v2 narrow(const CUDA_KERNEL_NODE_PARAMS_v3& params) {
  static_assert(sizeof(CUDA_KERNEL_NODE_PARAMS_v2) == sizeof(CUDA_KERNEL_NODE_PARAMS_v3));
  CUDA_KERNEL_NODE_PARAMS_v2 other;
  memcpy(&other, &params, sizeof other);
  return other;
}

// Requires the lock. Copies a kernel's launch into the node; the node's attributes stay.
CUresult set_kernel(Node& node, const CUDA_KERNEL_NODE_PARAMS_v2& params) {
  if (node.type != CU_GRAPH_NODE_TYPE_KERNEL) return CUDA_ERROR_INVALID_VALUE;
  Launch launch{};
  Function* function = nullptr;
  if (params.func != nullptr) {
    // A launch accepts a CUkernel cast to CUfunction. A node's `func` does not; it has `kern`.
    if (find_kernel(params.func) != nullptr)
      crash_like_the_real_driver("the func of a graph's kernel node is a CUkernel");
    function = find_function(params.func);
  } else {
    function = find_kernel(params.kern);
  }
  if (function == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  launch.handle = function;
  launch.generation = function->generation;
  launch.context = function->context;
  if (function->library != nullptr) {
    launch.context = params.func == nullptr ? find_context(params.ctx) : nullptr;
    if (launch.context == nullptr) SIM_TRY(current_context(&launch.context));
  }
  SIM_TRY(code_on(*function, *launch.context->device, &launch.info));
  const uint32_t grid[3] = {params.gridDimX, params.gridDimY, params.gridDimZ};
  const uint32_t block[3] = {params.blockDimX, params.blockDimY, params.blockDimZ};
  memcpy(launch.grid, grid, sizeof grid);
  memcpy(launch.block, block, sizeof block);
  launch.shared_mem = params.sharedMemBytes;
  launch.attributes = node.kernel.attributes.data();
  launch.attribute_count = static_cast<uint32_t>(node.kernel.attributes.size());
  SIM_TRY(check_launch(&launch));
  SIM_TRY(pack_params(*launch.info, params.kernelParams, params.extra, &launch));
  node.kernel = OwnedLaunch(launch);
  return CUDA_SUCCESS;
}

// Requires the lock. A node of a CUkernel returns it and its function, whichever of them it was given.
CUresult get_kernel(const Node& node, CUDA_KERNEL_NODE_PARAMS_v2* params, bool has_kern) {
  if (node.type != CU_GRAPH_NODE_TYPE_KERNEL) return CUDA_ERROR_INVALID_VALUE;
  const Launch& launch = node.kernel.launch;
  Function* handle = launch.handle;
  if (handle->generation != launch.generation ||
      handle->kind.load(std::memory_order_acquire) == Kind::none)
    return CUDA_ERROR_INVALID_HANDLE;
  *params = {};
  Function* const kernel = handle->library != nullptr ? handle : handle->kernel;
  Function* function = handle;
  if (function == kernel) SIM_TRY(function_of_kernel(*kernel, *launch.context, &function));
  params->func = reinterpret_cast<CUfunction>(function);
  if (kernel != nullptr && has_kern) {
    params->kern = reinterpret_cast<CUkernel>(kernel);
    params->ctx = reinterpret_cast<CUcontext>(launch.context);
  }
  params->gridDimX = launch.grid[0];
  params->gridDimY = launch.grid[1];
  params->gridDimZ = launch.grid[2];
  params->blockDimX = launch.block[0];
  params->blockDimY = launch.block[1];
  params->blockDimZ = launch.block[2];
  params->sharedMemBytes = launch.shared_mem;
  params->extra = node.kernel.extra();
  params->kernelParams = node.kernel.param_pointers.empty() || params->extra != nullptr
                             ? nullptr
                             : const_cast<void**>(node.kernel.param_pointers.data());
  return CUDA_SUCCESS;
}

CUresult get_narrow_kernel(const Node& node, CUDA_KERNEL_NODE_PARAMS_v1* params) {
  CUDA_KERNEL_NODE_PARAMS_v2 wide{};
  SIM_TRY(get_kernel(node, &wide, false));
  memcpy(params, &wide, sizeof *params);
  return CUDA_SUCCESS;
}

CUresult set_child(Node& node, const Graph& graph) {
  if (node.type != CU_GRAPH_NODE_TYPE_GRAPH) return CUDA_ERROR_INVALID_VALUE;
  if (!can_be_cloned(graph)) return CUDA_ERROR_NOT_SUPPORTED;
  if (node.child != nullptr) end_graph(*node.child);
  node.child = clone_graph(graph, nullptr);
  node.child->is_owned = true;
  return CUDA_SUCCESS;
}

// Requires the lock. Sets the parameters of a node of any kind that a program can add by
// parameters.
CUresult set_any(Node& node, CUgraphNodeParams& params) {
  if (params.type != node.type) return CUDA_ERROR_INVALID_VALUE;
  switch (params.type) {
    case CU_GRAPH_NODE_TYPE_KERNEL: return set_kernel(node, narrow(params.kernel));
    case CU_GRAPH_NODE_TYPE_MEMSET: {
      const CUDA_MEMSET_NODE_PARAMS_v2& given = params.memset;
      return set_memset(node, {given.dst, given.pitch, given.value, given.elementSize, given.width,
                               given.height});
    }
    case CU_GRAPH_NODE_TYPE_HOST: return set_host(node, params.host.fn, params.host.userData);
    case CU_GRAPH_NODE_TYPE_GRAPH: {
      const Graph* child = find_graph(params.graph.graph);
      return child != nullptr ? set_child(node, *child) : CUDA_ERROR_INVALID_VALUE;
    }
    case CU_GRAPH_NODE_TYPE_MEMCPY: return set_memcpy(node, params.memcpy.copyParams);
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD: return set_event(node, params.eventRecord.event);
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT: return set_event(node, params.eventWait.event);
    case CU_GRAPH_NODE_TYPE_CONDITIONAL: return set_conditional(node, &params.conditional);
    case CU_GRAPH_NODE_TYPE_EMPTY: return CUDA_SUCCESS;
    default: return CUDA_ERROR_NOT_SUPPORTED;
  }
}

// Requires the lock. Returns the exec's own node for a node of the graph that it was made from,
// even if the exec has been updated from another graph since.
Node* copy_of(const GraphExec& exec, CUgraphNode handle) {
  Node* source = find_node(handle);
  if (source == nullptr) return nullptr;
  const auto found = exec.copies.find(source);
  return found != exec.copies.end() && found->second.first == source->generation
             ? found->second.second
             : nullptr;
}

CUresult instantiate(CUgraphExec* handle, CUgraph graph_handle, unsigned long long flags) {
  const Lock guard(driver().lock);
  Graph* source = find_graph(graph_handle);
  if (handle == nullptr || source == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::vector<Node*> order;
  if (!order_nodes(*source, &order)) return CUDA_ERROR_INVALID_VALUE;
  // A graph with memory or conditional nodes has one exec at a time.
  if (!can_be_cloned(*source)) {
    const GraphExec* const last = find_exec(source->last_exec);
    if (last != nullptr && last->generation == source->last_exec_generation) {
      return CUDA_ERROR_NOT_SUPPORTED;
    }
  }
  GraphExec* exec = driver().pools.graph_execs.allocate(Kind::graph_exec);
  exec->graph = clone_graph(*source, &exec->copies);
  exec->graph->is_owned = true;
  order_nodes(*exec->graph, &exec->order);
  exec->flags = flags;
  *handle = reinterpret_cast<CUgraphExec>(exec);
  source->last_exec = *handle;
  source->last_exec_generation = exec->generation;
  return CUDA_SUCCESS;
}

CUresult instantiate_with_log(CUgraphExec* exec, CUgraph graph, CUgraphNode* error_node, char* log,
                              size_t log_size) {
  if (error_node != nullptr) *error_node = nullptr;
  if (log != nullptr && log_size > 0) *log = 0;
  return instantiate(exec, graph, 0);
}

CUresult instantiate_with_params(CUgraphExec* exec, CUgraph graph,
                                 CUDA_GRAPH_INSTANTIATE_PARAMS* params) {
  if (params == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const CUresult error = instantiate(exec, graph, params->flags);
  params->hErrNode_out = nullptr;
  params->result_out =
      error == CUDA_SUCCESS ? CUDA_GRAPH_INSTANTIATE_SUCCESS : CUDA_GRAPH_INSTANTIATE_ERROR;
  return error;
}

CUresult run_nodes(const Graph& graph, const Origin& origin, const Stream& stream,
                   CUstream stream_handle);

}  // namespace

CUresult run_node(const Node& node, const Origin& origin, const Stream& stream,
                  CUstream stream_handle) {
  if (!node.is_enabled) return CUDA_SUCCESS;
  if (node.type == CU_GRAPH_NODE_TYPE_KERNEL) {
    const Launch& launch = node.kernel.launch;
    if (launch.handle->generation != launch.generation ||
        launch.handle->kind.load(std::memory_order_acquire) == Kind::none) {
      g_stale_launches.fetch_add(1, std::memory_order_relaxed);
      return CUDA_ERROR_INVALID_HANDLE;
    }
    if (g_has_faults.load(std::memory_order_relaxed)) {
      SIM_TRY(find_fault(origin.api, launch.info->name.c_str()));
    }
    run_launch(launch, origin, stream, stream_handle);
  } else if (node.child != nullptr) {
    return run_nodes(*node.child, origin, stream, stream_handle);
  } else if (node.type == CU_GRAPH_NODE_TYPE_CONDITIONAL) {
    const size_t body = node.condition ? 0 : 1;
    if (body >= node.bodies.size()) return CUDA_SUCCESS;
    return run_nodes(*node.bodies[body], origin, stream, stream_handle);
  } else if (node.action) {
    node.action();
  }
  return CUDA_SUCCESS;
}

std::vector<Node*> order_of(const Graph& graph) {
  std::vector<Node*> order;
  if (g_is_order_random) {
    order = random_order(graph);
  } else {
    order_nodes(graph, &order);
  }
  return order;
}

namespace {

CUresult run_nodes(const std::vector<Node*>& order, const Origin& origin, const Stream& stream,
                   CUstream stream_handle) {
  for (const Node* node : order) {
    SIM_TRY(run_node(*node, origin, stream, stream_handle));
  }
  return CUDA_SUCCESS;
}

CUresult run_nodes(const Graph& graph, const Origin& origin, const Stream& stream,
                   CUstream stream_handle) {
  return run_nodes(order_of(graph), origin, stream, stream_handle);
}

// Copies a graph with its nodes enabled or disabled as they are.
Graph* copy_as_it_is(const Graph& graph) {
  NodeCopies copies;
  Graph* const copy = clone_graph(graph, &copies);
  for (const auto& [from, to] : copies) to.second->is_enabled = from->is_enabled;
  return copy;
}

CUresult launch_graph(Api api, bool is_ptsz, CUgraphExec handle, CUstream stream_handle,
                      Context* context) {
  SIM_GET(Stream*, stream, find_stream(stream_handle, is_ptsz, context, &stream));
  SIM_FIND(exec, find_exec(handle), CUDA_ERROR_INVALID_VALUE);
  if (stream->is_capturing.load(std::memory_order_acquire)) {
    const Lock guard(driver().lock);
    if (stream->capture != nullptr) {
      if (stream->capture->is_invalid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
      stream->capture->is_invalid = true;
      return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
  }
  SIM_TRY(check_legacy_rule(*stream));
  const Origin origin = {api, is_ptsz, true, false};
  if (runs_later()) {
    Graph* copy = nullptr;
    {
      const Lock guard(driver().lock);
      copy = copy_as_it_is(*exec->graph);
    }
    put_off(exec, copy, origin, stream, stream_handle);
    return CUDA_SUCCESS;
  }
  return g_is_order_random ? run_nodes(*exec->graph, origin, *stream, stream_handle)
                           : run_nodes(exec->order, origin, *stream, stream_handle);
}

CUresult upload_graph(Api api, bool is_ptsz, CUgraphExec handle, CUstream stream_handle,
                      Context* context) {
  SIM_FIND(exec, find_exec(handle), CUDA_ERROR_INVALID_VALUE);
  if (!runs_later()) return CUDA_SUCCESS;
  SIM_GET(Stream*, stream, find_stream(stream_handle, is_ptsz, context, &stream));
  put_off(exec, nullptr, {api, is_ptsz, true, false}, stream, stream_handle);
  return CUDA_SUCCESS;
}

bool is_updatable(const Node& node) {
  return std::any_of(node.kernel.attributes.begin(), node.kernel.attributes.end(),
                     [](const CUlaunchAttribute& one) {
                       return one.id == CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE &&
                              one.value.deviceUpdatableKernelNode.deviceUpdatable != 0;
                     });
}

// Requires the lock.
bool has_updatable(const Graph& graph) {
  return std::any_of(graph.nodes.begin(), graph.nodes.end(), [](const Node* node) {
    return is_updatable(*node) || (node->child != nullptr && has_updatable(*node->child));
  });
}

// Requires the lock. Checks whether `exec` can take the parameters of `graph`: same nodes, same
// edges.
CUgraphExecUpdateResult compare(const Graph& exec, const Graph& graph, const Node** culprit) {
  if (exec.nodes.size() != graph.nodes.size()) return CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
  std::map<const Node*, size_t> exec_index, graph_index;
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    exec_index[exec.nodes[i]] = i;
    graph_index[graph.nodes[i]] = i;
  }
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    const Node& before = *exec.nodes[i];
    const Node& after = *graph.nodes[i];
    *culprit = &after;
    if (before.type != after.type) return CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED;
    std::set<size_t> edges_before, edges_after;
    for (const Node* on : before.dependencies) edges_before.insert(exec_index[on]);
    for (const Node* on : after.dependencies) edges_after.insert(graph_index[on]);
    const auto has_data = [](const Node& node) {
      return std::any_of(node.dependency_data.begin(), node.dependency_data.end(),
                         [](const CUgraphEdgeData& data) { return data.type != 0; });
    };
    if (edges_before != edges_after || has_data(before) != has_data(after))
      return CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
    if (before.type == CU_GRAPH_NODE_TYPE_KERNEL &&
        before.kernel.launch.context != after.kernel.launch.context)
      return CU_GRAPH_EXEC_UPDATE_ERROR_UNSUPPORTED_FUNCTION_CHANGE;
    if (before.kernel.launch.is_cooperative != after.kernel.launch.is_cooperative)
      return CU_GRAPH_EXEC_UPDATE_ERROR_ATTRIBUTES_CHANGED;
    if (before.child != nullptr) {
      const CUgraphExecUpdateResult result = compare(*before.child, *after.child, culprit);
      if (result != CU_GRAPH_EXEC_UPDATE_SUCCESS) return result;
    }
    if (before.bodies.size() != after.bodies.size())
      return CU_GRAPH_EXEC_UPDATE_ERROR_PARAMETERS_CHANGED;
    for (size_t k = 0; k < before.bodies.size(); ++k) {
      const CUgraphExecUpdateResult result = compare(*before.bodies[k], *after.bodies[k], culprit);
      if (result != CU_GRAPH_EXEC_UPDATE_SUCCESS) return result;
    }
  }
  *culprit = nullptr;
  return CU_GRAPH_EXEC_UPDATE_SUCCESS;
}

// Copies all but the attributes, which stay (driver_facts.md, section 8).
void take_kernel(OwnedLaunch& to, const OwnedLaunch& from) {
  Launch launch = from.launch;
  launch.attributes = to.launch.attributes;
  launch.attribute_count = to.launch.attribute_count;
  memcpy(launch.cluster, to.launch.cluster, sizeof launch.cluster);
  to = OwnedLaunch(launch);
}

// Requires the lock.
void take_params(Graph& exec, const Graph& graph) {
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    Node& to = *exec.nodes[i];
    Node& from = *graph.nodes[i];
    if (to.type == CU_GRAPH_NODE_TYPE_KERNEL) take_kernel(to.kernel, from.kernel);
    to.action = from.action;
    to.memset_params = from.memset_params;
    to.memcpy_params = from.memcpy_params;
    to.host_params = from.host_params;
    to.event = from.event;
    if (to.child != nullptr) take_params(*to.child, *from.child);
    to.condition = from.condition;
    for (size_t k = 0; k < to.bodies.size(); ++k) take_params(*to.bodies[k], *from.bodies[k]);
  }
  const UserObjects before = std::exchange(exec.objects, {});
  hold_objects(exec, graph.objects);
  release_objects(before);
}

CUresult update_exec(CUgraphExec exec_handle, CUgraph graph_handle, CUgraphNode* error_node,
                     CUgraphExecUpdateResult* result_out) {
  const Lock guard(driver().lock);
  GraphExec* exec = find_exec(exec_handle);
  const Graph* graph = find_graph(graph_handle);
  if (exec == nullptr || graph == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const Node* culprit = nullptr;
  if (has_updatable(*exec->graph) || has_updatable(*graph)) return CUDA_ERROR_NOT_SUPPORTED;
  const CUgraphExecUpdateResult result = compare(*exec->graph, *graph, &culprit);
  if (result_out != nullptr) *result_out = result;
  if (error_node != nullptr)
    *error_node = reinterpret_cast<CUgraphNode>(const_cast<Node*>(culprit));
  if (result != CU_GRAPH_EXEC_UPDATE_SUCCESS) return CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
  take_params(*exec->graph, *graph);
  return CUDA_SUCCESS;
}

// Requires the lock. Writes handles as the API does: only the count if `handles` is null.
template <class T>
CUresult list_nodes(const std::vector<Node*>& nodes, T* handles, size_t* count) {
  if (count == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (handles == nullptr) {
    *count = nodes.size();
    return CUDA_SUCCESS;
  }
  for (size_t i = 0; i < *count; ++i)
    handles[i] = i < nodes.size() ? reinterpret_cast<T>(nodes[i]) : nullptr;
  *count = std::min(*count, nodes.size());
  return CUDA_SUCCESS;
}

// Attributes of a kernel node are kept in its launch; cluster and cooperative also set members of
// it.
CUresult set_kernel_attribute(Node& node, CUlaunchAttributeID id,
                              const CUlaunchAttributeValue& value) {
  if (node.type != CU_GRAPH_NODE_TYPE_KERNEL) return CUDA_ERROR_INVALID_VALUE;
  Launch launch = node.kernel.launch;
  std::vector<CUlaunchAttribute> attributes = node.kernel.attributes;
  const auto place = std::find_if(attributes.begin(), attributes.end(),
                                  [id](const CUlaunchAttribute& one) { return one.id == id; });
  if (place != attributes.end()) {
    place->value = value;
  } else {
    CUlaunchAttribute added{};
    added.id = id;
    added.value = value;
    attributes.push_back(added);
  }
  launch.attributes = attributes.data();
  launch.attribute_count = static_cast<uint32_t>(attributes.size());
  SIM_TRY(check_launch(&launch));
  node.kernel = OwnedLaunch(launch);
  return CUDA_SUCCESS;
}

}  // namespace

Graph* make_graph() { return driver().pools.graphs.allocate(Kind::graph); }

void end_graph(Graph& graph) {
  for (Node* node : graph.nodes) end_node(*node);
  graph.nodes.clear();
  release_objects(std::exchange(graph.objects, {}));
  driver().pools.graphs.release(&graph);
}

Node* make_node(Graph& graph, CUgraphNodeType type) {
  Node* node = driver().pools.nodes.allocate(Kind::node);
  node->graph = &graph;
  node->type = type;
  graph.nodes.push_back(node);
  return node;
}

Node* node_of(CUgraphExec handle, CUgraphNode node) {
  const GraphExec* exec = find_exec(handle);
  return exec != nullptr ? copy_of(*exec, node) : nullptr;
}

// Adds edges from the named nodes to a new one.
static CUresult link_dependencies(Graph& graph, Node& node, const CUgraphNode* dependencies,
                                  const CUgraphEdgeData* edges, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    Node* on = find_node(dependencies[i]);
    if (on == nullptr || on->graph != &graph) return CUDA_ERROR_INVALID_VALUE;
    add_dependency(node, *on, edges == nullptr ? CUgraphEdgeData{} : edges[i]);
  }
  return CUDA_SUCCESS;
}

CUresult add_node(CUgraphNode* handle, CUgraph graph_handle, const CUgraphNode* dependencies,
                  const CUgraphEdgeData* edges, size_t count, CUgraphNodeType type,
                  const std::function<CUresult(Node&)>& fill) {
  Graph* graph = find_graph(graph_handle);
  if (graph == nullptr || handle == nullptr || (count > 0 && dependencies == nullptr))
    return CUDA_ERROR_INVALID_VALUE;
  Node* node = make_node(*graph, type);
  CUresult result = link_dependencies(*graph, *node, dependencies, edges, count);
  if (result == CUDA_SUCCESS) result = fill(*node);
  if (result != CUDA_SUCCESS) {
    graph->nodes.pop_back();
    end_node(*node);
    return result;
  }
  *handle = reinterpret_cast<CUgraphNode>(node);
  return CUDA_SUCCESS;
}

Graph* clone_graph(const Graph& source, NodeCopies* copies) {
  Graph* graph = make_graph();
  std::map<const Node*, Node*> made;
  for (Node* from : source.nodes) {
    Node* to = make_node(*graph, from->type);
    to->kernel = from->kernel;
    to->action = from->action;
    to->memset_params = from->memset_params;
    to->memcpy_params = from->memcpy_params;
    to->host_params = from->host_params;
    to->event = from->event;
    to->memory = from->memory;
    to->condition = from->condition;
    for (const Graph* body : from->bodies) {
      to->bodies.push_back(clone_graph(*body, copies));
      to->bodies.back()->is_owned = true;
    }
    if (from->child != nullptr) {
      to->child = clone_graph(*from->child, copies);
      to->child->is_owned = true;
    }
    made[from] = to;
    graph->originals[from] = {from->generation, to};
    if (copies != nullptr) (*copies)[from] = {from->generation, to};
  }
  for (const Node* from : source.nodes) {
    for (const Node* on : from->dependencies) made[from]->dependencies.push_back(made[on]);
    made[from]->dependency_data = from->dependency_data;
  }
  hold_objects(*graph, source.objects);
  return graph;
}

}  // namespace simcuda

using namespace simcuda;

extern "C" {

CUresult cuGraphCreate(CUgraph* graph, unsigned int flags) {
  SIM_ENTER(cuGraphCreate);
  if (graph == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  const Lock guard(driver().lock);
  *graph = reinterpret_cast<CUgraph>(make_graph());
  return CUDA_SUCCESS;
}
CUresult cuGraphDestroy(CUgraph handle) {
  SIM_ENTER_LOCKED(cuGraphDestroy);
  Graph* graph = find_graph(handle);
  if (graph == nullptr || graph->is_owned) return CUDA_ERROR_INVALID_VALUE;
  end_graph(*graph);
  return CUDA_SUCCESS;
}
CUresult cuGraphClone(CUgraph* clone, CUgraph handle) {
  SIM_ENTER_LOCKED(cuGraphClone);
  const Graph* graph = find_graph(handle);
  if (graph == nullptr || clone == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!can_be_cloned(*graph)) return CUDA_ERROR_NOT_SUPPORTED;
  *clone = reinterpret_cast<CUgraph>(clone_graph(*graph, nullptr));
  return CUDA_SUCCESS;
}

// Finds only nodes of the cloned graph itself; nodes of its child graphs must be looked up in the
// clone's child graphs.
CUresult cuGraphNodeFindInClone(CUgraphNode* found, CUgraphNode original, CUgraph clone) {
  SIM_ENTER_LOCKED(cuGraphNodeFindInClone);
  const Graph* graph = find_graph(clone);
  Node* node = find_node(original);
  if (found == nullptr || graph == nullptr || node == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const auto at = graph->originals.find(node);
  if (at == graph->originals.end() || at->second.first != node->generation)
    return CUDA_ERROR_INVALID_VALUE;
  *found = reinterpret_cast<CUgraphNode>(at->second.second);
  return CUDA_SUCCESS;
}

ADD_NODE(cuGraphAddKernelNode, (const CUDA_KERNEL_NODE_PARAMS_v1* params), params != nullptr,
         CU_GRAPH_NODE_TYPE_KERNEL, set_kernel(made, widen(*params)))
ADD_NODE(cuGraphAddKernelNode_v2, (const CUDA_KERNEL_NODE_PARAMS_v2* params), params != nullptr,
         CU_GRAPH_NODE_TYPE_KERNEL, set_kernel(made, *params))
ADD_NODE(cuGraphAddNode, (CUgraphNodeParams * params), params != nullptr, params->type,
         set_any(made, *params))
ADD_NODE(cuGraphAddChildGraphNode, (CUgraph child), find_graph(child) != nullptr,
         CU_GRAPH_NODE_TYPE_GRAPH, set_child(made, *find_graph(child)))
ENTRY_LOCKED(cuGraphAddNode_v2,
             (CUgraphNode * node, CUgraph graph, const CUgraphNode* dependencies,
              const CUgraphEdgeData* edges, size_t count, CUgraphNodeParams* params),
             params == nullptr ? CUDA_ERROR_INVALID_VALUE
                               : add_node(node, graph, dependencies, edges, count, params->type,
                                          [&](Node& made) { return set_any(made, *params); }))
ENTRY_LOCKED(cuGraphAddEmptyNode,
             (CUgraphNode * node, CUgraph graph, const CUgraphNode* dependencies, size_t count),
             add_node(node, graph, dependencies, nullptr, count, CU_GRAPH_NODE_TYPE_EMPTY,
                      [](Node&) { return CUDA_SUCCESS; }))

ON_NODE(cuGraphKernelNodeGetParams, (CUgraphNode handle, CUDA_KERNEL_NODE_PARAMS_v1* params),
        find_node(handle), params, get_narrow_kernel(*node, params))
ON_NODE(cuGraphKernelNodeGetParams_v2, (CUgraphNode handle, CUDA_KERNEL_NODE_PARAMS_v2* params),
        find_node(handle), params, get_kernel(*node, params, true))
ON_NODE(cuGraphKernelNodeSetParams, (CUgraphNode handle, const CUDA_KERNEL_NODE_PARAMS_v1* params),
        find_node(handle), params, set_kernel(*node, widen(*params)))
ON_NODE(cuGraphKernelNodeSetParams_v2,
        (CUgraphNode handle, const CUDA_KERNEL_NODE_PARAMS_v2* params), find_node(handle), params,
        set_kernel(*node, *params))
ON_NODE(cuGraphKernelNodeSetAttribute,
        (CUgraphNode handle, CUkernelNodeAttrID id, const CUkernelNodeAttrValue* value),
        find_node(handle), value, set_kernel_attribute(*node, id, *value))
ON_NODE(cuGraphNodeSetParams, (CUgraphNode handle, CUgraphNodeParams* params), find_node(handle),
        params, set_any(*node, *params))
ON_NODE(cuGraphExecKernelNodeSetParams,
        (CUgraphExec exec, CUgraphNode handle, const CUDA_KERNEL_NODE_PARAMS_v1* params),
        node_of(exec, handle), params, set_kernel(*node, widen(*params)))
ON_NODE(cuGraphExecKernelNodeSetParams_v2,
        (CUgraphExec exec, CUgraphNode handle, const CUDA_KERNEL_NODE_PARAMS_v2* params),
        node_of(exec, handle), params, set_kernel(*node, *params))
ON_NODE(cuGraphExecNodeSetParams, (CUgraphExec exec, CUgraphNode handle, CUgraphNodeParams* params),
        node_of(exec, handle), params, set_any(*node, *params))
CUresult cuGraphKernelNodeGetAttribute(CUgraphNode handle, CUkernelNodeAttrID id,
                                       CUkernelNodeAttrValue* value) {
  SIM_ENTER_LOCKED(cuGraphKernelNodeGetAttribute);
  const Node* node = find_node(handle);
  if (node == nullptr || value == nullptr || node->type != CU_GRAPH_NODE_TYPE_KERNEL)
    return CUDA_ERROR_INVALID_VALUE;
  memset(value, 0, sizeof *value);
  for (const CUlaunchAttribute& attribute : node->kernel.attributes)
    if (attribute.id == id) *value = attribute.value;
  return CUDA_SUCCESS;
}
CUresult cuGraphKernelNodeCopyAttributes(CUgraphNode to_handle, CUgraphNode from_handle) {
  SIM_ENTER_LOCKED(cuGraphKernelNodeCopyAttributes);
  Node* to = find_node(to_handle);
  const Node* from = find_node(from_handle);
  if (to == nullptr || from == nullptr || from->type != CU_GRAPH_NODE_TYPE_KERNEL)
    return CUDA_ERROR_INVALID_VALUE;
  for (const CUlaunchAttribute& attribute : from->kernel.attributes) {
    SIM_TRY(set_kernel_attribute(*to, attribute.id, attribute.value));
  }
  return CUDA_SUCCESS;
}

CUresult cuGraphChildGraphNodeGetGraph(CUgraphNode handle, CUgraph* graph) {
  SIM_ENTER(cuGraphChildGraphNodeGetGraph);
  const Node* node = find_node(handle);
  if (node == nullptr || node->child == nullptr || graph == nullptr)
    return CUDA_ERROR_INVALID_VALUE;
  *graph = reinterpret_cast<CUgraph>(node->child);
  return CUDA_SUCCESS;
}
CUresult cuGraphDestroyNode(CUgraphNode handle) {
  SIM_ENTER_LOCKED(cuGraphDestroyNode);
  SIM_FIND(node, find_node(handle), CUDA_ERROR_INVALID_VALUE);
  auto& nodes = node->graph->nodes;
  nodes.erase(std::remove(nodes.begin(), nodes.end(), node), nodes.end());
  for (Node* other : nodes) remove_dependency(*other, *node);
  end_node(*node);
  return CUDA_SUCCESS;
}

CUresult cuGraphGetNodes(CUgraph handle, CUgraphNode* nodes, size_t* count) {
  SIM_ENTER_LOCKED(cuGraphGetNodes);
  const Graph* graph = find_graph(handle);
  return graph != nullptr ? list_nodes(graph->nodes, nodes, count) : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuGraphGetRootNodes(CUgraph handle, CUgraphNode* nodes, size_t* count) {
  SIM_ENTER_LOCKED(cuGraphGetRootNodes);
  SIM_FIND(graph, find_graph(handle), CUDA_ERROR_INVALID_VALUE);
  std::vector<Node*> roots;
  for (Node* node : graph->nodes)
    if (node->dependencies.empty()) roots.push_back(node);
  return list_nodes(roots, nodes, count);
}
CUresult cuGraphNodeGetType(CUgraphNode handle, CUgraphNodeType* type) {
  SIM_ENTER(cuGraphNodeGetType);
  const Node* node = find_node(handle);
  if (node == nullptr || type == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *type = node->type;
  return CUDA_SUCCESS;
}
ENTRY(cuGraphInstantiate,
      (CUgraphExec * exec, CUgraph graph, CUgraphNode* error_node, char* log, size_t log_size),
      instantiate_with_log(exec, graph, error_node, log, log_size))
ENTRY(cuGraphInstantiate_v2,
      (CUgraphExec * exec, CUgraph graph, CUgraphNode* error_node, char* log, size_t log_size),
      instantiate_with_log(exec, graph, error_node, log, log_size))
ENTRY(cuGraphInstantiateWithFlags, (CUgraphExec * exec, CUgraph graph, unsigned long long flags),
      instantiate(exec, graph, flags))
ENTRY(cuGraphInstantiateWithParams,
      (CUgraphExec * exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS* params),
      instantiate_with_params(exec, graph, params))
ENTRY(cuGraphInstantiateWithParams_ptsz,
      (CUgraphExec * exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS* params),
      instantiate_with_params(exec, graph, params))
ENTRY(cuGraphExecUpdate,
      (CUgraphExec exec, CUgraph graph, CUgraphNode* error_node, CUgraphExecUpdateResult* result),
      update_exec(exec, graph, error_node, result))
CUresult cuGraphExecUpdate_v2(CUgraphExec exec, CUgraph graph, CUgraphExecUpdateResultInfo* info) {
  SIM_ENTER(cuGraphExecUpdate_v2);
  if (info == nullptr) return CUDA_ERROR_INVALID_VALUE;
  info->errorFromNode = nullptr;
  return update_exec(exec, graph, &info->errorNode, &info->result);
}
ON_NODE(cuGraphExecChildGraphNodeSetParams, (CUgraphExec exec, CUgraphNode handle, CUgraph child),
        node_of(exec, handle), find_graph(child), set_child(*node, *find_graph(child)))
CUresult cuGraphExecGetFlags(CUgraphExec handle, cuuint64_t* flags) {
  SIM_ENTER_LOCKED(cuGraphExecGetFlags);
  SIM_FIND(exec, find_exec(handle), CUDA_ERROR_INVALID_VALUE);
  // Flags that only concern the instantiation are not returned.
  return give(flags, exec->flags & ~cuuint64_t{CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD |
                                               CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY});
}
CUresult cuGraphExecDestroy(CUgraphExec handle) {
  SIM_ENTER_LOCKED(cuGraphExecDestroy);
  SIM_FIND(exec, find_exec(handle), CUDA_ERROR_INVALID_VALUE);
  end_graph(*exec->graph);
  driver().pools.graph_execs.release(exec);
  return CUDA_SUCCESS;
}

ENTRY_PTSZ(cuGraphUpload, (CUgraphExec exec, CUstream stream),
           upload_graph(api, is_ptsz, exec, stream, context))
ENTRY_PTSZ(cuGraphLaunch, (CUgraphExec exec, CUstream stream),
           launch_graph(api, is_ptsz, exec, stream, context))

int simcuda_node(void* node_handle, void* exec_handle, SimcudaLaunch* launch) {
  const Lock guard(driver().lock);
  const Node* node = find_node(static_cast<CUgraphNode>(node_handle));
  if (node != nullptr && exec_handle != nullptr)
    node = node_of(static_cast<CUgraphExec>(exec_handle), static_cast<CUgraphNode>(node_handle));
  if (node == nullptr || node->type != CU_GRAPH_NODE_TYPE_KERNEL) return 0;
  describe(node->kernel.launch, launch);
  return 1;
}

}  // extern "C"
