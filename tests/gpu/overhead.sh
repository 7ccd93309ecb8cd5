#!/bin/sh
# What the shim costs on a real GPU, in one run, processes taking turns (A B B A):
#   launches  an empty kernel's cuLaunchKernel: no preload, a preload that only forwards, the shim
#             (untracked, no solution, hit with a copy of the same kernel), and any other preload
#   decode    tokens per second of a 32-layer PyTorch model, eager and in a CUDA graph, without and with
#             the shim, whose solution is a copy of PyTorch's own RMSNorm kernel; and both ways by turns
#             in one process, where nothing else differs
# Needs the built tree after `make bench`, or a copy of build/ and tests/gpu; python3 with PyTorch, and
# cuobjdump, for the second part. An H200 or another GPU of sm_90.
#
#   tests/gpu/overhead.sh [-l] [-r ROUNDS] [-o FOLDER] [BUILD_FOLDER] [NAME=PRELOAD...]
#
#   -l           launches only
#   -r ROUNDS    processes of each kind (6)
#   -o FOLDER    where overhead.json and the processes' own lines go (BUILD_FOLDER/bench)
#   NAME=PRELOAD another library to compare launches with
set -u

usage() {
  echo "usage: overhead.sh [-l] [-r ROUNDS] [-o FOLDER] [BUILD_FOLDER] [NAME=PRELOAD...]" >&2
  exit 2
}
has_decode=1 rounds=6 out=
while getopts lr:o: option; do
  case $option in
    l) has_decode=0 ;;
    r) rounds=$OPTARG ;;
    o) out=$OPTARG ;;
    *) usage ;;
  esac
done
shift $((OPTIND - 1))

root=$(cd "$(dirname "$0")/../.." && pwd)
here=$root/tests/gpu
build=$root/build
case ${1:-} in
  '' | *=*) ;;
  *) build=$(cd "$1" && pwd) || exit 1; shift ;;
esac
for peer in "$@"; do
  if [ ! -e "${peer#*=}" ] || [ "${peer%%=*}" = "$peer" ]; then usage; fi
done
out=${out:-$build/bench}
python=${PYTHON:-python3}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 1' HUP INT TERM
export PYTHONDONTWRITEBYTECODE=1 FIBSHIM_TEST_BUILD="$build" FIBSHIM_STATS_DIR="$work/stats"
unset LD_PRELOAD FIBSHIM_CONFIG FIBSHIM_MODE FIBSHIM_ON_ERROR FIBSHIM_LOG FIBSHIM_LOG_FILE
mkdir -p "$out" "$FIBSHIM_STATS_DIR"

# Where the threads run: they do not move, and processor 0 has the interrupts.
pin() {
  pinned=$1
  shift
  if [ "$(nproc)" -gt 3 ]; then taskset -c "$pinned" "$@"; else "$@"; fi
}

# take_turns FILE CORES COMMAND...: `rounds` processes for each kind in $kinds, forwards and backwards by
# turns. A kind is NAME=PRELOAD; COMMAND gets the name and $samples, and writes a line to FILE. A peer that
# fails is left out, with a message; anything else that fails ends the run.
take_turns() {
  file=$1 cores=$2
  shift 2
  : >"$file"
  backwards=
  for kind in $kinds; do backwards="$kind $backwards"; done
  i=0
  while [ "$i" -lt "$rounds" ]; do
    order=$kinds
    [ $((i % 2)) = 0 ] || order=$backwards
    for kind in $order; do
      name=${kind%%=*}
      config=
      case $name in shim | paired) config=$config_folder ;; esac
      if ! pin "$cores" env LD_PRELOAD="${kind#*=}" FIBSHIM_CONFIG="$config" "$@" "$name" "$samples" \
        >"$work/line" 2>"$work/err"; then
        case $name in
          none | forwarder | shim | paired) cat "$work/err" >&2; exit 1 ;;
          *) echo "overhead: $name fails: $(cat "$work/line" "$work/err" | tail -n 1)" >&2 ;;
        esac
      elif grep -q '^fibshim\[' "$work/err"; then
        # A shim that could not start would be measured as a very fast one.
        cat "$work/err" >&2
        exit 1
      else
        # A peer may print, too.
        grep '^{"preload"' "$work/line" >>"$file"
      fi
    done
    i=$((i + 1))
  done
}

kinds="none= forwarder=$build/bench/libforwarder.so shim=$build/lib/libfibshim.so $*"
config_folder=$build/bench/config samples=250
take_turns "$out/overhead_launch.jsonl" 2 "$build/bench/overhead_launch"

: >"$out/overhead_decode.jsonl"
if [ "$has_decode" = 1 ]; then
  config_folder=$work/config samples=160
  "$python" "$here/overhead_config.py" "$config_folder" || exit 1
  "$build/bin/fibshim" check "$config_folder" || exit 1
  rm -rf "$FIBSHIM_STATS_DIR" && mkdir "$FIBSHIM_STATS_DIR"
  kinds="none= shim=$build/lib/libfibshim.so paired=$build/bench/libswitch.so:$build/lib/libfibshim.so"
  take_turns "$out/overhead_decode.jsonl" 2,3 "$python" "$here/overhead_decode.py"
fi
"$python" "$here/overhead_report.py" "$out"
