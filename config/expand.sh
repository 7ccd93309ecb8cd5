#!/bin/sh
# Makes a ready config folder from a committed one: copies its JSON files, and writes those that its list
# `parts` names.
#
#   expand.sh SOURCE_FOLDER KERNEL_SOURCES CUBINS OUTPUT_FOLDER
#
# A line of `parts` ('#' begins a comment):
#
#   FOLDER  TEMPLATE  TABLE  [column=value ...]
#
# stands for one file in FOLDER for each line of TABLE, made from TEMPLATE. Both are paths below SOURCE_FOLDER
# or, where it has no such file, below this script's folder. A table has comments, a line of column names, then a line
# for each file; '-' stands for nothing, and the last column takes the rest of its line. Without a table ('-')
# there is one line, of the columns that `parts` gives. Their cells may have @column@ of a table or a type. A*B joins each
# line of A with each line of B that has the same cells in the columns of both; only the last table's last column may have
# spaces. A file is named as its record calls itself: <name>.json or <label>.json. In a template:
#
#   @column@          the cell
#   @source:a/b.cu@   an entry of "sources": KERNEL_SOURCES/a/b.cu
#   @images:family@   the entries of "images": each family.sm_*.cubin below CUBINS, with its sum. The images
#                     are put beside the files, as hard links where another folder of the output has them
#   @cuda_spec@       what every CUDA solution says in "spec"
#
# A column `types` holds a list such as bf16,fp16: the line stands for one file for each, with the columns of
# the table of types below. OUTPUT_FOLDER is replaced as a whole at the end, or not at all.
set -eu
umask 022  # what others can write is not trusted
source=$1 kernel_sources=$2 cubins=$3 output=$4
here=$(dirname "$0")

# type    a definition's dtype and its name's suffix, a label's suffix; in mangled names, as the type of CUDA, c10 and CUTLASS
types="
bf16      bfloat16  -      -           13__nv_bfloat16  N3c108BFloat16E  NS_10bfloat16_tE
fp16      float16   _fp16  -fp16       6__half          N3c104HalfE      NS_6half_tE
fp32      float32   _fp32  -fp32       f                f                f
"
type_columns="type dtype suffix type_label cuda_type c10_type cutlass_type"
cuda_spec='"language": "cuda", "target_hardware": ["NVIDIA_A100", "NVIDIA_H100", "NVIDIA_H200", "NVIDIA_B200"],
    "dependencies": [], "destination_passing_style": true, "binding": null'

new=$output.new.$$
old=$output.old.$$
texts=$output.texts.$$  # what stands for the tokens of a template: a line with the token, one with the text
trap 'rm -rf "$new" "$old" "$texts"' EXIT
trap 'exit 1' HUP INT TERM

fail() {
  echo "expand.sh: $source/parts: $*" >&2
  exit 1
}

# The path of a template or table.
find_input() {
  if [ -r "$source/$1" ]; then echo "$source/$1"
  elif [ -r "$here/$1" ]; then echo "$here/$1"
  else fail "no $1"
  fi
}

# The text of a file as the inside of a JSON string, on one line.
escape() {
  tab=$(printf '\t')
  sed -e 's/\\/\\\\/g' -e 's/"/\\"/g' -e "s/$tab/\\\\t/g" -e 's/$/\\n/' "$1" | tr -d '\n'
}

# The arguments of each token of a kind in a template, such as the paths of @source:...@.
tokens() { grep -o "@$2:[^@]*@" "$1" | sed -e "s/@$2://" -e 's/@$//' | sort -u; }

# One file of the folder holds the image, under as many names as there are folders that need it.
place_image() {
  first=$(find "$new" -name "${1##*/}" -type f | head -n 1)
  if [ -z "$first" ]; then cp "$1" "$2/"
  elif [ ! -e "$2/${1##*/}" ]; then ln "$first" "$2/"
  fi
}

# The lines of a table, or of joined ones.
lines_of() {
  case $1 in
    -) printf 'none\n-\n' ;;
    *\**) lines_of "${1%\**}" | join "$(find_input "${1##*\*}")" ;;
    *) cat "$(find_input "$1")" ;;
  esac
}
join() {
  awk '/^#/ || /^ *$/ { next }
    NR == FNR && !head { head = $0; for (i = split($0, name); i > 0; --i) column[name[i]] = i; next }
    NR == FNR { line[count++] = $0; next }
    !names { print head, $0; columns = split(head, name); names = split($0, name); next }
    {
      for (i = 0; i < count; ++i) {
        if (split(line[i], cell) != columns) { print "malformed " line[i]; exit }
        for (n = 1; n <= names && (!(name[n] in column) || cell[column[name[n]]] == $n); ++n) {}
        if (n > names) print line[i], $0
      }
    }' - "$1"
}

# Writes the files of one table, read from standard input, into FOLDER.
expand() {
  awk -v template="$1" -v folder="$2" -v constants="$3" -v texts="$texts" \
    -v types="$types" -v type_columns="$type_columns" '
    function replace(text, from, to,   at, done) {
      done = ""
      while ((at = index(text, from)) > 0) {
        done = done substr(text, 1, at - 1) to
        text = substr(text, at + length(from))
      }
      return done text
    }
    function set(name, cell) { value["@" name "@"] = cell == "-" ? "" : cell }
    # One file. The texts go in last: what they hold is theirs.
    function write_file(   i, c, token, line, file) {
      file = ""
      for (i = 1; i <= lines; ++i) {
        line = text[i]
        if (index(line, "@") > 0) {
          for (c = 1; c <= constant_count; ++c) line = replace(line, constant[c], value[constant[c]])
          for (token in value) line = replace(line, token, value[token])
        }
        if (file == "" && match(line, /^ *"(name|label)": *"[^"]*"/)) {
          file = substr(line, RSTART, RLENGTH - 1)
          sub(/.*"/, "", file)
          file = folder "/" file ".json"
        }
        out[i] = line
      }
      if (file == "") { print template ": no name or label" > "/dev/stderr"; exit 1 }
      if ((getline line < file) >= 0) {
        sub(/.*\//, "", file)
        print template ": a second " file > "/dev/stderr"
        failed = 1
        exit
      }
      for (i = 1; i <= lines; ++i) {
        line = out[i]
        for (token in long) if (index(line, token) > 0) {
          out[i] = replace(out[i], token, long[token])
          line = replace(line, token, "")
        }
        if (match(line, /@[a-z0-9_:.\/]*@/)) {
          print template ":" i ": nothing stands for " substr(line, RSTART, RLENGTH) > "/dev/stderr"
          failed = 1
        }
        print out[i] > file
      }
      close(file)
      written = 1
    }
    BEGIN {
      while ((getline line < texts) > 0) getline long[line] < texts
      while ((getline line < template) > 0) text[++lines] = line
      type_column_count = split(type_columns, type_column)
      type_count = split(types, type_cells)
      constant_count = split(constants, constant)
      for (i = 1; i <= constant_count; ++i) {
        at = index(constant[i], "=")
        set(substr(constant[i], 1, at - 1), substr(constant[i], at + 1))
        constant[i] = "@" substr(constant[i], 1, at - 1) "@"
      }
    }
    /^#/ || /^ *$/ { next }
    /^malformed / { print template ": the cells are not those of the columns: " $0 > "/dev/stderr"; failed = 1; exit }
    count == 0 { count = split($0, names); next }
    {
      rest = $0
      for (i = 1; i <= count; ++i) {
        sub(/^ */, "", rest)
        cell = i < count ? $i : rest
        set(names[i], cell)
        rest = substr(rest, length(cell) + 1)
      }
      if (!("@types@" in value)) { write_file(); next }
      wanted_count = split(value["@types@"], wanted, ",")
      for (w = 1; w <= wanted_count; ++w) {
        for (t = 1; t <= type_count && type_cells[t] != wanted[w]; t += type_column_count) {}
        if (t > type_count) { print template ": no type " wanted[w] > "/dev/stderr"; failed = 1; continue }
        for (c = 1; c <= type_column_count; ++c) set(type_column[c], type_cells[t + c - 1])
        write_file()
      }
    }
    END {
      if (!failed && !written) { print template ": its table has no line" > "/dev/stderr"; failed = 1 }
      exit failed
    }'
}

mkdir -p "$(dirname "$output")"
cp -R "$source/." "$new"
find "$new" \( -name '*.in' -o -name '*.table' -o -name parts \) -exec rm {} +
chmod -R go-w "$new"

sed -e 's/#.*//' -e '/^ *$/d' "$source/parts" | while read -r folder template table constants; do
  template=$(find_input "$template")
  for one in $(echo "$table" | tr '*' ' '); do
    [ "$one" = - ] || find_input "$one" >/dev/null  # a failure inside the pipeline below would be lost
  done
  folder=$new/$folder
  mkdir -p "$folder"

  printf '@cuda_spec@\n%s\n' "$(printf %s "$cuda_spec" | tr -d '\n')" >"$texts"
  for code in $(tokens "$template" source); do
    [ -r "$kernel_sources/$code" ] || fail "$template: no $kernel_sources/$code"
    printf '@source:%s@\n{"path": "%s", "content": "' "$code" "${code##*/}"
    escape "$kernel_sources/$code"
    printf '"}\n'
  done >>"$texts"
  for family in $(tokens "$template" images); do
    images=$(find "$cubins" -name "$family.sm_*.cubin" | sort -t_ -k2 -V)
    [ -n "$images" ] || fail "$template: no $family.sm_*.cubin in $cubins"
    entries=
    for image in $images; do
      place_image "$image" "$folder"
      sum=$(sha256sum "$image")
      entries="$entries${entries:+, }{\"path\": \"${image##*/}\", \"sha256\": \"${sum%% *}\"}"
    done
    printf '@images:%s@\n%s\n' "$family" "$entries"
  done >>"$texts"

  lines_of "$table" |
    expand "$template" "$folder" "$constants" || fail "$template"
done
find "$new" -type d -empty -delete

if [ -e "$output" ]; then mv "$output" "$old"; fi
mv "$new" "$output"
touch "$output"
