#!/usr/bin/env bash
# What `engines.py read` makes of wheels: of two made here, each with a library that has a fatbin, in the cache where pip puts them.
set -eu -o pipefail
export BUILD=$(realpath "${BUILD:-build}") PYTHONDONTWRITEBYTECODE=1
here=$(dirname "$0") nvcc=${NVCC:-nvcc}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
mkdir -p "$scratch/engines/data" "$scratch/wheels"
cp "$here"/*.py "$scratch/engines/"

cat >"$scratch/kernels.cu" <<'END'
namespace vllm {
template <class T, int Width>
__global__ void rms_norm_kernel(T* out, const T* in, float eps) {}
template __global__ void rms_norm_kernel<float, 8>(float*, const float*, float);
template __global__ void rms_norm_kernel<char, 8>(char*, const char*, float);
__global__ void count_things(int* out) {}  // of no family
#ifdef NEWER
template <class T>
__global__ void act_and_mul_kernel(T* out, const T* in, int d, T limit) {}
template __global__ void act_and_mul_kernel<double>(double*, const double*, int, double);
template <int N>
__global__ void topk_kernel(int* out) {}  // more instances than a table takes of one template
template <int N>
void make_instances() {
  topk_kernel<N><<<1, 1>>>(nullptr);
  if constexpr (N > 0) make_instances<N - 1>();
}
template void make_instances<149>();
#endif
}  // namespace vllm
END

make_wheel() {  # $1: version, $2: flags of nvcc. The library has its images for two GPUs, compressed or not.
  local folder=$scratch/$1
  mkdir -p "$folder/vllm/other"
  "$nvcc" -fatbin $2 -gencode arch=compute_80,code=sm_80 -gencode arch=compute_90,code=sm_90 -o "$folder/fatbin" "$scratch/kernels.cu"
  printf '.section .nv_fatbin,"a"\n.balign 8\n.incbin "%s"\n' "$folder/fatbin" >"$folder/fatbin.s"
  gcc -shared -nostdlib -o "$folder/vllm/_C.abi3.so" "$folder/fatbin.s"
  cp "$folder/vllm/_C.abi3.so" "$folder/vllm/other/_C_twice.so"
  echo 'no library' >"$folder/vllm/_C_notes.txt"
  (cd "$folder" && python3 -m zipfile -c "$scratch/wheels/vllm-$1-cp38-abi3-linux_x86_64.whl" vllm)
}
make_wheel 1.0 -no-compress
make_wheel 2.0 -DNEWER

cat >"$scratch/engines/engines.table" <<'END'
# a comment
vllm  vllm  1.0  vllm/_C.*so
vllm  vllm  2.0  vllm/_C.*so
other vllm  2.0  vllm/*/*.so  count_things|act_and_mul
END
WHEELS=$scratch/wheels "$scratch/engines/engines.py" read >"$scratch/said"

expect() {  # $1: what, $2: expected, $3: found
  [ "$2" = "$3" ] && return
  printf '%s:\n%s\nnot:\n%s\n' "$1" "$3" "$2"
  exit 1
}
table=$scratch/engines/data/vllm.table
expect 'said' "vllm 1.0: 2 kernels
vllm 2.0: 13 kernels
vllm 2.0: 2 kernels" "$(cat "$scratch/said")"
expect 'the table' "fibshim kernels 1: vllm
vllm-1.0,vllm-2.0 0:8,8:8,16:4 _ZN4vllm15rms_norm_kernelIcLi8EEEvPT_PKS1_f
vllm-1.0,vllm-2.0 0:8,8:8,16:4 _ZN4vllm15rms_norm_kernelIfLi8EEEvPT_PKS1_f
vllm-2.0 0:8,8:8,16:4,24:8 _ZN4vllm18act_and_mul_kernelIdEEvPT_PKS1_iS1_" "$(grep -v topk "$table")"
expect 'a sample of many' 10 "$(grep -c topk_kernel "$table")"
expect 'kernels that are asked for' "fibshim kernels 1: other
vllm-2.0 0:8 _ZN4vllm12count_thingsEPi
vllm-2.0 0:8,8:8,16:4,24:8 _ZN4vllm18act_and_mul_kernelIdEEvPT_PKS1_iS1_" "$(cat "$scratch/engines/data/other.table")"
# No byte of a wheel is left but the wheel.
expect 'the cache' "$(cd "$scratch/wheels" && printf '%s\n' ./*.whl)" "$(cd "$scratch/wheels" && find . -type f | sort)"
