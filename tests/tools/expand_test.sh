#!/usr/bin/env bash
# Joined tables of a config folder, and what config/expand.sh refuses.
set -eu -o pipefail
cd "$(dirname "$0")/../.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failures=0
mkdir "$work/in" "$work/cubins"
printf '%s\n' '{' '  "label": "@kind@-@size@",' '  "text": "@models@"' '}' >"$work/in/one.json.in"
printf '%s\n' '# comment' 'kind  more' 'a     x' 'b     y' >"$work/in/kinds.table"
printf '%s\n' 'size  more  models' '1     x     of one, two' '2     y     -' '3     x     of three' >"$work/in/sizes.table"
printf '%s\n' 'size' '7' >"$work/in/other.table"
printf '%s\n' 'kind  more' 'a     x y' >"$work/in/spaces.table"

expand() {
  echo "patterns one.json.in $1" >"$work/in/parts"
  sh config/expand.sh "$work/in" kernels "$work/cubins" "$work/out" 2>"$work/error"
}
expect() {
  if [ "$2" != "$3" ]; then
    printf 'expand_test: %s: %s, expected %s\n' "$1" "$2" "$3"
    failures=$((failures + 1))
  fi
}
expect_refused() {
  if expand "$2" || ! grep -q "$3" "$work/error"; then
    printf 'expand_test: %s is not refused: %s\n' "$1" "$(cat "$work/error")"
    failures=$((failures + 1))
  fi
}

expand 'kinds.table*sizes.table'
expect 'files' "$(ls "$work/out/patterns" | tr '\n' ' ')" 'a-1.json a-3.json b-2.json '
expect 'the last column' "$(grep text "$work/out/patterns/a-1.json")" '  "text": "of one, two"'
expand 'sizes.table kind=of-@more@'
expect 'cells that have others' "$(ls "$work/out/patterns" | tr '\n' ' ')" 'of-x-1.json of-x-3.json of-y-2.json '
printf '%s\n' 'kind  size  models' 'a     1     one' 'a     1     two' >"$work/in/twice.table"
expect_refused 'a second file of a name' twice.table 'a second a-1.json'
expect_refused 'a product without a line' 'other.table*sizes.table' 'its table has no line'
expect_refused 'a cell with a space' 'spaces.table*other.table' 'not those of the columns'
expect_refused 'no table' 'kinds.table*none.table' 'no none.table'
[ $failures = 0 ]
