#!/usr/bin/env python3
"""vLLM's captured graphs on a real GPU: executions against CUPTI, and moves between config folders while it decodes.

  tests/gpu/vllm_graphs.py BUILD [--layers N] [--batches N,...] [--memory ROUNDS]

--memory: only the device memory that all of vLLM's captures take, in processes without the shim and with it, in turn. Otherwise one process, in default mode:

  * for each batch, 32 tokens are decoded under torch.profiler: the kernels that CUPTI sees are the executions and eager launches that
    `fibshim stats` counts, and those of the folders' kernels are its hits;
  * while it decodes, `fibshim swap --off` and `--on` move it: the first and the last kernel of either kind, by CUPTI, lie less than a
    second behind the command's start;
  * what a move adds to a decode step: between the folders and a copy of them, so that the kernels stay the same;
  * requests begun after the moves get the tokens and log probabilities that the same requests got before.
"""
import argparse
import collections
import gc
import json
import os
import pathlib
import random
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time

from counters import read_stats

FOLDERS = ("vllm", "cublas", "flash_attention")
APART_S = 0.7  # from one move to the next
LIMIT_S = 1.0
COPY_KERNEL = re.compile(r"memcpy\d+_post")  # the driver's own, which runs for a small copy's node


def folder_list(root):
    return ":".join(str(root / name) for name in FOLDERS)


def run_child(script, args, folders, *more):
    """What a child of this script, under the shim with these folders, has told."""
    build = args.build.resolve()
    with tempfile.TemporaryDirectory() as work:
        told = os.path.join(work, "told.json")
        subprocess.run([build / "bin/fibshim", "run", "-c", folders, "--", sys.executable, script, str(build), "--child", told,
                        "--layers", str(args.layers), *more], check=True, stdout=subprocess.DEVNULL,
                       env={**os.environ, "FIBSHIM_STATS_DIR": os.path.join(work, "stats"), "FIBSHIM_TEST_BUILD": str(build)})
        return json.load(open(told))


def count_executions(engine, prompts, ours):
    """By CUPTI, by the call that launched it and by name; and what the shim counts, eagerly and in all."""
    import torch

    from graphs import traced
    before = read_stats(engine.stats)
    events = traced(torch, lambda: engine.decode(prompts, 32))
    after = read_stats(engine.stats)
    grown = {kind: {outcome: after[kind][outcome] - before[kind][outcome] for outcome in after[kind] if after[kind][outcome] != before[kind][outcome]}
             for kind in ("totals", "executions", "body_nodes")}
    kernels = [(name, by) for name, kind, by in events if kind == "kernel" and not COPY_KERNEL.fullmatch(name)]
    return {"seen": len(kernels), "ours": sum(name in ours for name, _ in kernels), "counted": grown["executions"], "eager": grown["totals"],
            "bodies": grown["body_nodes"], "by": collections.Counter(by for _, by in kernels), "kinds": collections.Counter(kind for _, kind, _ in events),
            "names": [(name, kind, by, count) for (name, kind, by), count in collections.Counter(events).items()]}


def ran_of(counted):
    return sum(count for outcome, count in counted.items() if outcome != "absorbed")


def explain(one):
    """Where the two differ: kernels of graphs or others, and which names come in the number that is missing."""
    in_graphs = sum(count for by, count in one["by"].items() if "GraphLaunch" in by)
    yield f"of graphs: CUPTI {in_graphs}, counted {ran_of(one['counted']) - ran_of(one['eager'])}; others: CUPTI {one['seen'] - in_graphs}, " \
          f"counted {ran_of(one['eager'])}"
    yield f"by call: {one['by']}; kinds: {one['kinds']}; nodes in bodies: {one['bodies'] or 'none'}"
    missing = abs(one["seen"] - ran_of(one["counted"]))
    for name, kind, by, count in sorted(one["names"], key=lambda row: (row[2], row[3])):
        if missing and count % missing == 0:
            yield f"{count} {kind} by {by}: {name[:160]}"


def moving(engine, places, out):
    """Moves this process to each place in turn, some time apart; a thread."""
    from engine_vllm import move

    def go():
        for place in places:
            time.sleep(APART_S)
            begun, clock = time.time_ns(), time.perf_counter()
            moved = move(place, engine.build)
            out.append({"begun": begun, "ended": time.time_ns(), "during": (clock, time.perf_counter()), "graphs": moved["graphs_moved"], "kept": moved["graphs_kept"]})
        time.sleep(APART_S)

    thread = threading.Thread(target=go)
    thread.start()
    return thread


def follow_moves(engine, prompts, ours):
    """By CUPTI, off and on again while it decodes: ms from the command's start to the last kernel of the old kind, and the first new one."""
    import torch
    from torch.autograd import DeviceType
    moves = []
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        torch.cuda.synchronize()
        mark = time.time_ns()
        torch.zeros(1, device="cuda")
        torch.cuda.synchronize()
        thread = moving(engine, ("--off", "--on"), moves)
        while thread.is_alive():
            engine.decode(prompts, 128)
        thread.join()
        torch.cuda.synchronize()
    kernels = sorted((event.start_ns(), event.name() in ours) for event in profile.profiler.kineto_results.events()
                     if event.device_type() == DeviceType.CUDA and not event.name().startswith(("Memcpy", "Memset")))
    shift = mark - kernels[0][0]
    of_ours = [at + shift for at, is_ours in kernels if is_ours]
    off, on = moves
    before = [at for at in of_ours if at < on["begun"]]
    after = [at for at in of_ours if at >= on["begun"]]
    return {"moves": moves, "kernels": len(kernels), "ours": len(of_ours),
            "last_of_ours_ms": (before[-1] - off["begun"]) / 1e6 if before else None,
            "first_of_ours_ms": (after[0] - on["begun"]) / 1e6 if after else None}


def time_steps(engine, prompts, places):
    """Milliseconds of the steps of a while, in which it moves to these places."""
    moves, steps, ends = [], [], []
    gc.collect()
    gc.disable()  # its pauses are Python's
    thread = moving(engine, places, moves)
    while thread.is_alive():
        steps += engine.decode(prompts, 128)[1]
        ends += engine.returns[2:]
    thread.join()
    gc.enable()
    longest, end = max(zip(steps, ends))
    in_move = any(begun < end and end - longest < ended for begun, ended in (one["during"] for one in moves))
    steps = sorted(1e3 * step for step in steps)
    at = lambda share: steps[min(int(share * len(steps)), len(steps) - 1)]
    return {"steps": len(steps), "p50": at(0.5), "p99": at(0.99), "largest": steps[-1], "in_move": in_move,
            "moves_ms": [(one["ended"] - one["begun"]) / 1e6 for one in moves], "graphs": [one["graphs"] for one in moves]}


def child(args):
    import engine_vllm
    from vllm_shadow import Engine
    engine = Engine(args)
    ours = {json.loads(path.read_text())["launch"]["kernel"] for name in FOLDERS
            for path in (engine.build / "config" / name).glob("solutions/**/*.json")}
    draw = random.Random(3)
    asked = engine_vllm.prompts_of(8, 300, draw)
    prompts = {batch: engine_vllm.prompts_of(batch, 32, draw) for batch in args.batches}
    tell = lambda: engine_vllm.tell(engine.llm, asked, list(prompts.values()))
    told = [tell(), tell()]
    out = {"executions": {}}
    for batch in args.batches:
        engine.decode(prompts[batch], 32)
        out["executions"][batch] = count_executions(engine, prompts[batch], ours)
    first = prompts[args.batches[0]]
    out["followed"] = follow_moves(engine, first, ours)
    with tempfile.TemporaryDirectory() as copy:
        for name in FOLDERS:
            shutil.copytree(engine.build / "config" / name, pathlib.Path(copy, name))
        there, back = folder_list(pathlib.Path(copy)), folder_list(engine.build / "config")
        engine_vllm.move(there, engine.build)
        engine_vllm.move(back, engine.build)
        out["still"] = time_steps(engine, first, [])
        out["moved"] = time_steps(engine, first, [there, back, there, back])
        out["still again"] = time_steps(engine, first, [])
    told.append(tell())
    out["repeats"], out["same_after_moves"] = told[0] == told[1], told[0] == told[2]
    json.dump(out, open(args.child, "w"))


def memory_child(args):
    """MiB of device memory in use at the captures' begin, after them, and after graphs of all sizes ran; and those of them that are torch's."""
    import torch
    from vllm.v1.worker.gpu_worker import Worker

    import engine_vllm
    from vllm_shadow import MIB
    out = {}

    def note(name):
        gc.collect()
        torch.cuda.synchronize()
        free, whole = torch.cuda.mem_get_info()
        out[name] = {"used": (whole - free) / MIB, "of_torch": torch.cuda.memory_reserved() / MIB}

    warm_up = Worker.compile_or_warm_up_model

    def noted_warm_up(self):
        capture = self.model_runner.capture_model

        def noted_capture(*words, **named):
            note("before")
            captured = capture(*words, **named)
            note("captured")
            return captured

        self.model_runner.capture_model = noted_capture
        return warm_up(self)

    Worker.compile_or_warm_up_model = noted_warm_up
    # As many pages of the cache in each process, whatever else takes memory.
    llm = engine_vllm.make_engine(args.layers, num_gpu_blocks_override=8192)
    from vllm import SamplingParams
    params = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True, detokenize=False)
    sizes = llm.llm_engine.vllm_config.compilation_config.cudagraph_capture_sizes
    note("ready")
    for size in sizes:
        llm.generate(engine_vllm.prompts_of(min(size, 64), max(1, size // 64)), params, use_tqdm=False)
    note("ran")
    if args.shimmed:
        from counters import read_stats
        stats = read_stats(os.environ["FIBSHIM_STATS_DIR"])
        out["executions"] = {outcome: count for outcome, count in stats["executions"].items() if count}
        for place in ("--off", "--on"):
            out["graphs"] = engine_vllm.move(place, args.build.resolve())["graphs_moved"]
        llm.generate(engine_vllm.prompts_of(1, 8), params, use_tqdm=False)
        note("moved off and on")
    json.dump(out, open(args.child, "w"))


def measure_memory(args):
    build = args.build.resolve()
    taken = {True: [], False: []}
    for _ in range(args.memory):
        for has_shim in (False, True):
            with tempfile.TemporaryDirectory() as work:
                told = os.path.join(work, "told.json")
                shim = [build / "bin/fibshim", "run", "-c", folder_list(build / "config"), "--"] if has_shim else []
                subprocess.run([*shim, sys.executable, __file__, build, "--child", told, "--layers", str(args.layers), "--memory", "1",
                                *(["--shimmed"] if has_shim else [])], check=True, stdout=subprocess.DEVNULL,
                               env={**os.environ, "FIBSHIM_STATS_DIR": os.path.join(work, "stats")})
                one = json.load(open(told))
            beside = {name: values["used"] - values["of_torch"] for name, values in one.items() if isinstance(values, dict) and "used" in values}
            taken[has_shim].append({"captures": one["captured"]["used"] - one["before"]["used"], "ran": one["ran"]["used"] - one["before"]["used"],
                                    "beside": beside["ran"] - beside["before"]})
            print(f"measured: {'with' if has_shim else 'without'} the shim, MiB: {one}", flush=True)
    median = lambda has_shim, name: sorted(one[name] for one in taken[has_shim])[len(taken[has_shim]) // 2]
    for name, words in (("captures", "captured graphs"), ("ran", "captured graphs once all sizes ran"), ("beside", "what of it is not torch's")):
        own, ours = median(False, name), median(True, name)
        say(name == "beside" or ours <= 1.1 * own, f"device memory of {words}", f"{own:.0f} MiB without the shim, {ours:.0f} with it, x{ours / own:.3f} (aim 1.1)")


def say(is_fine, name, found):
    print(f"{'PASS' if is_fine else 'FAIL'} vllm_graphs: {name}: {found}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--batches", type=lambda text: [int(n) for n in text.split(",")], default=[1, 32])
    parser.add_argument("--memory", type=int, metavar="ROUNDS")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--shimmed", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.eager = False
    if args.child:
        return memory_child(args) if args.memory else child(args)
    if args.memory:
        return measure_memory(args)
    build = args.build.resolve()
    out = run_child(__file__, args, folder_list(build / "config"), "--batches", ",".join(map(str, args.batches)))
    for batch, one in out["executions"].items():
        is_fine = 0 < one["ours"] == one["counted"].get("hit", 0) and one["seen"] == ran_of(one["counted"])
        say(is_fine, f"batch {batch}: executions are what CUPTI sees",
            f"CUPTI {one['seen']} kernels, {one['ours']} of the folders; counted {one['counted']}")
        for line in [] if is_fine else explain(one):
            print(f"batch {batch}: {line}")
    followed = out["followed"]
    last, first = followed["last_of_ours_ms"], followed["first_of_ours_ms"]
    is_fine = last is not None and first is not None and max(last, first) < 1e3 * LIMIT_S
    say(is_fine and all(one["graphs"] > 0 == one["kept"] for one in followed["moves"]), "old, new and old kernels within a second each", followed)
    still, moved = out["still"], out["moved"]
    print(f"measured: a decode step, ms: p50 {still['p50']:.3f}, p99 {still['p99']:.3f}, largest {still['largest']:.2f} of {still['steps']}; moved "
          f"{len(moved['moves_ms'])} times {moved['p50']:.3f}, {moved['p99']:.3f}, {moved['largest']:.2f} "
          f"({'in' if moved['in_move'] else 'outside'} a move) of {moved['steps']}; then "
          f"{out['still again']['p50']:.3f}, {out['still again']['p99']:.3f}, {out['still again']['largest']:.2f}; moves of {moved['graphs']} graphs took "
          + ", ".join(f"{one:.0f}" for one in moved["moves_ms"]) + " ms")
    say(out["same_after_moves"] or not out["repeats"], "results after moves are those before", "the same" if out["same_after_moves"] else
        "other, and the engine does not repeat itself" if not out["repeats"] else "other")
    return 0


if __name__ == "__main__":
    sys.exit(main())
