#!/usr/bin/env bash
# Every pattern of a ready folder fits a kernel of a published engine, with its parameters' sizes, as the tables
# in data/ have them (engines.py writes them): of its wheels, and of what it compiles at run time.
set -u -o pipefail
export BUILD=${BUILD:-build} PYTHONDONTWRITEBYTECODE=1
here=$(dirname "$0")
failed=0
for folder in $(ls "$here/data" | sed 's/\..*//' | sort -u); do
  if out=$("$here/engines.py" show "$folder") && [ -n "$out" ]; then
    echo "[       OK ] Engines.$folder"
  else
    printf '%s\n[  FAILED  ] Engines.%s\n' "$(grep FAIL <<<"$out")" "$folder"
    failed=1
  fi
done

# `show` fails where a pattern fits nothing, and where what it fits by name has other parameters.
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
mkdir "$scratch/engines" "$scratch/engines/data"
cp "$here"/*.py "$here"/*.table "$scratch/engines/"
cp "$here"/data/sglang.* "$scratch/engines/data/"
expect() {  # $1: what must be printed; the exit code is 1
  local out code=0
  out=$("$scratch/engines/engines.py" show sglang 2>&1) || code=$?
  if [ $code != 1 ] || [[ $out != *"$1"* ]]; then
    printf 'exit code %s, without "%s"\n[  FAILED  ] Engines.ShowFails\n' $code "$1"
    failed=1
  fi
}
# The newest version has one kernel: others that only older versions have are no excuse, but for a pattern that is for those.
older=$scratch/engines/older.table
sed -E -i -e '2,$s/(^|,)sglang-kernel-0\.4\.10([ ,])/\1sglang-kernel-0.4.6\2/;2,$s/(^|,)sgl-kernel-0\.3\.21([ ,])/\1sgl-kernel-0.3.19\2/' \
  -e '2,$s/(^|,)sglang-0\.5\.23([ ,])/\1sglang-0.5.22\2/' "$scratch"/engines/data/sglang.*
echo 'sgl-kernel-0.3.21,sglang-kernel-0.4.10,sglang-0.5.23 0:8 a_kernel' | tee -a "$scratch"/engines/data/sglang.* >/dev/null
expect 'FAIL: fits nothing in the newest version'
echo 'sglang 0.4.6 .*' >>"$older"
if ! "$scratch/engines/engines.py" show sglang >/dev/null; then
  printf 'patterns for older versions fail\n[  FAILED  ] Engines.ShowFails\n'
  failed=1
fi
cp "$here"/data/sglang.* "$scratch/engines/data/"
expect 'FAIL: fits the newest version: older.table has it'
cp "$here/older.table" "$older"
sed -i -E '2,$s/^([^ ]+) [^ ]+ /\1 0:8,8:3 /' "$scratch"/engines/data/sglang.*
expect 'not for its parameters, [8, 3]: '
sed -i '1,2!d' "$scratch"/engines/data/sglang.*
expect 'FAIL: fits nothing: '

# What vLLM's default mode compiled on a GPU, but for what reads the rows of the embedding or brings rotated queries to fp8, inductor_kernels.py compiles without one: the same
# code and parameters. Of 0.25 other kernels have no names.
compiled_as() {  # $1: PyTorch's version, $2: vLLM's, $3: as many kernels at least
  local of_a_gpu missing
  of_a_gpu=$(awk -v version="vllm-$2" '$1 == version && $3 ~ /^triton_[a-z]+_fused_/ && $3 !~ /_(embedding|cat_clamp)_/ {print $2, $4}' "$here/data/vllm.recorded" | sort -u)
  missing=$(comm -23 <(echo "$of_a_gpu") <(awk -v version="torch-$1" '$1 ~ version {print $2, $4}' "$here/data/vllm.compiled" | sort -u))
  if [ "$(wc -l <<<"$of_a_gpu")" -ge "$3" ] && [ -z "$missing" ]; then
    echo "[       OK ] Engines.compiled of vLLM $2"
  else
    printf 'of %s recorded, not compiled:\n%s\n[  FAILED  ] Engines.compiled of vLLM %s\n' "$(wc -l <<<"$of_a_gpu")" "$missing" "$2"
    failed=1
  fi
}
compiled_as 2.11.0 0.25.0 43
compiled_as 2.13.0 0.32.0 20
compiled_as 2.14.0 0.33.0 46

# Between 0.10 and 0.20, of which there is no table, vLLM's activations had three booleans: which half is activated, then two more.
symbols=$scratch/symbols
cat >"$symbols" <<'EOF'
fibshim kernels 1: vllm
vllm 0:8,8:8,16:4 _ZN4vllm18act_and_mul_kernelIN3c108BFloat16E14__nv_bfloat162XadL_ZNS_11silu_kernelIS2_EET_RKS5_EEXadL_ZNS_18packed_silu_kernelIS3_EES5_S7_EELb0ELb1ELb0EEEvPS5_PS6_i
EOF
fitting=$("$BUILD/bin/fibshim" check "$BUILD/config/vllm" --against "$symbols" | grep -o '[^ ]*: fits 1 kernel')
if [ "$fitting" = 'vllm-mul-and-silu-bf16: fits 1 kernel' ]; then
  echo "[       OK ] Engines.mul_and_silu"
else
  printf 'mul_and_silu is known as: %s\n[  FAILED  ] Engines.mul_and_silu\n' "$fitting"
  failed=1
fi

# Another order of weights, or another type of the product, is in Machete's name alone.
for other in 's/IlvBlkLayoutAuto/IlvBlkLayoutElse/' 's/llEEESB_S/llEEES9_S/'; do
  sed "$other" "$here/data/machete.table" >"$symbols"
  if cmp -s "$symbols" "$here/data/machete.table" ||
    "$BUILD/bin/fibshim" check "$BUILD/config/machete" --against "$symbols" | grep -q ': fits [0-9]* kernel'; then
    printf 'fits with %s\n[  FAILED  ] Engines.machete of another kind\n' "$other"
    failed=1
  fi
done
exit $failed
