#!/usr/bin/env bash
# Shows the whole flow in a minute: runs a small CUDA program under the shim, twice, and shows the
# counters. The first time its kernel has a curated replacement (hits), the second time it has none (falls back).
#
#   tools/demo.sh BUILD_DIR
#
# Runs on the GPU if there is one, else on the simulated driver. The text after a `$` can be pasted.
set -eu -o pipefail
build=$1
fibshim=$build/bin/fibshim
config=$build/config/demo
launches=100
unset FIBSHIM_CONFIG FIBSHIM_MODE FIBSHIM_ON_ERROR

say() { printf '\n== %s\n' "$*"; }
run() {
  printf '$ %s\n' "$*"
  "$@"
}

# `doctor` tries the driver; its line about the driver begins with "ok" if there is a working GPU.
simulate=
driver=$("$fibshim" doctor 2>/dev/null | sed -n 's/^\([a-z]*\) *driver: \(.*\)/\1 \2/p') || true
if [ "${driver%% *}" = ok ]; then
  say "on the GPU: ${driver#ok }"
else
  say "no GPU here: running on the built-in simulated driver"
  simulate=--simulate
fi
rm -rf "$build/demo-counters"
mkdir -m 700 "$build/demo-counters"
run export FIBSHIM_STATS_DIR="$(realpath "$build/demo-counters")"
if { "$fibshim" check "$config" || true; } | grep '\[untrusted\]' >/dev/null; then
  say "others of this folder's group can write here; for the demo they are trusted"
  run export FIBSHIM_TRUST=group
fi

say "RMSNorm with hidden size 4096: the folder config/demo has a solution for it"
# shellcheck disable=SC2086  # no option is no word
run "$fibshim" run $simulate -c "$config" -- \
  "$build/tests/hosts/engine" --demo --hidden=4096 --rows=64 --launches=$launches --dtype=bf16

say "RMSNorm with hidden size 4100: it has none, so the program's own kernel runs"
# shellcheck disable=SC2086
run "$fibshim" run $simulate -c "$config" -- \
  "$build/tests/hosts/engine" --demo --hidden=4100 --rows=64 --launches=$launches --dtype=bf16

say "what happened to the launches"
run "$fibshim" stats

# The demo fails if the counts are wrong.
hits=$("$fibshim" stats --prometheus | sed -n 's/^fibshim_launches_total{.*outcome="hit".*} //p' | paste -sd+ -)
if [ "$((${hits:-0}))" != $launches ]; then
  echo "demo: expected $launches hits" >&2
  exit 1
fi
