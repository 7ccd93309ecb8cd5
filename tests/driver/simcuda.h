// Functions of the simulated driver, beyond CUDA's own, that tell tests what ran, and how.
//
// The simulated libcuda.so.1 exports them. A test that may also run with the real driver finds them
// with dlsym and does without them if they are absent. All are thread-safe.
//
// Environment, read once when the library is loaded:
//   SIMCUDA_DEVICES  the SM of each device: "90" (the default), "90,80"
//   SIMCUDA_LOG      path; one JSON line is appended (one write(2)) for each executed launch
//   SIMCUDA_FAST     1: launches are counted, but neither recorded nor executed (benchmarks)
//   SIMCUDA_FAIL     faults: "cuLibraryLoadData=2,cuLaunchKernel:rmsnorm_*=719,cuMemAlloc_v2=2*1".
//                    NAME[:KERNEL_GLOB]=CODE[@FIRST][*TIMES]. NAME is the exported one; the name
//                    without _vN and _ptsz means all of its forms. @FIRST: from that call on.
//                    "poison:KERNEL_GLOB=700": the kernel runs, and every later call in its
//                    context returns that code
//   SIMCUDA_CHAOS    faults by seed: "seed=7,own=30,host=20,slow=50,images=12". Of a thousand
//                    calls that a library in between makes on its own account, `own` fail, and of
//                    a thousand that it forwards for the host, `host`, with any code that the call
//                    may return; `slow` of a thousand calls are slow, by up to "pause=64"
//                    microseconds; and only `images` images fit into the device's memory. Applies
//                    only within an announced host call: see simcuda_begin_host_call. "kill=N"
//                    alone: at the N-th call of the whole process the process is killed
//   SIMCUDA_TELL     1: each kernel that is launched and not computed is named once, on stderr
//   SIMCUDA_KERNELS  path of a library whose functions (SimcudaKernel) run in place of the kernels
//                    of their names: called at each launch, in the launching thread. A kernel that
//                    waits for the kernel before it by itself has a second function, <name>_waits
//   SIMCUDA_ORDER    seed: the nodes of a graph run in a random order that its edges permit
//   SIMCUDA_LATER    seed: launches of graphs run only when a call may see what they do, in a
//                    random order that their streams and executable graphs permit
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum SimcudaStreamKind { simcuda_stream_legacy, simcuda_stream_per_thread, simcuda_stream_created };
enum SimcudaHandleKind { simcuda_handle_function, simcuda_handle_kernel };

// One executed launch.
typedef struct SimcudaLaunch {
  uint64_t sequence;  // increases in the order of execution, from 1
  char kernel[512];   // its name, cut to fit
  char api[48];       // exported name of the call that launched: cuLaunchKernel_ptsz, cuGraphLaunch
  uint32_t grid[3];
  uint32_t block[3];
  uint32_t cluster[3];  // 1, 1, 1 if none was requested
  uint32_t shared_mem;  // dynamic, in bytes
  int is_cooperative;
  int is_ptsz;        // the call was the _ptsz form
  int is_from_graph;  // a node of a replayed graph
  int stream_kind;    // SimcudaStreamKind
  int handle_kind;    // SimcudaHandleKind
  int was_packed;     // arguments came through `extra`
  int was_emulated;   // a host implementation computed its results
  int device;
  void* handle;  // as passed
  void* stream;  // as passed
  void* context;
  uint32_t attribute_count;
  uint32_t attribute_ids[16];       // CUlaunchAttributeID
  uint8_t attribute_values[8][64];  // values of the first 8
  uint32_t param_bytes;             // size of the packed parameter buffer
  uint8_t params[4096];             // its first bytes
} SimcudaLaunch;

// The effect of seeded faults on one call of the host.
typedef struct SimcudaHostCall {
  int fault;       // the code that the host's own call, or a launch in its place, last failed with
  int own_faults;  // how many of the other calls made meanwhile failed
} SimcudaHostCall;

// A kernel as a host function: params[i] points to the bytes of parameter i.
typedef void (*SimcudaKernel)(const void* const* params, const uint32_t grid[3],
                              const uint32_t block[3]);

// Returns 1. Only the simulated driver exports this function.
int simcuda_is_simulated(void);

// Launches of a kernel that were executed, since the last reset. NULL or a glob sums over kernels.
uint64_t simcuda_launch_count(const char* kernel);

// Launches of a kernel that became nodes of a captured graph, since the last reset.
uint64_t simcuda_captured_count(const char* kernel);

// Times that an exported function was called, since the last reset.
uint64_t simcuda_call_count(const char* function);

// How many of these calls returned an error, as compute-sanitizer --report-api-errors all reports.
// NULL or a glob sums over functions.
uint64_t simcuda_error_count(const char* function);

// Gets the last executed launch of a kernel (NULL or a glob: of any that fits) that is still in the
// ring. Returns 1, or 0 if there is none.
int simcuda_last_launch(const char* kernel, SimcudaLaunch* launch);

// Writes the most recent launches, oldest first. Returns how many were written.
size_t simcuda_recent_launches(SimcudaLaunch* launches, size_t capacity);

// Launches refused because their handle was that of an unloaded module or library.
uint64_t simcuda_stale_launch_count(void);

// Returns the number of living handles of one kind: "module", "library", "function", "kernel",
// "context", "stream", "event", "graph", "graph_exec". -1 for any other word.
int64_t simcuda_live_count(const char* kind);

// Resets counts and records. Handles and memory stay.
void simcuda_reset(void);

// Replaces the faults of SIMCUDA_FAIL. Returns 1, or 0 if the text is not understood, in which case
// the faults do not change. NULL or "" removes all.
int simcuda_set_faults(const char* faults);

// Called by a thread before and after it calls an exported function. With SIMCUDA_CHAOS, a call
// that arrives in between by that name (for a launch: by the name of any launch) is the host's own;
// other calls were made by a library in between.
void simcuda_begin_host_call(const char* function);
void simcuda_end_host_call(SimcudaHostCall* result);

// Sets the calling thread's seed for SIMCUDA_CHAOS, so that the order in which threads start does
// not matter.
void simcuda_seed_thread(uint64_t seed);

// Returns 1 if in this process a seeded fault with that code (0: any) has struck a call that was
// not the host's own.
int simcuda_has_struck(int code);

// How many calls of that name that were not the host's own failed by a seeded fault.
uint64_t simcuda_own_faults(const char* function);

// Gets the last launch that the calling thread made itself, by a launch call or as part of a graph.
// Returns 0 if there is none in its ring.
int simcuda_last_launch_of_thread(SimcudaLaunch* launch);

// Writes the launches that the calling thread made itself after the one with that sequence, oldest
// first, as far as they are in its ring. Returns how many were written.
size_t simcuda_launches_of_thread(uint64_t after, SimcudaLaunch* launches, size_t capacity);

// From now on calls `observe` with each executed launch, in the launching thread. NULL stops this.
void simcuda_observe(void (*observe)(const SimcudaLaunch* launch));

// Gets the launch of a graph's kernel node or, with `executable`, of its copy in that executable
// graph. Returns 1, or 0 if it is not a kernel node.
int simcuda_node(void* node, void* executable, SimcudaLaunch* launch);

#ifdef __cplusplus
}
#endif
