// The kernels of random graphs (graph_program.h); graphs_config has patterns and solutions for
// them. Compiled three times: plain; with GRAPHS_CURATED, the replacements; and by
// lib_graph_kernels.cc, all of them for the simulated driver.
//
// Each element is computed by itself, so an output may be one of the inputs, but must not overlap one in part.
#include <stdint.h>

#ifdef __CUDACC__
#define KERNEL(name, parameters, ...)                                         \
  extern "C" __global__ void name parameters {                                \
    if (blockIdx.x != 0) return;                                              \
    for (int32_t i = threadIdx.x; i < n; i += blockDim.x) { __VA_ARGS__ }     \
  }
// Defines a kernel that waits for the kernel before it by itself.
#define WAITING_KERNEL(name, parameters, ...)                                 \
  extern "C" __global__ void name parameters {                                \
    wait_for_previous();                                                      \
    if (blockIdx.x != 0) return;                                              \
    for (int32_t i = threadIdx.x; i < n; i += blockDim.x) { __VA_ARGS__ }     \
  }
#define ON_BOTH __device__
__device__ void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
#endif

namespace {

// Returns what kernel graph_<letter> computes from two elements.
ON_BOTH uint32_t step(char letter, uint32_t in, uint32_t with, int32_t salt) {
  uint32_t x = in * 0x9e3779b1u + (with ^ static_cast<uint32_t>(letter) * 0x85ebca6bu);
  x ^= static_cast<uint32_t>(salt) * 0xc2b2ae35u;
  x = (x ^ x >> 15) * 0x2c1b3c6du;
  return x ^ x >> 13;
}

}  // namespace

using Read = const uint32_t*;
using Written = uint32_t*;

#if !defined(GRAPHS_CURATED)
#define ORIGINAL(letter)                                                                \
  WAITING_KERNEL(graph_##letter, (Read in, Read with, Written out, int32_t n, int32_t salt),    \
         out[i] = step(#letter[0], in[i], with[i], salt);)
ORIGINAL(a)
ORIGINAL(b)
ORIGINAL(c)
ORIGINAL(d)
ORIGINAL(e)
ORIGINAL(f)
ORIGINAL(g)
ORIGINAL(h)
ORIGINAL(z)  // no pattern knows it
#endif

#if defined(GRAPHS_CURATED) || !defined(__CUDACC__)
#define ONE_FOR_ONE(kind, letter)                                                             \
  kind(curated_##letter, (int32_t salt, Written out, Read in, Read with, int32_t n),        \
         out[i] = step(#letter[0], in[i], with[i], salt);)
ONE_FOR_ONE(KERNEL, a)
ONE_FOR_ONE(WAITING_KERNEL, f)

// With a workspace, which holds zeros between two launches.
KERNEL(curated_c, (int32_t salt, Written out, Read in, Read with, int32_t n, Written workspace),
       workspace[i] ^= step('c', in[i], with[i], salt);
       out[i] = workspace[i]; workspace[i] = 0;)

KERNEL(curated_ab, (Read in, Read with0, Read with1, Written out, int32_t salt0, int32_t salt1, int32_t n),
       out[i] = step('b', step('a', in[i], with0[i], salt0), with1[i], salt1);)
WAITING_KERNEL(curated_abc,
       (Read in, Read with0, Read with1, Read with2, Written out, int32_t salt0, int32_t salt1, int32_t salt2, int32_t n),
       out[i] = step('c', step('b', step('a', in[i], with0[i], salt0), with1[i], salt1), with2[i], salt2);)
KERNEL(curated_cd,
       (Read in, Read with0, Read with1, Written between, Written out, int32_t salt0, int32_t salt1, int32_t n),
       const uint32_t t = step('c', in[i], with0[i], salt0);
       between[i] = t; out[i] = step('d', t, with1[i], salt1);)
KERNEL(curated_de,
       (Read in, Read with0, Read in1, Written out, int32_t salt0, int32_t salt1, int32_t n, Written workspace),
       workspace[i] ^= step('e', in1[i], step('d', in[i], with0[i], salt0), salt1);
       out[i] = workspace[i]; workspace[i] = 0;)
KERNEL(curated_efgh,
       (Read in, Read with0, Read with1, Read with2, Written out, int32_t salt0, int32_t salt1, int32_t salt2, int32_t salt3, int32_t n),
       const uint32_t t = step('e', in[i], with0[i], salt0);
       out[i] = step('h', step('f', t, with1[i], salt1), step('g', t, with2[i], salt2), salt3);)
WAITING_KERNEL(curated_gh, (Read in, Read with0, Read with1, Written, Written out, int32_t salt0, int32_t salt1, int32_t n),
       out[i] = step('h', step('g', in[i], with0[i], salt0), with1[i], salt1);)
KERNEL(curated_b8,
       (Read in, Read with0, Read with1, Read with2, Read with3, Read with4, Read with5, Read with6, Read with7, Written out,
        int32_t salt0, int32_t salt1, int32_t salt2, int32_t salt3, int32_t salt4, int32_t salt5, int32_t salt6, int32_t salt7, int32_t n),
       const Read with[] = {with0, with1, with2, with3, with4, with5, with6, with7};
       const int32_t salt[] = {salt0, salt1, salt2, salt3, salt4, salt5, salt6, salt7};
       uint32_t x = in[i];
       for (int k = 0; k < 8; ++k) x = step('b', x, with[k][i], salt[k]);
       out[i] = x;)
#endif
