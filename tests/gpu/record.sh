#!/bin/sh
# What `fibshim record` says of a PyTorch + Triton + cuBLAS program against what PyTorch's profiler
# says; a folder that `fibshim suggest` began, finished by writing the kernel; and what observing and
# recording cost a launch. run.sh calls this; alone: FIBSHIM_TEST_BUILD=BUILD_FOLDER tests/gpu/record.sh
set -u

build=${FIBSHIM_TEST_BUILD:?the build folder}
here=$(cd "$(dirname "$0")" && pwd)
python=${PYTHON:-python3}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 1' HUP INT TERM
[ -n "${FIBSHIM_STATS_DIR:-}" ] || export FIBSHIM_STATS_DIR="$work/stats"
code=0

# ---- every kernel that the profiler names, with equal counts

"$build/bin/fibshim" record -o "$work/recording.jsonl" -- \
  "$python" "$here/record.py" workload "$work/profile.json" || code=1
"$build/bin/fibshim" record --summary "$work/recording.jsonl" || code=1
"$python" "$here/record.py" compare "$work/recording.jsonl" "$work/profile.json" || code=1

# ---- kernel times by CUPTI: against the profiler's, in processes of their own; twice

record() {
  name=$1
  shift
  "$build/bin/fibshim" record -o "$work/$name.jsonl" "$@"
}
decode() { "$python" "$here/record.py" decode "$@" || code=1; }
for round in 1 2; do
  decode profile "$work/profile.json"
  decode plain "$work/without.$round"
  record cupti --times cupti -- "$python" "$here/record.py" decode plain "$work/cupti.$round" || code=1
  record events --times events -- "$python" "$here/record.py" decode plain "$work/events.$round" || code=1
  "$python" "$here/record.py" shares "$work/cupti.jsonl" "$work/profile.json" || code=1
done
"$build/bin/fibshim" record --summary "$work/cupti.jsonl" -c "$build/config/pytorch" || code=1
"$build/bin/fibshim" record --compare "$work/cupti.jsonl" "$work/events.jsonl"  # they do differ
"$python" "$here/record.py" speeds "$work"/without.? "$work"/cupti.? "$work"/events.? || code=1
record killed -- "$python" "$here/record.py" decode killed "$work/killed.json"  # by a signal
"$python" "$here/record.py" killed "$work/killed.jsonl" "$work/killed.json" || code=1
record later -- "$python" "$here/record.py" decode profile_later "$work/later.json" || code=1
"$build/bin/fibshim" record --summary "$work/later.jsonl" --json >"$work/later.summary"
"$python" "$here/record.py" taken_over "$work/later.summary" "$work/later.json" || code=1

# ---- from an unknown kernel to a redirect, writing nothing but the kernel

"$python" "$here/record.py" suggest "$build" "$work/recording.jsonl" "$work/suggested" || code=1

# ---- what a launch costs: interleaved, the median of five runs' medians

cost() {
  name=$1
  shift
  env "$@" "$build/tests/hosts/launch_cost" 100 500 >>"$work/cost.$name" || code=1
}
shim=LD_PRELOAD=$build/lib/libfibshim.so
config=FIBSHIM_CONFIG=$build/config/pytorch
for round in 1 2 3 4 5; do
  cost none UNUSED=1
  cost apply "$shim" "$config"
  cost observe "$shim" "$config" FIBSHIM_MODE=observe
  cost record "$shim" "$config" FIBSHIM_MODE=observe "FIBSHIM_RECORD=$work/recordings.$round"
done
"$python" "$here/record.py" cost "$work"/cost.none "$work"/cost.apply "$work"/cost.observe \
  "$work"/cost.record || code=1
exit $code
