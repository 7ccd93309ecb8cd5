#!/usr/bin/env bash
# The whole flow in a minute: a small CUDA program is run under the shim, twice, and the counters
# are shown. Once its kernel has a curated replacement (hits), once it has none (falls back).
#
#   tools/demo.sh BUILD_DIR
#
# On the GPU where there is one; else on the simulated driver that the tests use.
set -eu -o pipefail
build=$(cd "$1" && pwd)
fibshim=$build/bin/fibshim
engine=$build/tests/hosts/engine
launches=100

FIBSHIM_STATS_DIR=$(mktemp -d)
export FIBSHIM_STATS_DIR
trap 'rm -rf "$FIBSHIM_STATS_DIR"' EXIT
unset FIBSHIM_CONFIG FIBSHIM_MODE FIBSHIM_ON_ERROR

say() { printf '\n== %s\n' "$*"; }
run() {
  printf '$ %s\n' "${*//$build\//}"
  "$@"
}

# `doctor` tries the driver; its line on it begins with "ok" when there is a GPU that works.
driver=$("$fibshim" doctor 2>/dev/null | sed -n 's/^\([a-z]*\) *driver: \(.*\)/\1 \2/p') || true
if [ "${driver%% *}" = ok ]; then
  say "on the GPU: ${driver#ok }"
else
  say "no GPU here: running on the built-in simulated driver"
  export LD_LIBRARY_PATH=$build/sim${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
fi

say "RMSNorm with hidden size 4096: the folder config/demo has a solution for it"
run "$fibshim" run -c "$build/config/demo" -- \
  "$engine" --demo --hidden=4096 --rows=64 --launches=$launches --dtype=bf16

say "RMSNorm with hidden size 4100: it has none, so the program's own kernel runs"
run "$fibshim" run -c "$build/config/demo" -- \
  "$engine" --demo --hidden=4100 --rows=64 --launches=$launches --dtype=bf16

say "what happened to the launches"
run "$fibshim" stats

# Not only shown, but true: the demo fails when the counts are others.
hits=$("$fibshim" stats --prometheus | sed -n 's/^fibshim_launches_total{.*outcome="hit".*} //p' | paste -sd+ -)
if [ "$((${hits:-0}))" != $launches ]; then
  echo "demo: expected $launches hits" >&2
  exit 1
fi
