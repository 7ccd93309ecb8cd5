// One kernel; the build chooses its name, its file and one constant.
#include <stdio.h>

#ifndef ADDED
#define ADDED 1
#endif

#ifdef PLAIN
extern "C" __global__ void NAME(float* out, int count) {
  if (static_cast<int>(threadIdx.x) < count) out[threadIdx.x] += ADDED;
}
#else
__constant__ float scale[4] = {1, 2, 3, 4};
__device__ int launches;

#ifndef FILE_NAME
#define FILE_NAME "/a/file"
#endif
__device__ const char file_name[] = FILE_NAME;
__device__ char message[] = "out of bounds";

extern "C" __global__ void NAME(float* out, int count) {
  if (threadIdx.x == 0) atomicAdd(&launches, 1);
  if (static_cast<int>(threadIdx.x) < count) out[threadIdx.x] += scale[count % 4] + ADDED;
  if (count > 1000) printf("%s: %s\n", file_name, message);
}
#endif

#ifdef BESIDE
extern "C" __global__ void before_it(int* out) { *out = 1; }
extern "C" __global__ void other(float* out, const float* in) {
  __shared__ float tile[32];
  tile[threadIdx.x] = in[threadIdx.x];
  __syncthreads();
  out[threadIdx.x] = tile[31 - threadIdx.x];
}
#endif
