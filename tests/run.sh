#!/usr/bin/env bash
# Runs test programs, each test in a process of its own, and closes with one line alone:
#
#   N passed, N failed            (and ", N skipped" where there were any)
#
#   tests/run.sh [-j JOBS] [-t SECONDS] [-f FILTER] PROGRAM...
#
#   PROGRAM     a GoogleTest program, or a script named *_test.sh: one test, which passes with exit
#               code 0 and is skipped with 77
#   -f FILTER   only tests whose "Suite.Test" (of a script: its name) holds FILTER, or fits it as a
#               GoogleTest filter when it holds one of *?:-
#   -j JOBS     tests at a time (default: the number of processors)
#   -t SECONDS  a test that runs longer has failed (default 300)
#
# The output of a test is shown only when it fails, and kept in LOG_FOLDER (default: tests/logs/ in
# the build folder). Every process that a test started ends with it, and with this script (reaper.cc).
# Exit code 0: every test passed or was skipped, and at least one passed.
set -u -o pipefail
export LC_ALL=C
umask 022  # the folders that tests make are to be trusted

# ---- one test, in a worker process: prints "status seconds program test" as one line
run_one() {
  local program=$1 test=$2 name log output started code status
  name=${program##*/}
  log=$LOG_FOLDER/${name%.sh}.${test//\//_}.log
  [ "${program%/tests/*}" = "$MAIN_BUILD" ] || log=${log%.log}.$(basename "${program%/tests/*}").log
  # The contract suite runs against whichever driver the linker finds: here the simulated one.
  [[ $name != driver_* ]] || export LD_LIBRARY_PATH=${program%/tests/*}/sim
  started=${EPOCHREALTIME/./}
  if [[ $program == *.sh ]]; then
    "$REAPER" -t "$TIME_LIMIT" "$program" >"$log" 2>&1 </dev/null
  else
    "$REAPER" -t "$TIME_LIMIT" "$program" --gtest_color=no --gtest_brief=0 \
      --gtest_filter="$test" >"$log" 2>&1 </dev/null
  fi
  code=$?
  status=failed
  if [ $code = 0 ]; then
    status=passed
    # A program in which the filter finds nothing has run nothing, and says so by exit code 0.
    if [[ $program != *.sh ]]; then
      IFS= read -r -d '' output <"$log"
      if [[ $'\n'$output == *$'\n[  SKIPPED ] 1 test'* ]]; then status=skipped
      elif [[ $'\n'$output != *$'\n[  PASSED  ] 1 test'* ]]; then
        status=failed
        echo "tests/run.sh: the test did not run" >>"$log"
      fi
    fi
  elif [ $code = 77 ] && [[ $program == *.sh ]]; then
    status=skipped
  elif [ $code = 124 ]; then
    echo "tests/run.sh: stopped after $TIME_LIMIT s" >>"$log"
  elif [ $code -ge 128 ]; then
    echo "tests/run.sh: ended by signal $((code - 128)) ($(kill -l $((code - 128))))" >>"$log"
  fi
  printf '%s %d %s %s %s\n' $status $((${EPOCHREALTIME/./} - started)) "$program" "$test" "$log"
}
if [ "${1-}" = --one ]; then
  run_one "$2" "$3"
  exit 0
fi

usage() {
  sed -n '6,17s/^# \{0,1\}//p' "$0" >&2
  exit 2
}
jobs=$(nproc)
filter=
export TIME_LIMIT=300
while getopts j:t:f: option; do
  case $option in
    j) jobs=$OPTARG ;;
    t) TIME_LIMIT=$OPTARG ;;
    f) filter=$OPTARG ;;
    *) usage ;;
  esac
done
shift $((OPTIND - 1))
[ $# -gt 0 ] || usage

# Tests say themselves what they preload and set.
unset LD_PRELOAD
for name in "${!FIBSHIM_@}"; do
  [[ $name == FIBSHIM_TEST_* ]] || unset "$name"
done
first=$(realpath "$1")
if [[ $first == *.sh || $first != */tests/* ]]; then
  MAIN_BUILD=$(realpath -m "${BUILD:-build}")
else
  MAIN_BUILD=${first%/tests/*}
fi
export MAIN_BUILD LOG_FOLDER=${LOG_FOLDER:-$MAIN_BUILD/tests/logs}
mkdir -p "$LOG_FOLDER" "$MAIN_BUILD/tests"
rm -f "$LOG_FOLDER"/*.log
# A python3 that first looks for the right one, as pyenv's does, takes longer for that than many a test for its work.
python=$(python3 -c 'import os, sys; print(os.path.dirname(sys.executable))' 2>/dev/null) && PATH=$python:$PATH
# make builds it; where nothing is built it is made here.
REAPER=$(realpath -m "${FIBSHIM_TEST_BUILD:-${BUILD:-build}}/tests/reaper")
if [ ! -x "$REAPER" ]; then
  REAPER=$MAIN_BUILD/tests/reaper
  [ -x "$REAPER" ] || g++ -std=c++20 -O1 -o "$REAPER" "$(dirname "$0")/reaper.cc" || exit 1
fi
export REAPER
# Tests make and remove many thousand files, at half the cost in memory: where 2 GB are free, and programs may run from there.
has_memory() {
  local free
  free=$(df -k --output=avail /dev/shm) && [ "${free##*$'\n'}" -ge 2000000 ] && [[ ,$(findmnt -no OPTIONS -T /dev/shm), != *,noexec,* ]]
}
if [ -z "${TMPDIR-}" ] && has_memory 2>/dev/null; then export TMPDIR=/dev/shm; fi
scratch=$(mktemp -d) || exit 1
chmod 711 "$scratch"  # what tests do as another user must reach it
trap 'rm -rf "$scratch"' EXIT
export TMPDIR=$scratch/tmp
mkdir "$TMPDIR"

is_wanted() { # program, test
  case $filter in
    # A program has filtered already, when it listed its tests.
    *[*?:-]*)
      [[ $1 != *.sh ]] && return 0
      # shellcheck disable=SC2053  # the filter is a glob here
      [[ $2 == $filter ]]
      ;;
    *) [[ $2 == *"$filter"* ]] ;;
  esac
}

# "program NUL test NUL" of every test.
list_tests() {
  local program listing suite line
  for program in "$@"; do
    program=$(realpath "$program")
    if [[ $program == *.sh ]]; then
      is_wanted "$program" "$(basename "$program" .sh)" &&
        printf '%s\0%s\0' "$program" "$(basename "$program" .sh)"
      continue
    fi
    local pattern='*'
    case $filter in *[*?:-]*) pattern=$filter ;; esac
    if ! listing=$("$program" --gtest_list_tests --gtest_filter="$pattern" 2>&1); then
      printf '%s\n' "$listing" >&2
      echo "tests/run.sh: $program does not list its tests" >&2
      echo broken >"$scratch/broken"
      continue
    fi
    suite=
    while IFS= read -r line; do
      line=${line%%  # *}
      case $line in
        'Running main() from '*) ;;
        '  '*)
          line=${line#  }
          [[ $suite$line == *DISABLED_* ]] && continue
          is_wanted "$program" "$suite$line" && printf '%s\0%s\0' "$program" "$suite$line"
          ;;
        *.) suite=$line ;;
      esac
    done <<<"$listing"
  done
  return 0
}

seconds() { printf '%d.%02d s' $(($1 / 1000000)) $(($1 / 10000 % 100)); }

passed=0 failed=0 skipped=0
failures=() skips=()
declare -A program_passed program_failed program_skipped program_time
programs=()
slowest=
started=${EPOCHREALTIME/./}
list_tests "$@" >"$scratch/tests"
total=$(tr -cd '\0' <"$scratch/tests" | wc -c)
total=$((total / 2))

while read -r status time program test log; do
  # build/tests/x_tests -> x_tests; of another build folder below it: asan/tests/x_tests
  name=${program#"$MAIN_BUILD"/} name=${name#tests/} name=${name#"$PWD"/}
  if [ -z "${program_time[$name]-}" ]; then
    programs+=("$name")
    program_passed[$name]=0 program_failed[$name]=0 program_skipped[$name]=0 program_time[$name]=0
  fi
  program_time[$name]=$((program_time[$name] + time))
  case $status in
    passed) passed=$((passed + 1)) program_passed[$name]=$((program_passed[$name] + 1)) ;;
    skipped)
      skipped=$((skipped + 1)) program_skipped[$name]=$((program_skipped[$name] + 1))
      # GoogleTest's message stands below the place; a script's is its last line.
      reason=$(sed -n '/: Skipped$/{n;p;q}' "$log")
      skips+=("$name $test: ${reason:-$(tail -n 1 "$log")}")
      ;;
    *)
      failed=$((failed + 1)) program_failed[$name]=$((program_failed[$name] + 1))
      failures+=("$name $test")
      [ -t 1 ] && printf '\r\033[K'
      printf -- '---- FAILED %s %s (%s)\n' "$name" "$test" "$(seconds "$time")"
      tail -n 200 "$log"
      printf -- '----\n'
      ;;
  esac
  slowest+="$time $name $test"$'\n'
  if [ -t 1 ]; then
    printf '\r\033[K[%d/%d] %s %s' $((passed + failed + skipped)) "$total" "$name" "${test:0:60}"
  fi
done < <(exec "$REAPER" xargs -0 -r -n 2 -P "$jobs" "$0" --one <"$scratch/tests")
[ -t 1 ] && printf '\r\033[K'

for name in ${programs[@]+"${programs[@]}"}; do
  line="${program_passed[$name]} passed, ${program_failed[$name]} failed"
  [ "${program_skipped[$name]}" = 0 ] || line+=", ${program_skipped[$name]} skipped"
  printf '  %-32s %s (%s)\n' "$name" "$line" "$(seconds "${program_time[$name]}")"
done
slow=$(sort -rn <<<"$slowest" | awk 'NR <= 3 && $1 >= 2000000')
if [ -n "$slow" ]; then
  echo "  slowest:"
  while read -r time rest; do printf '    %s  %s\n' "$(seconds "$time")" "$rest"; done <<<"$slow"
fi
if [ ${#skips[@]} -gt 0 ]; then
  echo "  skipped:"
  printf '    %s\n' "${skips[@]}"
fi
if [ ${#failures[@]} -gt 0 ]; then
  echo "  failed (output above and in $LOG_FOLDER):"
  printf '    %s\n' "${failures[@]}"
fi
# A worker that vanished without a word is a failure too.
lost=$((total - passed - failed - skipped))
if [ $lost -gt 0 ]; then
  echo "tests/run.sh: $lost tests gave no result" >&2
  failed=$((failed + lost))
fi
[ -e "$scratch/broken" ] && failed=$((failed + 1))
[ $((passed + failed + skipped)) -gt 0 ] || echo "tests/run.sh: no tests ran" >&2
printf '  %d tests in %s\n' $((passed + failed + skipped)) "$(seconds $((${EPOCHREALTIME/./} - started)))"
if [ $skipped -gt 0 ]; then
  echo "$passed passed, $failed failed, $skipped skipped"
else
  echo "$passed passed, $failed failed"
fi
[ $failed = 0 ] && [ $passed -gt 0 ]
