#!/bin/sh
# Makes a ready config folder from a committed one: copies it, and expands its solution templates.
#
#   expand.sh SOURCE_FOLDER KERNEL_SOURCES CUBINS OUTPUT_FOLDER
#
# A template X.json.in has a table X.table beside it: '#' comments, a line of column names, then one
# line for each solution. Each becomes <definition>/fibshim_<definition>.json, with its cubins
# beside it:
#   @column@          the cell; column `definition` must be there
#   @sha256@          of the cubin that the same line names as "path", taken from CUBINS/X/
#   @source:a/b.cu@   the text of KERNEL_SOURCES/a/b.cu, escaped for JSON
# OUTPUT_FOLDER is replaced as a whole at the end, or not at all.
set -eu
umask 022  # what others can write is not trusted
source=$1 kernel_sources=$2 cubins=$3 output=$4

new=$output.new.$$
old=$output.old.$$
trap 'rm -rf "$new" "$old"' EXIT
trap 'exit 1' HUP INT TERM

fail() {
  echo "expand.sh: $*" >&2
  exit 1
}

# The text of a file as the inside of a JSON string, on one line.
escape() {
  tab=$(printf '\t')
  sed -e 's/\\/\\\\/g' -e 's/"/\\"/g' -e "s/$tab/\\\\t/g" -e 's/$/\\n/' "$1" | tr -d '\n'
}

# Expands TEMPLATE with the names and cells on standard input's two lines.
expand() {
  awk -v template="$1" -v escaped="$2" '
    function replace(text, from, to,   at, done) {
      done = ""
      while ((at = index(text, from)) > 0) {
        done = done substr(text, 1, at - 1) to
        text = substr(text, at + length(from))
      }
      return done text
    }
    FNR == 1 { split($0, names); next }
    {
      count = split($0, cells)
      getline source < escaped
      while ((getline line < template) > 0) {
        for (i = 1; i <= count; ++i) line = replace(line, "@" names[i] "@", cells[i])
        if (match(line, /@source:[^@]*@/)) {
          line = replace(line, substr(line, RSTART, RLENGTH), source)
        }
        print line
      }
    }'
}

mkdir -p "$(dirname "$output")"
cp -RL "$source/." "$new"
chmod -R go-w "$new"

find "$new" -name '*.json.in' | sort | while IFS= read -r template; do
  family=$(basename "$template" .json.in)
  folder=$(dirname "$template")
  table=$folder/$family.table
  committed=$source${template#"$new"}  # how messages call it
  [ -e "$table" ] || fail "$committed: no $family.table beside it"

  code=$(sed -n 's/.*@source:\([^@]*\)@.*/\1/p' "$template")
  [ -e "$kernel_sources/$code" ] || fail "$committed: no $kernel_sources/$code"
  escape "$kernel_sources/$code" >"$folder/escaped"

  sed -e '/^#/d' -e '/^ *$/d' "$table" | {
    read -r names
    while read -r cells; do
      definition=${cells%% *}
      find "$new/definitions" -name "$definition.json" | grep -q . ||
        fail "${committed%.json.in}.table: $definition is not among the definitions"
      mkdir "$folder/$definition"
      solution=$folder/$definition/fibshim_$definition.json
      printf '%s\n%s\n' "$names" "$cells" | expand "$template" "$folder/escaped" >"$solution"
      # Each image, and its sum in the line that names it.
      sed -n 's/.*"path": *"\([^"]*\)".*@sha256@.*/\1/p' "$solution" | while read -r image; do
        [ -e "$cubins/$family/$image" ] || fail "$committed: no $cubins/$family/$image"
        cp "$cubins/$family/$image" "$folder/$definition/"
        sum=$(sha256sum "$cubins/$family/$image")
        sed "/\"$image\"/s/@sha256@/${sum%% *}/" "$solution" >"$solution.new"
        mv "$solution.new" "$solution"
      done
      if grep -n '@[a-z0-9_]*@' "$solution" >&2; then fail "$committed: the above is left unexpanded"; fi
    done
  }
  rm "$template" "$table" "$folder/escaped"
done

if [ -e "$output" ]; then mv "$output" "$old"; fi
mv "$new" "$output"
touch "$output"
