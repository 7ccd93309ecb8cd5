#!/usr/bin/env bash
# The loader's tests under AddressSanitizer and UBSan, in one process: to start one takes longer than most
# of them.
set -eu
exec "${BUILD:-build}/asan/tests/loader_tests" --gtest_brief=1 --gtest_color=no
