#!/usr/bin/env bash
# Takes the inputs that add something to a corpus back into tests/fuzz/corpus, the smallest first, and
# drops those that add nothing any more.
#
#   tests/fuzz/merge.sh FOLDER_OF_BINARIES GROWN_CORPUS [KIBIBYTES]
#
#   GROWN_CORPUS  out/corpus of tests/fuzz/run.sh: a folder for each target
#   KIBIBYTES     the most that one target may take (default 32); inputs over a quarter of it stay out
set -eu -o pipefail
here=$(dirname "$(realpath "$0")")
binaries=$(realpath "$1") grown=$(realpath "$2") limit=$((${3:-32} * 1024))
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
for folder in "$grown"/*/; do
  target=$(basename "$folder")
  [ -x "$binaries/$target" ] || continue
  mkdir -p "$here/corpus/$target" "$scratch/small" "$scratch/merged"
  find "$folder" "$here/corpus/$target" -type f -size "-$((limit / 4))c" -exec cp -n '{}' "$scratch/small/" ';'
  nice "$binaries/$target" -merge=1 "$scratch/merged" "$scratch/small" >"$scratch/log" 2>&1
  # Those with a name of their own stand for a bug that was mended, or for a format: they stay.
  find "$here/corpus/$target" -type f -regextype posix-extended -regex '.*/[0-9a-f]{40}' -delete
  used=$(find "$here/corpus/$target" -type f -printf '%s\n' | awk '{n += $1} END {print n + 0}')
  while read -r size path; do
    [ $((used + size)) -le $limit ] || break
    cp "$path" "$here/corpus/$target/$(sha1sum <"$path" | cut -c 1-40)"
    used=$((used + size))
  done < <(find "$scratch/merged" -type f -printf '%s %p\n' | sort -n)
  printf '  %-14s %d inputs, %d bytes\n' "$target" "$(find "$here/corpus/$target" -type f | wc -l)" "$used"
  rm -rf "$scratch/small" "$scratch/merged"
done
