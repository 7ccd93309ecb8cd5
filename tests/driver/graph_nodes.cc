// Nodes that are no kernels: copies, fills, host functions, events, memory and conditional nodes.
#include <string.h>

#include <vector>

#include "tests/driver/graph.h"

namespace simcuda {
namespace {

const uint8_t* source_of(const CUDA_MEMCPY3D& copy) {
  return copy.srcMemoryType == CU_MEMORYTYPE_HOST
             ? static_cast<const uint8_t*>(copy.srcHost)
             : reinterpret_cast<const uint8_t*>(copy.srcDevice);
}
uint8_t* target_of(const CUDA_MEMCPY3D& copy) {
  return copy.dstMemoryType == CU_MEMORYTYPE_HOST ? static_cast<uint8_t*>(copy.dstHost)
                                                  : reinterpret_cast<uint8_t*>(copy.dstDevice);
}

bool is_linear(CUmemorytype type) {
  return type == CU_MEMORYTYPE_HOST || type == CU_MEMORYTYPE_DEVICE ||
         type == CU_MEMORYTYPE_UNIFIED;
}

void copy_3d(const CUDA_MEMCPY3D& copy) {
  const size_t source_height = copy.srcHeight != 0 ? copy.srcHeight : copy.Height;
  const size_t target_height = copy.dstHeight != 0 ? copy.dstHeight : copy.Height;
  const size_t source_pitch = copy.srcPitch != 0 ? copy.srcPitch : copy.WidthInBytes;
  const size_t target_pitch = copy.dstPitch != 0 ? copy.dstPitch : copy.WidthInBytes;
  for (size_t z = 0; z < copy.Depth; ++z) {
    for (size_t y = 0; y < copy.Height; ++y) {
      const size_t from = ((z + copy.srcZ) * source_height + y + copy.srcY) * source_pitch;
      const size_t to = ((z + copy.dstZ) * target_height + y + copy.dstY) * target_pitch;
      memcpy(target_of(copy) + to + copy.dstXInBytes, source_of(copy) + from + copy.srcXInBytes,
             copy.WidthInBytes);
    }
  }
}

// A node of an exec keeps the direction of its copy.
CUresult set_exec_memcpy(Node& node, const CUDA_MEMCPY3D& params) {
  if (node.type != CU_GRAPH_NODE_TYPE_MEMCPY ||
      params.srcMemoryType != node.memcpy_params.srcMemoryType ||
      params.dstMemoryType != node.memcpy_params.dstMemoryType)
    return CUDA_ERROR_INVALID_VALUE;
  return set_memcpy(node, params);
}

CUresult set_memory(Node& node, CUDA_MEM_ALLOC_NODE_PARAMS* params) {
  // Its address is there before it is: it lives as long as the graph here.
  node.memory.assign(params->bytesize, 0);
  params->dptr = reinterpret_cast<CUdeviceptr>(node.memory.data());
  return CUDA_SUCCESS;
}

CUresult of_type(Node& node, CUgraphNodeType type, const std::function<CUresult()>& fill) {
  return node.type == type ? fill() : CUDA_ERROR_INVALID_VALUE;
}

}  // namespace

CUresult set_memset(Node& node, const CUDA_MEMSET_NODE_PARAMS& params) {
  if (node.type != CU_GRAPH_NODE_TYPE_MEMSET ||
      (params.elementSize != 1 && params.elementSize != 2 && params.elementSize != 4))
    return CUDA_ERROR_INVALID_VALUE;
  node.memset_params = params;
  node.action = [params] {
    for (size_t row = 0; row < std::max<size_t>(1, params.height); ++row) {
      auto* to = reinterpret_cast<uint8_t*>(params.dst + row * params.pitch);
      for (size_t i = 0; i < params.width; ++i)
        memcpy(to + i * params.elementSize, &params.value, params.elementSize);
    }
  };
  return CUDA_SUCCESS;
}

CUresult set_memcpy(Node& node, const CUDA_MEMCPY3D& params) {
  if (node.type != CU_GRAPH_NODE_TYPE_MEMCPY || !is_linear(params.srcMemoryType) ||
      !is_linear(params.dstMemoryType) || source_of(params) == nullptr ||
      target_of(params) == nullptr)
    return CUDA_ERROR_INVALID_VALUE;
  node.memcpy_params = params;
  node.action = [params] { copy_3d(params); };
  return CUDA_SUCCESS;
}

CUresult set_host(Node& node, CUhostFn function, void* data) {
  if (node.type != CU_GRAPH_NODE_TYPE_HOST || function == nullptr) return CUDA_ERROR_INVALID_VALUE;
  node.host_params = {function, data};
  node.action = [function, data] { function(data); };
  return CUDA_SUCCESS;
}

// What waits for an event of this driver waits for nothing: work is done when a call returns.
CUresult set_event(Node& node, CUevent event) {
  const bool is_record = node.type == CU_GRAPH_NODE_TYPE_EVENT_RECORD;
  if (!is_record && node.type != CU_GRAPH_NODE_TYPE_WAIT_EVENT) return CUDA_ERROR_INVALID_VALUE;
  if (driver().pools.events.find(event, Kind::event) == nullptr) return CUDA_ERROR_INVALID_VALUE;
  node.event = event;
  node.action = [event, is_record] {
    Event* found = driver().pools.events.find(event, Kind::event);
    if (!is_record || found == nullptr) return;
    found->was_recorded = true;
    found->recorded_ns = now_ns();
  };
  return CUDA_SUCCESS;
}

// The handle's value is the one that it has at each launch; nothing sets it here, so it is its default.
CUresult set_conditional(Node& node, CUDA_CONDITIONAL_NODE_PARAMS* params) {
  const bool is_if = params->type == CU_GRAPH_COND_TYPE_IF;
  if (params->handle == 0 || (is_if && params->size != 1 && params->size != 2) ||
      (params->type == CU_GRAPH_COND_TYPE_WHILE && params->size != 1) || params->size == 0)
    return CUDA_ERROR_INVALID_VALUE;
  if (!is_if) return CUDA_ERROR_NOT_SUPPORTED;
  for (unsigned i = 0; i < params->size; ++i) {
    Graph* body = make_graph();
    body->is_owned = true;
    node.bodies.push_back(body);
    node.body_handles.push_back(reinterpret_cast<CUgraph>(body));
  }
  params->phGraph_out = node.body_handles.data();
  node.condition = (params->handle & 1) != 0;
  return CUDA_SUCCESS;
}

bool can_be_cloned(const Graph& graph) {
  return std::all_of(graph.nodes.begin(), graph.nodes.end(), [](const Node* node) {
    return node->type != CU_GRAPH_NODE_TYPE_MEM_ALLOC &&
           node->type != CU_GRAPH_NODE_TYPE_MEM_FREE &&
           node->type != CU_GRAPH_NODE_TYPE_CONDITIONAL &&
           (node->child == nullptr || can_be_cloned(*node->child));
  });
}

}  // namespace simcuda

using namespace simcuda;

extern "C" {

ADD_NODE(cuGraphAddMemsetNode, (const CUDA_MEMSET_NODE_PARAMS* params, CUcontext),
         params != nullptr, CU_GRAPH_NODE_TYPE_MEMSET, set_memset(made, *params))
ADD_NODE(cuGraphAddMemcpyNode, (const CUDA_MEMCPY3D* params, CUcontext), params != nullptr,
         CU_GRAPH_NODE_TYPE_MEMCPY, set_memcpy(made, *params))
ADD_NODE(cuGraphAddHostNode, (const CUDA_HOST_NODE_PARAMS* params), params != nullptr,
         CU_GRAPH_NODE_TYPE_HOST, set_host(made, params->fn, params->userData))
ADD_NODE(cuGraphAddEventRecordNode, (CUevent event), true, CU_GRAPH_NODE_TYPE_EVENT_RECORD,
         set_event(made, event))
ADD_NODE(cuGraphAddEventWaitNode, (CUevent event), true, CU_GRAPH_NODE_TYPE_WAIT_EVENT,
         set_event(made, event))
ADD_NODE(cuGraphAddMemAllocNode, (CUDA_MEM_ALLOC_NODE_PARAMS * params), params != nullptr,
         CU_GRAPH_NODE_TYPE_MEM_ALLOC, set_memory(made, params))
ADD_NODE(cuGraphAddMemFreeNode, (CUdeviceptr pointer), pointer != 0, CU_GRAPH_NODE_TYPE_MEM_FREE,
         (static_cast<void>(made), CUDA_SUCCESS))

ON_NODE(cuGraphMemsetNodeGetParams, (CUgraphNode handle, CUDA_MEMSET_NODE_PARAMS* params),
        find_node(handle), params, of_type(*node, CU_GRAPH_NODE_TYPE_MEMSET, [&] {
          return give(params, node->memset_params);
        }))
ON_NODE(cuGraphMemcpyNodeGetParams, (CUgraphNode handle, CUDA_MEMCPY3D* params), find_node(handle),
        params, of_type(*node, CU_GRAPH_NODE_TYPE_MEMCPY, [&] {
          return give(params, node->memcpy_params);
        }))
ON_NODE(cuGraphHostNodeGetParams, (CUgraphNode handle, CUDA_HOST_NODE_PARAMS* params),
        find_node(handle), params,
        of_type(*node, CU_GRAPH_NODE_TYPE_HOST, [&] { return give(params, node->host_params); }))
ON_NODE(cuGraphEventRecordNodeGetEvent, (CUgraphNode handle, CUevent* event), find_node(handle),
        event,
        of_type(*node, CU_GRAPH_NODE_TYPE_EVENT_RECORD, [&] { return give(event, node->event); }))

ON_NODE(cuGraphMemsetNodeSetParams, (CUgraphNode handle, const CUDA_MEMSET_NODE_PARAMS* params),
        find_node(handle), params, set_memset(*node, *params))
ON_NODE(cuGraphMemcpyNodeSetParams, (CUgraphNode handle, const CUDA_MEMCPY3D* params),
        find_node(handle), params, set_memcpy(*node, *params))
ON_NODE(cuGraphHostNodeSetParams, (CUgraphNode handle, const CUDA_HOST_NODE_PARAMS* params),
        find_node(handle), params, set_host(*node, params->fn, params->userData))
ON_NODE(cuGraphEventRecordNodeSetEvent, (CUgraphNode handle, CUevent event), find_node(handle),
        event,
        of_type(*node, CU_GRAPH_NODE_TYPE_EVENT_RECORD, [&] { return set_event(*node, event); }))
ON_NODE(cuGraphEventWaitNodeSetEvent, (CUgraphNode handle, CUevent event), find_node(handle), event,
        of_type(*node, CU_GRAPH_NODE_TYPE_WAIT_EVENT, [&] { return set_event(*node, event); }))

ON_NODE(cuGraphExecMemsetNodeSetParams,
        (CUgraphExec exec, CUgraphNode handle, const CUDA_MEMSET_NODE_PARAMS* params, CUcontext),
        node_of(exec, handle), params, set_memset(*node, *params))
ON_NODE(cuGraphExecMemcpyNodeSetParams,
        (CUgraphExec exec, CUgraphNode handle, const CUDA_MEMCPY3D* params, CUcontext),
        node_of(exec, handle), params, set_exec_memcpy(*node, *params))
ON_NODE(cuGraphExecHostNodeSetParams,
        (CUgraphExec exec, CUgraphNode handle, const CUDA_HOST_NODE_PARAMS* params),
        node_of(exec, handle), params, set_host(*node, params->fn, params->userData))
ON_NODE(cuGraphExecEventRecordNodeSetEvent, (CUgraphExec exec, CUgraphNode handle, CUevent event),
        node_of(exec, handle), event,
        of_type(*node, CU_GRAPH_NODE_TYPE_EVENT_RECORD, [&] { return set_event(*node, event); }))
ON_NODE(cuGraphExecEventWaitNodeSetEvent, (CUgraphExec exec, CUgraphNode handle, CUevent event),
        node_of(exec, handle), event,
        of_type(*node, CU_GRAPH_NODE_TYPE_WAIT_EVENT, [&] { return set_event(*node, event); }))

CUresult cuGraphConditionalHandleCreate(CUgraphConditionalHandle* out, CUgraph graph, CUcontext,
                                        unsigned int value, unsigned int flags) {
  SIM_ENTER_LOCKED(cuGraphConditionalHandleCreate);
  if (out == nullptr || find_graph(graph) == nullptr) return CUDA_ERROR_INVALID_VALUE;
  // Its last bit: the default, where it is assigned at each launch.
  *out = driver().next_id++ << 1 | ((flags & CU_GRAPH_COND_ASSIGN_DEFAULT) != 0 && value != 0);
  return CUDA_SUCCESS;
}

// Whether a node of an exec runs. Only kernels, fills and copies can be told not to.
static Node* switchable_node_of(CUgraphExec exec, CUgraphNode handle) {
  Node* node = node_of(exec, handle);
  return node != nullptr && (node->type == CU_GRAPH_NODE_TYPE_KERNEL ||
                             node->type == CU_GRAPH_NODE_TYPE_MEMSET ||
                             node->type == CU_GRAPH_NODE_TYPE_MEMCPY)
             ? node
             : nullptr;
}
CUresult cuGraphNodeSetEnabled(CUgraphExec exec, CUgraphNode handle, unsigned int is_enabled) {
  SIM_ENTER_LOCKED(cuGraphNodeSetEnabled);
  SIM_FIND(node, switchable_node_of(exec, handle), CUDA_ERROR_INVALID_VALUE);
  node->is_enabled = is_enabled != 0;
  return CUDA_SUCCESS;
}
CUresult cuGraphNodeGetEnabled(CUgraphExec exec, CUgraphNode handle, unsigned int* is_enabled) {
  SIM_ENTER_LOCKED(cuGraphNodeGetEnabled);
  SIM_FIND(node, switchable_node_of(exec, handle), CUDA_ERROR_INVALID_VALUE);
  return give(is_enabled, node->is_enabled ? 1u : 0u);
}

}  // extern "C"
