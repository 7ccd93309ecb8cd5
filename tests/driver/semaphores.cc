// Nodes that signal semaphores from elsewhere or wait for them, and nodes of several operations on memory.
//
// A semaphore is a file of two numbers here: the value that was signalled last, and the one that was waited for last. A
// wait never lasts: what comes before it in this driver is done.
#include <string.h>
#include <unistd.h>

#include <set>
#include <vector>

#include "tests/driver/graph.h"

namespace simcuda {
namespace {

struct Semaphore {
  int fd;
};
// Lock held.
std::set<Semaphore*>& semaphores() {
  static std::set<Semaphore*> all;
  return all;
}
Semaphore* find_semaphore(CUexternalSemaphore handle) {
  auto* const semaphore = reinterpret_cast<Semaphore*>(handle);
  return semaphores().count(semaphore) == 0 ? nullptr : semaphore;
}

// `Params`: to signal, or to wait, of which the values are written at `offset`.
template <class Params>
CUresult set_semaphores(Node& node, CUgraphNodeType type, const Params& params, off_t offset) {
  if (node.type != type || params.extSemArray == nullptr || params.paramsArray == nullptr ||
      params.numExtSems == 0)
    return CUDA_ERROR_INVALID_VALUE;
  std::vector<std::pair<int, uint64_t>> values;
  for (unsigned i = 0; i < params.numExtSems; ++i) {
    const Semaphore* const semaphore = find_semaphore(params.extSemArray[i]);
    if (semaphore == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    values.emplace_back(semaphore->fd, params.paramsArray[i].params.fence.value);
  }
  node.action = [values, offset] {
    for (const auto& [fd, value] : values) {
      (void)!pwrite(fd, &value, sizeof value, offset);
    }
  };
  return CUDA_SUCCESS;
}
CUresult set_signal(Node& node, const CUDA_EXT_SEM_SIGNAL_NODE_PARAMS& params) {
  return set_semaphores(node, CU_GRAPH_NODE_TYPE_EXT_SEMAS_SIGNAL, params, 0);
}
CUresult set_wait(Node& node, const CUDA_EXT_SEM_WAIT_NODE_PARAMS& params) {
  return set_semaphores(node, CU_GRAPH_NODE_TYPE_EXT_SEMAS_WAIT, params, sizeof(uint64_t));
}

CUresult set_operations(Node& node, const CUDA_BATCH_MEM_OP_NODE_PARAMS& params) {
  if (node.type != CU_GRAPH_NODE_TYPE_BATCH_MEM_OP || params.paramArray == nullptr ||
      params.count == 0 || params.count > 256 || params.flags != 0)
    return CUDA_ERROR_INVALID_VALUE;
  const std::vector<CUstreamBatchMemOpParams> operations(params.paramArray,
                                                         params.paramArray + params.count);
  node.action = [operations] {
    for (const CUstreamBatchMemOpParams& one : operations) {
      if (one.operation == CU_STREAM_MEM_OP_WRITE_VALUE_32) {
        memcpy(reinterpret_cast<void*>(one.writeValue.address), &one.writeValue.value,
               sizeof one.writeValue.value);
      } else if (one.operation == CU_STREAM_MEM_OP_WRITE_VALUE_64) {
        memcpy(reinterpret_cast<void*>(one.writeValue.address), &one.writeValue.value64,
               sizeof one.writeValue.value64);
      }
    }
  };
  return CUDA_SUCCESS;
}

}  // namespace
}  // namespace simcuda

using namespace simcuda;

extern "C" {

CUresult cuImportExternalSemaphore(CUexternalSemaphore* out,
                                   const CUDA_EXTERNAL_SEMAPHORE_HANDLE_DESC* description) {
  SIM_ENTER_LOCKED(cuImportExternalSemaphore);
  if (out == nullptr || description == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (description->type != CU_EXTERNAL_SEMAPHORE_HANDLE_TYPE_TIMELINE_SEMAPHORE_FD)
    return CUDA_ERROR_NOT_SUPPORTED;
  auto* const made = new Semaphore{description->handle.fd};
  semaphores().insert(made);
  *out = reinterpret_cast<CUexternalSemaphore>(made);
  return CUDA_SUCCESS;
}
CUresult cuDestroyExternalSemaphore(CUexternalSemaphore handle) {
  SIM_ENTER_LOCKED(cuDestroyExternalSemaphore);
  Semaphore* const semaphore = find_semaphore(handle);
  if (semaphore == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  close(semaphore->fd);
  semaphores().erase(semaphore);
  delete semaphore;
  return CUDA_SUCCESS;
}

ADD_NODE(cuGraphAddExternalSemaphoresSignalNode, (const CUDA_EXT_SEM_SIGNAL_NODE_PARAMS* params),
         params != nullptr, CU_GRAPH_NODE_TYPE_EXT_SEMAS_SIGNAL, set_signal(made, *params))
ADD_NODE(cuGraphAddExternalSemaphoresWaitNode, (const CUDA_EXT_SEM_WAIT_NODE_PARAMS* params),
         params != nullptr, CU_GRAPH_NODE_TYPE_EXT_SEMAS_WAIT, set_wait(made, *params))
ADD_NODE(cuGraphAddBatchMemOpNode, (const CUDA_BATCH_MEM_OP_NODE_PARAMS* params), params != nullptr,
         CU_GRAPH_NODE_TYPE_BATCH_MEM_OP, set_operations(made, *params))

ON_NODE(cuGraphExternalSemaphoresSignalNodeSetParams,
        (CUgraphNode handle, const CUDA_EXT_SEM_SIGNAL_NODE_PARAMS* params), find_node(handle),
        params, set_signal(*node, *params))
ON_NODE(cuGraphExternalSemaphoresWaitNodeSetParams,
        (CUgraphNode handle, const CUDA_EXT_SEM_WAIT_NODE_PARAMS* params), find_node(handle),
        params, set_wait(*node, *params))
ON_NODE(cuGraphBatchMemOpNodeSetParams,
        (CUgraphNode handle, const CUDA_BATCH_MEM_OP_NODE_PARAMS* params), find_node(handle),
        params, set_operations(*node, *params))

ON_NODE(cuGraphExecExternalSemaphoresSignalNodeSetParams,
        (CUgraphExec exec, CUgraphNode handle, const CUDA_EXT_SEM_SIGNAL_NODE_PARAMS* params),
        node_of(exec, handle), params, set_signal(*node, *params))
ON_NODE(cuGraphExecExternalSemaphoresWaitNodeSetParams,
        (CUgraphExec exec, CUgraphNode handle, const CUDA_EXT_SEM_WAIT_NODE_PARAMS* params),
        node_of(exec, handle), params, set_wait(*node, *params))
ON_NODE(cuGraphExecBatchMemOpNodeSetParams,
        (CUgraphExec exec, CUgraphNode handle, const CUDA_BATCH_MEM_OP_NODE_PARAMS* params),
        node_of(exec, handle), params, set_operations(*node, *params))

}  // extern "C"
