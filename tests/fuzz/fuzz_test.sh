#!/usr/bin/env bash
# Every fuzz target replays its corpus and then looks for new inputs, for a minute or for
# FUZZ_SECONDS; longer: make fuzz.
set -eu
cd "$(dirname "$0")/../.."
fuzz=${BUILD:-build}/asan/fuzz
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
tests/fuzz/run.sh -s "${FUZZ_SECONDS:-60}" -o "$out" "$fuzz/bin" || {
  # What is in the temporary folder goes with it.
  mkdir -p "$fuzz/findings" && cp -r "$out/findings/." "$fuzz/findings/"
  echo "the inputs are in $fuzz/findings: $fuzz/bin/TARGET FILE repeats one"
  exit 1
}
