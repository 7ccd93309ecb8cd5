#!/usr/bin/env bash
# `make install` into a folder gives an installation that works, even after it was moved, and without
# the build folder.
set -eu -o pipefail
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
build=${BUILD:-build}
unset MAKEFLAGS MFLAGS MAKELEVEL

fail() {
  echo "install_test: $*" >&2
  exit 1
}

make -s BUILD="$build" DESTDIR="$root/stage" PREFIX=/opt/fibshim install >"$root/log" 2>&1 ||
  { cat "$root/log"; fail "make install failed"; }
mkdir "$root/moved"
mv "$root/stage/opt/fibshim" "$root/moved/here"
here=$root/moved/here

# shellcheck disable=SC2016  # the linker's $ORIGIN, not the shell's
origins=('$ORIGIN' '$ORIGIN/../lib:$ORIGIN/../lib64:$ORIGIN/../lib/'"$(gcc -print-multiarch)")
# The build folder's libraries must not be found by accident.
for file in "$here"/bin/fibshim "$here"/lib/*.so; do
  case $(readelf -d "$file" | sed -n 's/.*(R.*PATH).*\[\(.*\)\]/\1/p') in
    '' | "${origins[0]}" | "${origins[1]}") ;;
    *) fail "$file has a search path that names a place" ;;
  esac
done
ldd "$here/bin/fibshim" | grep >/dev/null "libfibshim-elf.so => $here/" ||
  fail "the installed fibshim does not use the installed libelf"

"$here/bin/fibshim" --version | grep >/dev/null '^fibshim [0-9]' || fail "--version"
for folder in "$here"/share/fibshim/config/*; do
  "$here/bin/fibshim" check "$folder" || fail "the installed $folder has mistakes"
done
# An image that several solutions share is one file with hard links, which the rules of trust accept.
names=$(find "$here/share/fibshim/config/flashinfer" -name '*.cubin' | wc -l)
files=$(find "$here/share/fibshim/config/flashinfer" -name '*.cubin' -printf '%i\n' | sort -u | wc -l)
[ "$files" -lt "$names" ] || fail "$names images in $files files: nothing is shared"
# shellcheck disable=SC2016  # expanded inside
preload=$("$here/bin/fibshim" run -c "$here/share/fibshim/config/pytorch" -- \
  sh -c 'printf %s "$LD_PRELOAD"')
[ "$preload" = "$here/lib/libfibshim.so" ] || fail "run preloads '$preload'"
# Without a GPU, doctor reports a fault of the driver, which does not matter here.
status=$({ "$here/bin/fibshim" doctor --json || true; } | tr -d '\n' |
  sed -n 's/.*"loader_library",[^}]*"status": "\([a-z]*\)".*/\1/p')
[ "$status" = ok ] || fail "doctor finds the installed loader '$status'"

# A user can make a folder and try it without a GPU: the installation contains the simulator and a program.
FIBSHIM_STATS_DIR=$root/stats
export FIBSHIM_STATS_DIR
"$here/bin/fibshim" init "$root/own" >/dev/null || fail "init"
"$here/bin/fibshim" check "$root/own" || fail "what init writes has mistakes"
"$here/bin/fibshim" run --simulate -c "$root/own" -- "$here/lib/fibshim-sim/hosts/engine" --demo --hidden=4096 \
  --rows=8 --launches=5 --dtype=bf16 >"$root/log" 2>&1 || { cat "$root/log"; fail "run --simulate"; }
"$here/bin/fibshim" stats --prometheus | grep >/dev/null 'outcome="hit".* 5$' || fail "no 5 hits on the simulator"
for file in "$here"/bin/fibshim "$here"/lib/*.so; do
  ! readelf -SW "$file" | grep >/dev/null '\.debug_info' || fail "$file is not stripped"
done

# The bare name is enough in folders that the linker searches, lib64 included.
make -s BUILD="$build" DESTDIR="$root/bits" PREFIX=/usr LIBDIR=/usr/lib64 install >"$root/log" 2>&1 ||
  { cat "$root/log"; fail "make install LIBDIR"; }
# shellcheck disable=SC2002  # cat is the program
LD_LIBRARY_PATH=$root/bits/usr/lib64 LD_PRELOAD=libfibshim.so cat /proc/self/maps | grep >/dev/null lib64/libfibshim.so ||
  fail "LD_PRELOAD=libfibshim.so is not found"
# shellcheck disable=SC2016  # expanded inside
preload=$("$root/bits/usr/bin/fibshim" run -c "$here/share/fibshim/config/demo" -- sh -c 'printf %s "$LD_PRELOAD"')
[ "$preload" = "$root/bits/usr/lib64/libfibshim.so" ] || fail "with LIBDIR, run preloads '$preload'"
make -s BUILD="$build" DESTDIR="$root/bits" PREFIX=/usr LIBDIR=/usr/lib64 uninstall
left=$(find "$root/bits" -type f)
[ -z "$left" ] || fail "uninstall leaves $left"

for file in share/zsh/site-functions/_fibshim share/fish/vendor_completions.d/fibshim.fish \
  share/fibshim/schema/pattern.schema.json share/man/man1/fibshim.1 share/man/man1/fibshim-run.1 share/man/man5/fibshim-config.5 \
  share/bash-completion/completions/fibshim share/doc/fibshim/LICENSE; do
  [ -s "$here/$file" ] || fail "$file is not installed"
done
[ -x "$here/bin/fibshim" ] || fail "bin/fibshim cannot be executed"
if find "$here" -perm -002 ! -type l | grep .; then fail "files that anyone can write"; fi
