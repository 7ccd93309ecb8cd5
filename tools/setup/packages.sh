#!/bin/sh
# Installs the needed packages that the machine lacks (Debian, Ubuntu). Prints the commands that it runs.
#
#   packages.sh GROUP BUILD_DIR DONE_FILE
#
#   GROUP      build: compilers and libraries; test: programs of some tests; bench: Google Benchmark, gnuplot;
#              fuzz: clang with libFuzzer; format: clang-format; lint: clang-tidy
#   DONE_FILE  written when all is installed; for the group `build`, a makefile that names the toolkit, and clang if there is
#              one that reads this machine's C++ library
#
# Uses the machine's CUDA compiler if it has one (nvcc 12.8 or later, for sm_100; or CUDA_HOME); else
# installs NVIDIA's Python wheels into BUILD_DIR/cuda.
set -eu
group=$1 build=$2 done_file=$3

say() { printf '  %-8s%s\n' SETUP "$*"; }

as_root() {
  if [ "$(id -u)" = 0 ]; then "$@"
  elif command -v sudo >/dev/null; then sudo "$@"
  else echo "setup: needs root to run: $*" >&2; exit 1
  fi
}

# package:file, where the file shows that the package is installed
case $group in
  build)
    wanted="
g++:/usr/bin/g++
libc6-dev:/usr/include/stdlib.h
libelf-dev:/usr/include/libelf.h
nlohmann-json3-dev:/usr/include/nlohmann/json.hpp
libxxhash-dev:/usr/include/xxhash.h
libexpected-dev:/usr/include/tl/expected.hpp
libpcre2-dev:/usr/include/pcre2.h
libsodium-dev:/usr/include/sodium.h
libcli11-dev:/usr/include/CLI/CLI.hpp
libfmt-dev:/usr/include/fmt/format.h
liblz4-dev:/usr/include/lz4.h
libzstd-dev:/usr/include/zstd.h
libboost-dev:/usr/include/boost/beast.hpp
libgtest-dev:/usr/include/gtest/gtest.h
patchelf:/usr/bin/patchelf
"
    ;;
  # Tests preload the allocators from the dynamic loader's folder.
  test)
    libraries=/usr/lib/$(gcc -print-multiarch)
    wanted="
python3-yaml:/usr/lib/python3/dist-packages/yaml/__init__.py
minisign:/usr/bin/minisign
valgrind:/usr/include/valgrind/callgrind.h
spin:/usr/bin/spin
libjemalloc2:$libraries/libjemalloc.so.2
libtcmalloc-minimal4:$libraries/libtcmalloc_minimal.so.4
"
    ;;
  bench)
    wanted="
libbenchmark-dev:/usr/include/benchmark/benchmark.h
gnuplot-nox:/usr/bin/gnuplot
"
    ;;
  # libFuzzer is part of the compiler's runtime, which is in another package on Ubuntu 22.04.
  fuzz)
    runtime=libclang-rt-14-dev
    ! grep -q '^VERSION_CODENAME=jammy' /etc/os-release 2>/dev/null || runtime=libclang-common-14-dev
    wanted="
clang-14:/usr/bin/clang++-14
$runtime:/usr/lib/llvm-14/lib/clang/14*/lib/linux/libclang_rt.fuzzer-*.a
zlib1g-dev:/usr/include/zlib.h
"
    ;;
  # Version 14, which Debian 12 and Ubuntu 22.04 to 24.04 have: other versions format differently.
  format) wanted="clang-format-14:/usr/bin/clang-format-14" ;;
  lint) wanted="clang-tidy-14:/usr/bin/clang-tidy-14" ;;
  *) echo "setup: no group '$group'" >&2; exit 2 ;;
esac
missing=
for row in $wanted; do
  # shellcheck disable=SC2086  # a file's name may be a glob
  set -- ${row#*:}
  [ -e "$1" ] || missing="$missing ${row%%:*}"
done

# Succeeds if $1 is the root of a toolkit that is recent enough.
is_toolkit() {
  [ -x "$1/bin/nvcc" ] && [ -e "$1/include/cudaTypedefs.h" ] || return 1
  version=$("$1/bin/nvcc" --version | sed -n 's/.*release \([0-9]*\)\.\([0-9]*\).*/\1 \2/p')
  # shellcheck disable=SC2086  # two words
  set -- $version
  [ "${1:-0}" -gt 12 ] || { [ "${1:-0}" = 12 ] && [ "$2" -ge 8 ]; }
}
toolkit=
if [ "$group" = build ]; then
  on_path=$(command -v nvcc || true)
  for root in "${CUDA_HOME:-}" /usr/local/cuda "${on_path%/bin/nvcc}" "$build/cuda"; do
    if [ -n "$root" ] && is_toolkit "$root"; then
      toolkit=$root
      break
    fi
  done
  if [ -z "$toolkit" ]; then
    command -v python3 >/dev/null && python3 -c 'import venv, ensurepip' 2>/dev/null ||
      missing="$missing python3-venv"
  fi
fi

if [ -n "$missing" ]; then
  if ! command -v apt-get >/dev/null; then
    echo "setup: install these packages (Debian's names) and run make again:$missing" >&2
    exit 1
  fi
  say "apt-get install$missing"
  # make may run several groups at once, but only one apt-get may run at a time.
  exec 9>"$build/setup.lock"
  flock 9
  log=$build/setup-$group.log
  # shellcheck disable=SC2086  # a list of words
  { as_root apt-get update -qq &&
    as_root env DEBIAN_FRONTEND=noninteractive \
      apt-get install -y -qq --no-install-recommends $missing; } >"$log" 2>&1 || {
    tail -n 5 "$log" >&2
    echo "setup: apt-get failed; all that it said is in $log" >&2
    exit 1
  }
fi

# Its headers need nlohmann-json alone; the package asks for Qt and three databases, too.
valijson=/usr/include/valijson/validator.hpp
if [ "$group" = build ] && [ ! -e $valijson ] && [ ! -e "$build/packages$valijson" ]; then
  say "apt-get download libvalijson-dev into $build/packages"
  (mkdir -p "$build/packages" && cd "$build/packages" &&
    { apt-get download libvalijson-dev || { as_root apt-get update -qq && apt-get download libvalijson-dev; }; } &&
    dpkg -x libvalijson-dev_*.deb .) >"$build/setup-valijson.log" 2>&1 || {
    tail -n 5 "$build/setup-valijson.log" >&2
    echo "setup: libvalijson-dev cannot be had; all that was said is in $build/setup-valijson.log" >&2
    exit 1
  }
fi

if [ "$group" = build ] && [ -z "$toolkit" ]; then
  say "pip install nvidia-cuda-nvcc 13.0 into $build/cuda"
  wheels=$build/cuda-wheels
  rm -rf "$wheels"
  python3 -m venv "$wheels"
  "$wheels/bin/pip" install -q --disable-pip-version-check \
    'nvidia-cuda-nvcc==13.0.*' 'nvidia-nvvm==13.0.*' 'nvidia-cuda-crt==13.0.*' \
    'nvidia-cuda-runtime==13.0.*' 'nvidia-cuda-cccl==13.0.*'
  root=$(find "$wheels" -type d -path '*/nvidia/cu13' | head -n 1)
  [ -n "$root" ] || { echo "setup: the wheels hold no nvidia/cu13 folder" >&2; exit 1; }
  rm -rf "$build/cuda"
  mv "$root" "$build/cuda"
  rm -rf "$wheels"
  # Files from wheels are executable only if pip knows them as scripts.
  find "$build/cuda/bin" "$build/cuda/nvvm" -type f ! -name '*.so*' ! -name '*.bc' -exec chmod +x {} +
  is_toolkit "$build/cuda" ||
    { echo "setup: the toolkit from the wheels does not work: $build/cuda" >&2; exit 1; }
  toolkit=$build/cuda
fi

if [ "$group" = build ]; then
  # An older clang does not read the C++ library of every newer g++.
  clang=$(command -v clang++-14 || true)
  [ -z "$clang" ] || printf '#include <%s>\n' chrono filesystem ranges gtest/gtest.h nlohmann/json.hpp |
    "$clang" -std=c++20 -fsyntax-only -x c++ - 2>/dev/null || clang=
  printf '# Written by tools/setup/packages.sh.\nCUDA_HOME := %s\nPACKAGES := %s\nCLANG := %s\n' "$(cd "$toolkit" && pwd)" \
    "$(cd "$build" && pwd)/packages" "$clang" >"$done_file.tmp"
else
  : >"$done_file.tmp"
fi
mv "$done_file.tmp" "$done_file"
