#!/bin/sh
# Measures ready folders on this GPU beside what they replace, and leaves each folder's measurements.json below
# OUT: to be committed as config/FOLDER/measurements.json. Then says what `fibshim check` makes of them.
#
#   keep.sh BUILD_FOLDER OUT [FOLDER...]     RECORDINGS=DIR: DIR/FOLDER.jsonl are recordings of an engine that
#                                            `fibshim record --keep-images` made for that folder
#
# Without a recording a folder is timed alone, but for `pytorch`, which brings its own.
set -u
build=$1 out=$2
shift 2
[ $# -gt 0 ] || set -- demo pytorch flashinfer sglang vllm
python=${PYTHON:-python3}
mkdir -p "$out"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0

for folder in "$@"; do
  cp -R "$build/config/$folder" "$work/$folder"
  recording=${RECORDINGS:-}/$folder.jsonl
  if [ "$folder" = pytorch ] && [ ! -e "$recording" ]; then
    recording=$work/pytorch.jsonl
    "$build/bin/fibshim" record -o "$recording" -c "$work/pytorch" --keep-images '*' -- "$python" -c '
import torch, torch.nn.functional as F
for hidden in 1024, 2048, 4096, 8192:
    for rows in 1, 8, 64, 512, 1024, 4096, 16384:
        for dtype in torch.bfloat16, torch.float16:
            x = torch.randn(rows, hidden, device="cuda", dtype=dtype)
            w = torch.randn(hidden, device="cuda", dtype=dtype)
            F.rms_norm(x, (hidden,), w, 1e-6)
            F.layer_norm(x, (hidden,), w, w, 1e-5)
            F.softmax(x, -1)
torch.cuda.synchronize()' || failed=1
  fi
  set -- -q --keep --graph "$work/$folder"
  [ ! -e "$recording" ] || set -- "$@" --against-original "$recording"
  "$build/bin/fibshim" bench "$@" >"$out/$folder.log" 2>&1
  tail -n 1 "$out/$folder.log"
  if [ -e "$work/$folder/measurements.json" ]; then
    mkdir -p "$out/$folder"
    cp "$work/$folder/measurements.json" "$out/$folder/"
    "$build/bin/fibshim" check "$work/$folder" | grep -E 'measured|warning|error' || true
  else
    echo "FAIL $folder: no times were kept; see $out/$folder.log"
    failed=1
  fi
done
exit $failed
