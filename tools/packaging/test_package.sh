#!/usr/bin/env bash
# Tries the tarball and the package on systems without the build's packages: a bare Debian 12 and,
# if UBUNTU_MIRROR is set, bare Ubuntus. debootstrap makes each system once, below BUILD/package.
#
#   test_package.sh TARBALL DEB     DEBIAN_MIRROR: another mirror than debootstrap's own
#
# In each system the installation works from the folder in which it was unpacked: it checks its own config folders,
# redirects a program's launches on the simulated driver and shows the counters.
set -eu -o pipefail
tarball=$(realpath "$1") deb=$(realpath "$2")
build=$(realpath "${BUILD:-build}")
[ "$(id -u)" = 0 ] || { echo "test-package: needs root, for chroot" >&2; exit 1; }
command -v debootstrap >/dev/null || { echo "test-package: apt-get install debootstrap" >&2; exit 1; }

# Runs inside the system. $1: the folder in which the tarball was unpacked.
inside() {
  set -eu
  export LC_ALL=C FIBSHIM_STATS_DIR=/dev/shm/fibshim-test
  fail() { echo "test-package: $*" >&2; exit 1; }
  ! ldconfig -p | grep -q libelf.so.1 || fail "the system has libelf: this test shows nothing"
  try() { # fibshim, its config folders
    "$1" --version
    for folder in "$2"/*; do "$1" check "$folder" || fail "check $folder"; done
    "$1" run -c "$2/demo" -- /bin/true || fail "/bin/true failed under the shim"
    { "$1" doctor --json || true; } | tr -d '\n' |
      grep -qE '"loader_library",[^}]*"status": "ok"' || fail "the loader cannot be loaded"
    if /test/hosts/engine --help >/dev/null 2>&1; then
      LD_LIBRARY_PATH=/test/sim "$1" run -c "$2/demo" -- /test/hosts/engine --rows=64 --hidden=4096 --launches=7 >/dev/null ||
        fail "the engine failed under the shim"
      "$1" stats --prometheus | grep -q 'outcome="hit".* 7$' || fail "no 7 hits"
    else
      echo "the test engine is built for a newer glibc than here: no launches were made"
    fi
    "$1" inspect "$(find "$2" -name '*.cubin' | head -n 1)" >/dev/null || fail "inspect"
    "$1" stats --clear 2>/dev/null || fail "clear"
  }
  try "$1/bin/fibshim" "$1/share/fibshim/config"
  dpkg -i /test/fibshim.deb >/dev/null || fail "dpkg -i"
  LD_PRELOAD=libfibshim.so /bin/cat /proc/self/maps | grep -q libfibshim.so || fail "the bare name"
  try fibshim /usr/share/fibshim/config
  dpkg -r fibshim >/dev/null || fail "dpkg -r"
  for left in /usr/bin/fibshim /usr/lib/fibshim /usr/share/fibshim; do
    [ ! -e "$left" ] || fail "$left is left behind"
  done
}

tried=0
for suite in bookworm ${UBUNTU_MIRROR:+jammy noble}; do
  root=$build/package/root-$suite
  case $suite in
    bookworm) mirror=${DEBIAN_MIRROR-} ;;
    # Names the script: a debootstrap that is older than the suite has no script of its name.
    *) mirror="$UBUNTU_MIRROR /usr/share/debootstrap/scripts/jammy" ;;
  esac
  if [ ! -e "$root/.ready" ]; then
    rm -rf --one-file-system "$root"
    # shellcheck disable=SC2086  # no mirror is no argument
    if ! unshare --mount debootstrap --variant=minbase "$suite" "$root" $mirror >"$build/package/$suite.log" 2>&1; then
      tail -n 3 "$build/package/$suite.log" >&2
      echo "test-package: debootstrap $suite failed" >&2
      exit 1
    fi
    touch "$root/.ready"
  fi
  rm -rf "$root/test" "$root/opt/somewhere"
  mkdir -p "$root/test/hosts" "$root/test/data" "$root/opt/somewhere"
  tar -xzf "$tarball" -C "$root/opt/somewhere"
  # The simulated driver also reads cubins with libelf: its copy is in a folder that only this driver searches.
  mkdir -p "$root/test/lib"
  cp -a "$build/sim" "$root/test/sim"
  cp "$build"/lib/libfibshim-*.so "$root/test/lib/"
  cp "$build/tests/hosts/engine" "$root/test/hosts/"
  cp "$build/tests/data/engine_kernels.fatbin" "$root/test/data/"
  cp "$deb" "$root/test/fibshim.deb"
  folder=/opt/somewhere/$(basename "$tarball" .tar.gz)
  # The mounts are in a separate namespace, so that nothing stays mounted, however this ends.
  # shellcheck disable=SC2016  # expanded inside
  unshare --mount --pid --fork bash -c '
    mount -t proc proc "$1/proc" && mount -t tmpfs tmpfs "$1/dev/shm" &&
    exec chroot "$1" bash -c "$2; inside \"\$1\"" inside "$3"' unshare "$root" "$(declare -f inside)" "$folder" |
    sed "s/^/  $suite: /"
  tried=$((tried + 1))
done
echo "  tarball and package work in $tried bare system(s)"
