#!/bin/sh
# Takes the times that tests on a GPU have kept into the ready folders, and says what `fibshim check` makes of them. Needs no GPU.
#
#   take_kept.sh BUILD DIR [CONFIG]    DIR/FOLDER.ANYTHING.json, which a test has written with --keep, goes into
#                                      CONFIG/FOLDER/measurements.json; CONFIG: this repository's config
#
# BUILD/config must be what the times are of: bench refuses those of a solution that it does not have.
set -u
build=$1 kept=$2 config=${3:-$(dirname "$0")/../../config}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0 taken=0

for file in "$kept"/*.*.json; do
  folder=$(basename "$file")
  folder=${folder%%.*}
  if [ ! -d "$build/config/$folder" ]; then
    echo "FAIL $file: no folder $build/config/$folder"
    failed=1
    continue
  fi
  if [ ! -d "$work/$folder" ]; then
    cp -R "$build/config/$folder" "$work/$folder"
    # What a file before has brought may be newer than the build.
    [ ! -e "$config/$folder/measurements.json" ] || cp "$config/$folder/measurements.json" "$work/$folder/"
  fi
  if "$build/bin/fibshim" bench -q --keep-from "$file" "$work/$folder"; then
    mkdir -p "$config/$folder"
    cp "$work/$folder/measurements.json" "$config/$folder/measurements.json"
    taken=$((taken + 1))
  else
    echo "FAIL $file"
    failed=1
  fi
done
for folder in "$work"/*/; do
  [ ! -d "$folder" ] || "$build/bin/fibshim" check "$folder" | grep -E '^[^ ].*(measured|warning|error)' | cut -c1-200
done
echo "$taken files taken into $config"
[ "$taken" -gt 0 ] || failed=1
exit $failed
