// Kernels of the contract suite, with plain C names for the tests. sim_store, sim_increment, sim_batch
// and sim_cluster have host implementations in the simulated driver (tests/driver/host_kernels.cc); the
// others are only launched, or only described.
#include <stdint.h>

struct Triple {
  int32_t a;
  double b;
  int16_t c;
};

struct Large {
  char bytes[5000];  // more than 4 KB of parameters have another kind of record in the cubin
};

__device__ int32_t sim_counter = 7;

extern "C" __global__ void sim_store(int32_t* to, int32_t value) { *to = value; }

// Adds the number of blocks.
extern "C" __global__ void sim_increment(uint32_t* to) {
  if (threadIdx.x == 0 && threadIdx.y == 0 && threadIdx.z == 0) atomicAdd(to, 1u);
}

extern "C" __global__ void sim_empty() {}

// Mixed sizes: offsets 0, 4, 8, 16, 24 and 48.
extern "C" __global__ void sim_mixed(int8_t a, int32_t b, int64_t c, float* d, Triple e,
                                     int16_t f) {
  *d = static_cast<float>(a + b + c + e.a + e.b + e.c + f + sim_counter);
}

extern "C" __global__ void sim_large(Large large, int32_t* to) { *to = large.bytes[17]; }

// As NCCL's kernels, one large parameter, of which a launch may pass the beginning alone.
struct Batch {
  int32_t* to;
  int32_t values[1000];
};
extern "C" __global__ void sim_batch(Batch batch) { *batch.to = batch.values[0]; }

extern "C" __global__ void __launch_bounds__(256) sim_bounded(int32_t* to) {
  __shared__ int32_t values[100];
  extern __shared__ int32_t more[];
  values[threadIdx.x % 100] = static_cast<int32_t>(threadIdx.x);
  more[threadIdx.x] = 1;
  __syncthreads();
  to[threadIdx.x] = values[(threadIdx.x + 1) % 100] + more[threadIdx.x];
}

// Uses only dynamic shared memory, so that its limit can be tested.
extern "C" __global__ void sim_dynamic(int32_t* to, int32_t last) {
  extern __shared__ int32_t values[];
  values[last] = last;
  *to = values[last];
}

// Stores the number of blocks of its cluster, plus `more`.
extern "C" __global__ void sim_cluster(int32_t* to, int32_t more) {
  uint32_t blocks = 1;
#if __CUDA_ARCH__ >= 900
  asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(blocks));
#endif
  if (blockIdx.x == 0 && threadIdx.x == 0) *to = static_cast<int32_t>(blocks) + more;
}
