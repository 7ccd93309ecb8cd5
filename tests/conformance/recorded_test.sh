#!/bin/sh
# The conformance suite with every launch recorded, timed with events and by CUPTI: what is recorded changes nothing of what a host sees.
# The cases and every hook, but for those that count the driver's calls, which timing adds to; and the
# sanitized shim. What makes calls and resources fail, kills, and runs long is about other parts. What runs under
# load is recorded with events alone: there the recorder has more to do.
set -eu
build=${BUILD:-build}
run() {
  FIBSHIM_TEST_RECORD=$1 "$build/tests/conformance_tests" --gtest_brief=1 \
    --gtest_filter="$2:-*NothingIsLoadedAtLaunch:*cuStreamDestroy*:*Herd${3-}"
}
run events '*EveryCase*:*EveryHook*:*RandomPrograms.RunWhat*/0:*RandomPrograms.RunWhat*/1:*Swap.Holds*' &
events=$!
run cupti '*EveryCase*' ':*UnderLoad:*CancelledLaunches'
wait $events
