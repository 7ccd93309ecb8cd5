#!/usr/bin/env bash
# Every pattern of a ready folder fits a kernel of a published engine, with its parameters' sizes, as the tables
# in data/ have them (engines.py writes them): of its wheels, and of what it compiles at run time.
set -u -o pipefail
build=${BUILD:-build}
here=$(dirname "$0")
failed=0
for folder in $(ls "$here/data" | sed 's/\..*//' | sort -u); do
  against=()
  for table in "$here/data/$folder".*; do against+=(--against "$table"); done
  # A norm of vLLM is one launch with cuBLAS's sum before it.
  if [ "$folder" = vllm ]; then against+=(--against "$here/data/cublas.table"); fi
  if out=$("$build/bin/fibshim" check "$build/config/$folder" "${against[@]}"); then
    echo "[       OK ] Engines.$folder"
  else
    printf '%s\n[  FAILED  ] Engines.%s\n' "$(grep -A1 -e 'fits nothing' -e 'not for its' <<<"$out")" "$folder"
    failed=1
  fi
done
exit $failed
