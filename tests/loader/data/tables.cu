// A kernel with data in its image: constants, an initialised table, uninitialised memory, and a
// texture. From sm_100 on, sections of such an image share bytes.
__constant__ float factors[64] = {1, 2, 3};
__device__ int table[2048] = {3, 1, 2};
__device__ float sums[512];

extern "C" __global__ void look_up(cudaTextureObject_t image, float* output, int count) {
  __shared__ float line[128];
  const int i = threadIdx.x % 128;
  line[i] = tex2D<float>(image, 1.0f * i, 2.0f) * factors[i % 64];
  sums[i] = line[127 - i];
  output[i] = sums[(table[i] + count) % 128];
}
