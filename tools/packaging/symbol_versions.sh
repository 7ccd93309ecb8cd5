#!/bin/sh
# Prints the version of glibc that files need, such as "2.34". Fails if it is newer than that of the systems that
# the packages are for, or if the files need the system's C++ runtime.
#
#   symbol_versions.sh FILE...
#
# Ubuntu 22.04 has glibc 2.35, RHEL 9 has 2.34, Debian 12 has 2.36: a need of 2.34 suits them all.
set -eu
newest=2.34

versions=$(for file in "$@"; do readelf -VW "$file" | sed -n 's/.*Name: \([A-Z]*_[A-Z0-9_.]*\) .*/\1/p'; done | sort -u)
foreign=$(printf '%s\n' "$versions" | grep -E '^(GLIBCXX|CXXABI|GCC)_' || true)
if [ -n "$foreign" ]; then
  echo "symbol_versions.sh: needs the system's C++ runtime: $foreign" >&2
  exit 1
fi
for file in "$@"; do
  for needed in $(readelf -dW "$file" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p'); do
    case $needed in
      libc.so.6 | libm.so.6 | libdl.so.2 | libpthread.so.0 | ld-linux* | libfibshim-*.so) ;;
      *) echo "symbol_versions.sh: $file needs $needed, which a container may lack" >&2; exit 1 ;;
    esac
  done
done
found=$(printf '%s\n' "$versions" | sed -n 's/^GLIBC_\([0-9.]*\)$/\1/p' | sort -V | tail -n 1)
echo "$found"
if [ "$(printf '%s\n%s\n' "$found" "$newest" | sort -V | tail -n 1)" != "$newest" ]; then
  echo "symbol_versions.sh: needs glibc $found; $newest is wanted: build on Debian 12 or Ubuntu 22.04" >&2
  exit 1
fi
