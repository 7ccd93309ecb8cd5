// Hooks for stream captures, whose launches become unchanged nodes, and for the end of streams,
// with which captures end.
#include "shim/hooks/hooks.h"

#include "shim/graphs/exec_table.h"
#include "shim/hooks/call_real.h"
#include "shim/launch/captures.h"
#include "shim/launch/workspace.h"

namespace fibshim {
namespace {

CUresult begin_capture(CUresult result, CUstream stream, bool is_per_thread_stream) {
  if (result == CUDA_SUCCESS) record_capture(stream, is_per_thread_stream);
  return result;
}

// A capture that was invalidated or not joined ends, too, although with an error.
CUresult end_capture(CUresult result, CUstream stream, bool is_per_thread_stream) {
  if (result == CUDA_SUCCESS || result == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED ||
      result == CUDA_ERROR_STREAM_CAPTURE_UNJOINED) {
    end_capture_of_stream(stream, is_per_thread_stream);
  }
  return result;
}

}  // namespace
}  // namespace fibshim

using namespace fibshim;  // NOLINT(google-build-using-namespace): this file is all hooks

CUresult hook_cuStreamBeginCapture(CUstream stream) {
  return begin_capture(call_real(real::cuStreamBeginCapture, stream), stream, false);
}

CUresult hook_cuStreamBeginCapture_ptsz(CUstream stream) {
  return begin_capture(call_real(real::cuStreamBeginCapture_ptsz, stream), stream, true);
}

CUresult hook_cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode) {
  return begin_capture(call_real(real::cuStreamBeginCapture_v2, stream, mode), stream, false);
}

CUresult hook_cuStreamBeginCapture_v2_ptsz(CUstream stream, CUstreamCaptureMode mode) {
  return begin_capture(call_real(real::cuStreamBeginCapture_v2_ptsz, stream, mode), stream, true);
}

CUresult hook_cuStreamBeginCaptureToGraph(CUstream stream, CUgraph graph,
                                          const CUgraphNode* dependencies,
                                          const CUgraphEdgeData* edges, size_t count,
                                          CUstreamCaptureMode mode) {
  return begin_capture(
      call_real(real::cuStreamBeginCaptureToGraph, stream, graph, dependencies, edges, count, mode),
      stream, false);
}

CUresult hook_cuStreamBeginCaptureToGraph_ptsz(CUstream stream, CUgraph graph,
                                               const CUgraphNode* dependencies,
                                               const CUgraphEdgeData* edges, size_t count,
                                               CUstreamCaptureMode mode) {
  return begin_capture(call_real(real::cuStreamBeginCaptureToGraph_ptsz, stream, graph,
                                 dependencies, edges, count, mode),
                       stream, true);
}

CUresult hook_cuStreamEndCapture(CUstream stream, CUgraph* graph) {
  return end_capture(call_real(real::cuStreamEndCapture, stream, graph), stream, false);
}

CUresult hook_cuStreamEndCapture_ptsz(CUstream stream, CUgraph* graph) {
  return end_capture(call_real(real::cuStreamEndCapture_ptsz, stream, graph), stream, true);
}

CUresult hook_cuStreamDestroy(CUstream stream) {
  end_captures_of_stream(stream);
  end_workspaces_of_stream(stream);
  count_ended_stream();
  return call_real(real::cuStreamDestroy, stream);
}

CUresult hook_cuStreamDestroy_v2(CUstream stream) {
  end_captures_of_stream(stream);
  end_workspaces_of_stream(stream);
  count_ended_stream();
  return call_real(real::cuStreamDestroy_v2, stream);
}
