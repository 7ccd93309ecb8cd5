#!/usr/bin/env bash
# tests/run.sh reports correctly: its last line and exit code for passed, failed, skipped, crashed,
# hanging and missing tests.
set -eu -o pipefail
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
runner=$(dirname "$0")/../run.sh

script() { # name, body
  printf '#!/bin/sh\n%s\n' "$2" >"$root/$1_test.sh"
  chmod +x "$root/$1_test.sh"
}
script good 'exit 0'
script bad 'echo the reason; exit 1'
script skipped 'exit 77'
script crashed 'kill -SEGV $$'
script hanging 'exec sleep 1000'
# shellcheck disable=SC2016  # expanded in the script
script clean '[ -z "${FIBSHIM_MODE-}${LD_PRELOAD-}" ]'

# Imitates a GoogleTest program: lists two suites, and runs the tests that the filter names.
cat >"$root/fake_tests" <<'EOF'
#!/bin/sh
for argument; do
  case $argument in
    --gtest_list_tests) list=1 ;;
    --gtest_filter=*) filter=${argument#*=} ;;
  esac
done
if [ -n "${list-}" ]; then
  printf 'Running main() from x.cc\nFirst.\n  Passes\n  DISABLED_Never\nRows/Second.\n'
  printf '  Fails/0  # GetParam() = 1\n  Skips/1\n  Vanishes\n'
  exit 0
fi
case $filter in
  First.Passes) echo '[  PASSED  ] 1 test.' ;;
  Rows/Second.Fails/0) echo 'x.cc:1: Failure'; exit 1 ;;
  Rows/Second.Skips/1) echo '[  SKIPPED ] 1 test, listed below:' ;;
  Rows/Second.Vanishes) echo '[  PASSED  ] 0 tests.' ;;
  *) exit 3 ;;
esac
EOF
chmod +x "$root/fake_tests"

failures=0
# expected exit code, expected closing line, arguments
expect() {
  local code=0 output
  output=$(cd "$root" && LOG_FOLDER=$root/logs FIBSHIM_MODE=off "$runner" "${@:3}" 2>&1) || code=$?
  if [ "$code" != "$1" ] || [ "$(tail -n 1 <<<"$output")" != "$2" ]; then
    printf 'runner_test: expected exit %s and "%s" from run.sh %s; found %s and\n%s\n' \
      "$1" "$2" "${*:3}" "$code" "$output"
    failures=$((failures + 1))
  fi
  last_output=$output
}
runner=$(realpath "$runner")
expect 0 '1 passed, 0 failed' good_test.sh
expect 0 '1 passed, 0 failed, 1 skipped' good_test.sh skipped_test.sh
expect 1 '1 passed, 1 failed' good_test.sh bad_test.sh
[[ $last_output == *'the reason'* ]] || { echo "a failure's output is not shown"; failures=1; }
expect 1 '0 passed, 1 failed' crashed_test.sh
[[ $last_output == *SEGV* ]] || { echo "a crash is not named"; failures=1; }
expect 1 '0 passed, 1 failed' -t 1 hanging_test.sh
[[ $last_output == *'stopped after 1 s'* ]] || { echo "a hang is not named"; failures=1; }
expect 0 '1 passed, 0 failed' clean_test.sh
expect 1 '0 passed, 0 failed, 1 skipped' skipped_test.sh
expect 1 '0 passed, 0 failed' -f nothing good_test.sh
expect 0 '1 passed, 0 failed' -f good good_test.sh bad_test.sh
expect 0 '1 passed, 0 failed' -f 'g*' good_test.sh bad_test.sh
expect 1 '0 passed, 1 failed' /bin/false
expect 1 '1 passed, 1 failed' good_test.sh /bin/false
expect 1 '1 passed, 2 failed, 1 skipped' fake_tests
expect 0 '1 passed, 0 failed' -f First fake_tests
expect 1 '0 passed, 1 failed' -f Fails/0 fake_tests

# A process that has left its session and its parent keeps a pipe open as long as it lives.
# $1: how the test that started it ends after it has opened the pipe
left_behind() {
  mkfifo "$root/held"
  # shellcheck disable=SC2016  # expanded in the script
  script leaving "(setsid sh -c ': >\"$root/started\"; exec sleep 1000' 3>\"$root/held\" >/dev/null 2>&1 &)
until [ -e \"$root/started\" ]; do sleep 0.01; done; $1"
}
# Waits until a process has the pipe open, then for process $1, then until no process has it open any more.
expect_gone() { # process, what ended
  local runner_failed=0 reader
  timeout 60 cat "$root/held" &
  reader=$!
  [ -z "${3-}" ] || { until [ -e "$root/started" ]; do sleep 0.01; done; kill -"$3" "$1"; }
  wait "$1" 2>/dev/null || runner_failed=1
  [ -n "${3-}" ] || [ $runner_failed = 0 ] || failures=1
  [ -e "$root/started" ] || { echo "nothing was left behind $2"; failures=1; }
  wait $reader || { echo "a process outlives $2"; failures=1; }
  rm -f "$root/held" "$root/started"
}
left_behind 'exit 0'
(expect 0 '1 passed, 0 failed' leaving_test.sh; [ $failures = 0 ]) &
expect_gone $! 'a test that has ended'
left_behind 'exec sleep 1000'
(expect 1 '0 passed, 1 failed' -t 5 leaving_test.sh; [ $failures = 0 ]) &
expect_gone $! 'a test that was stopped'
left_behind 'exec sleep 1000'
(cd "$root" && LOG_FOLDER=$root/logs exec "$runner" leaving_test.sh >/dev/null 2>&1) &
expect_gone $! 'a killed runner' KILL
[ $failures = 0 ]
