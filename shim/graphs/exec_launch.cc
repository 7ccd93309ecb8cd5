// The driver orders launches of one exec, in whatever streams, but not those of two execs. So when
// another exec replaces one that was launched before, the first launch of the new one must wait for
// the last launch of the old one. Either both go into the same stream, or an upload of the old exec
// precedes the launch: the driver orders an upload after all launches of that exec and before later
// work in its stream (tests/driver/contract/graph_copy_test.cc).
#include "shim/graphs/exec_launch.h"

#include "shim/driver/context_scope.h"
#include "shim/driver/sticky_errors.h"
#include "shim/driver/stream_context.h"
#include "shim/graphs/exec_state.h"
#include "shim/graphs/shadow_exec.h"
#include "shim/launch/captures.h"

namespace fibshim {
namespace {

// Returns a number that only the calling thread ever has; values of pthread_self() are reused.
uint32_t thread_number() {
  static std::atomic<uint32_t> last{0};
  static __thread uint32_t t_number __attribute__((tls_model("initial-exec")));
  if (t_number == 0) t_number = last.fetch_add(1, std::memory_order_relaxed) + 1;
  return t_number;
}

// Not inline: a local variable whose address is taken would cost every launch some instructions.
__attribute__((noinline)) CUcontext context_of_default_stream() { return current_context(); }

LastLaunch describe_launch(Variant* variant, CUstream stream, bool is_per_thread_stream) {
  stream = named_stream(stream, is_per_thread_stream);
  const bool is_default = stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD;
  return {variant, stream, is_default ? context_of_default_stream() : nullptr,
          stream == CU_STREAM_PER_THREAD ? thread_number() : 0, ended_stream_count()};
}

bool is_same_stream(const LastLaunch& one, const LastLaunch& other) {
  return one.stream == other.stream && one.context == other.context && one.thread == other.thread &&
         one.ended_streams == other.ended_streams;
}

// Makes later work in the stream wait for the last launch, by an upload of its exec. If the upload
// fails, this thread waits for that launch's stream if that still exists.
bool try_to_wait(const LastLaunch& last, CUstream stream, bool is_per_thread_stream) {
  const auto upload =
      is_per_thread_stream ? FIBSHIM_REAL(cuGraphUpload_ptsz) : FIBSHIM_REAL(cuGraphUpload);
  if (upload != nullptr && upload(last.variant->exec, stream) == CUDA_SUCCESS) return true;
  const bool is_named = last.context == nullptr;
  if (!is_named || last.ended_streams != ended_stream_count()) return false;
  if (may_be_capturing(last.stream, false)) return false;  // waiting would invalidate the capture
  const RelaxedCapture relaxed;
  const auto synchronize = FIBSHIM_REAL(cuStreamSynchronize);
  return synchronize != nullptr && synchronize(last.stream) == CUDA_SUCCESS;
}

// Waiting for the context would invalidate every capture in it, those of other threads, too: only
// if the driver refuses everything else again and again.
void wait_for_launches(const Exec& exec, CUstream stream, bool is_per_thread_stream) {
  const LastLaunch& last = exec.last;
  constexpr int kAttempts = 3;
  for (int i = 0; i < kAttempts; ++i) {
    if (try_to_wait(last, stream, is_per_thread_stream)) return;
  }
  const ContextScope scope(last.context != nullptr ? last.context : exec.context);
  const RelaxedCapture relaxed;
  const auto synchronize = FIBSHIM_REAL(cuCtxSynchronize);
  if (synchronize != nullptr) (void)synchronize();
}

// Makes later work in the stream wait for the last launch if that was of another exec.
void wait_for_last(const Exec& exec, Variant* variant, CUstream stream, bool is_per_thread_stream) {
  const Variant* const last = exec.last.variant;
  if (last != nullptr && last->exec != variant->exec &&
      !is_same_stream(exec.last, describe_launch(variant, stream, is_per_thread_stream))) {
    wait_for_launches(exec, stream, is_per_thread_stream);
  }
}

// Runs Exec::ready from now on, if there is one. Returns the variant to launch, which may differ
// from the last one.
__attribute__((noinline)) Variant* prepare_launch(Exec* exec, CUstream stream,
                                                  bool is_per_thread_stream) {
  if ((exec->asks.load(std::memory_order_acquire) & kHasReady) != 0) {
    exec->asks.fetch_and(~kHasReady, std::memory_order_acq_rel);
    if (Variant* const ready = exec->ready.exchange(nullptr, std::memory_order_acq_rel)) {
      // This thread does not hold the lock, and the watcher may be using the previous variant.
      bury_variant(switch_running(exec, ready));
    }
  }
  if ((exec->asks.load(std::memory_order_relaxed) & kIsNoMore) != 0) {
    MutexGuard guard(exec->lock);
    if ((exec->asks.fetch_and(~kIsNoMore, std::memory_order_relaxed) & kIsNoMore) != 0) {
      Variant* const unreplaced = exec->unreplaced.exchange(nullptr);
      if (unreplaced != exec->last.variant) bury_variant(unreplaced);
    }
  }
  const bool is_sampled = (exec->asks.load(std::memory_order_relaxed) & kIsSampled) != 0;
  Variant* const variant =
      is_sampled ? choose_variant(exec) : exec->running.load(std::memory_order_relaxed);
  wait_for_last(*exec, variant, stream, is_per_thread_stream);
  return variant;
}

void end_launch(Exec* exec, Variant* variant, CUstream stream, bool is_per_thread_stream) {
  count_executions(*variant);
  if (__builtin_expect(are_steps_timed(), 0)) time_step(&exec->step_clock);
  Variant* const before = exec->last.variant;
  exec->last = describe_launch(variant, stream, is_per_thread_stream);
  if (__builtin_expect(before != variant, 0) && !is_kept(*exec, before)) bury_variant(before);
}

// The variant could not be launched. The host's own call shows whether the host is to blame.
__attribute__((noinline)) CUresult launch_host_exec(const LaunchGraph& launch, Exec* exec,
                                                    CUresult result, CUstream stream,
                                                    bool is_per_thread_stream) {
  if (find_sticky_error(result) != nullptr) return result;
  const Variant* const last = exec->last.variant;
  if (last != nullptr && last->exec != exec->host) {
    wait_for_launches(*exec, stream, is_per_thread_stream);
  }
  const CUresult own_result = launch.load(std::memory_order_relaxed)(exec->host, stream);
  if (own_result != CUDA_SUCCESS) return own_result;
  MutexGuard guard(exec->lock);
  run_host_exec(exec, GraphReason::refused);
  end_launch(exec, exec->running.load(std::memory_order_relaxed), stream, is_per_thread_stream);
  return own_result;
}

// Launches the running variant.
inline CUresult launch_running(const LaunchGraph& launch, Exec* exec, Variant* variant,
                               CUstream stream, bool is_per_thread_stream) {
  const CUresult result = launch.load(std::memory_order_relaxed)(variant->exec, stream);
  if (__builtin_expect(result == CUDA_SUCCESS, 1)) {
    end_launch(exec, variant, stream, is_per_thread_stream);
    return result;
  }
  return variant->is_host() ? result
                            : launch_host_exec(launch, exec, result, stream, is_per_thread_stream);
}

// Launches the originals, with checks or, if none were prepared, without.
__attribute__((noinline)) CUresult launch_sample(const LaunchGraph& launch, Exec* exec,
                                                 Variant* sample, CUstream stream,
                                                 bool is_per_thread_stream) {
  CUresult result = launch.load(std::memory_order_relaxed)(sample->exec, stream);
  if (result != CUDA_SUCCESS && sample != &exec->plain && find_sticky_error(result) == nullptr) {
    if (is_kept(*exec, sample)) {
      sample = unchecked_running(exec);
    } else {
      bury_variant(sample);
      sample = unchecked_variant(exec);
    }
    wait_for_last(*exec, sample, stream, is_per_thread_stream);
    if (!sample->is_sample) {
      return launch_running(launch, exec, sample, stream, is_per_thread_stream);
    }
    result = launch.load(std::memory_order_relaxed)(sample->exec, stream);
  }
  if (result == CUDA_SUCCESS) {
    count_sample(exec, sample);
    end_launch(exec, sample, stream, is_per_thread_stream);
  } else if (!is_kept(*exec, sample)) {
    bury_variant(sample);
  }
  return result;
}

}  // namespace

CUresult launch_exec(const LaunchGraph& launch, CUgraphExec handle, CUstream stream,
                     bool is_per_thread_stream) {
  Exec* const exec = find_exec(handle);
  // The driver refuses a launch into a capture, and invalidates the capture.
  if (exec == nullptr || (g_active_captures.load(std::memory_order_relaxed) != 0 &&
                          may_be_capturing(stream, is_per_thread_stream))) {
    return call_driver(launch, handle, stream);
  }
  Variant* variant = exec->running.load(std::memory_order_acquire);
  const uint32_t asks = exec->asks.load(std::memory_order_relaxed);
  if (exec->last.variant != variant || (asks != 0 && !skip_sample(exec, asks))) {
    variant = prepare_launch(exec, stream, is_per_thread_stream);
    if (variant->is_sample) {
      return launch_sample(launch, exec, variant, stream, is_per_thread_stream);
    }
  }
  return launch_running(launch, exec, variant, stream, is_per_thread_stream);
}

CUresult upload_exec(const LaunchGraph& upload, CUgraphExec handle, CUstream stream,
                     bool is_per_thread_stream) {
  const Exec* const exec = find_exec(handle);
  if (exec == nullptr || (g_active_captures.load(std::memory_order_relaxed) != 0 &&
                          may_be_capturing(stream, is_per_thread_stream))) {
    return call_driver(upload, handle, stream);
  }
  const Variant& variant = *exec->running.load(std::memory_order_acquire);
  const CUresult result = call_driver(upload, variant.exec, stream);
  return result == CUDA_SUCCESS || variant.is_host() ? result : call_driver(upload, handle, stream);
}

}  // namespace fibshim
