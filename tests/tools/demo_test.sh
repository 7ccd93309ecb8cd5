#!/usr/bin/env bash
# `make demo`, README's first command, works in a checkout that was made with a umask of 002, whether the
# user's group has other members or not. The text that it prints after a `$` can be pasted.
set -eu -o pipefail
build=$(realpath "${BUILD:-build}")
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
chmod 755 "$root"

fail() {
  echo "demo_test: $*" >&2
  exit 1
}

mkdir -p "$root/checkout/build/tests/hosts" "$root/checkout/build/tests/data"
cp -r "$build"/{bin,lib,sim} "$root/checkout/build/"
mkdir "$root/checkout/build/config"
cp -r "$build/config/demo" "$root/checkout/build/config/"
cp "$build/tests/hosts/engine" "$root/checkout/build/tests/hosts/"
cp "$build"/tests/data/engine_kernels.* "$root/checkout/build/tests/data/"
cp -r tools "$root/checkout/"
chmod -R g+w "$root/checkout"

demo() { (cd "$root/checkout" && umask 002 && tools/demo.sh build); }
demo >"$root/log" 2>&1 || { cat "$root/log"; fail "it fails under umask 002"; }
if [ "$(id -u)" = 0 ]; then
  chgrp -R 54321 "$root/checkout"
  demo >"$root/log" 2>&1 || { cat "$root/log"; fail "it fails in a group that others may be in"; }
  grep -q '^\$ export FIBSHIM_TRUST=group' "$root/log" || { cat "$root/log"; fail "it does not say whom it trusts"; }
fi

# When the commands alone are pasted into a new shell, the counters show twice as many launches.
sed -n 's/^\$ //p' "$root/log" >"$root/pasted"
[ "$(wc -l <"$root/pasted")" -ge 4 ] || fail "it prints no commands"
(cd "$root/checkout" && bash -e "$root/pasted") >"$root/again" 2>&1 || { cat "$root/again"; fail "what it prints cannot be pasted"; }
grep -qw 200 "$root/again" || { cat "$root/again"; fail "the pasted commands count nothing"; }
