#include "shim/launch/redirect_trace.h"

#include <pthread.h>

#include "shim/driver/driver.h"
#include "shim/base/mutex.h"

namespace fibshim {
namespace {

struct Ring {
  StreamId id;
  uint64_t newest;  // position; 0: free
  TracedLaunch launches[kTracedLaunches];
  uint32_t next;
};

Mutex g_lock;
Ring g_rings[kTracedStreams];
uint64_t g_position;

// Holding g_lock. The stream's ring, or null.
Ring* find_ring(const StreamId& id) {
  for (Ring& ring : g_rings) {
    if (ring.newest != 0 && ring.id == id) return &ring;
  }
  return nullptr;
}

// Holding g_lock. With more streams than rings, the one used longest ago loses its own.
Ring* claim_ring(const StreamId& id) {
  Ring* oldest = &g_rings[0];
  for (Ring& ring : g_rings) {
    if (ring.newest < oldest->newest) oldest = &ring;
  }
  *oldest = {};
  oldest->id = id;
  return oldest;
}

// Holding g_lock.
void clean(Ring* ring, uint64_t position) {
  for (TracedLaunch& launch : ring->launches) {
    if (launch.position <= position) launch = {};
  }
  if (ring->newest <= position) *ring = {};
}

// Holding g_lock.
void copy(const Ring& ring, TracedStream* out) {
  out->id = ring.id;
  out->count = 0;
  for (uint32_t i = 1; i <= kTracedLaunches; ++i) {
    const TracedLaunch& launch = ring.launches[(ring.next + kTracedLaunches - i) % kTracedLaunches];
    if (launch.position != 0) out->launches[out->count++] = launch;
  }
}

}  // namespace

StreamId stream_id(CUstream stream, bool is_per_thread_stream) {
  if (stream == nullptr) stream = is_per_thread_stream ? CU_STREAM_PER_THREAD : CU_STREAM_LEGACY;
  const bool is_default = stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD;
  const auto get_current = FIBSHIM_REAL(cuCtxGetCurrent);
  const auto get_context = FIBSHIM_REAL(cuStreamGetCtx);
  CUcontext context = nullptr;
  // A stream need not be of the current context.
  const bool is_known =
      !is_default && get_context != nullptr && get_context(stream, &context) == CUDA_SUCCESS;
  if (!is_known && get_current != nullptr) (void)get_current(&context);
  return {reinterpret_cast<uintptr_t>(stream), reinterpret_cast<uintptr_t>(context),
          stream == CU_STREAM_PER_THREAD ? static_cast<uintptr_t>(pthread_self()) : 0, is_default};
}

void trace_redirect(const StreamId& stream, uint32_t series) {
  MutexGuard guard(g_lock);
  Ring* ring = find_ring(stream);
  if (ring == nullptr) ring = claim_ring(stream);
  ring->newest = ++g_position;
  ring->launches[ring->next] = {g_position, series};
  ring->next = (ring->next + 1) % kTracedLaunches;
}

uint64_t trace_position() {
  MutexGuard guard(g_lock);
  return g_position;
}

void trace_clean_stream(const StreamId& stream, uint64_t position) {
  MutexGuard guard(g_lock);
  if (Ring* const ring = find_ring(stream)) clean(ring, position);
}

void trace_clean_context(CUcontext context, uint64_t position) {
  MutexGuard guard(g_lock);
  for (Ring& ring : g_rings) {
    if (ring.id.context == reinterpret_cast<uintptr_t>(context)) clean(&ring, position);
  }
}

void trace_forget_stream(CUstream stream) {
  MutexGuard guard(g_lock);
  for (Ring& ring : g_rings) {
    if (ring.id.stream == reinterpret_cast<uintptr_t>(stream)) ring = {};
  }
}

void trace_forget_context(CUcontext context) { trace_clean_context(context, UINT64_MAX); }

bool next_traced(CUcontext context, uint32_t* at, TracedStream* out) {
  MutexGuard guard(g_lock);
  while (*at < kTracedStreams) {
    const Ring& ring = g_rings[(*at)++];
    const bool is_of_it =
        context == nullptr || ring.id.context == reinterpret_cast<uintptr_t>(context);
    if (ring.newest == 0 || !is_of_it) continue;
    copy(ring, out);
    return true;
  }
  return false;
}

void lock_redirect_trace_for_fork() { g_lock.lock(); }
void unlock_redirect_trace_after_fork(bool is_child) { g_lock.unlock_after_fork(is_child); }

}  // namespace fibshim
