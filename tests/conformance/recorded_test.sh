#!/bin/sh
# The conformance suite with every launch recorded: what is recorded changes nothing of what a host sees.
# Left out: cases that count the driver's calls, which timing adds to; the sanitized host over a shim that is
# not, which sees the recorder's memcmp, but not the atomics that order it (the sanitized shim stays in);
# and what makes calls and resources fail, kills, and runs long: that is about other parts of the shim.
set -eu
build=${BUILD:-build}
FIBSHIM_TEST_RECORD=1 exec "$build/tests/conformance_tests" --gtest_brief=1 \
  --gtest_filter='-*NothingIsLoadedAtLaunch:*cuStreamDestroy*:*TsanHost:*AsanHost:*WithFaults*:Soak.*:Facts.*:Clocks.*:Limits.*:Disks.*:Folder.*:Signals.*:Kills.*:Conformance/Libc.*'
