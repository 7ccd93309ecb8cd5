#include "shim/launch/workspace.h"

#include "shim/abi/hash.h"
#include "shim/base/hash_map.h"
#include "shim/base/log.h"
#include "shim/driver/context_scope.h"
#include "shim/driver/stream_context.h"

namespace fibshim {
namespace {

Mutex g_freeing;  // held across driver calls: a context may not end while its memory is freed
Mutex g_lock;     // guards what follows, and all blocks but their addresses
Pool g_pool;
HashMap<Workspace> g_of_streams(&g_pool);
Workspace* g_newest;
int64_t g_bytes;  // of all blocks

bool reserve(int64_t bytes) {
  MutexGuard guard(g_lock);
  if (bytes > kMaxWorkspace - g_bytes) return false;
  g_bytes += bytes;
  return true;
}

// Requires the lock.
void link_block(Workspace* workspace) {
  workspace->older = g_newest;
  if (g_newest != nullptr) g_newest->newer = workspace;
  g_newest = workspace;
}

// Requires the lock.
void unlink_block(Workspace* workspace) {
  (workspace->newer == nullptr ? g_newest : workspace->newer->older) = workspace->older;
  if (workspace->older != nullptr) workspace->older->newer = workspace->newer;
  g_bytes -= workspace->bytes;
}

// Waits for all that runs in the context.
void free_memory(CUcontext context, uint64_t address) {
  const auto free_real = FIBSHIM_REAL(cuMemFree_v2);
  const RelaxedCapture relaxed;
  const ContextScope scope(context);
  if (scope.is_current() && free_real != nullptr) (void)free_real(address);
}

void report_missing(int64_t bytes, const char* why) {
  static std::atomic<bool> was_reported;
  if (was_reported.exchange(true, std::memory_order_relaxed)) return;
  log_message(
      LogLevel::warn,
      "a workspace of %lld bytes cannot be had (%s); the original runs, as it does whenever "
      "there is none",
      static_cast<long long>(bytes), why);
}

// `fill(address)` zeroes the block. Null: it cannot be had.
template <class Fill>
Workspace* make_block(CUcontext context, int64_t bytes, const LaunchPlan& plan, const Fill& fill) {
  const auto allocate = FIBSHIM_REAL(cuMemAlloc_v2);
  if (!reserve(bytes)) {
    report_missing(bytes, "all of them have 64 MiB at most");
    return nullptr;
  }
  auto* const made = static_cast<Workspace*>(g_pool.allocate(sizeof(Workspace)));
  CUdeviceptr address = 0;
  CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
  if (made != nullptr && allocate != nullptr) {
    const RelaxedCapture relaxed;
    const ContextScope scope(context);
    if (scope.is_current()) result = allocate(&address, static_cast<size_t>(bytes));
    if (result == CUDA_SUCCESS) result = fill(address);
  }
  if (result == CUDA_SUCCESS) {
    made->owner = &solution_of(*plan.decision);
    made->generation = plan.candidate->generation->number;
    made->context = context;
    made->address = address;
    made->bytes = bytes;
    MutexGuard guard(g_lock);
    link_block(made);
    return made;
  }
  report_missing(bytes, ErrorText(result).text);
  if (address != 0) free_memory(context, address);
  MutexGuard guard(g_lock);
  g_bytes -= bytes;
  g_pool.release(made, sizeof *made);
  return nullptr;
}

int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

struct StreamKey {
  CUcontext context;
  uint64_t stream;
  const Solution* solution;

  uint64_t hash() const { return hash_bytes(kEmptyHash, this, sizeof *this); }
  bool is_of(const Workspace& one) const {
    return one.context == context && one.stream == stream && one.owner == solution;
  }
};

// Releases the blocks of streams for which `is(block)`.
template <class Is>
void end_blocks(const Is& is) {
  MutexGuard guard(g_lock);
  for (Workspace* at = g_newest; at != nullptr; at = at->older) {
    if (at->stream == 0 || at->is_released || !is(*at)) continue;
    if (g_of_streams.get(at->key) == at) (void)g_of_streams.remove(at->key);
    at->is_released = true;
  }
}

// Returns a released block, which is no longer known, or null if there is none.
Workspace* take_released() {
  MutexGuard guard(g_lock);
  for (Workspace* at = g_newest; at != nullptr; at = at->older) {
    if (!at->is_released) continue;
    unlink_block(at);
    return at;
  }
  return nullptr;
}

bool has_blocks() {
  MutexGuard guard(g_lock);
  return g_newest != nullptr;
}

uint64_t id_of(CUstream stream) {
  const auto get_id = FIBSHIM_REAL(cuStreamGetId);
  unsigned long long id = 0;
  return get_id != nullptr && get_id(stream, &id) == CUDA_SUCCESS ? id : 0;
}

}  // namespace

bool give_workspace(const LaunchRequest& request, LaunchPlan* plan) {
  const auto fill = FIBSHIM_REAL(cuMemsetD8Async);
  const CUstream stream = named_stream(request.stream, request.is_per_thread_stream);
  const StreamKey key = {context_of_stream(stream), id_of(stream), &solution_of(*plan->decision)};
  int64_t bytes = plan->workspace_bytes;
  if (key.context == nullptr || key.stream == 0 || fill == nullptr) return false;
  const uint64_t hash = key.hash();
  {
    MutexGuard guard(g_lock);
    const Workspace* const known = g_of_streams.get(hash);
    if (known != nullptr && !key.is_of(*known)) return false;
    if (known != nullptr && known->bytes >= bytes) {
      put_workspace(known->address, plan);
      return true;
    }
    // Another thread may be about to launch with the smaller block: it stays until the stream ends.
    if (known != nullptr) bytes = larger(bytes, 2 * known->bytes);
  }
  Workspace* const made = make_block(key.context, bytes, *plan, [&](CUdeviceptr address) {
    return fill(address, 0, static_cast<size_t>(bytes), stream);
  });
  if (made == nullptr) return false;
  MutexGuard guard(g_lock);
  made->key = hash;
  made->stream = key.stream;
  (void)g_of_streams.remove(hash);
  (void)g_of_streams.insert(made);
  put_workspace(made->address, plan);
  return true;
}

Workspace* make_workspace(CUcontext context, const LaunchPlan& plan) {
  const auto fill = FIBSHIM_REAL(cuMemsetD8Async);
  const auto create = FIBSHIM_REAL(cuStreamCreate);
  const auto destroy = FIBSHIM_REAL(cuStreamDestroy_v2);
  const auto synchronize = FIBSHIM_REAL(cuStreamSynchronize);
  if (context == nullptr) context = context_of_stream(nullptr);
  if (context == nullptr || fill == nullptr || create == nullptr || destroy == nullptr ||
      synchronize == nullptr) {
    return nullptr;
  }
  const int64_t bytes = plan.workspace_bytes;
  return make_block(context, bytes, plan, [&](CUdeviceptr address) {
    CUstream stream = nullptr;
    CUresult result = create(&stream, CU_STREAM_NON_BLOCKING);
    if (result != CUDA_SUCCESS) return result;
    result = fill(address, 0, static_cast<size_t>(bytes), stream);
    if (result == CUDA_SUCCESS) result = synchronize(stream);
    (void)destroy(stream);
    return result;
  });
}

void release_workspace(Workspace* workspace) {
  MutexGuard guard(g_lock);
  workspace->is_released = true;
}

void free_released_workspaces() {
  if (!has_blocks()) return;
  MutexGuard freeing(g_freeing);
  while (Workspace* const released = take_released()) {
    if (!released->is_gone) free_memory(released->context, released->address);
    g_pool.release(released, sizeof *released);
  }
}

void end_workspaces_of_stream(CUstream stream) {
  if (!has_blocks()) return;
  const CUcontext context = context_of_stream(stream);
  const uint64_t id = id_of(stream);
  end_blocks([&](const Workspace& one) { return one.context == context && one.stream == id; });
}

void end_workspaces_of_context(CUcontext context) {
  end_blocks([context](const Workspace& one) { return one.context == context; });
  free_released_workspaces();
}

void end_workspaces_of_generation(uint64_t number) {
  end_blocks([number](const Workspace& one) { return one.generation == number; });
}

void forget_workspaces_of_context(CUcontext context) {
  if (!has_blocks()) return;
  MutexGuard freeing(g_freeing);
  {
    MutexGuard guard(g_lock);
    for (Workspace* at = g_newest; at != nullptr; at = at->older) {
      if (context == nullptr || at->context == context) at->is_gone = true;
    }
  }
  end_blocks([](const Workspace& one) { return one.is_gone; });
}

void lock_workspaces_for_fork() {
  g_lock.lock();
  g_pool.lock_for_fork();
}

void unlock_workspaces_after_fork(bool is_child) {
  g_pool.unlock_after_fork(is_child);
  if (is_child) g_newest = nullptr;  // they are its parent's, whose watcher may hold g_freeing
  g_lock.unlock_after_fork(is_child);
}

}  // namespace fibshim
