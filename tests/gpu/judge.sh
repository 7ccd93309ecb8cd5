#!/bin/sh
# The judge on a real GPU and beside PyTorch: the references that it has built in against PyTorch's, then
# every solution of the built folders, then one benchmark. Prints PASS and FAIL lines.
#
#   judge.sh BUILD_FOLDER
set -u
build=$1
here=$(cd "$(dirname "$0")" && pwd)
python=${PYTHON:-python3}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

check() {
  name=$1
  shift
  if "$@" >"$work/log" 2>&1; then
    echo "PASS $name: $(tail -n 1 "$work/log")"
  else
    echo "FAIL $name"
    tail -n 40 "$work/log"
  fi
}

check "the built-in references agree with PyTorch" \
  "$build/bin/fibshim" verify --check-references --python "$python" "$here/references"
for folder in "$build"/config/*; do
  case ${folder##*/} in cublas | flash_attention) continue ;; esac
  check "verify $(basename "$folder")" "$build/bin/fibshim" verify -q "$folder" -o "$work/records"
done

# Of products and attention only the definitions say what is right. Starting Python and making weights takes most of
# the time, so eight processes share the definitions. $2: which, if not all.
judge_by_definitions() {
  code=0
  sed -n 's/^ *"definition": "\(.*\)",$/\1/p' $(find "$1/solutions" -name '*.json') | sort -u | grep -E "${2:-.}" |
    xargs -n 4 -P 8 "$build/bin/fibshim" verify -q --python "$python" "$1" >"$work/judged" 2>&1 || code=$?
  [ "$code" -eq 0 ] || grep -v PASSED "$work/judged"
  sed -n 's/^\([0-9]*\) cases*: \([0-9]*\) passed, \([0-9]*\) failed.*/\1 \2 \3/p' "$work/judged" |
    awk '{cases += $1; passed += $2; failed += $3} END {print cases " cases: " passed " passed, " failed " failed"}'
  return "$code"
}
for folder in cublas flash_attention; do
  check "verify $folder by its definitions" judge_by_definitions "$build/config/$folder"
done
check "verify vllm in fp8 by its definitions" judge_by_definitions "$build/config/vllm" 'fp8|_per_|_static'
"$python" "$here/batch_invariance.py" "$build" || echo "FAIL batch_invariance.py"
check "verify demo by the definitions' own references" \
  "$build/bin/fibshim" verify -q --python "$python" "$build/config/demo"
# PyTorch's own kernel, recorded, is the reference of what replaces it.
check "record PyTorch's kernel with its image" \
  "$build/bin/fibshim" record -o "$work/torch.jsonl" -c "$build/config/pytorch" --keep-images '*vectorized_layer_norm*' -- \
  "$python" -c "import torch, torch.nn.functional as F; x=torch.randn(33,4096,device='cuda',dtype=torch.bfloat16); w=torch.randn(4096,device='cuda',dtype=torch.bfloat16); F.rms_norm(x,(4096,),w,1e-6); torch.cuda.synchronize()"
check "verify against PyTorch's kernel" \
  "$build/bin/fibshim" verify "$build/config/pytorch" rmsnorm_h4096 --against-original "$work/torch.jsonl"
# Tensors of a program as workloads: judged and timed here, read by flashinfer-bench.
check "record tensors of PyTorch" \
  "$build/bin/fibshim" record -o "$work/tensors.jsonl" -c "$build/config/pytorch" --tensors "$work/tensors" -- \
  "$python" "$here/workloads.py" run
check "verify the workloads recorded" \
  "$build/bin/fibshim" verify "$build/config/pytorch" rmsnorm_h4096 softmax_v32000 --axis batch_size=1 --workloads "$work/tensors"
# What the kept outputs are off from the reference is what is tolerated from then on, and no launch of other inputs differs by more.
cp -rL "$build/config/pytorch" "$work/pytorch"
for what in show write; do
  check "tolerances from the workloads recorded, $what" \
    "$build/bin/fibshim" verify "$work/pytorch" rmsnorm_h4096 softmax_v32000 --axis batch_size=1 --workloads "$work/tensors" --tolerances "$what"
done
check "verify with these tolerances" "$build/bin/fibshim" verify -q "$work/pytorch" rmsnorm_h4096 softmax_v32000
check "shadow checks with these tolerances: no mismatch" env FIBSHIM_STATS_DIR="$work/stats" FIBSHIM_SHADOW=1/1 \
  "$build/bin/fibshim" run -c "$work/pytorch" -- "$python" "$here/shadow.py" work
"$build/bin/fibshim" stats --json --dir "$work/stats" | "$python" -c '
import json, sys
rows = [row for row in json.load(sys.stdin)["shadow"] if row["definition"] in ("rmsnorm_h4096", "softmax_v32000")]
checks, wrong = sum(row["checks"] for row in rows), [row for row in rows if row["mismatches"]]
print("PASS" if checks > 40 and not wrong else "FAIL", "stats after shadow checks with these tolerances:", checks, "checks, mismatches:", wrong)'
check "bench the workloads recorded" \
  "$build/bin/fibshim" bench "$build/config/pytorch" rmsnorm_h4096 --iterations 5 \
  --workloads "$work/tensors/workloads/rmsnorm/rmsnorm_h4096.jsonl"
"$python" "$here/workloads.py" load "$work/tensors"
check "bench demo" "$build/bin/fibshim" bench -q "$build/config/demo" -o "$work/records" \
  --axis batch_size=1,1024
check "report" "$build/bin/fibshim" report "$work/records" -o "$work/report.html"
