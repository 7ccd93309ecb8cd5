#!/usr/bin/env bash
# Runs fuzz targets: first every input of the corpus, then new ones. Closes with one line alone.
#
#   tests/fuzz/run.sh [-s SECONDS] [-j JOBS] [-o FOLDER] FOLDER_OF_BINARIES [TARGET...]
#
#   -s SECONDS  for each target, after its corpus (default 60; 0: the corpus alone)
#   -j JOBS     targets at a time (default: the number of processors). More than there are targets:
#               several processes work at one target and share what they find
#   -o FOLDER   what is kept (default: FOLDER_OF_BINARIES/out):
#                 corpus/TARGET    the inputs that were given and those that reached new code, grown
#                                  with every run; tests/fuzz/merge.sh takes the best of them back
#                 findings/        inputs that a target fell over, with NAME.txt: how to repeat it
#                 TARGET.log       all that it said
#
# Needs nothing but the binaries and the corpora, which lie beside this script or, where they were
# copied, beside the binaries. Exit code 1 where there is a finding.
set -u -o pipefail
export LC_ALL=C

seconds=60 jobs=$(nproc) out=
while getopts s:j:o: option; do
  case $option in
    s) seconds=$OPTARG ;;
    j) jobs=$OPTARG ;;
    o) out=$OPTARG ;;
    *) sed -n '2,19s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
  esac
done
shift $((OPTIND - 1))
[ $# -gt 0 ] || { sed -n '2,19s/^# \{0,1\}//p' "$0" >&2; exit 2; }
binaries=$(realpath "$1") || exit 2
shift
here=$(dirname "$(realpath "$0")")
out=$(realpath -m "${out:-$binaries/out}")
corpora=$here/corpus
[ -d "$corpora" ] || corpora=$binaries/corpus
[ $# -gt 0 ] || {
  for binary in "$binaries"/*; do [ -f "$binary" ] && [ -x "$binary" ] && set -- "$@" "${binary##*/}"; done
}
[ $# -gt 0 ] || { echo "tests/fuzz/run.sh: no targets in $binaries" >&2; exit 2; }

# Found by chance within minutes, and none a machine should take longer over: a slow unit, a large
# allocation, a leak is a finding like a crash.
limits=(-timeout=20 -rss_limit_mb=2048 -malloc_limit_mb=1024 -print_final_stats=1
  -max_len=65536 -len_control=50)
export ASAN_OPTIONS=detect_stack_use_after_return=1:strict_string_checks=1:allocator_may_return_null=0
export UBSAN_OPTIONS=print_stacktrace=1
scratch=$(mktemp -d -p /dev/shm 2>/dev/null || mktemp -d) || exit 2
trap 'rm -rf "$scratch"' EXIT
export TMPDIR=$scratch

# One process of one target, in the background of run_target.
run_process() { # target, number, what
  local target=$1 log=$out/$1.$2.log
  local options=("${limits[@]}" "-artifact_prefix=$out/findings/$target-")
  [ ! -e "$here/$target.dict" ] || options+=("-dict=$here/$target.dict")
  [ ! -e "$binaries/$target.dict" ] || options+=("-dict=$binaries/$target.dict")
  nice -n 10 "$binaries/$target" "${options[@]}" "${@:3}" >"$log" 2>&1
}

run_target() {
  local target=$1 processes=$2 seeds=$corpora/$1 grown=$out/corpus/$1 code=0 number pids=()
  local started=${EPOCHREALTIME/./}
  mkdir -p "$grown"
  # What an earlier run has found is a finding until it is mended.
  local old
  for old in "$out/findings/$target"-*; do
    if [ ! -e "$old" ] || [[ $old == *.txt ]]; then continue; fi
    if "$binaries/$target" "${limits[@]}" "-artifact_prefix=$scratch/" "$old" >/dev/null 2>&1; then
      rm -f "$old" "$old.txt"
    fi
  done
  # What is replayed must pass, each input alone: a target that fell over the first would hide others.
  find "$seeds" "$grown" -type f -print0 2>/dev/null >"$scratch/$target.inputs"
  xargs -0 -r -n 500 "$binaries/$target" "${limits[@]}" "-artifact_prefix=$out/findings/$target-" \
    <"$scratch/$target.inputs" >"$out/$target.replay.log" 2>&1 || code=1
  if [ "$seconds" -gt 0 ] && [ $code = 0 ]; then
    for ((number = 0; number < processes; ++number)); do
      run_process "$target" "$number" -max_total_time="$seconds" -reload=5 "$grown" "$seeds" &
      pids+=($!)
    done
    for number in "${pids[@]}"; do wait "$number" || code=1; done
  fi
  local logs=("$out/$target.replay.log")
  for ((number = 0; number < processes; ++number)); do logs+=("$out/$target.$number.log"); done
  {
    for log in "${logs[@]}"; do [ ! -e "$log" ] || cat "$log"; done
  } >"$out/$target.log"
  rm -f "${logs[@]}"
  local inputs executions edges
  inputs=$(tr -cd '\0' <"$scratch/$target.inputs" | wc -c)
  executions=$(awk '/^stat::number_of_executed_units:/ {n += $2} END {printf "%d", n}' "$out/$target.log")
  edges=$(awk '{for (i = 1; i < NF; ++i) if ($i == "cov:" && $(i + 1) > n) n = $(i + 1)} END {printf "%d", n}' "$out/$target.log")
  local found=0 finding
  for finding in "$out/findings/$target"-*; do
    if [ ! -e "$finding" ] || [[ $finding == *.txt ]]; then continue; fi
    found=$((found + 1))
    printf '%s %s\n' "$binaries/$target" "$finding" >"$finding.txt"
  done
  [ $code = 0 ] || [ $found -gt 0 ] || found=1  # it ended without an input to blame
  printf '%s %d %d %d %d %d\n' "$target" "$inputs" "$executions" \
    $(((${EPOCHREALTIME/./} - started) / 1000000)) "$edges" "$found" >"$scratch/$target.result"
}

mkdir -p "$out/findings"
rm -f "$out"/*.log
each=$((jobs / $#))
[ $each -ge 1 ] || each=1
began=${EPOCHREALTIME/./}
for target in "$@"; do
  while [ "$(jobs -rp | wc -l)" -ge $((jobs < $# ? jobs : $#)) ]; do wait -n; done
  run_target "$target" "$each" &
done
wait

printf '  %-14s %8s %12s %8s %8s %9s\n' TARGET CORPUS EXECUTIONS SECONDS EDGES FINDINGS
executions=0 findings=0
for target in "$@"; do
  read -r name inputs count time edges found <"$scratch/$target.result" ||
    { name=$target inputs=0 count=0 time=0 edges=0 found=1; }
  printf '  %-14s %8d %12d %8d %8d %9d\n' "$name" "$inputs" "$count" "$time" "$edges" "$found"
  executions=$((executions + count)) findings=$((findings + found))
  if [ "$found" -gt 0 ]; then
    grep -E -m 3 '^does not hold|ERROR: |runtime error' "$out/$target.log" | sed 's/^/    /'
    cat "$out/findings/$target"-*.txt 2>/dev/null | sed 's/^/    repeat: /'
  fi
done
echo "$# targets, $executions executions in $(((${EPOCHREALTIME/./} - began) / 1000000)) s, $findings findings"
[ $findings = 0 ]
