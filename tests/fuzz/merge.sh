#!/usr/bin/env bash
# Takes inputs that add something to a corpus back into tests/fuzz/corpus, and drops those that an
# earlier run of this took.
#
#   tests/fuzz/merge.sh FOLDER_OF_BINARIES GROWN_CORPUS [MOST]
#
#   GROWN_CORPUS  out/corpus of tests/fuzz/run.sh: a folder for each target
#   MOST          inputs of one target (default 60), of all sizes up to 2 KiB
set -eu -o pipefail
here=$(dirname "$(realpath "$0")")
binaries=$(realpath "$1") grown=$(realpath "$2") most=${3:-60}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
for folder in "$grown"/*/; do
  target=$(basename "$folder")
  [ -x "$binaries/$target" ] || continue
  mkdir -p "$here/corpus/$target" "$scratch/small" "$scratch/merged"
  find "$folder" "$here/corpus/$target" -type f -size -2048c -exec cp -n '{}' "$scratch/small/" ';'
  nice "$binaries/$target" -merge=1 "$scratch/merged" "$scratch/small" >"$scratch/log" 2>&1
  # Those with a name of their own stand for a bug that was mended, or for a format: they stay.
  find "$here/corpus/$target" -type f -regextype posix-extended -regex '.*/[0-9a-f]{40}' -delete
  find "$scratch/merged" -type f -printf '%s %p\n' | sort -n |
    awk -v most="$most" '{line[NR] = $0} END {for (i = 0; i < most && i < NR; ++i) print line[int(i * (NR < most ? 1 : NR / most)) + 1]}' |
    while read -r _ path; do cp "$path" "$here/corpus/$target/$(sha1sum <"$path" | cut -c 1-40)"; done
  printf '  %-14s %d inputs, %d bytes\n' "$target" "$(find "$here/corpus/$target" -type f | wc -l)" \
    "$(find "$here/corpus/$target" -type f -printf '%s\n' | awk '{n += $1} END {print n + 0}')"
  rm -rf "$scratch/small" "$scratch/merged"
done
