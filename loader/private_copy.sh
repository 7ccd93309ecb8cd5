#!/bin/sh
# Copies a system library, and the libraries that it needs beyond libc, under names of our own.
#
#   private_copy.sh libelf.so.1 fibshim-elf build/lib   ->  build/lib/libfibshim-elf.so, ...
#
# Why: the product must run in containers that lack libelf, and libelf's archive cannot be linked
# into a shared object. If the bundled library kept its name, libraries that the host process loads
# later would use it in place of the system's.
set -eu
soname=$1 name=$2 out=$3

find_library() {
  path=$(gcc -print-file-name="$1")
  [ "$path" != "$1" ] || path=$(ldconfig -p | awk -v n="$1" '$1 == n { print $NF; exit }')
  [ -n "$path" ] || { echo "private_copy.sh: $1 not found" >&2; exit 1; }
  readlink -f "$path"
}

copy() { # soname, new name
  install -m 644 "$(find_library "$1")" "$out/.lib$2.so.tmp"
  # One change per call: patchelf 0.14 mixes up the values of several changes in one call.
  patchelf --set-soname "lib$2.so" "$out/.lib$2.so.tmp"
  patchelf --set-rpath '$ORIGIN' "$out/.lib$2.so.tmp"
  for needed in $(patchelf --print-needed "$out/.lib$2.so.tmp"); do
    case $needed in
      libc.so.* | ld-linux* | libpthread.so.* | libdl.so.* | libm.so.*) ;;
      *)
        short=$(expr "$needed" : 'lib\([a-z0-9]*\)')
        (copy "$needed" "fibshim-$short")  # a subshell keeps the recursion's variables apart
        patchelf --replace-needed "$needed" "libfibshim-$short.so" "$out/.lib$2.so.tmp"
        ;;
    esac
  done
  mv "$out/.lib$2.so.tmp" "$out/lib$2.so"
}

copy "$soname" "$name"
