#!/usr/bin/env python3
"""Decode steps of vLLM, kernel by kernel as the GPU runs them, by config folders, all in one process.

  tests/gpu/engine_timeline.py BUILD OUT.json [--folders NAME=DIR:DIR]... [--batches N,N...] [--context N] [--model NAME] [--layers N] [--rounds N]
  tests/gpu/engine_timeline.py --show OUT.json

A step is what one replayed graph runs. It is moved from folder to folder by `fibshim swap`; "off" are vLLM's own
kernels. A kernel's place counts from one KV write to the next, since layers are alike; the figures are means over
the middle layers of medians over steps:

  gap    from the end of the kernel before to its start; below zero where it begins before that
  us     how long it runs, waiting for the kernel before included
  adds   from the last end before it to its own: what it adds to the step. These add up to the layer

JSON holds the same, tokens per second without the profiler, and for each step its span from first start to last end; what lies between two
steps, and how long the GPU is busy in it; and, without the profiler, how long the host's call that replays a graph takes, a replay by events
of the GPU around it, and what lies between two of them.
"""
import argparse
import collections
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time

import engine_models

DECODED = 48


def steps_of(work):
    """Of each graph that was replayed while `work` ran: (name, start ns, end ns) of its kernels, by start. And what ran besides."""
    import torch
    from torch.autograd import DeviceType
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as prof:
        work()
        torch.cuda.synchronize()
    launches = collections.defaultdict(list)
    for event in prof.profiler.kineto_results.events():
        if event.device_type() == DeviceType.CUDA and event.duration_ns() > 0:
            begun = event.start_ns()
            launches[event.correlation_id()].append((event.name(), begun, begun + event.duration_ns()))
    most = max(map(len, launches.values()))
    others = [kernel for kernels in launches.values() if len(kernels) != most for kernel in kernels]
    return [sorted(kernels, key=lambda kernel: kernel[1]) for kernels in launches.values() if len(kernels) == most], others


def between_steps(steps, others):
    """Median microseconds from a step's end to the next one's start, and of them those in which the GPU is busy."""
    steps = sorted((step[0][1], max(end for _, _, end in step)) for step in steps)
    gaps, busy = [], []
    for (_, ended), (begun, _) in zip(steps, steps[1:]):
        inside = [(start, end) for _, start, end in others if start >= ended and end <= begun]
        gaps.append(begun - ended)
        busy.append(sum(end - start for start, end in inside))
    return statistics.median(gaps) / 1e3, statistics.median(busy) / 1e3


def figures_of(steps, others):
    """Medians over the steps, of each kernel in turn."""
    between_us, busy_us = between_steps(steps, others)
    names = [name for name, _, _ in steps[0]]
    steps = [step for step in steps if [name for name, _, _ in step] == names]
    rows = []
    for at, name in enumerate(names):
        gaps, times, added = [], [], []
        for step in steps:
            _, begun, end = step[at]
            ended = max((other for _, _, other in step[max(0, at - 4):at]), default=begun)
            gaps.append(begun - step[at - 1][2] if at else 0)
            times.append(end - begun)
            added.append(max(0, end - ended))
        rows.append([name, *(statistics.median(values) / 1e3 for values in (gaps, times, added))])
    spans = [max(end for _, _, end in step) - step[0][1] for step in steps]
    return {"steps": len(steps), "step_us": statistics.median(spans) / 1e3, "between_us": between_us, "between_busy_us": busy_us,
            "kernels": rows}


def layer_of(rows):
    """The same of one layer, from a KV write to the next: means over the middle layers."""
    names = [row[0] for row in rows]
    writes = [at for at, name in enumerate(names) if re.search("reshape_and_cache|append_paged_kv_cache|rope_(once_)?append", name)]
    if len(writes) < 4:
        raise ValueError("fewer than four layers: " + ", ".join(sorted(set(names))))
    width = writes[2] - writes[1]
    alike = [at for at in writes[1:-1] if names[at:at + width] == names[writes[1]:writes[2]]]
    mean = lambda place, column: statistics.mean(rows[at + place][column] for at in alike)
    return [[names[writes[1] + place], *(mean(place, column) for column in (1, 2, 3))] for place in range(width)]


def child(args):
    os.environ.update(VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_ALLOW_INSECURE_SERIALIZATION="1", HF_HUB_OFFLINE="1")
    import torch
    from engine_vllm import make_engine, prompts_of
    from vllm import SamplingParams
    replays, events, replay = [], None, torch.cuda.CUDAGraph.replay
    mark = lambda: torch.cuda.Event(enable_timing=True)

    def timed_replay(graph):
        around = None if events is None else (mark(), mark())
        if around:
            around[0].record()
        begun = time.perf_counter()
        replay(graph)
        replays.append(time.perf_counter() - begun)
        if around:
            around[1].record()
            events.append(around)

    torch.cuda.CUDAGraph.replay = timed_replay
    llm = make_engine(args.layers, model=engine_models.MODELS[args.model], contexts=[args.context] if args.context else (), gpu_memory_utilization=0.6 if args.context else 0.3)
    # One token more than whole pages of 16: all the rest comes from the prefix cache.
    length = (args.context - DECODED - 1) // 16 * 16 + 1 if args.context else 32
    params = SamplingParams(temperature=0, max_tokens=DECODED, ignore_eos=True, detokenize=False)
    told = SamplingParams(temperature=0, max_tokens=DECODED, ignore_eos=True, detokenize=False, logprobs=0)
    out = collections.defaultdict(dict)

    def each():
        for name, where in args.folders:
            own = {n: v for n, v in os.environ.items() if n != "LD_PRELOAD"}
            subprocess.run([args.build / "bin/fibshim", "swap", where or "--off", "--pid", str(os.getpid()), "--wait"], check=True,
                           stdout=sys.stderr, env=own)
            for batch in args.batches:
                requests = prompts_of(batch, length)
                yield out[f"{name}, batch {batch}"], batch, requests, lambda: llm.generate(requests, params, use_tqdm=False)

    for found, batch, requests, work in each():
        work()
        rates = []
        replays.clear()
        for _ in range(args.rounds):
            begun = time.perf_counter()
            work()
            rates.append(batch * DECODED / (time.perf_counter() - begun))
        found.update(tokens_per_s=round(statistics.median(rates), 1), replay_us=1e6 * statistics.median(replays))
        events = []
        work()
        torch.cuda.synchronize()
        found["replay_by_events_us"] = statistics.median(1e3 * begun.elapsed_time(ended) for begun, ended in events)
        found["between_by_events_us"] = statistics.median(1e3 * before.elapsed_time(after) for (_, before), (after, _) in zip(events, events[1:]))
        events = None
        answers = [answer.outputs[0] for answer in llm.generate(requests, told, use_tqdm=False)]
        found["tokens"] = [[[token, step[token].logprob] for token, step in zip(answer.token_ids, answer.logprobs)] for answer in answers]
    # A process that was profiled once launches graphs more slowly from then on.
    for found, *_, work in each():
        work()
        found.update(figures_of(*steps_of(work)))
    json.dump(out, open(args.child, "w"))


def distance(one, other):
    """How many tokens are alike until a sequence parts, and how far their log probabilities differ in the mean."""
    differences = []
    for a, b in zip(one, other):
        for (token, logprob), (other_token, other_logprob) in zip(a, b):
            if token != other_token:
                break
            differences.append(abs(logprob - other_logprob))
    return f"{len(differences)} of {sum(map(len, one))} tokens alike, log probabilities {statistics.mean(differences or [0]):.4f} apart"


def show(out):
    for name, figures in out.items():
        first = next(one for other, one in out.items() if other.split(", ")[1] == name.split(", ")[1])
        layer = layer_of(figures["kernels"])
        print(f"{name}: {figures['tokens_per_s']:.0f} tokens/s, step {figures['step_us']:.0f} us ({figures['steps']} steps of "
              f"{len(figures['kernels'])} kernels), layer {sum(row[3] for row in layer):.1f} us; between steps {figures['between_us']:.0f} us, busy "
              f"{figures['between_busy_us']:.0f}; a replay's call {figures['replay_us']:.0f} us, by events "
              f"{figures['replay_by_events_us']:.0f} and {figures['between_by_events_us']:.0f} between; beside the first folder "
              + distance(first["tokens"], figures["tokens"]))
        for kernel, gap, us, adds in layer:
            print(f"  {gap:7.2f} {us:7.2f} {adds:7.2f}  {kernel[:90]}")


def folder(text):
    name, _, folders = text.partition("=")
    return name, ":".join(str(pathlib.Path(path).resolve()) for path in folders.split(":")) if folders else ""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path, nargs="?")
    parser.add_argument("out", nargs="?")
    parser.add_argument("--folders", type=folder, action="append", metavar="NAME=DIR:DIR")
    parser.add_argument("--batches", type=lambda text: [int(n) for n in text.split(",")], default=[1, 8, 32])
    parser.add_argument("--context", type=int, help="where sequences end, whose beginnings vLLM's prefix cache holds (default: 80, without one)")
    parser.add_argument("--model", choices=engine_models.MODELS, default="llama")
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--show")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.show:
        return show(json.load(open(args.show)))
    if args.build is None or args.out is None:
        parser.error("BUILD and OUT.json, or --show OUT.json")
    args.build = args.build.resolve()
    if not args.folders:
        args.folders = [("off", ""), folder("ours=" + ":".join(str(args.build / "config" / name) for name in ("vllm", "cublas", "flash_attention")))]
    if args.child:
        return child(args)
    first = next(where for _, where in args.folders if where)
    with tempfile.TemporaryDirectory() as stats:
        subprocess.run([args.build / "bin/fibshim", "run", "-c", first, "--", sys.executable, __file__, *sys.argv[1:], "--child", args.out],
                       check=True, env={**os.environ, "FIBSHIM_STATS_DIR": stats}, stdout=sys.stderr)
    show(json.load(open(args.out)))


sys.exit(main())
