// Hooks for executable graphs: what runs in their place is made, changed and destroyed with them
// (graphs/). Nodes of the host's graphs are changed only during a call, and set back.
//
// The driver accepts a node's parameters in two layouts (CUDA_KERNEL_NODE_PARAMS version 1, and
// version 2 with a CUkernel), plain or inside a CUgraphNodeParams. Hooks widen them to version 2.
#include "shim/hooks/hooks.h"

#include <string.h>

#include "shim/base/read_section.h"
#include "shim/graphs/bodies.h"
#include "shim/graphs/exec_change.h"
#include "shim/graphs/exec_launch.h"
#include "shim/graphs/new_exec.h"
#include "shim/hooks/call_real.h"

namespace fibshim {
namespace {

NodeParams widen(const CUDA_KERNEL_NODE_PARAMS_v1& params) {
  NodeParams wide;
  memset(&wide, 0, sizeof wide);
  memcpy(&wide, &params, sizeof params);  // version 2 begins with version 1
  return wide;
}
NodeParams widen(const NodeParams& params) { return params; }
NodeParams widen(const CUgraphNodeParams& params) {
  NodeParams wide;
  static_assert(sizeof wide == sizeof params.kernel);
  memcpy(&wide, &params.kernel, sizeof wide);
  return wide;
}

// Writes `wide` into the host's layout. False: that layout cannot express it.
bool narrow(const NodeParams& wide, CUDA_KERNEL_NODE_PARAMS_v1* out) {
  memcpy(out, &wide, sizeof *out);
  if (out->func != nullptr) return true;
  // Version 1 has no CUkernel: use its function in the current context.
  const auto get_function = FIBSHIM_REAL(cuKernelGetFunction);
  return get_function != nullptr && get_function(&out->func, wide.kern) == CUDA_SUCCESS;
}
bool narrow(const NodeParams& wide, NodeParams* out) {
  *out = wide;
  return true;
}
bool narrow(const NodeParams& wide, CUgraphNodeParams* out) {
  memcpy(&out->kernel, &wide, sizeof wide);
  return true;
}

CUresult report(const void* slot, CUresult result) {
  if (result != CUDA_SUCCESS) report_failed_call(slot, result);
  return result;
}

// Instantiates a graph. `call()` makes the host's call.
template <class Call>
CUresult make_exec(CUgraphExec* executable, CUgraph graph, const Instantiation& how,
                   const Call& call) {
  NewExec made(graph, how);
  if (made.failure() != CUDA_SUCCESS) return made.failure();
  CUresult result = call();
  if (result != CUDA_SUCCESS && made.undo_replacements()) result = call();
  return made.finish(result, executable);
}

Instantiation instantiation_of(const CUDA_GRAPH_INSTANTIATE_PARAMS* params,
                               bool is_per_thread_stream) {
  if (params == nullptr) return {};
  return {params->flags, params->hUploadStream, is_per_thread_stream};
}

template <class Call>
CUresult update_exec(CUgraphExec executable, CUgraph graph, const Call& call) {
  ExecUpdate update(executable, graph);
  if (update.failure() != CUDA_SUCCESS) return update.failure();
  CUresult result = call();
  if (result != CUDA_SUCCESS && update.undo_replacements()) result = call();
  return update.finish(result);
}

// Sets a kernel node. `call(params)` makes the host's call with these parameters.
template <class Params, class Call>
CUresult set_kernel(CUgraphExec executable, CUgraphNode node, Params* params, const Call& call) {
  if (params == nullptr) return call(params);
  const NodeParams wide = widen(*params);
  const ReadSection section;
  ExecChange change(executable);
  if (const CUresult failure = change.plan_kernel(node, wide)) return failure;
  CUresult result = CUDA_ERROR_UNKNOWN;
  if (const NodeParams* const replacement = change.replacement_in_place()) {
    std::remove_const_t<Params> narrowed = *params;
    if (narrow(*replacement, &narrowed)) result = call(&narrowed);
    if (result != CUDA_SUCCESS) change.refuse_replacement();
  }
  if (result != CUDA_SUCCESS) result = call(params);
  if (result == CUDA_SUCCESS) change.set_kernel(wide);
  return result;
}

// Sets another kind of node: in the host's exec, the kept copy, and what runs in its place.
template <class Call, class SetKept, class SetIn>
CUresult set_other(CUgraphExec executable, CUgraphNode node, const Call& call,
                   const SetKept& set_kept, const SetIn& set_in) {
  ExecChange change(executable);
  const CUresult result = call();
  if (result == CUDA_SUCCESS) change.set_other(node, set_kept, set_in);
  return result;
}

template <class Call>
CUresult set_child(CUgraphExec executable, CUgraphNode node, CUgraph child, const Call& call) {
  ExecChange change(executable);
  const CUresult result = call();
  if (result == CUDA_SUCCESS) change.set_child(node, child);
  return result;
}

}  // namespace
}  // namespace fibshim

using namespace fibshim;  // NOLINT(google-build-using-namespace): this file is all hooks

// --- bodies of conditional nodes ---

CUresult hook_cuGraphAddNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies,
                             size_t count, CUgraphNodeParams* params) {
  const CUresult result = call_real(real::cuGraphAddNode, node, graph, dependencies, count, params);
  if (result == CUDA_SUCCESS) remember_bodies(*node, *params);
  return result;
}

CUresult hook_cuGraphAddNode_v2(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies,
                                const CUgraphEdgeData* edges, size_t count,
                                CUgraphNodeParams* params) {
  const CUresult result =
      call_real(real::cuGraphAddNode_v2, node, graph, dependencies, edges, count, params);
  if (result == CUDA_SUCCESS) remember_bodies(*node, *params);
  return result;
}

// --- objects that graphs keep alive ---

CUresult hook_cuGraphRetainUserObject(CUgraph graph, CUuserObject object, unsigned count,
                                      unsigned flags) {
  const CUresult result = call_real(real::cuGraphRetainUserObject, graph, object, count, flags);
  if (result == CUDA_SUCCESS) remember_user_objects();
  return result;
}

// --- instantiate and destroy ---

CUresult hook_cuGraphInstantiate(CUgraphExec* executable, CUgraph graph, CUgraphNode* error_node,
                                 char* log, size_t log_size) {
  return make_exec(executable, graph, {}, [&] {
    return call_real(real::cuGraphInstantiate, executable, graph, error_node, log, log_size);
  });
}

CUresult hook_cuGraphInstantiate_v2(CUgraphExec* executable, CUgraph graph, CUgraphNode* error_node,
                                    char* log, size_t log_size) {
  return make_exec(executable, graph, {}, [&] {
    return call_real(real::cuGraphInstantiate_v2, executable, graph, error_node, log, log_size);
  });
}

CUresult hook_cuGraphInstantiateWithFlags(CUgraphExec* executable, CUgraph graph,
                                          unsigned long long flags) {
  return make_exec(executable, graph, {flags, nullptr, false}, [&] {
    return call_real(real::cuGraphInstantiateWithFlags, executable, graph, flags);
  });
}

CUresult hook_cuGraphInstantiateWithParams(CUgraphExec* executable, CUgraph graph,
                                           CUDA_GRAPH_INSTANTIATE_PARAMS* params) {
  return make_exec(executable, graph, instantiation_of(params, false), [&] {
    return call_real(real::cuGraphInstantiateWithParams, executable, graph, params);
  });
}

CUresult hook_cuGraphInstantiateWithParams_ptsz(CUgraphExec* executable, CUgraph graph,
                                                CUDA_GRAPH_INSTANTIATE_PARAMS* params) {
  return make_exec(executable, graph, instantiation_of(params, true), [&] {
    return call_real(real::cuGraphInstantiateWithParams_ptsz, executable, graph, params);
  });
}

CUresult hook_cuGraphExecDestroy(CUgraphExec executable) {
  Exec* const ended = remove_exec(executable);
  return finish_end(call_real(real::cuGraphExecDestroy, executable), ended);
}

// --- launch ---

CUresult hook_cuGraphLaunch(CUgraphExec executable, CUstream stream) {
  return report(&real::cuGraphLaunch, launch_exec(real::cuGraphLaunch, executable, stream, false));
}

CUresult hook_cuGraphLaunch_ptsz(CUgraphExec executable, CUstream stream) {
  return report(&real::cuGraphLaunch_ptsz,
                launch_exec(real::cuGraphLaunch_ptsz, executable, stream, true));
}

CUresult hook_cuGraphUpload(CUgraphExec executable, CUstream stream) {
  return report(&real::cuGraphUpload, upload_exec(real::cuGraphUpload, executable, stream, false));
}

CUresult hook_cuGraphUpload_ptsz(CUgraphExec executable, CUstream stream) {
  return report(&real::cuGraphUpload_ptsz,
                upload_exec(real::cuGraphUpload_ptsz, executable, stream, true));
}

// --- change ---

CUresult hook_cuGraphExecUpdate(CUgraphExec executable, CUgraph graph, CUgraphNode* error_node,
                                CUgraphExecUpdateResult* verdict) {
  return update_exec(executable, graph, [&] {
    return call_real(real::cuGraphExecUpdate, executable, graph, error_node, verdict);
  });
}

CUresult hook_cuGraphExecUpdate_v2(CUgraphExec executable, CUgraph graph,
                                   CUgraphExecUpdateResultInfo* info) {
  return update_exec(executable, graph, [&] {
    return call_real(real::cuGraphExecUpdate_v2, executable, graph, info);
  });
}

CUresult hook_cuGraphExecKernelNodeSetParams(CUgraphExec executable, CUgraphNode node,
                                             const CUDA_KERNEL_NODE_PARAMS_v1* params) {
  return set_kernel(executable, node, params, [&](const CUDA_KERNEL_NODE_PARAMS_v1* given) {
    return call_real(real::cuGraphExecKernelNodeSetParams, executable, node, given);
  });
}

CUresult hook_cuGraphExecKernelNodeSetParams_v2(CUgraphExec executable, CUgraphNode node,
                                                const NodeParams* params) {
  return set_kernel(executable, node, params, [&](const NodeParams* given) {
    return call_real(real::cuGraphExecKernelNodeSetParams_v2, executable, node, given);
  });
}

CUresult hook_cuGraphExecNodeSetParams(CUgraphExec executable, CUgraphNode node,
                                       CUgraphNodeParams* params) {
  const auto call = [&](CUgraphNodeParams* given) {
    return call_real(real::cuGraphExecNodeSetParams, executable, node, given);
  };
  if (params == nullptr || params->type == CU_GRAPH_NODE_TYPE_KERNEL) {
    return set_kernel(executable, node, params, call);
  }
  if (params->type == CU_GRAPH_NODE_TYPE_GRAPH) {
    return set_child(executable, node, params->graph.graph, [&] { return call(params); });
  }
  return set_other(
      executable, node, [&] { return call(params); },
      [&](CUgraphNode kept) { return call_driver(real::cuGraphNodeSetParams, kept, params); },
      [&](CUgraphExec exec, CUgraphNode copy) {
        return call_driver(real::cuGraphExecNodeSetParams, exec, copy, params);
      });
}

CUresult hook_cuGraphExecMemcpyNodeSetParams(CUgraphExec executable, CUgraphNode node,
                                             const CUDA_MEMCPY3D* params, CUcontext context) {
  const auto set_in = [&](CUgraphExec exec, CUgraphNode copy) {
    return call_driver(real::cuGraphExecMemcpyNodeSetParams, exec, copy, params, context);
  };
  return set_other(
      executable, node,
      [&] {
        return call_real(real::cuGraphExecMemcpyNodeSetParams, executable, node, params, context);
      },
      [&](CUgraphNode kept) { return call_driver(real::cuGraphMemcpyNodeSetParams, kept, params); },
      set_in);
}

CUresult hook_cuGraphExecMemsetNodeSetParams(CUgraphExec executable, CUgraphNode node,
                                             const CUDA_MEMSET_NODE_PARAMS* params,
                                             CUcontext context) {
  const auto set_in = [&](CUgraphExec exec, CUgraphNode copy) {
    return call_driver(real::cuGraphExecMemsetNodeSetParams, exec, copy, params, context);
  };
  return set_other(
      executable, node,
      [&] {
        return call_real(real::cuGraphExecMemsetNodeSetParams, executable, node, params, context);
      },
      [&](CUgraphNode kept) { return call_driver(real::cuGraphMemsetNodeSetParams, kept, params); },
      set_in);
}

CUresult hook_cuGraphExecHostNodeSetParams(CUgraphExec executable, CUgraphNode node,
                                           const CUDA_HOST_NODE_PARAMS* params) {
  return set_other(
      executable, node,
      [&] { return call_real(real::cuGraphExecHostNodeSetParams, executable, node, params); },
      [&](CUgraphNode kept) { return call_driver(real::cuGraphHostNodeSetParams, kept, params); },
      [&](CUgraphExec exec, CUgraphNode copy) {
        return call_driver(real::cuGraphExecHostNodeSetParams, exec, copy, params);
      });
}

CUresult hook_cuGraphExecEventRecordNodeSetEvent(CUgraphExec executable, CUgraphNode node,
                                                 CUevent event) {
  return set_other(
      executable, node,
      [&] { return call_real(real::cuGraphExecEventRecordNodeSetEvent, executable, node, event); },
      [&](CUgraphNode kept) {
        return call_driver(real::cuGraphEventRecordNodeSetEvent, kept, event);
      },
      [&](CUgraphExec exec, CUgraphNode copy) {
        return call_driver(real::cuGraphExecEventRecordNodeSetEvent, exec, copy, event);
      });
}

CUresult hook_cuGraphExecEventWaitNodeSetEvent(CUgraphExec executable, CUgraphNode node,
                                               CUevent event) {
  return set_other(
      executable, node,
      [&] { return call_real(real::cuGraphExecEventWaitNodeSetEvent, executable, node, event); },
      [&](CUgraphNode kept) {
        return call_driver(real::cuGraphEventWaitNodeSetEvent, kept, event);
      },
      [&](CUgraphExec exec, CUgraphNode copy) {
        return call_driver(real::cuGraphExecEventWaitNodeSetEvent, exec, copy, event);
      });
}

CUresult hook_cuGraphNodeSetEnabled(CUgraphExec executable, CUgraphNode node, unsigned is_enabled) {
  ExecChange change(executable);
  const CUresult result = call_real(real::cuGraphNodeSetEnabled, executable, node, is_enabled);
  if (result == CUDA_SUCCESS) change.set_enabled(node, is_enabled != 0);
  return result;
}

CUresult hook_cuGraphExecChildGraphNodeSetParams(CUgraphExec executable, CUgraphNode node,
                                                 CUgraph child) {
  return set_child(executable, node, child, [&] {
    return call_real(real::cuGraphExecChildGraphNodeSetParams, executable, node, child);
  });
}

CUresult hook_cuGraphExecExternalSemaphoresSignalNodeSetParams(
    CUgraphExec executable, CUgraphNode node, const CUDA_EXT_SEM_SIGNAL_NODE_PARAMS* params) {
  return set_other(
      executable, node,
      [&] {
        return call_real(real::cuGraphExecExternalSemaphoresSignalNodeSetParams, executable, node,
                         params);
      },
      [&](CUgraphNode kept) {
        return call_driver(real::cuGraphExternalSemaphoresSignalNodeSetParams, kept, params);
      },
      [&](CUgraphExec exec, CUgraphNode copy) {
        return call_driver(real::cuGraphExecExternalSemaphoresSignalNodeSetParams, exec, copy,
                           params);
      });
}

CUresult hook_cuGraphExecExternalSemaphoresWaitNodeSetParams(
    CUgraphExec executable, CUgraphNode node, const CUDA_EXT_SEM_WAIT_NODE_PARAMS* params) {
  return set_other(
      executable, node,
      [&] {
        return call_real(real::cuGraphExecExternalSemaphoresWaitNodeSetParams, executable, node,
                         params);
      },
      [&](CUgraphNode kept) {
        return call_driver(real::cuGraphExternalSemaphoresWaitNodeSetParams, kept, params);
      },
      [&](CUgraphExec exec, CUgraphNode copy) {
        return call_driver(real::cuGraphExecExternalSemaphoresWaitNodeSetParams, exec, copy,
                           params);
      });
}

CUresult hook_cuGraphExecBatchMemOpNodeSetParams(CUgraphExec executable, CUgraphNode node,
                                                 const CUDA_BATCH_MEM_OP_NODE_PARAMS* params) {
  return set_other(
      executable, node,
      [&] { return call_real(real::cuGraphExecBatchMemOpNodeSetParams, executable, node, params); },
      [&](CUgraphNode kept) {
        return call_driver(real::cuGraphBatchMemOpNodeSetParams, kept, params);
      },
      [&](CUgraphExec exec, CUgraphNode copy) {
        return call_driver(real::cuGraphExecBatchMemOpNodeSetParams, exec, copy, params);
      });
}
