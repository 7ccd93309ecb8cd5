// Kernels whose cubins the loader's tests read: every form of a parameter table or a launch bound.
struct Wide {
  char bytes[240];
};
struct Huge {
  char bytes[6000];
};

extern "C" __global__ void no_params() {}

extern "C" __global__ void __launch_bounds__(256)
    scale(const float* in, float* out, int count, float factor) {
  __shared__ float tile[64];
  tile[threadIdx.x % 64] = in[threadIdx.x];
  __syncthreads();
  if (static_cast<int>(threadIdx.x) < count) {
    out[threadIdx.x] = tile[(threadIdx.x + 1) % 64] * factor;
  }
}

extern "C" __global__ void mixed_params(short a, char b, double* out, Wide wide, char c) {
  *out = a + b + c + wide.bytes[threadIdx.x];
}

// More than 4 KB of parameters: the second form of the parameter records.
extern "C" __global__ void huge_params(Huge huge, float* out) {
  *out = huge.bytes[threadIdx.x];
}

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
extern "C" __global__ void __cluster_dims__(2, 1, 1) clustered(float* out) { out[blockIdx.x] = 1; }
extern "C" __global__ void __block_size__((128, 2, 1)) exact_block(float* out) {
  out[threadIdx.x] = 1;
}
#endif

template <class T>
__global__ void on_the_stack(T* data) {
  volatile T local[100];
  for (int i = 0; i < 100; ++i) local[(i * static_cast<int>(data[0])) % 100] = i;
  data[0] = local[static_cast<int>(data[1]) % 100];
}
template __global__ void on_the_stack<float>(float*);
