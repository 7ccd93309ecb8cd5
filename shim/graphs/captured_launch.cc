#include "shim/graphs/captured_launch.h"

#include <string.h>

#include "shim/driver/driver.h"
#include "shim/graphs/captures.h"

namespace fibshim {
namespace {

SavedNode* save_launch(const LaunchRequest& request, const LaunchPlan& plan) {
  NodeParams original;
  memset(&original, 0, sizeof original);
  if (plan.record->kind == HandleKind::kernel) {
    original.kern = static_cast<CUkernel>(const_cast<void*>(request.handle));
  } else {
    original.func = static_cast<CUfunction>(const_cast<void*>(request.handle));
  }
  const uint32_t* const geometry = request.view.geometry;
  original.gridDimX = geometry[kGridX];
  original.gridDimY = geometry[kGridY];
  original.gridDimZ = geometry[kGridZ];
  original.blockDimX = geometry[kBlockX];
  original.blockDimY = geometry[kBlockY];
  original.blockDimZ = geometry[kBlockZ];
  original.sharedMemBytes = geometry[kSharedMem];
  return save_node(original, plan);
}

// The node that the last launch into the stream became; null: it is not capturing, or that is not clear.
CUgraphNode captured_node(const LaunchRequest& request) {
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
      status == CU_STREAM_CAPTURE_STATUS_ACTIVE && count == 1;
  return is_captured ? dependencies[0] : nullptr;
}

}  // namespace

CapturedLaunch::CapturedLaunch(const LaunchRequest& request, const LaunchPlan& plan)
    : request_(request),
      is_needed_(plan.action == LaunchAction::redirect &&
                 g_active_captures.load(std::memory_order_relaxed) != 0),
      saved_(is_needed_ ? save_launch(request, plan) : nullptr) {}

void CapturedLaunch::end(CUresult result) const {
  if (saved_ == nullptr) return;
  const CUgraphNode node = result == CUDA_SUCCESS ? captured_node(request_) : nullptr;
  if (node != nullptr) {
    remember_node(node, saved_);
  } else {
    release_saved(saved_);
  }
}

}  // namespace fibshim
