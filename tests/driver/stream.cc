// Streams, events and captures. Work outside a capture has always finished when the call returns.
#include <time.h>

#include <algorithm>
#include <set>

#include "tests/driver/later.h"

namespace simcuda {
namespace {

// Requires the lock.
void invalidate(Capture& capture) { capture.is_invalid = true; }

// Requires the lock. Removes the stream from its capture.
void leave_capture(Stream& stream) {
  if (!(stream.flags & CU_STREAM_NON_BLOCKING)) stream.context->blocking_captures.fetch_sub(1);
  stream.is_capturing.store(false, std::memory_order_release);
  stream.capture.reset();
  stream.capture_tail.clear();
}

// Requires the lock.
void join_capture(Stream& stream, const std::shared_ptr<Capture>& capture) {
  stream.capture = capture;
  stream.is_capturing.store(true, std::memory_order_release);
  capture->streams.push_back(&stream);
  if (!(stream.flags & CU_STREAM_NON_BLOCKING)) stream.context->blocking_captures.fetch_add(1);
}

// Requires the lock. Ends a capture for all of its streams.
void finish_capture(const std::shared_ptr<Capture>& capture) {
  const std::shared_ptr<Capture> keep = capture;
  for (Stream* stream : keep->streams)
    if (stream->capture == keep) leave_capture(*stream);
  auto& captures = driver().captures;
  captures.erase(std::remove(captures.begin(), captures.end(), keep), captures.end());
  driver().capture_count.store(static_cast<int>(captures.size()), std::memory_order_release);
}

CUresult begin_capture(CUstream handle, bool is_ptsz, CUstreamCaptureMode mode, Graph* into,
                       std::vector<Node*> tail, Context* context) {
  const Lock guard(driver().lock);
  SIM_GET(Stream*, stream, find_stream(handle, is_ptsz, context, &stream));
  if (mode < CU_STREAM_CAPTURE_MODE_GLOBAL || mode > CU_STREAM_CAPTURE_MODE_RELAXED)
    return CUDA_ERROR_INVALID_VALUE;
  if (stream->stream_kind == simcuda_stream_legacy) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  if (stream->capture != nullptr) return CUDA_ERROR_ILLEGAL_STATE;
  auto capture = std::make_shared<Capture>();
  capture->graph = into != nullptr ? into : make_graph();
  capture->owns_graph = into == nullptr;
  capture->graph->is_owned = true;
  capture->origin = stream;
  capture->mode = mode;
  capture->thread_id = thread_state().id;
  capture->id = driver().next_id++;
  join_capture(*stream, capture);
  stream->capture_tail = std::move(tail);
  driver().captures.push_back(capture);
  driver().capture_count.store(static_cast<int>(driver().captures.size()),
                               std::memory_order_release);
  return CUDA_SUCCESS;
}

// True if every last node of the capture's other streams is a predecessor of the origin's last
// nodes.
bool is_joined(const Capture& capture) {
  std::set<const Node*> reached;
  std::vector<Node*> open = capture.origin->capture_tail;
  while (!open.empty()) {
    Node* node = open.back();
    open.pop_back();
    if (!reached.insert(node).second) continue;
    open.insert(open.end(), node->dependencies.begin(), node->dependencies.end());
  }
  for (const Stream* stream : capture.streams)
    for (const Node* node : stream->capture_tail)
      if (reached.count(node) == 0) return false;
  return true;
}

CUresult end_capture(CUstream handle, bool is_ptsz, CUgraph* graph, Context* context) {
  const Lock guard(driver().lock);
  SIM_GET(Stream*, stream, find_stream(handle, is_ptsz, context, &stream));
  if (graph == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *graph = nullptr;
  const std::shared_ptr<Capture> capture = stream->capture;
  if (capture == nullptr) return CUDA_ERROR_ILLEGAL_STATE;
  if (capture->origin != stream) {
    invalidate(*capture);
    return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
  }
  if (capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED && capture->thread_id != thread_state().id) {
    invalidate(*capture);
    return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
  }
  const bool was_joined = is_joined(*capture);
  const bool was_invalid = capture->is_invalid;
  finish_capture(capture);
  capture->graph->is_owned = false;
  if (was_invalid || !was_joined) {
    if (capture->owns_graph) end_graph(*capture->graph);
    return was_invalid ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
  }
  *graph = reinterpret_cast<CUgraph>(capture->graph);
  return CUDA_SUCCESS;
}

CUstreamCaptureStatus status_of(const Stream& stream) {
  if (stream.capture == nullptr) return CU_STREAM_CAPTURE_STATUS_NONE;
  return stream.capture->is_invalid ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                                    : CU_STREAM_CAPTURE_STATUS_ACTIVE;
}

// A query of the legacy stream while a blocking stream captures fails, but invalidates no capture.
CUresult ask_status(CUstream handle, bool is_ptsz, Context* context, Stream** stream) {
  SIM_TRY(find_stream(handle, is_ptsz, context, stream));
  if ((*stream)->stream_kind == simcuda_stream_legacy &&
      (*stream)->context->blocking_captures.load() > 0)
    return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  return CUDA_SUCCESS;
}

CUresult is_capturing(CUstream handle, bool is_ptsz, CUstreamCaptureStatus* status,
                      Context* context) {
  if (status == nullptr) return CUDA_ERROR_INVALID_VALUE;
  SIM_GET(Stream*, stream, ask_status(handle, is_ptsz, context, &stream));
  if (!stream->is_capturing.load(std::memory_order_acquire)) {
    *status = CU_STREAM_CAPTURE_STATUS_NONE;
    return CUDA_SUCCESS;
  }
  const Lock guard(driver().lock);
  *status = status_of(*stream);
  return CUDA_SUCCESS;
}

CUresult capture_info(CUstream handle, bool is_ptsz, CUstreamCaptureStatus* status, cuuint64_t* id,
                      CUgraph* graph, const CUgraphNode** dependencies,
                      const CUgraphEdgeData** edges, size_t* count, Context* context) {
  if (status == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const Lock guard(driver().lock);
  SIM_GET(Stream*, stream, ask_status(handle, is_ptsz, context, &stream));
  *status = status_of(*stream);
  if (*status != CU_STREAM_CAPTURE_STATUS_ACTIVE) return CUDA_SUCCESS;
  if (id != nullptr) *id = stream->capture->id;
  if (graph != nullptr) *graph = reinterpret_cast<CUgraph>(stream->capture->graph);
  if (dependencies != nullptr)
    *dependencies = reinterpret_cast<const CUgraphNode*>(stream->capture_tail.data());
  if (edges != nullptr) *edges = nullptr;
  if (count != nullptr) *count = stream->capture_tail.size();
  return CUDA_SUCCESS;
}

CUresult update_dependencies(CUstream handle, bool is_ptsz, CUgraphNode* nodes, size_t count,
                             unsigned flags, Context* context) {
  const Lock guard(driver().lock);
  SIM_GET(Stream*, stream, find_stream(handle, is_ptsz, context, &stream));
  if (stream->capture == nullptr) return CUDA_ERROR_ILLEGAL_STATE;
  std::vector<Node*> added;
  for (size_t i = 0; i < count; ++i) {
    Node* node = driver().pools.nodes.find(nodes[i], Kind::node);
    if (node == nullptr || node->graph != stream->capture->graph) return CUDA_ERROR_INVALID_VALUE;
    added.push_back(node);
  }
  if (flags == CU_STREAM_SET_CAPTURE_DEPENDENCIES) stream->capture_tail.clear();
  stream->capture_tail.insert(stream->capture_tail.end(), added.begin(), added.end());
  return CUDA_SUCCESS;
}

// Waiting for a capturing stream, or querying it, invalidates the capture.
CUresult wait_for(CUstream handle, bool is_ptsz, Context* context) {
  SIM_GET(Stream*, stream, find_stream(handle, is_ptsz, context, &stream));
  if (stream->is_capturing.load(std::memory_order_acquire)) {
    const Lock guard(driver().lock);
    if (stream->capture != nullptr) invalidate(*stream->capture);
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  run_stream(*stream);
  return check_legacy_rule(*stream);
}

CUresult record_event(CUevent handle, CUstream stream_handle, bool is_ptsz, Context* context) {
  const Lock guard(driver().lock);
  SIM_GET(Stream*, stream, find_stream(stream_handle, is_ptsz, context, &stream));
  Event* event = driver().pools.events.find(handle, Kind::event);
  if (event == nullptr || event->context != stream->context) return CUDA_ERROR_INVALID_HANDLE;
  if (stream->capture != nullptr) {
    if (stream->capture->is_invalid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    event->capture = stream->capture;
    event->capture_nodes = stream->capture_tail;
    event->was_recorded = false;
    return CUDA_SUCCESS;
  }
  SIM_TRY(check_legacy_rule(*stream));
  event->capture.reset();
  event->capture_nodes.clear();
  event->was_recorded = true;
  event->recorded_ns = now_ns();
  return CUDA_SUCCESS;
}

CUresult wait_event(CUstream stream_handle, CUevent handle, bool is_ptsz, Context* context) {
  const Lock guard(driver().lock);
  SIM_GET(Stream*, stream, find_stream(stream_handle, is_ptsz, context, &stream));
  SIM_FIND(event, driver().pools.events.find(handle, Kind::event), CUDA_ERROR_INVALID_HANDLE);
  const std::shared_ptr<Capture> capture = event->capture.lock();
  if (capture == nullptr) {
    if (stream->capture == nullptr) return check_legacy_rule(*stream);
    invalidate(*stream->capture);  // a dependency on work outside the capture
    return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
  }
  if (stream->capture != nullptr && stream->capture != capture) {
    invalidate(*stream->capture);
    invalidate(*capture);
    return CUDA_ERROR_STREAM_CAPTURE_MERGE;
  }
  if (stream->stream_kind == simcuda_stream_legacy) {
    invalidate(*capture);
    return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  }
  if (stream->capture == nullptr) join_capture(*stream, capture);
  for (Node* node : event->capture_nodes)
    if (std::find(stream->capture_tail.begin(), stream->capture_tail.end(), node) ==
        stream->capture_tail.end())
      stream->capture_tail.push_back(node);
  return CUDA_SUCCESS;
}

// For cuEventQuery and cuEventSynchronize.
CUresult look_at_event(CUevent handle) {
  const Lock guard(driver().lock);
  SIM_FIND(event, driver().pools.events.find(handle, Kind::event), CUDA_ERROR_INVALID_HANDLE);
  SIM_TRY(event->context->sticky_error.load());
  if (const std::shared_ptr<Capture> capture = event->capture.lock()) {
    invalidate(*capture);
    return CUDA_ERROR_CAPTURED_EVENT;
  }
  return CUDA_SUCCESS;
}

CUresult elapsed(float* milliseconds, CUevent start, CUevent end) {
  const Lock guard(driver().lock);
  const Event* from = driver().pools.events.find(start, Kind::event);
  const Event* to = driver().pools.events.find(end, Kind::event);
  if (milliseconds == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (from == nullptr || to == nullptr || !from->was_recorded || !to->was_recorded ||
      ((from->flags | to->flags) & CU_EVENT_DISABLE_TIMING))
    return CUDA_ERROR_INVALID_HANDLE;
  *milliseconds = static_cast<float>(static_cast<double>(to->recorded_ns) -
                                     static_cast<double>(from->recorded_ns)) /
                  1e6f;
  return CUDA_SUCCESS;
}

CUresult destroy_event(CUevent handle) {
  const Lock guard(driver().lock);
  SIM_FIND(event, driver().pools.events.find(handle, Kind::event), CUDA_ERROR_INVALID_HANDLE);
  auto& events = event->context->events;
  events.erase(std::remove(events.begin(), events.end(), event), events.end());
  driver().pools.events.release(event);
  return CUDA_SUCCESS;
}

CUresult destroy_stream(CUstream handle) {
  if (const Stream* const ended = driver().pools.streams.find(handle, Kind::stream)) {
    run_stream(*ended);
  }
  const Lock guard(driver().lock);
  Stream* stream = driver().pools.streams.find(handle, Kind::stream);
  if (stream == nullptr || stream->stream_kind != simcuda_stream_created)
    return CUDA_ERROR_INVALID_HANDLE;
  end_stream(*stream);
  return CUDA_SUCCESS;
}

CUresult create_stream(CUstream* handle, unsigned flags, int priority, Context* context) {
  if (handle == nullptr || (flags & ~static_cast<unsigned>(CU_STREAM_NON_BLOCKING)) != 0)
    return CUDA_ERROR_INVALID_VALUE;
  const Lock guard(driver().lock);
  Stream* stream = make_stream(*context, simcuda_stream_created, flags);
  stream->priority = std::clamp(priority, -5, 0);
  *handle = reinterpret_cast<CUstream>(stream);
  return CUDA_SUCCESS;
}

}  // namespace

uint64_t now_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1000000000u + static_cast<uint64_t>(now.tv_nsec);
}

Stream* make_stream(Context& context, int stream_kind, unsigned flags) {
  Stream* stream = driver().pools.streams.allocate(Kind::stream);
  stream->context = &context;
  stream->stream_kind = stream_kind;
  stream->flags = flags;
  stream->id = driver().next_id++;
  context.streams.push_back(stream);
  return stream;
}

void end_stream(Stream& stream) {
  if (const std::shared_ptr<Capture> capture = stream.capture) {
    const bool was_origin = capture->origin == &stream;
    invalidate(*capture);
    if (was_origin) {
      finish_capture(capture);
      capture->graph->is_owned = false;
      if (capture->owns_graph) end_graph(*capture->graph);
    } else {
      leave_capture(stream);
      auto& streams = capture->streams;
      streams.erase(std::remove(streams.begin(), streams.end(), &stream), streams.end());
    }
  }
  auto& streams = stream.context->streams;
  streams.erase(std::remove(streams.begin(), streams.end(), &stream), streams.end());
  driver().pools.streams.release(&stream);
}

CUresult find_stream(CUstream handle, bool is_ptsz, Context* context, Stream** stream) {
  if (handle == CU_STREAM_LEGACY || (handle == nullptr && !is_ptsz)) {
    *stream = context->legacy;
    return CUDA_SUCCESS;
  }
  if (handle == CU_STREAM_PER_THREAD || handle == nullptr) {
    ThreadState& thread = thread_state();
    // A primary context that was reset keeps its generation but not its streams.
    if (thread.per_thread_context.context == context &&
        thread.per_thread_context.generation == context->generation &&
        thread.per_thread->kind.load(std::memory_order_relaxed) == Kind::stream &&
        thread.per_thread->stream_kind == simcuda_stream_per_thread &&
        thread.per_thread->context == context) {
      *stream = thread.per_thread;
      return CUDA_SUCCESS;
    }
    const Lock guard(driver().lock);
    Stream*& place = context->per_thread[thread.id];
    if (place == nullptr) place = make_stream(*context, simcuda_stream_per_thread, 0);
    thread.per_thread = place;
    thread.per_thread_context = {context, context->generation};
    *stream = place;
    return CUDA_SUCCESS;
  }
  *stream = driver().pools.streams.find(handle, Kind::stream);
  return *stream != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

void invalidate_captures_of(Context& context) {
  for (Stream* stream : context.streams)
    if (stream->capture != nullptr) invalidate(*stream->capture);
}

CUresult check_unsafe_call() {
  if (driver().capture_count.load(std::memory_order_acquire) == 0) return CUDA_SUCCESS;
  const ThreadState& thread = thread_state();
  if (thread.capture_mode == CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_SUCCESS;
  const Lock guard(driver().lock);
  bool is_forbidden = false;
  for (const auto& capture : driver().captures) {
    const bool is_own = capture->thread_id == thread.id;
    const bool forbids = is_own ? capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED
                                : capture->mode == CU_STREAM_CAPTURE_MODE_GLOBAL &&
                                      thread.capture_mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
    if (!forbids) continue;
    invalidate(*capture);
    is_forbidden = true;
  }
  return is_forbidden ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS;
}

CUresult check_legacy_rule(Stream& stream) {
  if (stream.stream_kind != simcuda_stream_legacy ||
      stream.context->blocking_captures.load(std::memory_order_acquire) == 0)
    return CUDA_SUCCESS;
  const Lock guard(driver().lock);
  for (Stream* other : stream.context->streams)
    if (other->capture != nullptr && !(other->flags & CU_STREAM_NON_BLOCKING))
      invalidate(*other->capture);
  return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
}

Node* capture_node(Stream& stream, CUgraphNodeType type) {
  Node* node = make_node(*stream.capture->graph, type);
  for (Node* before : stream.capture_tail) add_dependency(*node, *before, {});
  stream.capture_tail = {node};
  return node;
}

CUresult submit(Stream& stream, CUgraphNodeType type, std::function<void()> action,
                const std::function<void(Node&)>& describe) {
  if (stream.is_capturing.load(std::memory_order_acquire)) {
    const Lock guard(driver().lock);
    if (stream.capture != nullptr) {
      if (stream.capture->is_invalid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
      Node* node = capture_node(stream, type);
      node->action = std::move(action);
      if (describe) describe(*node);
      return CUDA_SUCCESS;
    }
  }
  SIM_TRY(check_legacy_rule(stream));
  action();
  return CUDA_SUCCESS;
}

}  // namespace simcuda

using namespace simcuda;

extern "C" {

ENTRY_IN_CONTEXT(cuStreamCreate, (CUstream * stream, unsigned int flags),
                 create_stream(stream, flags, 0, context))
ENTRY_IN_CONTEXT(cuStreamCreateWithPriority, (CUstream * stream, unsigned int flags, int priority),
                 create_stream(stream, flags, priority, context))
ENTRY(cuStreamDestroy, (CUstream stream), destroy_stream(stream))
ENTRY(cuStreamDestroy_v2, (CUstream stream), destroy_stream(stream))
ENTRY_PTSZ(cuStreamSynchronize, (CUstream stream), wait_for(stream, is_ptsz, context))
ENTRY_PTSZ(cuStreamQuery, (CUstream stream), wait_for(stream, is_ptsz, context))
ENTRY_PTSZ(cuStreamWaitEvent, (CUstream stream, CUevent event, unsigned int),
           wait_event(stream, event, is_ptsz, context))
ENTRY_PTSZ(cuStreamBeginCapture, (CUstream stream),
           begin_capture(stream, is_ptsz, CU_STREAM_CAPTURE_MODE_GLOBAL, nullptr, {}, context))
ENTRY_PTSZ(cuStreamBeginCapture_v2, (CUstream stream, CUstreamCaptureMode mode),
           begin_capture(stream, is_ptsz, mode, nullptr, {}, context))
ENTRY_PTSZ(cuStreamEndCapture, (CUstream stream, CUgraph* graph),
           end_capture(stream, is_ptsz, graph, context))
ENTRY_PTSZ(cuStreamIsCapturing, (CUstream stream, CUstreamCaptureStatus* status),
           is_capturing(stream, is_ptsz, status, context))
ENTRY_PTSZ(cuStreamGetCaptureInfo, (CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id),
           capture_info(stream, is_ptsz, status, id, nullptr, nullptr, nullptr, nullptr, context))
ENTRY_PTSZ(cuStreamGetCaptureInfo_v2,
           (CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id, CUgraph* graph,
            const CUgraphNode** nodes, size_t* count),
           capture_info(stream, is_ptsz, status, id, graph, nodes, nullptr, count, context))
ENTRY_PTSZ(cuStreamGetCaptureInfo_v3,
           (CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id, CUgraph* graph,
            const CUgraphNode** nodes, const CUgraphEdgeData** edges, size_t* count),
           capture_info(stream, is_ptsz, status, id, graph, nodes, edges, count, context))
ENTRY_PTSZ(cuStreamUpdateCaptureDependencies,
           (CUstream stream, CUgraphNode* nodes, size_t count, unsigned int flags),
           update_dependencies(stream, is_ptsz, nodes, count, flags, context))
ENTRY_PTSZ(cuStreamUpdateCaptureDependencies_v2,
           (CUstream stream, CUgraphNode* nodes, const CUgraphEdgeData*, size_t count,
            unsigned int flags),
           update_dependencies(stream, is_ptsz, nodes, count, flags, context))

static CUresult capture_to_graph(CUstream stream, bool is_ptsz, CUgraph handle,
                                 const CUgraphNode* nodes, size_t count, CUstreamCaptureMode mode,
                                 Context* context) {
  const Lock guard(driver().lock);
  Graph* graph = driver().pools.graphs.find(handle, Kind::graph);
  if (graph == nullptr || (count > 0 && nodes == nullptr)) return CUDA_ERROR_INVALID_VALUE;
  std::vector<Node*> tail;
  for (size_t i = 0; i < count; ++i) {
    Node* node = driver().pools.nodes.find(nodes[i], Kind::node);
    if (node == nullptr || node->graph != graph) return CUDA_ERROR_INVALID_VALUE;
    tail.push_back(node);
  }
  return begin_capture(stream, is_ptsz, mode, graph, std::move(tail), context);
}
ENTRY_PTSZ(cuStreamBeginCaptureToGraph,
           (CUstream stream, CUgraph graph, const CUgraphNode* nodes, const CUgraphEdgeData*,
            size_t count, CUstreamCaptureMode mode),
           capture_to_graph(stream, is_ptsz, graph, nodes, count, mode, context))

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
  SIM_ENTER(cuThreadExchangeStreamCaptureMode);
  if (mode == nullptr || *mode < CU_STREAM_CAPTURE_MODE_GLOBAL ||
      *mode > CU_STREAM_CAPTURE_MODE_RELAXED)
    return CUDA_ERROR_INVALID_VALUE;
  std::swap(*mode, thread_state().capture_mode);
  return CUDA_SUCCESS;
}

static CUresult stream_value(CUstream handle, bool is_ptsz, Context* context,
                             const std::function<void(const Stream&)>& visit) {
  SIM_GET(Stream*, stream, find_stream(handle, is_ptsz, context, &stream));
  visit(*stream);
  return CUDA_SUCCESS;
}
#define STREAM_VALUE(name, type, expression)              \
  ENTRY_PTSZ(name, (CUstream stream, type * value),       \
             value == nullptr                             \
                 ? CUDA_ERROR_INVALID_VALUE               \
                 : stream_value(stream, is_ptsz, context, \
                                [value](const Stream& found) { *value = expression; }))
STREAM_VALUE(cuStreamGetFlags, unsigned int, found.flags)
STREAM_VALUE(cuStreamGetPriority, int, found.priority)
STREAM_VALUE(cuStreamGetId, unsigned long long, found.id)
STREAM_VALUE(cuStreamGetDevice, CUdevice, found.context->device->ordinal)
STREAM_VALUE(cuStreamGetCtx, CUcontext, reinterpret_cast<CUcontext>(found.context))

static CUresult host_function(CUstream handle, bool is_ptsz, CUhostFn function, void* data,
                              Context* context) {
  SIM_GET(Stream*, stream, find_stream(handle, is_ptsz, context, &stream));
  if (function == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return submit(
      *stream, CU_GRAPH_NODE_TYPE_HOST, [=] { function(data); },
      [=](Node& node) {
        node.host_params = {function, data};
      });
}
ENTRY_PTSZ(cuLaunchHostFunc, (CUstream stream, CUhostFn function, void* data),
           host_function(stream, is_ptsz, function, data, context))

CUresult cuEventCreate(CUevent* handle, unsigned int flags) {
  SIM_ENTER_CONTEXT(cuEventCreate);
  if (handle == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const Lock guard(driver().lock);
  Event* event = driver().pools.events.allocate(Kind::event);
  event->context = context;
  event->flags = flags;
  context->events.push_back(event);
  *handle = reinterpret_cast<CUevent>(event);
  return CUDA_SUCCESS;
}
ENTRY(cuEventDestroy, (CUevent event), destroy_event(event))
ENTRY(cuEventDestroy_v2, (CUevent event), destroy_event(event))
ENTRY_PTSZ(cuEventRecord, (CUevent event, CUstream stream),
           record_event(event, stream, is_ptsz, context))
ENTRY_PTSZ(cuEventRecordWithFlags, (CUevent event, CUstream stream, unsigned int),
           record_event(event, stream, is_ptsz, context))
ENTRY(cuEventQuery, (CUevent event), look_at_event(event))
ENTRY(cuEventSynchronize, (CUevent event), look_at_event(event))
ENTRY(cuEventElapsedTime, (float* milliseconds, CUevent start, CUevent end),
      elapsed(milliseconds, start, end))
ENTRY(cuEventElapsedTime_v2, (float* milliseconds, CUevent start, CUevent end),
      elapsed(milliseconds, start, end))

}  // extern "C"
