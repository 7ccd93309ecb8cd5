#!/bin/sh
# The frameworks' kernels under the shim, on a real GPU: frameworks.sh [BUILD_FOLDER]. run.sh calls it.
root=$(cd "$(dirname "$0")/../.." && pwd)
FIBSHIM_TEST_BUILD=$(cd "$root" && cd "${1:-build}" && pwd) || exit 1
export FIBSHIM_TEST_BUILD
exec "${PYTHON:-python3}" "$root/tests/gpu/frameworks/frameworks.py"
