#!/bin/sh
# The conformance suite with every launch recorded: what is recorded changes nothing of what a host sees.
# Left out: cases that count the driver's calls, which timing adds to; one that relies on hits being counted
# before the launch, as the fast side does; and the sanitized host over a shim that is not, which sees the
# recorder's memcmp, but not the atomics that order it. The sanitized shim stays in.
set -eu
build=${BUILD:-build}
FIBSHIM_TEST_RECORD=1 exec "$build/tests/conformance_tests" --gtest_brief=1 \
  --gtest_filter='-*NothingIsLoadedAtLaunch:*cuStreamDestroy*:*TsanHost:Processes.ExitWithLaunchesInFlight'
