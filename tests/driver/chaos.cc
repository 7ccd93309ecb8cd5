// Faults by seed (SIMCUDA_CHAOS in simcuda.h): any driver call may fail with any code that it may
// return, be slow, or find the device's memory full. A failed call has done nothing.
//
// Invariant: a thread's faults depend only on its seed and its own calls, so a program that runs
// again gets the same faults, apart from the effects of its threads on each other. Faults are
// counted separately for the host's own calls and for those of a library in between: the host's
// call must fail with the driver's code, and faults of other calls must not show.
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <algorithm>

#include "tests/driver/driver.h"

namespace simcuda {
namespace {

struct Chaos {
  uint64_t seed = 0;
  // Per thousand calls.
  uint64_t own = 0;
  uint64_t host = 0;
  uint64_t slow = 0;
  uint64_t pause = 64;  // the most microseconds that a slow call takes
  int64_t images = 0;   // how many fit into the device's memory; 0: all
  uint64_t kill = 0;    // the process is killed at its call of that number; 0: never
};

bool read_number(const char** at, const char* name, uint64_t* value) {
  const size_t length = strlen(name);
  if (strncmp(*at, name, length) != 0 || (*at)[length] != '=') return false;
  char* end = nullptr;
  *value = strtoull(*at + length + 1, &end, 10);
  *at = end;
  return true;
}

bool parse(const char* text, Chaos* chaos) {
  uint64_t images = 0;
  for (const char* at = text; *at != 0;) {
    if (!read_number(&at, "seed", &chaos->seed) && !read_number(&at, "own", &chaos->own) &&
        !read_number(&at, "host", &chaos->host) && !read_number(&at, "slow", &chaos->slow) &&
        !read_number(&at, "pause", &chaos->pause) && !read_number(&at, "images", &images) &&
        !read_number(&at, "kill", &chaos->kill))
      return false;
    if (*at == ',') ++at;
  }
  chaos->images = static_cast<int64_t>(images);
  return true;
}

Chaos g_chaos;
constexpr int kCodeCount = 1000;
std::atomic<bool> g_struck[kCodeCount];
std::atomic<uint64_t> g_own_faults[static_cast<size_t>(Api::count)];

__attribute__((constructor)) void read_chaos() {
  const char* text = getenv("SIMCUDA_CHAOS");
  if (text == nullptr || *text == 0) return;
  if (!parse(text, &g_chaos)) {
    // A test that meant to see faults must not pass without any.
    fprintf(stderr, "simcuda: SIMCUDA_CHAOS is not understood: %s\n", text);
    abort();
  }
  g_has_faults.store(true);
}

// splitmix64
uint64_t next_random(uint64_t* state) {
  uint64_t z = (*state += 0x9e3779b97f4a7c15u);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

constexpr int kCodes[] = {
#define ERROR(name, code, text) code,
#include "tests/driver/errors.def"
#undef ERROR
};
// Transient errors, and errors that engines have seen.
constexpr int kLikelyCodes[] = {CUDA_ERROR_OUT_OF_MEMORY,        CUDA_ERROR_NOT_READY,
                                CUDA_ERROR_SYSTEM_NOT_READY,     CUDA_ERROR_OPERATING_SYSTEM,
                                CUDA_ERROR_LAUNCH_FAILED,        CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES,
                                CUDA_ERROR_STREAM_CAPTURE_MERGE, CUDA_ERROR_UNKNOWN};

bool is_one_of(Api api, std::initializer_list<Api> all) {
  return std::find(all.begin(), all.end(), api) != all.end();
}

// Calls that are documented to fail only because of their arguments: the first four undo what their
// caller has done, the others read what the driver has just returned.
bool cannot_fail(Api api) {
  return is_one_of(api,
                   {Api::cuCtxPopCurrent_v2, Api::cuThreadExchangeStreamCaptureMode,
                    Api::cuGraphDestroyNode, Api::cuGraphKernelNodeSetAttribute,
                    Api::cuStreamGetCaptureInfo_v2, Api::cuGraphGetNodes, Api::cuGraphNodeGetType,
                    Api::cuGraphChildGraphNodeGetGraph, Api::cuGraphKernelNodeGetParams_v2});
}

// True for a code that is an answer to the call and not a failure.
bool is_an_answer(Api api, int code) {
  switch (api) {
    case Api::cuFuncGetParamInfo:
    case Api::cuKernelGetParamInfo: return code == CUDA_ERROR_INVALID_VALUE;  // past the end
    case Api::cuFuncGetName:
    case Api::cuKernelGetName:
    case Api::cuFuncGetModule:
    case Api::cuKernelGetLibrary: return code == CUDA_ERROR_INVALID_HANDLE;  // of the other kind
    case Api::cuStreamEndCapture:
    case Api::cuStreamEndCapture_ptsz:  // the capture has ended
      return code == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED ||
             code == CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
    default: return code == CUDA_SUCCESS;
  }
}

CUresult pick_code(Api api, uint64_t* random) {
  for (;;) {
    const uint64_t number = next_random(random);
    const int code = number % 2 == 0 ? kLikelyCodes[number / 2 % std::size(kLikelyCodes)]
                                     : kCodes[number / 2 % std::size(kCodes)];
    if (code != CUDA_SUCCESS && !is_an_answer(api, code)) return static_cast<CUresult>(code);
  }
}

// Calls that the shim may make once more in the host's place.
bool may_be_repeated(Api api) {
  return is_one_of(api, {Api::cuGraphLaunch, Api::cuGraphLaunch_ptsz, Api::cuGraphAddKernelNode,
                         Api::cuGraphAddKernelNode_v2, Api::cuGraphAddNode, Api::cuGraphAddNode_v2,
                         Api::cuGraphKernelNodeSetParams, Api::cuGraphKernelNodeSetParams_v2,
                         Api::cuGraphNodeSetParams, Api::cuGraphExecKernelNodeSetParams,
                         Api::cuGraphExecKernelNodeSetParams_v2, Api::cuGraphExecNodeSetParams});
}

// True for the host's own call, also if the shim has changed it or repeats it after a failure.
bool is_the_hosts(const ThreadChaos& thread, Api api) {
  if (is_launch(api)) return is_launch(thread.host_call);
  return api == thread.host_call && (!thread.was_forwarded || may_be_repeated(api));
}

void note_fault(ThreadChaos* thread, Api api, bool is_hosts, CUresult code) {
  if (is_hosts) {
    thread->result.fault = code;
    return;
  }
  ++thread->result.own_faults;
  g_struck[0].store(true, std::memory_order_relaxed);
  g_struck[code].store(true, std::memory_order_relaxed);
  g_own_faults[static_cast<size_t>(api)].fetch_add(1, std::memory_order_relaxed);
}

}  // namespace

bool is_launch(Api api) {
  return is_one_of(api,
                   {Api::cuLaunchKernel, Api::cuLaunchKernel_ptsz, Api::cuLaunchKernelEx,
                    Api::cuLaunchKernelEx_ptsz, Api::cuLaunchCooperativeKernel,
                    Api::cuLaunchCooperativeKernel_ptsz, Api::cuLaunchCooperativeKernelMultiDevice,
                    Api::cuLaunch, Api::cuLaunchGrid, Api::cuLaunchGridAsync});
}

bool is_chaos_on() {
  return g_chaos.own + g_chaos.host + g_chaos.slow + g_chaos.kill != 0 || g_chaos.images != 0;
}

CUresult find_seeded_fault(Api api, const char* kernel) {
  static std::atomic<uint64_t> calls{0};
  if (g_chaos.kill != 0 && kernel == nullptr && calls.fetch_add(1) + 1 == g_chaos.kill)
    raise(SIGKILL);
  ThreadChaos& thread = thread_state().chaos;
  // A launch fails once its kernel is known; the launch of a graph fails as a whole.
  if (!thread.is_in_host_call || is_launch(api) != (kernel != nullptr)) return CUDA_SUCCESS;
  const bool is_hosts = is_the_hosts(thread, api);
  if (is_hosts) thread.was_forwarded = true;
  if (next_random(&thread.random) % 1000 < g_chaos.slow) {
    const uint64_t how = next_random(&thread.random) % g_chaos.pause;
    const timespec pause = {static_cast<time_t>(how / 1000000),
                            static_cast<long>(how % 1000000 * 1000)};
    if (how % 2 == 0) {
      sched_yield();
    } else {
      nanosleep(&pause, nullptr);
    }
  }
  if (next_random(&thread.random) % 1000 >= (is_hosts ? g_chaos.host : g_chaos.own) ||
      cannot_fail(api))
    return CUDA_SUCCESS;
  const CUresult code = pick_code(api, &thread.random);
  if (is_hosts) thread.was_forwarded = false;
  note_fault(&thread, api, is_hosts, code);
  return code;
}

CUresult check_image_budget(Api api) {
  ThreadChaos& thread = thread_state().chaos;
  const Pools& pools = driver().pools;
  if (g_chaos.images == 0 || !thread.is_in_host_call ||
      pools.modules.live(Kind::module) + pools.libraries.live(Kind::library) < g_chaos.images)
    return CUDA_SUCCESS;
  note_fault(&thread, api, api == thread.host_call, CUDA_ERROR_OUT_OF_MEMORY);
  return CUDA_ERROR_OUT_OF_MEMORY;
}

}  // namespace simcuda

using namespace simcuda;

extern "C" {

void simcuda_begin_host_call(const char* function) {
  ThreadChaos& thread = thread_state().chaos;
  thread.result = {};
  thread.was_forwarded = false;
  for (size_t i = 0; i < static_cast<size_t>(Api::count); ++i) {
    if (strcmp(api_name(static_cast<Api>(i)), function) != 0) continue;
    thread.host_call = static_cast<Api>(i);
    thread.is_in_host_call = is_chaos_on();
    return;
  }
  fprintf(stderr, "simcuda_begin_host_call: there is no %s\n", function);
  abort();
}

void simcuda_end_host_call(SimcudaHostCall* result) {
  ThreadChaos& thread = thread_state().chaos;
  thread.is_in_host_call = false;
  *result = thread.result;
}

void simcuda_seed_thread(uint64_t seed) { thread_state().chaos.random = g_chaos.seed ^ seed; }

int simcuda_has_struck(int code) {
  return code >= 0 && code < kCodeCount && g_struck[code].load(std::memory_order_relaxed);
}

uint64_t simcuda_own_faults(const char* function) {
  for (size_t i = 0; i < static_cast<size_t>(Api::count); ++i) {
    if (strcmp(api_name(static_cast<Api>(i)), function) == 0)
      return g_own_faults[i].load(std::memory_order_relaxed);
  }
  return 0;
}

}  // extern "C"
