#!/bin/sh
# libfibloader.so is loaded into engines' processes: it exports one symbol, and needs only libc from
# the machine, since its other libraries are linked in or lie beside it under names of our own.
set -eu
lib=${BUILD:-build}/lib/libfibloader.so

exported=$(nm -D --defined-only "$lib" | awk '{ print $3 }' | xargs)
[ "$exported" = fibloader_api ] || { echo "exports: $exported"; exit 1; }

for file in "$lib" "${lib%/*}"/libfibshim-*.so; do
  for needed in $(readelf -d "$file" | sed -n 's/.*(NEEDED).*\[\(.*\)\].*/\1/p'); do
    case $needed in
      libc.so.6 | libm.so.6 | ld-linux*) ;;
      libfibshim-*.so) [ -e "${lib%/*}/$needed" ] || { echo "$file: $needed is not beside it"; exit 1; } ;;
      *) echo "$file needs $needed"; exit 1 ;;
    esac
  done
  readelf -d "$file" | grep -Eq '(RUNPATH|RPATH).*\[\$ORIGIN\]' || { echo "$file: no \$ORIGIN"; exit 1; }
done
