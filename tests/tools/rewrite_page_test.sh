#!/usr/bin/env bash
# The files and commands of tools/doc/rewrite.md work: writes the files where the page says, and runs the commands.
set -u -o pipefail
build=$(cd "${BUILD:-build}" && pwd)
page=$PWD/tools/doc/rewrite.md
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export PATH=$build/bin:$(dirname "$(realpath "${NVCC:-/usr/local/cuda/bin/nvcc}")"):$PATH FIBSHIM_STATS_DIR=$work/stats
mkdir -p "$work/my-folder/definitions" "$work/my-folder/solutions" "$work/my-folder/patterns"
cd "$work" || exit 1
# A block is the content of the file that the last `...` before it names.
awk '/^```[a-z]/ { writes = $0 !~ /console/; next }
     /^```/ { writes = 0; file = ""; next }
     writes { print > file; next }
     { line = $0; while (match(line, /`(my-folder\/)?[a-z_\/0-9-]+\.(cu|py|json)`/)) {
         file = substr(line, RSTART + 1, RLENGTH - 2); line = substr(line, RSTART + RLENGTH) } }' "$page"
awk '/^```console/ { inside = 1; next } /^```/ { inside = 0 } inside && sub(/^\$ /, "")' "$page" >commands
umask 022
chmod -R go-w .
if bash -e commands >out 2>&1 && grep -q '^my-folder: 1 definition, 1 solution, 1 pattern: no mistakes, 1 note' out &&
  fibshim stats --json | python3 -c '
import json, sys
counted = {row["outcome"]: row["executions"] for row in json.load(sys.stdin)["counters"]}
sys.exit(counted != {"hit": 100, "absorbed": 100})'; then
  echo "[       OK ] RewritePage.DoesWhatItSays"
else
  cat out
  echo "[  FAILED  ] RewritePage.DoesWhatItSays"
  exit 1
fi
