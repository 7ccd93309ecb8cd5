#!/usr/bin/env python3
"""The tables of overhead.sh, from the lines that its processes wrote; and overhead.json.

    overhead_report.py FOLDER

Medians over processes, with the quartiles. Noise is what the same says of things that are alike: the
odd and the even processes without a preload, and a direct call beside another.
"""
import json
import os
import statistics
import sys

from counters import read_counts

WAYS = {"untracked": "kernel that no pattern knows", "fallback": "known kernel, no solution",
        "hit": "hit, arguments as they are", "hit_remap": "hit, 8 arguments reordered",
        "hit_chosen": "hit, of two solutions the second"}
WAYS |= {f"function_{way}": f"CUfunction: {words}" for way, words in WAYS.items()}
MOST_EAGER_LOSS = 0.003


def read_lines(path):
    """The processes' objects, by the name of the preload."""
    by_preload = {}
    with open(path) as file:
        for line in file:
            process = json.loads(line)
            by_preload.setdefault(process["preload"], []).append(process)
    return by_preload


def summary(values):
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else values * 3
    return {"median": middle, "quartiles": [low, high], "processes": len(values)}


def halves_differ(values):
    """How far apart the medians of every second value and of the others are, relative."""
    if len(values) < 4:
        return None
    a, b = statistics.median(values[::2]), statistics.median(values[1::2])
    return abs(a - b) / statistics.median(values)


def percent(value):
    return "-" if value is None else f"{100 * value:.2f} %"


def report_launches(processes):
    none = [process["untracked"]["ns"] for process in processes["none"]]
    base = statistics.median(none)
    noise_ns = summary([process["noise"]["added_ns"] for kind in processes.values() for process in kind])
    out = {"direct_ns": summary(none), "processes_differ": halves_differ(none), "paired_noise_ns": noise_ns, "added": {}}
    print("An empty kernel's cuLaunchKernel, ns, medians over processes. `paired`: against direct calls in the same\n"
          "process, in turn, with quartiles; `to none`: against the processes without a preload\n")
    print(f"  {'':38} {'ns':>7} {'to none':>8} {'paired':>8} {'quartiles':>16}")

    def row(text, key, kind, way):
        ns = summary([process[way]["ns"] for process in processes[kind]])
        added = summary([process[way]["added_ns"] for process in processes[kind]])
        out["added"][key] = {"ns": ns, "to_none_ns": ns["median"] - base, "paired_ns": added}
        quartiles = "{:.1f} to {:.1f}".format(*added["quartiles"])
        print(f"  {text:38} {ns['median']:7.0f} {ns['median'] - base:8.1f} {added['median']:8.1f} {quartiles:>16}")

    for kind in processes:
        if kind == "shim":
            for way, text in WAYS.items():
                row(text, way, kind, way)
        elif kind == "none":
            row("no preload", kind, kind, "untracked")
        else:
            row(f"{kind} (preload)", kind, kind, "untracked")
    print("\n  What listens inside the driver costs its direct calls the same: of that, only `to none` speaks.\n"
          f"  Noise: two halves of the processes without a preload differ by {percent(out['processes_differ'])}; direct "
          f"calls\n  beside direct calls by {noise_ns['median']:.1f} ns, quartiles "
          "{:.1f} to {:.1f}\n".format(*noise_ns["quartiles"]))
    return out


def report_decode(processes):
    out = {}
    print("Decoding, batch 1, 32 layers, hidden 4096, bf16: tokens per second, medians over processes; and what eager\n"
          "loses where launches go through the shim and past it by turns in one process\n")
    print(f"  {'':18} {'none':>8} {'quartiles':>17} {'shim':>8} {'loss':>8} {'noise':>8}   {'by turns':>9} {'quartiles':>19} "
          f"{'noise':>8}")
    for model in ("cpu_bound", "gpu_bound"):
        digests = {process[model]["digest"] for kind in processes.values() for process in kind}
        if len(digests) != 1:
            raise SystemExit(f"overhead: the tokens differ between processes: {digests}")
        paired = summary([process[model]["eager"] for process in processes["paired"]])
        paired_noise = summary([process[model]["noise"] for process in processes["paired"]])
        out[model] = {"paired": paired, "paired_noise": paired_noise}
        for mode in ("eager", "graph"):
            none, shim = (summary([process[model][mode] for process in processes[kind]]) for kind in ("none", "shim"))
            loss = 1 - shim["median"] / none["median"]
            noise = halves_differ([process[model][mode] for process in processes["none"]])
            out[model][mode] = {"none": none, "shim": shim, "loss": loss, "noise": noise}
            quartiles = "{:.1f} to {:.1f}".format(*none["quartiles"])
            line = (f"  {model + ', ' + mode:18} {none['median']:8.2f} {quartiles:>17} {shim['median']:8.2f} "
                    f"{percent(loss):>8} {percent(noise):>8}")
            if mode == "eager":
                low, high = paired["quartiles"]
                line += (f"   {percent(paired['median']):>9} {percent(low) + ' to ' + percent(high):>19} "
                         f"{percent(paired_noise['median']):>8}  "
                         f"{'met' if paired['median'] <= MOST_EAGER_LOSS else 'NOT MET'}")
            print(line)
    wanted = sum(process["norms"] for kind in ("shim", "paired") for process in processes[kind])
    counts = read_counts(os.environ["FIBSHIM_STATS_DIR"])
    if dict(counts) != {("rmsnorm_h4096", "hit"): wanted}:
        raise SystemExit(f"overhead: counted {dict(counts)}, launched {wanted} norms")
    out["hits"] = wanted
    print(f"\n  all {wanted} norms that went through the shim were redirected, and the tokens are the same\n")
    return out


def main():
    folder = sys.argv[1]
    out = {"launches": report_launches(read_lines(f"{folder}/overhead_launch.jsonl"))}
    decode = read_lines(f"{folder}/overhead_decode.jsonl")
    if decode:
        out["decode"] = report_decode(decode)
    with open(f"{folder}/overhead.json", "w") as file:
        json.dump(out, file, indent=2)
        file.write("\n")


main()
