#!/usr/bin/env bash
# Checks the models of the lock-free protocols with spin, exhaustively within their bounds; and that spin
# finds every fault that a model can be built with, so that it would find one in the protocol.
set -u -o pipefail
models=$(cd "$(dirname "$0")" && pwd)
command -v spin >/dev/null || { echo "spin is missing (apt-get install spin)"; exit 1; }
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
failures=0

# $1 model; $2 "holds" or "fails"; then what it is built with
check() {
  local model=$1 wanted=$2 name=$work/$1
  shift 2
  rm -rf "$name" && mkdir "$name" && cd "$name" || exit 1
  if ! { spin -a "$@" "$models/$model.pml" && gcc -w -O2 -DCOLLAPSE -DSAFETY -DMEMLIM=4000 -o pan pan.c; } \
      >build.log 2>&1; then
    cat build.log
    echo "FAILED  $model $*: it does not build"
    failures=$((failures + 1))
    return
  fi
  ./pan -m200000 >run.log 2>&1
  local found=holds states
  grep -q 'errors: 0$' run.log || found=fails
  # A search that was cut short has proved nothing.
  if grep -qE 'Search not completed|max search depth|out of memory|limit reached' run.log &&
      [ "$found" = holds ]; then
    found="is cut short"
  fi
  if [ "$found" = fails ] && ! grep -q 'assertion violated' run.log; then found="ends oddly"; fi
  states=$(sed -n 's/^ *\([0-9.e+]*\) states, stored.*/\1/p' run.log)
  if [ "$found" = "$wanted" ]; then
    echo "ok      $model $* $found, $states states"
  else
    cat run.log
    echo "FAILED  $model $* $found, but $wanted is wanted"
    failures=$((failures + 1))
  fi
}

check handles holds -DREADERS=1 -DLOOKUPS=2 -DCHANGES=4
check handles holds -DREADERS=2 -DLOOKUPS=1 -DCHANGES=2
for fault in NO_FENCE NO_WAIT VALUE_LATE; do check handles fails -D$fault; done
check handles holds -DSWAPS -DREADERS=1 -DLOOKUPS=1 -DCHANGES=2
for fault in NO_FENCE NO_WAIT NO_LOOK NO_SECTION; do
  check handles fails -DSWAPS -DLOOKUPS=1 -DCHANGES=6 -D$fault
done
check decisions holds -DLAUNCHES=3
for fault in HALF_MADE EMPTY_TABLE NO_LOOK KEY_FIRST; do check decisions fails -D$fault; done
[ "$failures" = 0 ]
