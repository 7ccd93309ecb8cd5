#!/usr/bin/env bash
# Every pattern of a ready folder fits a kernel of a published engine, with its parameters' sizes, as the tables
# in data/ have them (engines.py writes them).
set -u -o pipefail
build=${BUILD:-build}
here=$(dirname "$0")
failed=0
for table in "$here"/data/*.table; do
  folder=$(basename "$table" .table)
  if out=$("$build/bin/fibshim" check "$build/config/$folder" --against "$table"); then
    echo "[       OK ] Engines.$folder"
  else
    printf '%s\n[  FAILED  ] Engines.%s\n' "$(grep -A1 -e 'fits nothing' -e 'not for its' <<<"$out")" "$folder"
    failed=1
  fi
done
exit $failed
