#!/usr/bin/env python3
"""Captured graphs of PyTorch under the shim, on a real GPU: executions against CUPTI, and swaps.

    graphs.py

Started by itself, it makes two folders, A (build/config/pytorch) and B (a copy that lacks the solution for hidden size
2048, so that PyTorch's own kernel runs there), and runs itself again under the shim in A. There it

  * replays graphs and launches eagerly under torch.profiler: the kernels that CUPTI sees are the executions that
    `fibshim stats` counts, and of the hits those of the folder's kernels;
  * moves to B, to A, off and on again: the next replay of each graph runs that folder's kernels, and its output is
    bitwise what that folder gives eagerly;
  * prints what it takes: instantiating, a launch, the first launch after a move, and the move with its graphs.
"""
import collections
import gc
import json
import os
import sys
import tempfile
import time

from report import Report
from swap import HIDDEN, Model, start_in_folders, stats, swap

WORK = "FIBSHIM_GRAPHS_TEST_WORK"
GRAPHS = 4
REPLAYS = 7


def traced(torch, work):
    """[(name, kind, by)] of what the GPU did, as torch.profiler's trace has it: kind "kernel", "gpu_memcpy", "gpu_memset" or another;
    by: the call that launched it, "?" where the trace has none."""
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        work()
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "trace.json")
        profile.export_chrome_trace(path)
        with open(path) as file:
            events = [event for event in json.load(file)["traceEvents"] if "args" in event and "cat" in event]
    calls = {event["args"]["correlation"]: event["name"] for event in events
             if event["cat"] in ("cuda_runtime", "cuda_driver") and "correlation" in event["args"]}
    return [(event["name"], event["cat"], calls.get(event["args"].get("correlation"), "?")) for event in events
            if event["cat"] == "kernel" or event["cat"].startswith("gpu_") or event["cat"] in ("cuda_sync", "cuda_event")]


def seen_by_cupti(torch, work):
    """How often each kernel ran, by its name."""
    return collections.Counter(name for name, kind, _ in traced(torch, work) if kind == "kernel")


def ours(names):
    return sum(count for name, count in names.items() if name.startswith("rmsnorm"))


def grown(work):
    before = stats()["executions"]
    result = work()
    after = stats()["executions"]
    return result, {outcome: after[outcome] - before[outcome] for outcome in after if after[outcome] != before[outcome]}


def inside(work):
    import torch

    report = Report("graphs.py")
    model = Model(1)
    expected = {}

    def outputs(out):
        torch.cuda.synchronize()
        return {hidden: out[hidden].view(torch.int16).clone() for hidden in HIDDEN}

    expected["a"] = outputs(model.run())
    begin = time.perf_counter()
    graphs = [model.capture() for _ in range(GRAPHS)]
    capture_ms = 1e3 * (time.perf_counter() - begin) / GRAPHS

    def replay_all():
        for graph, _ in graphs:
            for _ in range(REPLAYS):
                graph.replay()

    def judge(name, problems):
        for graph, out in graphs:
            for y in out.values():
                y.zero_()
            graph.replay()
            got = outputs(out)
            for hidden in HIDDEN:
                if not torch.equal(got[hidden], expected[name][hidden]):
                    problems.append(f"{name}, hidden {hidden}: other bits than an eager run gives")

    with report.phase("executions are the kernels that CUPTI sees") as problems:
        for what, run in (("replays", replay_all), ("eager", model.run)):
            run()
            names, executions = grown(lambda: seen_by_cupti(torch, run))
            print(f"{what}: CUPTI {sum(names.values())}, ours {ours(names)}; executions {executions}")
            if sum(names.values()) != sum(executions.values()) or ours(names) != executions.get("hit", 0):
                problems.append(f"{what}: CUPTI saw {dict(names)}, counted are {executions}")
            if ours(names) == 0:
                problems.append(f"{what}: nothing was replaced")

    with report.phase("old, new and old kernels, each from the next replay on") as problems:
        in_a = ours(seen_by_cupti(torch, replay_all))
        moves = []
        for name, where in (("b", ["b"]), ("a", ["a"]), ("off", ["--off"]), ("a", ["--on"]), ("b", ["b"]), ("a", ["a"])):
            torch.cuda.synchronize()
            begin = time.perf_counter()
            moved = swap(*[one if one.startswith("-") else os.path.join(work, one) for one in where])
            moved_s = time.perf_counter() - begin
            begin = time.perf_counter()
            graphs[0][0].replay()
            first_us = 1e6 * (time.perf_counter() - begin)
            begin = time.perf_counter()
            graphs[0][0].replay()
            moves.append({"to": name, "seconds": round(moved_s, 3), "first_launch_us": round(first_us, 1),
                          "launch_us": round(1e6 * (time.perf_counter() - begin), 1)})
            if moved["graphs_moved"] != GRAPHS or moved["graphs_kept"] != 0:
                problems.append(f"to {name}: {moved}")
            if name not in expected:
                expected[name] = outputs(model.run())
            judge(name, problems)
            got = ours(seen_by_cupti(torch, replay_all))
            wanted = {"a": in_a, "b": in_a // len(HIDDEN), "off": 0}[name]
            if got != wanted:
                problems.append(f"in {name} {got} of our kernels ran, not {wanted}")
        print(json.dumps({"capture_ms": round(capture_ms, 2), "moves": moves}))

    with report.phase("graphs that end leave nothing behind") as problems:
        def free():
            gc.collect()
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
            # What PyTorch keeps for graphs that are gone is its own.
            return torch.cuda.mem_get_info()[0] + torch.cuda.memory_reserved()

        before = None
        for i in range(60):
            graph, _ = model.capture()
            graph.replay()
            torch.cuda.synchronize()
            del graph
            if i == 10:
                before = free()
        lost = before - free()
        print(f"lost {lost >> 10} KiB of device memory over 49 graphs")
        if lost > 32 << 20:
            problems.append(f"{lost >> 20} MiB of device memory are lost")
    return report.finish()


if __name__ == "__main__":
    sys.exit(inside(os.environ[WORK]) if WORK in os.environ else start_in_folders(__file__, WORK))
