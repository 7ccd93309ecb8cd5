#!/bin/sh
# Installs the contents of the packages into a folder: the installation, and the licences of the
# libraries in it.
#
#   stage.sh FOLDER PREFIX          MAKE and BUILD come from the makefile
set -eu
umask 022
folder=$1 prefix=$2

rm -rf "$folder"
"${MAKE:-make}" -s --no-print-directory BUILD="$BUILD" DESTDIR="$folder" PREFIX="$prefix" install >/dev/null
root=$folder$prefix

# Debian's packages of the libraries that are linked in or copied. Each has a file with its terms.
licences=$root/share/doc/fibshim/third-party
mkdir -p "$licences"
for package in libelf1 zlib1g libpcre2-dev libsodium-dev liblz4-dev libzstd-dev nlohmann-json3-dev \
  libcli11-dev libvalijson-dev libfmt-dev libxxhash-dev libexpected-dev libboost-dev; do
  terms=/usr/share/doc/$package/copyright
  # The names of some packages have a suffix, such as t64.
  [ -e "$terms" ] || terms=$(find /usr/share/doc "$BUILD/packages" -path "*/$package*/copyright" 2>/dev/null | head -n 1)
  [ -n "$terms" ] || { echo "stage.sh: the licence of $package is not to be found" >&2; exit 1; }
  install -m 644 "$terms" "$licences/$package"
done
terms=$(find /usr/share/doc -path '*/gcc-*-base/copyright' | sort | tail -n 1)
[ -z "$terms" ] || install -m 644 "$terms" "$licences/libstdc++"
find "$root" -type d -exec chmod 755 '{}' +
