#!/bin/sh
# compute-sanitizer reports as many API errors of a host under the shim as without it: tests/gpu/api_errors.sh
# [BUILD_FOLDER].
set -u
root=$(cd "$(dirname "$0")/../.." && pwd)
build=$(cd "$root" && cd "${1:-build}" && pwd) || exit 1
sanitizer=$(command -v compute-sanitizer || echo /usr/local/cuda/bin/compute-sanitizer)
[ -x "$sanitizer" ] || {
  echo "FAIL compute-sanitizer is missing"
  exit 1
}
log=$(mktemp) || exit 1
trap 'rm -f "$log"' EXIT

# errors PRELOAD ARGUMENTS...: of a host that was checked to the end; empty otherwise.
errors() {
  preload=$1
  shift
  env ${preload:+LD_PRELOAD="$preload" FIBSHIM_CONFIG="$build/config/pytorch"} \
    "$sanitizer" --tool memcheck --report-api-errors all --target-processes all \
    "$build/tests/hosts/engine" --hidden=128 --launches=5 "$@" >"$log" 2>&1
  grep -q '"ok":true' "$log" && sed -n 's/.*ERROR SUMMARY: \([0-9]*\) errors\{0,1\}.*/\1/p' "$log"
}

failed=0
while read -r words; do
  # shellcheck disable=SC2086 # options, one word each
  without=$(errors "" $words)
  # shellcheck disable=SC2086
  under=$(errors "$build/lib/libfibshim.so" $words)
  if [ -n "$without" ] && [ "$under" = "$without" ]; then
    echo "PASS $under API errors under the shim, as without it: engine $words"
  else
    echo "FAIL API errors without the shim: '$without', under it: '$under': engine $words"
    grep '=========' "$log" | head -n 20
    failed=1
  fi
done <<end
--module=library
--module=module
--resolve=getproc4
--api=ex --load=file
--capture
end
exit "$failed"
