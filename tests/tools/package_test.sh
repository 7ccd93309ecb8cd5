#!/usr/bin/env bash
# The contents of the packages fit the systems that they are for: symbol versions of the libraries and
# the command, and the shipped examples. `make test-package` tries the packages
# themselves.
set -eu -o pipefail
build=${BUILD:-build}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

fail() {
  echo "package_test: $*" >&2
  exit 1
}

# ---- symbol versions. A build on a system with a newer glibc may need newer symbol versions.
own=$(getconf GNU_LIBC_VERSION | sed 's/.* //')
files=("$build"/bin/fibshim "$build"/lib/libfibshim.so "$build"/lib/libfibrecord.so "$build"/lib/libfibshadow.so "$build"/lib/libfibloader.so "$build"/lib/libfibshim-*.so)
if [ "$(printf '%s\n2.36\n' "$own" | sort -V | tail -n 1)" = 2.36 ]; then
  tools/packaging/symbol_versions.sh "${files[@]}" || fail "symbol versions"
else
  echo "package_test: glibc $own is newer than that of Debian 12: symbol versions are not judged"
fi
# Checks that the check can fail: this program needs the system's C++ runtime.
printf '#include <iostream>\nint main() { std::cout << 1; }\n' >"$scratch/main.cc"
g++ -o "$scratch/main" "$scratch/main.cc"
if tools/packaging/symbol_versions.sh "$scratch/main" 2>/dev/null; then fail "libstdc++ is not noticed"; fi

# ---- examples
examples=tools/packaging/examples
if command -v systemd-analyze >/dev/null; then
  program=$(realpath "$build/bin/fibshim")
  for unit in "$examples"/*.service "$examples"/*.timer; do
    sed "s#/usr/bin/fibshim#$program#" "$unit" >"$scratch/${unit##*/}"
  done
  complaints=$(systemd-analyze verify --man=no "$scratch"/*.service "$scratch"/*.timer 2>&1) ||
    fail "systemd-analyze: $complaints"
  [ -z "$(grep -F "$scratch" <<<"$complaints" || true)" ] || fail "systemd-analyze: $complaints"
fi
# fibshim accepts the commands in the units.
for unit in "$examples"/*.service; do
  read -ra words <<<"$(sed -n 's/^ExecStart=//p' "$unit")"
  for i in "${!words[@]}"; do
    [[ ${words[i]} == --* ]] || continue
    "$build/bin/fibshim" "${words[1]}" --help | grep >/dev/null -- "${words[i]} " ||
      fail "$unit: ${words[1]} has no option ${words[i]}"
  done
done

# ---- the Debian package's tree, unpacked anywhere, has a first folder and a program to try it with
unset MAKEFLAGS MFLAGS MAKELEVEL
if command -v dpkg-deb >/dev/null; then
  DEB_COMPRESSION=none MAKE=make BUILD="$build" tools/packaging/deb.sh 0-1 "$scratch/fibshim.deb" || fail "deb.sh"
  dpkg-deb -x "$scratch/fibshim.deb" "$scratch/deb"
  fibshim=$scratch/deb/usr/bin/fibshim
  said=$("$fibshim" init "$scratch/own") || fail "init of the package"
  try=$(sed -n 's/^  \(.* run --simulate .*\)#.*/\1/p' <<<"$said")
  FIBSHIM_STATS_DIR="$scratch/stats" sh -c "$try" >"$scratch/log" 2>&1 || { cat "$scratch/log"; fail "$try"; }
  "$fibshim" stats --dir "$scratch/stats" | grep >/dev/null ' hit  *1 ' || fail "no hit: $try"
fi

# The installation to which the paths of the manifest lead.
make -s BUILD="$build" DESTDIR="$scratch/stage" PREFIX=/fibshim install >"$scratch/log" 2>&1 ||
  { cat "$scratch/log"; fail "make install"; }
"$build/bin/fibshim" run -c "$scratch/stage/fibshim/share/fibshim/config/demo" --print-env \
  --format kubernetes >"$scratch/env.yaml"
/usr/bin/python3 - "$examples/kubernetes-vllm.yaml" "$scratch/env.yaml" "$scratch/stage" <<'END' || fail "YAML"
import os, sys, yaml

manifest, env, stage = sys.argv[1:]
variables = {item["name"]: item["value"] for item in yaml.safe_load(open(env))["env"]}
assert variables["LD_PRELOAD"].endswith("libfibshim.so"), variables

(deployment,) = list(yaml.safe_load_all(open(manifest)))
pod = deployment["spec"]["template"]["spec"]
assert deployment["spec"]["selector"]["matchLabels"].items() <= \
    deployment["spec"]["template"]["metadata"]["labels"].items()
volumes = {volume["name"] for volume in pod["volumes"]}
containers = pod["initContainers"] + pod["containers"]
for container in containers:
    for mount in container.get("volumeMounts", []):
        assert mount["name"] in volumes, mount
# Every path into the installation exists after it has been copied to /fibshim.
words = [word for c in containers for word in c.get("command", [])]
words += [item["value"] for c in containers for item in c.get("env", [])]
paths = [path for word in words for path in word.split(":") if path.startswith("/fibshim/") and path != "/fibshim/"]
assert len(paths) >= 4, paths
for path in paths:
    assert os.path.exists(stage + path), path
# The engine and the sidecar use the same folder.
engine, metrics = pod["containers"]
settings, of_metrics = ({item["name"]: item["value"] for item in one["env"]} for one in (engine, metrics))
assert settings["FIBSHIM_STATS_DIR"] == of_metrics["FIBSHIM_STATS_DIR"], of_metrics
END
