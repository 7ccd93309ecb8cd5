#!/bin/sh
# Makes a ready config folder from a committed one: copies it, and expands its templates.
#
#   expand.sh SOURCE_FOLDER KERNEL_SOURCES CUBINS OUTPUT_FOLDER
#
# A template X.json.in has a table X.table beside it: '#' comments, a line of column names, then one
# line for each file; '-' stands for nothing, and the last column takes the rest of its line. A file
# is called as its record calls itself, <name>.json or <label>.json, and lies where the template did.
#   @column@          the cell
#   @sha256@          of the image that the same line names as "path"; found below CUBINS, it is put
#                     beside the files, as a hard link where another folder of OUTPUT_FOLDER has it
#   @source:a/b.cu@   the text of KERNEL_SOURCES/a/b.cu, escaped for JSON
# A column `types` holds a list such as bf16,fp16: the line stands for one file with each, with the
# columns of the table of types below. What several folders hold lies in config/shared, linked to.
# OUTPUT_FOLDER is replaced as a whole at the end, or not at all.
set -eu
umask 022  # what others can write is not trusted
source=$1 kernel_sources=$2 cubins=$3 output=$4

# type    a definition's dtype and its name's suffix; in mangled names, as CUDA's type and as c10's
types="
bf16      bfloat16  -      13__nv_bfloat16  N3c108BFloat16E
fp16      float16   _fp16  6__half          N3c104HalfE
fp32      float32   _fp32  f                f
"
type_columns="type dtype suffix cuda_type c10_type"

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

# Writes the files of one table, read from standard input, into FOLDER. `sources` and `images` hold
# what stands for each @source:...@ and each image's sum: a line with the name and one with the text.
expand() {
  awk -v template="$1" -v sources="$2" -v images="$3" -v folder="$4" \
    -v types="$types" -v type_columns="$type_columns" '
    function replace(text, from, to,   at, done) {
      done = ""
      while ((at = index(text, from)) > 0) {
        done = done substr(text, 1, at - 1) to
        text = substr(text, at + length(from))
      }
      return done text
    }
    function empty(cell) { return cell == "-" ? "" : cell }
    function read_texts(file, texts,   name) {
      while ((getline name < file) > 0) getline texts[name] < file
      close(file)
    }
    function record_name(line,   value) {
      value = line
      sub(/^ *"[a-z]*": *"/, "", value)
      sub(/".*/, "", value)
      return value
    }
    # One file. The sources go in last: what they hold is theirs.
    function write_file(   i, j, line, file, token) {
      file = ""
      for (i = 1; i <= lines; ++i) {
        line = text[i]
        if (index(line, "@") > 0) {
          for (j in value) line = replace(line, "@" j "@", value[j])
        }
        if (file == "" && line ~ /^ *"(name|label)":/) {
          file = folder "/" record_name(line) ".json"
        }
        out[i] = line
      }
      if (file == "") { print "no name or label" > "/dev/stderr"; exit 1 }
      for (i = 1; i <= lines; ++i) {
        line = out[i]
        if (match(line, /@source:[^@]*@/)) {
          token = substr(line, RSTART, RLENGTH)
          line = replace(line, token, source[token])
        } else if (match(line, /@[a-z0-9_:.\/]*@/)) {
          print template ":" i ": nothing stands for " substr(line, RSTART, RLENGTH) > "/dev/stderr"
          failed = 1
        }
        print line > file
      }
      close(file)
    }
    BEGIN {
      read_texts(sources, source)
      read_texts(images, sum)
      while ((getline line < template) > 0) {
        for (image in sum) {
          if (index(line, "\"" image "\"") > 0) line = replace(line, "@sha256@", sum[image])
        }
        text[++lines] = line
      }
      type_column_count = split(type_columns, type_column)
      type_count = split(types, type_cells)
    }
    FNR == 1 { count = split($0, names); next }
    {
      rest = $0
      for (i = 1; i <= count; ++i) {
        sub(/^ */, "", rest)
        cell = i < count ? $i : rest
        value[names[i]] = empty(cell)
        rest = substr(rest, length(cell) + 1)
      }
      if (!("types" in value)) { write_file(); next }
      wanted_count = split(value["types"], wanted, ",")
      for (w = 1; w <= wanted_count; ++w) {
        found = 0
        for (t = 1; t <= type_count; t += type_column_count) {
          if (type_cells[t] != wanted[w]) continue
          found = 1
          for (c = 1; c <= type_column_count; ++c) {
            value[type_column[c]] = empty(type_cells[t + c - 1])
          }
          write_file()
        }
        if (!found) { print template ": no type " wanted[w] > "/dev/stderr"; failed = 1 }
      }
    }
    END { exit failed }'
}

mkdir -p "$(dirname "$output")"
cp -RL "$source/." "$new"
chmod -R go-w "$new"

find "$new" -name '*.json.in' | sort | while IFS= read -r template; do
  folder=$(dirname "$template")
  table=${template%.json.in}.table
  committed=$source${template#"$new"}  # how messages call it
  [ -e "$table" ] || fail "$committed: no $(basename "$table") beside it"

  : >"$folder/sources"
  sed -n 's/.*@source:\([^@]*\)@.*/\1/p' "$template" | while IFS= read -r code; do
    [ -e "$kernel_sources/$code" ] || fail "$committed: no $kernel_sources/$code"
    printf '@source:%s@\n' "$code"
    escape "$kernel_sources/$code"
    echo
  done >"$folder/sources"

  sed -n 's/.*"path": *"\([^"]*\)".*@sha256@.*/\1/p' "$template" | while IFS= read -r image; do
    cubin=$(find "$cubins" -name "$image" | head -n 1)
    [ -n "$cubin" ] || fail "$committed: no $image in $cubins"
    # One file for each image of the folder, by as many names as there are solutions' folders.
    first=$(find "$new" -name "$image" -type f | head -n 1)
    if [ -z "$first" ]; then cp "$cubin" "$folder/"
    elif [ ! -e "$folder/$image" ]; then ln "$first" "$folder/$image"
    fi
    sum=$(sha256sum "$cubin")
    printf '%s\n%s\n' "$image" "${sum%% *}"
  done >"$folder/images"

  sed -e '/^#/d' -e '/^ *$/d' "$table" |
    expand "$template" "$folder/sources" "$folder/images" "$folder" || fail "$committed"
  rm "$template" "$folder/sources" "$folder/images"
done
find "$new" -name '*.table' -exec rm {} +

if [ -e "$output" ]; then mv "$output" "$old"; fi
mv "$new" "$output"
touch "$output"
