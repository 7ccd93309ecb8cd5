#!/bin/sh
# The conformance suite with every launch recorded, timed with events and by CUPTI: what is recorded changes nothing of what a host sees.
# The cases and every hook, but for those that count the driver's calls, which timing adds to, and one of rewrites that
# follow sets, which they do not while launches are recorded; and the sanitized shim. What makes calls and resources fail, kills, and runs long is about other parts. What runs under
# load is recorded with events alone: there the recorder has more to do.
set -eu
build=${BUILD:-build}
# $1 how it is timed, $2 what runs, $3 what does not; in two halves at a time.
run() {
  for half in 0 1; do
    FIBSHIM_TEST_RECORD=$1 GTEST_TOTAL_SHARDS=2 GTEST_SHARD_INDEX=$half "$build/tests/conformance_tests" --gtest_brief=1 \
      --gtest_filter="$2:-*NothingIsLoadedAtLaunch:*UpdatesTakeFewCalls:*UpdatesBesideTakeFewCalls:*RewriteFollowsItsKernels:*cuStreamDestroy*:*Herd${3-}" &
    running="${running-} $!"
  done
}
run events '*EveryCase*:*EveryHook*:*RandomPrograms.RunWhat*/0:*RandomPrograms.RunWhat*/1:*Swap.Holds*'
run cupti '*EveryCase*' ':*UnderLoad:*CancelledLaunches'
for process in $running; do wait "$process"; done
