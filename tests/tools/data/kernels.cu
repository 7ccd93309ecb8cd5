// Kernels with known properties, for the tests of `fibshim inspect` and `fibshim check`.

// 8 + 8 + 4 + 1 bytes of parameters, without gaps between them; padding only at the end.
extern "C" __global__ void __launch_bounds__(256)
    scale(float* output, const float* input, int count, char is_inverse) {
  __shared__ float line[64];
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= count) return;
  line[threadIdx.x % 64] = input[i];
  output[i] = is_inverse != 0 ? 1.0f / line[threadIdx.x % 64] : 2.0f * line[threadIdx.x % 64];
}

// A kernel without parameters, with a mangled name.
namespace idle {
__global__ void nothing() {}
}  // namespace idle
