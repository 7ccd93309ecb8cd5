// The kernels of the conformance suite's host: some match a pattern of tests/conformance/config,
// some match none. Each leaves its own mark in pinned memory, which shows on a real GPU, too, what
// ran and how often. (The simulated driver keeps its own record.)
//
// Compiled three times: plain; with CONFORM_OTHER, a second image whose kernels have the first
// one's names but do something else; and with CONFORM_CURATED, the replacements.
#include <stdint.h>

#include "tests/conformance/hosts/marks.h"

namespace {

__device__ void leave_mark(uint32_t* marks, int mark, int32_t value) {
  if (blockIdx.x + blockIdx.y + blockIdx.z + threadIdx.x + threadIdx.y + threadIdx.z != 0) return;
  atomicAdd(marks + mark, 1u);
  marks[kLastValue] = static_cast<uint32_t>(value);
}

}  // namespace

#if defined(CONFORM_CURATED)

// The arguments have another order and no shape, so that a launch with the original's layout would
// be noticed.
extern "C" __global__ void curated_n1(int32_t value, uint32_t* marks) {
  leave_mark(marks, kMarkCurated1, value);
}
// Waits for the kernel before it by itself.
extern "C" __global__ void curated_n2(int32_t value, uint32_t* marks) {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
  leave_mark(marks, kMarkCurated2, value);
}
// The same, with a parameter that says whether the next kernel may begin before the wait.
extern "C" __global__ void curated_n5(int32_t value, uint32_t* marks, int32_t next_may_begin) {
#if __CUDA_ARCH__ >= 900
  if (next_may_begin != 0) asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
  leave_mark(marks, kMarkCurated5, value);
}
// Waits, too, and also has a buffer that it only reads.
extern "C" __global__ void curated_n6(int32_t value, uint32_t* marks, const uint32_t*) {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
  leave_mark(marks, kMarkCurated6, value);
}
// Launched in clusters of two.
extern "C" __global__ void curated_n3(int32_t value, uint32_t* marks) {
  leave_mark(marks, kMarkCurated3, value);
}

// Does the work of conform_split and conform_join together.
extern "C" __global__ void curated_joined(const float* in, float* out, uint32_t* marks, int32_t n,
                                          int32_t value) {
  leave_mark(marks, kMarkJoined, value);
  for (int i = threadIdx.x; i < n; i += blockDim.x) out[i] = 2 * in[i] + 1;
}

#elif defined(CONFORM_OTHER)

// Does not have the layout that the pattern states.
extern "C" __global__ void conform_step(int64_t value, uint32_t* marks) {
  leave_mark(marks, kMarkStep, static_cast<int32_t>(value));
}
extern "C" __global__ void conform_other(int64_t value, uint32_t* marks) {
  leave_mark(marks, kMarkOther, static_cast<int32_t>(value));
}

#else

// Tracked: `shape` is part of the definition's name.
extern "C" __global__ void conform_step(uint32_t* marks, int32_t, int32_t value) {
  leave_mark(marks, kMarkStep, value);
}
// The same under a name that no pattern knows.
extern "C" __global__ void conform_free(uint32_t* marks, int32_t, int32_t value) {
  leave_mark(marks, kMarkFree, value);
}
// Tracked, too: reads the first buffer, and writes the second.
extern "C" __global__ void conform_pair(const uint32_t*, uint32_t* marks, int32_t value) {
  leave_mark(marks, kMarkStep, value);
}
extern "C" __global__ void conform_void() {}
// Steps with many bytes of parameters.
template <int kBytes>
struct StepParams {
  uint32_t* marks;
  int32_t shape, value;
  char rest[kBytes - 16];
};
extern "C" __global__ void conform_large(StepParams<4096> step) {
  leave_mark(step.marks, kMarkLarge, step.value);
}
extern "C" __global__ void conform_huge(StepParams<8192> step) {
  leave_mark(step.marks, kMarkStep, step.value);
}

// Two steps that a rewrite replaces by one.
extern "C" __global__ void conform_split(const float* in, float* sums, uint32_t* marks, int32_t n,
                                         int32_t value) {
  leave_mark(marks, kMarkSplit, value);
  for (int i = threadIdx.x; i < n; i += blockDim.x) sums[i] = 2 * in[i];
}
extern "C" __global__ void conform_join(const float* sums, float* out, uint32_t* marks, int32_t n,
                                        int32_t value) {
  leave_mark(marks, kMarkJoin, value);
  for (int i = threadIdx.x; i < n; i += blockDim.x) out[i] = sums[i] + 1;
}

#endif
