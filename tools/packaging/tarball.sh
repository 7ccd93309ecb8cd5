#!/bin/sh
# tarball.sh VERSION FILE: makes an archive of one folder with bin, lib and share, which may be unpacked
# anywhere. The same sources and tools give the same bytes.
set -eu
umask 022
version=$1 file=$2
here=$(dirname "$0")
name=fibshim-$version-linux-$(uname -m)
stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT

"$here/stage.sh" "$stage/tree" "/$name"
"$here/symbol_versions.sh" "$stage/tree/$name"/bin/fibshim "$stage/tree/$name"/lib/*.so >/dev/null
date=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || date +%s)}
tar --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$date" -C "$stage/tree" -cf - "$name" |
  gzip -9n >"$file.tmp"
mv "$file.tmp" "$file"
