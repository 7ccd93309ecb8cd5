#!/bin/sh
# The tests that need a real GPU: `make test-gpu`, or tests/gpu/run.sh [BUILD_FOLDER] on a machine that
# only has the built tree (python3 with PyTorch for CUDA must be there; nothing is built here).
#
# Every program runs in a process of its own, with a folder of its own for counters, and so does each
# test of the driver's contract: some mistakes crash the real driver, and cost one test then. Programs
# print PASS, FAIL and SKIP lines, tests/run.sh its own; the last line counts them all. Whatever software
# is missing is a failure; what this machine's hardware has not is a skip, with the reason.
set -u

root=$(cd "$(dirname "$0")/../.." && pwd)
build=$(cd "$root" && cd "${1:-build}" 2>/dev/null && pwd) || {
  echo "run.sh: no build folder ${1:-build} in $root; run make first" >&2
  exit 1
}
here=$root/tests/gpu
python=${PYTHON:-python3}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 1' HUP INT TERM
cd "$root" || exit 1

unset LD_PRELOAD FIBSHIM_CONFIG FIBSHIM_MODE FIBSHIM_ON_ERROR FIBSHIM_LOG FIBSHIM_LOG_FILE \
  FIBSHIM_RECORD FIBSHIM_RECORD_LIMIT FIBSHIM_RECORD_IMAGES
export PYTHONDONTWRITEBYTECODE=1
export FIBSHIM_TEST_BUILD="$build"

passed=0
failed=0
skipped=0
fail() {
  echo "FAIL $*"
  failed=$((failed + 1))
}

# Makes $stats a new empty folder for counters.
new_stats() {
  stats=$(mktemp -d "$work/stats.XXXXXX")
}

# Prints what a program wrote and counts its verdicts: PASS, FAIL and SKIP lines, or the last line of
# tests/run.sh. A program that ends badly without a failure, or proves nothing, is a failure of its own.
tally() {
  name=$1 log=$2 code=$3
  echo "---- $name"
  cat "$log"
  verdict=$(tail -n 1 "$log" | sed -nE 's/^([0-9]+) passed, ([0-9]+) failed(, ([0-9]+) skipped)?$/\1 \2 \4/p')
  if [ -n "$verdict" ]; then
    p=${verdict%% *} verdict=${verdict#* }
    f=${verdict%% *} s=${verdict#* }
  else
    p=$(grep -c '^PASS ' "$log")
    f=$(grep -c '^FAIL ' "$log")
    s=$(grep -c '^SKIP ' "$log")
  fi
  passed=$((passed + p))
  skipped=$((skipped + ${s:-0}))
  failed=$((failed + f))
  if [ "$code" -ne 0 ] && [ "$f" -eq 0 ]; then fail "$name: exit code $code"; fi
  if [ "$code" -eq 0 ] && [ "$((p + ${s:-0}))" -eq 0 ]; then fail "$name: it tested nothing"; fi
}

# run NAME COMMAND...: with the caller's environment and a new folder for counters.
run() {
  name=$1
  shift
  new_stats
  begin=$(date +%s)
  FIBSHIM_STATS_DIR=$stats "$@" >"$work/log" 2>&1
  code=$?
  tally "$name ($(($(date +%s) - begin)) s)" "$work/log" "$code"
}

# ---- what must be there

for file in lib/libfibshim.so lib/libfibrecord.so lib/libfibshadow.so lib/libfibloader.so bin/fibshim config/demo config/pytorch \
  config/flashinfer config/sglang config/vllm config/machete config/cublas \
  tests/driver_contract_tests tests/conformance_tests tests/conformance/conform tests/data/engine_stubs.fatbin tests/data/faulty_kernels.fatbin tests/data/slow_kernels.fatbin tests/data/reading_kernels.fatbin tests/frameworks/devices \
  tests/hosts/engine tests/hosts/engine_linked; do
  [ -e "$build/$file" ] || fail "$build/$file is missing"
done
nvidia-smi -L 2>"$work/log" || fail "no NVIDIA GPU: nvidia-smi says: $(cat "$work/log")"
"$python" -c 'import importlib.util, sys; sys.exit(importlib.util.find_spec("torch") is None)' ||
  fail "$python has no PyTorch"
if [ "$failed" -gt 0 ]; then
  echo "$passed passed, $failed failed"
  exit 1
fi

# ---- the README's command line: 100 launches, 100 hits

literal() {
  LD_PRELOAD=$build/lib/libfibshim.so FIBSHIM_CONFIG=$build/config/pytorch \
    "$python" -c "import torch, torch.nn.functional as F; x=torch.randn(64,4096,device='cuda',dtype=torch.bfloat16); w=torch.randn(4096,device='cuda',dtype=torch.bfloat16); [F.rms_norm(x,(4096,),w,1e-6) for _ in range(100)]; torch.cuda.synchronize()" ||
    return 1
  "$build/bin/fibshim" stats || return 1
  hits=$("$build/bin/fibshim" stats --json | "$python" -c '
import json, sys
rows = json.load(sys.stdin)["counters"]
print([(row["definition"], row["outcome"], row["count"]) for row in rows if row["outcome"] != "untracked"])')
  if [ "$hits" = "[('rmsnorm_h4096', 'hit', 100)]" ]; then
    echo "PASS stats show 100 hits for rmsnorm_h4096, and nothing else that a pattern knows"
  else
    echo "FAIL stats show $hits"
  fi
}
run "the README's command" literal

# ---- the driver's contract, which the simulated driver shares

# Through a program of another name: tests/run.sh gives the simulated driver to driver_*. The variable
# makes the suite fail where it meets that one after all.
contract=$work/tests/contract_of_the_real_driver
mkdir "$work/tests"
cat >"$contract" <<end
#!/bin/sh
DRIVER_UNDER_TEST=real exec "$build/tests/driver_contract_tests" "\$@"
end
chmod +x "$contract"
run "driver contract, real driver" env LOG_FOLDER="$work/contract" tests/run.sh "$contract"
# What the driver may decide either way, and did.
cat "$work"/contract/*.log | grep '^measured: '

# ---- the curated kernels

run "curated kernels" "$python" "$here/kernels.py" --times "$work/times.json"

# ---- launches of engines that are not there: their kernels' names and parameters are

for engine in flashinfer sglang vllm; do
  run "$engine's launches" env LD_PRELOAD="$build/lib/libfibshim.so" \
    FIBSHIM_CONFIG="$build/config/$engine" "$python" "$here/engine_patterns.py" "$engine"
done

run "the memory behind a pointer" "$python" "$here/memory_range.py"

# ---- a real engine, from its wheel

if "$python" -c 'import importlib.util, sys; sys.exit(importlib.util.find_spec("vllm") is None)'; then
  run "vLLM, default mode" "$python" "$here/engine_vllm.py" "$build"
  for model in qwen3 llama_1b qwen3_moe_fp8_blocks; do
    run "vLLM, default mode, $model" "$python" "$here/engine_vllm.py" "$build" --model $model
  done
  run "vLLM, eager" "$python" "$here/engine_vllm.py" "$build" --eager
  if [ "$(nvidia-smi -L | wc -l)" -gt 1 ]; then
    run "vLLM on two GPUs" "$python" "$here/engine_vllm.py" "$build" --tensor-parallel 2
  else
    echo "SKIP vLLM on two GPUs: there is one"
    skipped=$((skipped + 1))
  fi
  run "shadow checks under vLLM, default mode" "$python" "$here/vllm_shadow.py" "$build"
  run "shadow checks under vLLM, eager" "$python" "$here/vllm_shadow.py" "$build" --eager
  run "vLLM's tensors as workloads" "$python" "$here/vllm_workloads.py" "$build"
  run "vLLM's graphs, counted and moved" "$python" "$here/vllm_graphs.py" "$build"
  run "vLLM begun with a folder that knows nothing of it" "$python" "$here/vllm_from_nothing.py" "$build"
  vllm=$("$python" -c 'import importlib.util; print(importlib.util.find_spec("vllm").submodule_search_locations[0])')
  run "vLLM's operations, without and with the folder" "$python" "$here/op_times.py" "$build" vllm --kernels "$vllm/_C_stable_libtorch.abi3.so"
  run "vLLM's products in fp8, and ours" "$python" "$here/scaled_products.py" "$build" "$vllm/_C_stable_libtorch.abi3.so"
  run "Machete's products with weights in 4 bits, and ours" "$python" "$here/machete_products.py" "$build" "$vllm/_C_stable_libtorch.abi3.so"
  run "DeepGEMM's products in fp8 with blocks, and ours" "$python" "$here/block_scaled_products.py" "$build"
  run "rows in fp8 with a scale for each block, vLLM's and ours" "$python" "$here/quant_per_block.py" "$vllm/_C_stable_libtorch.abi3.so" --sizes 4096,14336
  run "the same behind a norm or silu·mul as one, and as two of ours" "$python" "$here/then_quant_per_block.py" --vllm "$vllm/_C_stable_libtorch.abi3.so"
  run "vLLM's kernels, two or four as one" "$python" "$here/vllm_rewrites.py" "$build" "$vllm/_C_stable_libtorch.abi3.so"
  run "vLLM's routing to experts as one" "$python" "$here/moe_routing.py" "$build" "$vllm/_moe_C_stable_libtorch.abi3.so"
  run "vLLM's products of experts" "$python" "$here/expert_products.py" "$build" vllm
  run "vLLM's products of experts in fp8" "$python" "$here/expert_products.py" "$build" vllm --fp8
  run "gpt-oss's products of experts" "$python" "$here/mxfp4_products.py" "$build"
  run "vLLM's sums of experts and the norm behind them" "$python" "$here/expert_sums.py" "$build" vllm
else
  echo "SKIP vLLM: it is not installed (pip install vllm)"
  skipped=$((skipped + 1))
fi
if "$python" -c 'import importlib.util, sys; sys.exit(importlib.util.find_spec("sglang") is None)'; then
  run "SGLang, Llama" "$python" "$here/engine_sglang.py" "$build"
  run "SGLang, Qwen3" "$python" "$here/engine_sglang.py" "$build" --model qwen3
  run "SGLang, Llama 3.2 1B" "$python" "$here/engine_sglang.py" "$build" --model llama_1b
  if "$python" -c 'import deep_gemm' 2> /dev/null; then
    run "SGLang, Llama in fp8 with blocks" "$python" "$here/engine_sglang.py" "$build" --model llama_fp8_blocks
    run "SGLang, Qwen3 in fp8 with blocks" "$python" "$here/engine_sglang.py" "$build" --model qwen3_fp8_blocks
    run "SGLang, experts in fp8 with blocks" "$python" "$here/engine_sglang.py" "$build" --model qwen3_moe_fp8_blocks
  else
    echo "SKIP SGLang in fp8 with blocks: deep_gemm is not installed (pip install sgl-deep-gemm)"
    skipped=$((skipped + 1))
  fi
  run "SGLang, sampled" "$python" "$here/engine_sglang.py" "$build" --temperature 0.8
  run "SGLang's routing to experts as one" "$python" "$here/sglang_routing.py" "$build"
  run "SGLang's products of experts" "$python" "$here/expert_products.py" "$build" sglang
  run "SGLang's products of experts in fp8" "$python" "$here/expert_products.py" "$build" sglang --fp8
  run "SGLang's sums of experts and the norm behind them" "$python" "$here/expert_sums.py" "$build" sglang
else
  echo "SKIP SGLang: it is not installed (pip install sglang)"
  skipped=$((skipped + 1))
fi
if [ -e "$build/sglang_kernels.cubin" ]; then
  run "SGLang's norms, rotation and KV write as one" "$python" "$here/sglang_rewrites.py" "$build" "$build/sglang_kernels.cubin"
  run "SGLang's quantisation by blocks" "$python" "$here/quant_per_block.py" --sglang "$build/sglang_kernels.quant.cubin"
  set -- "$build"/cute_norms/*
  if [ -d "$1" ]; then
    run "SGLang's norms, silu·mul and merged parts with that quantisation as one" "$python" "$here/then_quant_per_block.py" --sglang "$build/sglang_kernels.cubin" "$1"
  else
    echo "SKIP SGLang's norms with that quantisation: FlashInfer's are not compiled (tests/engines/engines.py cute)"
    skipped=$((skipped + 1))
  fi
else
  echo "SKIP SGLang's kernels: they are not compiled (tests/engines/engines.py sglang $build/sglang_kernels.cubin)"
  skipped=$((skipped + 1))
fi

if "$python" -c 'import importlib.util, sys; sys.exit(importlib.util.find_spec("sgl_kernel") is None)'; then
  sgl=$("$python" -c 'import importlib.util; print(importlib.util.find_spec("sgl_kernel").submodule_search_locations[0])')
  run "sgl-kernel's operations, without and with the folder" "$python" "$here/op_times.py" "$build" sglang --kernels "$sgl/sm90/common_ops.abi3.so"
else
  echo "SKIP sgl-kernel: it is not installed (pip install sglang-kernel)"
  skipped=$((skipped + 1))
fi
ops=$(ls -dt "${FLASHINFER_WORKSPACE_BASE:-$HOME}"/.cache/flashinfer/*/90a/cached_ops 2>/dev/null | head -1)
missing=
for name in norm rope silu_and_mul gelu_and_mul gelu_tanh_and_mul; do
  [ -e "$ops/$name/$name.so" ] || missing=$name
done
if [ -z "$missing" ] && "$python" -c 'import importlib.util, sys; sys.exit(importlib.util.find_spec("tvm_ffi") is None)'; then
  run "FlashInfer's operations, without and with the folder" "$python" "$here/op_times.py" "$build" flashinfer --kernels "$ops"
else
  echo "SKIP FlashInfer's operations: it is not installed, or has not compiled its norms, activations and RoPE yet"
  skipped=$((skipped + 1))
fi
run "PyTorch's operations, without and with the folder" "$python" "$here/op_times.py" "$build" pytorch

# ---- cuBLAS, as PyTorch calls it

run "cuBLAS's matrix products" "$python" "$here/cublas.py" "$build"
run "operands whose rows lie apart" "$python" "$here/cublas.py" "$build" --strided
run "the same in fp16" "$python" "$here/cublas.py" "$build" --dtype float16 --rows 1,32 --shapes "4096,4096 6144,4096 28672,4096"
run "the same with a bias" "$python" "$here/cublas.py" "$build" --bias --rows 1,32 --shapes "4608,3584 7168,5120 10240,8192 32,2880 5120,2880 2880,4096"
run "the same with an addend" "$python" "$here/cublas.py" "$build" --add --rows 1,32 --shapes "4096,4096 4096,14336"
run "the same in fp8" "$python" "$here/cublas.py" "$build" --dtype float8_e4m3fn --rows 1,32 --shapes "8192,4096 28672,4096"
run "cuBLAS's matrix products, by its C interface" "$python" "$here/cublas_versions.py" "$build"
run "the sum of a product's parts and the norm behind it" "$python" "$here/sum_norm.py"
run "rows in fp8, as torch.compile makes them" "$python" "$here/quant_per_token.py" --sizes 4096,14336

# ---- FlashAttention 3, as vLLM calls it

if "$python" -c 'import importlib.util, sys; sys.exit(importlib.util.find_spec("vllm") is None)'; then
  run "FlashAttention's decode attention" "$python" "$here/flash_attention.py" "$build"
  run "the same with sinks and windows" "$python" "$here/flash_attention.py" "$build" --kinds
else
  echo "SKIP FlashAttention: vLLM is not installed (pip install vllm)"
  skipped=$((skipped + 1))
fi

# ---- what was compiled beforehand: see tests/engines/README.md

if [ -d "$build/flashinfer_sampling" ]; then
  run "FlashInfer's sampling" "$python" "$here/sampling.py" "$build"
else
  echo "SKIP FlashInfer's sampling: not compiled (tests/engines/engines.py sampling)"
  skipped=$((skipped + 1))
fi

if [ -d "$build/inductor" ]; then
  run "what torch.compile makes in vLLM's default mode" "$python" "$here/inductor.py" "$build"
else
  echo "SKIP what torch.compile makes in vLLM's default mode: not compiled (tests/engines/engines.py inductor)"
  skipped=$((skipped + 1))
fi

set -- "$build"/cute_norms/*/
if [ -d "$1" ]; then
  for cubins in "$@"; do
    run "FlashInfer's CuTe-DSL norms, $(basename "$cubins")" "$python" "$here/flashinfer_cute.py" "$build" "$cubins"
  done
else
  echo "SKIP FlashInfer's CuTe-DSL norms: compile them first (BUILD=$build tests/engines/engines.py cute)"
  skipped=$((skipped + 1))
fi

if [ -d "$build/flashinfer_decode" ]; then
  run "FlashInfer's decode attention" "$python" "$here/flashinfer_decode.py" "$build" "$build/flashinfer_decode"
else
  echo "SKIP FlashInfer's decode attention: compile it first (BUILD=$build tests/engines/engines.py decode)"
  skipped=$((skipped + 1))
fi

if [ -d "$build/sglang_attention" ]; then
  run "SGLang's decode attention" "$python" "$here/sglang_attention.py" "$build" "$build/sglang_attention"
else
  echo "SKIP SGLang's decode attention: get it first (BUILD=$build tests/engines/engines.py attention)"
  skipped=$((skipped + 1))
fi

# ---- the judge

run "the judge" "$here/judge.sh" "$build"

# ---- every way to the driver and out of it, one small process each

# Contexts of one GPU are made one after the other: more processes at a time only wait for each other.
run "conformance, real driver" env FIBSHIM_TEST_REAL_DRIVER=1 LOG_FOLDER="$work/conformance" \
  tests/run.sh -j 6 "$build/tests/conformance_tests"

# ---- a C++ engine

run "C++ engine, each way to the driver" "$python" "$here/engine_matrix.py"

# ---- what compute-sanitizer reports

run "API errors" "$here/api_errors.sh" "$build"

# ---- PyTorch

run "broken folders" "$python" "$here/broken_folders.py"
run "PyTorch's own kernels" "$python" "$here/pytorch_rms_norm.py" own "$work/own.json"
if [ -s "$work/own.json" ]; then
  run "PyTorch under the shim" env LD_PRELOAD="$build/lib/libfibshim.so" \
    FIBSHIM_CONFIG="$build/config/pytorch" \
    "$python" "$here/pytorch_rms_norm.py" redirected "$work/own.json"
else
  fail "PyTorch under the shim: nothing to compare with"
fi

# ---- contexts that a kernel spoils

run "lost contexts" "$python" "$here/poison.py"

# ---- every other framework, and two GPUs

run "every framework" "$here/frameworks.sh" "$build"
run "two devices" "$python" "$here/two_devices.py"

# ---- whole models

run "whole models" "$python" "$here/models.py"
run "decoding under transformers and JAX" "$python" "$here/decode_hosts.py"

# ---- the worked example of tools/doc/example.md

run "the worked example" "$python" "$here/worked_example.py"

# ---- moves between config folders

run "moves under load" "$python" "$here/swap.py"
run "captured graphs: executions and moves" "$python" "$here/graphs.py"
run "graphs that a host goes on changing" "$python" "$here/graph_updates.py"
run "chains that become one kernel" "$python" "$here/rewrite_chains.py"
run "rollouts over eight processes" "$python" "$here/rollout.py"

# ---- recordings

run "shadow checks" "$python" "$here/shadow.py"
run "recordings" "$here/record.sh"

[ "$skipped" -eq 0 ] || echo "$skipped skipped, listed above with the reason"
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
