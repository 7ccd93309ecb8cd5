#!/bin/sh
# deb.sh VERSION FILE: makes the Debian package. Everything is in /usr/lib/fibshim, as a tree that finds
# its own parts. Because of links in the linker's folder, LD_PRELOAD=libfibshim.so works with the bare name.
set -eu
umask 022
version=$1 file=$2
here=$(dirname "$0")
stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
root=$stage/root
tree=$root/usr/lib/fibshim

"$here/stage.sh" "$root" /usr/lib/fibshim
mkdir -p "$root/usr/bin" "$root/usr/share"
mv "$tree/share"/* "$root/usr/share/"
rmdir "$tree/share"
ln -s ../lib/fibshim/bin/fibshim "$root/usr/bin/fibshim"
libraries=$root/usr/lib/$(gcc -print-multiarch)
mkdir -p "$libraries"
for library in "$tree"/lib/libfib*.so; do
  ln -s "../fibshim/lib/${library##*/}" "$libraries/${library##*/}"
done
mkdir -p "$root/usr/share/zsh/vendor-completions"
mv "$root/usr/share/zsh/site-functions/_fibshim" "$root/usr/share/zsh/vendor-completions/"
rmdir "$root/usr/share/zsh/site-functions"
gzip -9n "$root"/usr/share/man/man*/*
glibc=$("$here/symbol_versions.sh" "$tree"/bin/fibshim "$tree"/lib/*.so)

export SOURCE_DATE_EPOCH="${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || date +%s)}"
doc=$root/usr/share/doc/fibshim
rm "$doc/LICENSE" # /usr/share/common-licenses has it
gzip -9nc "$doc/CHANGELOG.md" >"$doc/changelog.gz"
rm "$doc/CHANGELOG.md"
maintainer=${DEB_MAINTAINER:-$(git log -1 --format='The fibshim authors <%ae>' 2>/dev/null || echo 'root <root@localhost>')}
year=$(date -u -d "@$SOURCE_DATE_EPOCH" +%Y)
{
  printf 'fibshim (%s) unstable; urgency=medium\n\n  * The changes are in changelog.gz.\n\n' "$version"
  printf ' -- %s  %s\n' "$maintainer" "$(date -R -u -d "@$SOURCE_DATE_EPOCH")"
} | gzip -9n >"$doc/changelog.Debian.gz"
cat >"$doc/copyright" <<END
Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: fibshim
Comment: The libraries that are linked in, or copied under names of their own
 (libfibshim-elf.so is libelf, libfibshim-z.so is zlib), are under the terms in
 the folder third-party.

Files: *
Copyright: $year The fibshim authors
License: Apache-2.0
 On Debian systems the full text of the Apache License, Version 2.0, is in
 /usr/share/common-licenses/Apache-2.0.
END
# GPU code is the same for every host, but lintian sees ELF files of another machine.
mkdir -p "$root/usr/share/lintian/overrides"
cat >"$root/usr/share/lintian/overrides/fibshim" <<END
# Cubins run on GPUs, whatever the host is.
fibshim: arch-dependent-file-in-usr-share [usr/share/fibshim/config/*.cubin]
fibshim: binary-from-other-architecture [usr/share/fibshim/config/*.cubin]
fibshim: unstripped-binary-or-object [usr/share/fibshim/config/*.cubin]
fibshim: statically-linked-binary [usr/share/fibshim/config/*.cubin]
# A private copy under another name: engines come with libelf and zlib of their own.
fibshim: embedded-library *
# There is no request for it in Debian's tracker.
fibshim: initial-upload-closes-no-bugs *
END
mkdir "$root/DEBIAN"
cat >"$root/DEBIAN/control" <<END
Package: fibshim
Version: $version
Architecture: $(dpkg --print-architecture)
Maintainer: $maintainer
Installed-Size: $(du -sk --exclude=DEBIAN "$root" | cut -f 1)
Depends: libc6 (>= $glibc)
Suggests: libcuda1
Section: utils
Priority: optional
Description: replaces the GPU kernels that a program launches with curated ones
 A library that is preloaded into LLM engines sits between them and the CUDA
 driver. It recognises kernel launches as calls of FlashInfer Trace definitions
 and launches the kernels of a config folder in their place; the engine is not
 changed. The command fibshim starts programs with it, checks config folders and
 shows what happened to the launches.
END
(cd "$root" && find usr -type f -print0 | sort -z | xargs -0 md5sum) >"$root/DEBIAN/md5sums"
find "$root" -exec touch -h -d "@$SOURCE_DATE_EPOCH" '{}' +
dpkg-deb --root-owner-group -Z"${DEB_COMPRESSION:-xz}" --build "$root" "$file.tmp" >/dev/null
mv "$file.tmp" "$file"
