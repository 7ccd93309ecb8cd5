#!/bin/sh
# Writes CUDA source with COUNT empty kernels with names like PyTorch's, of which a process looks up
# thousands, and one kernel with a struct among its parameters.
#
#   many_kernels.sh COUNT
set -eu
awk -v count="$1" 'BEGIN {
  split("29vectorized_elementwise_kernel 27unrolled_elementwise_kernel 18elementwise_kernel " \
        "13reduce_kernel 28vectorized_layer_norm_kernel 25vectorized_gather_kernel", names, " ")
  split("N3c108BFloat16E N3c104HalfE f d i l b", types, " ")
  for (i = 0; i < count; ++i) {
    printf "extern \"C\" __global__ void _ZN2at6native%sILi%dE%sZZZNS0_%d_functor_%d_kernel_cudaERNS_18TensorIteratorBaseEENKUlvE_clEvENKUlvE%d_clEvEUlfE_St5arrayIPcLm%dEEEEviT0_T1_(int) {}\n",
      names[i % 6 + 1], i % 8 + 1, types[i % 7 + 1], 16 + length(i), i, i % 9, i % 3 + 2
  }
  printf "struct View { float* output; const float* input; int columns; int rows; float scale; };\n"
  printf "extern \"C\" __global__ void scale_view(View view, int mode) {\n"
  printf "  if (mode < 0) view.output[view.rows] = view.input[view.columns] * view.scale;\n}\n"
}'
