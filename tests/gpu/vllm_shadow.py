#!/usr/bin/env python3
"""Shadow checks under vLLM as pip installs it: what they find, what they cost, and what the host gets.

  tests/gpu/vllm_shadow.py BUILD [--eager] [--layers N] [--rates RATE,...] [--rounds N] [--batches N,...] [--tokens N] [--apart]

One process with the folders on all the time (default: 32 layers, --eager: 8), whose rate `fibshim shadow` changes between rounds, in a
random order. It starts with FIBSHIM_SHADOW=1/1000000000, so that graphs are made such that they can be checked. First results at 1/1 are
compared with the engine's own, of `fibshim swap --off`, bit for bit where the engine repeats itself so. Printed for each rate are tokens
per second, the time of a decode step, checks, mismatches, what was not checked, and GPU memory. --apart: also a process without
FIBSHIM_SHADOW, with the same folders. What a launch costs, shadow.py says.
"""
import argparse
import collections
import json
import os
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile
import time

import counters
import engine_vllm
from counters import read_stats, unshimmed_environment

NEVER = "without FIBSHIM_SHADOW"
FOLLOWS_S = 1.1  # after a change of the rate: graphs follow, and what was found has been read
MIB = 1 << 20


# ---- the engine, under the shim


def checks_of(stats):
    """definition -> checks, mismatches, and reasons why there was none. Launches of graphs that had no checks with them count under the
    shape "(graph)", of one of the graph's definitions: they are apart here."""
    out = collections.defaultdict(collections.Counter)
    for one in stats["shadow"]:
        out["launches of graphs" if one["shape"] == "(graph)" else one["definition"]].update(checks=one["checks"], mismatches=one["mismatches"], **one["not_checked"])
    return out


def total(checks):
    return sum(checks.values(), collections.Counter())


class Engine:
    def __init__(self, args):
        self.build, self.stats = args.build.resolve(), os.environ["FIBSHIM_STATS_DIR"]
        self.llm = engine_vllm.make_engine(args.layers, args.eager)
        self.returns = []
        step = self.llm.llm_engine.step

        def timed_step():
            outputs = step()  # empty until a request is done
            self.returns.append(time.perf_counter())
            return outputs

        self.llm.llm_engine.step = timed_step

    def set_rate(self, rate):
        """And what has been found until then."""
        import torch
        torch.cuda.synchronize()
        if rate != NEVER:
            subprocess.run([self.build / "bin/fibshim", "shadow", rate, "--pid", str(os.getpid())], check=True,
                           stdout=subprocess.DEVNULL, env=unshimmed_environment())
        time.sleep(FOLLOWS_S)
        return total(checks_of(read_stats(self.stats)))

    def decode(self, prompts, count):
        """Tokens per second, and the seconds of each step after the first two."""
        from vllm import SamplingParams
        params = SamplingParams(temperature=0, max_tokens=count, ignore_eos=True, detokenize=False)
        self.returns.clear()
        begun = time.perf_counter()
        self.llm.generate(prompts, params, use_tqdm=False)
        rate = len(prompts) * count / (time.perf_counter() - begun)
        return rate, [after - before for before, after in zip(self.returns[1:], self.returns[2:])]


def hits_of(stats):
    """definition -> how often its solution has run in the original's place."""
    out = collections.Counter()
    for one in read_stats(stats)["counters"]:
        if one["outcome"] in ("hit", "absorbed"):
            out[one["definition"]] += one["count"] + one.get("executions", 0)
    return out


def used_memory():
    import torch
    free, all_of_it = torch.cuda.mem_get_info()
    return {"used": (all_of_it - free) / MIB, "beside_torch": (all_of_it - free - torch.cuda.memory_reserved()) / MIB}


def compare(engine, args, out):
    """Results with the engine's kernels twice, with checks of no launch, of all, and of one in a hundred."""
    draw = random.Random(5)
    asked = engine_vllm.prompts_of(8, 300, draw)
    starts = [engine_vllm.prompts_of(batch, 100, draw) for batch in args.batches]
    results, replaced = {}, {}
    begun = engine.set_rate("off")
    engine_vllm.move("--off", engine.build)
    for name in ("own", "own again"):
        results[name] = engine_vllm.tell(engine.llm, asked, starts)
    engine_vllm.move("--on", engine.build)
    for rate in ("off", "1/1", "1/100"):  # a graph that has moved follows the rate once it was launched
        engine.set_rate(rate)
        hits = hits_of(engine.stats)
        results[rate] = engine_vllm.tell(engine.llm, asked, starts)
        replaced[rate] = hits_of(engine.stats) - hits
    out["replaced at 1/1"] = dict(+replaced["1/1"])
    out["compared"] = {name: {**apart(results["own"], one), "is_same": one == results["own"]}
                       for name, one in results.items() if name != "own"}
    out["found while compared"] = dict(engine.set_rate("off") - begun)


def apart(own, other):
    distances, decoded, leads = engine_vllm.distances_of(own, other)
    return {"mean": statistics.mean(distances), "largest": max(distances), "decoded": statistics.mean(decoded or [0]),
            "largest_decoded": max(decoded, default=0), "parted": len(leads), "lead": max(leads, default=0),
            "unlike_from": sorted(next((i for i, (a, b) in enumerate(zip(x, y)) if a != b), -1)
                                  for x, y in zip(own["decoded"], other["decoded"]))}


def child(args):
    begun = time.monotonic()
    engine = Engine(args)
    out = {"start_s": time.monotonic() - begun, "at start": used_memory()}
    if args.rates != [NEVER]:
        compare(engine, args, out)
    draw = random.Random(7)
    prompts = {batch: engine_vllm.prompts_of(batch, 32, draw) for batch in args.batches}
    rates = {rate: {"found": collections.Counter(), "memory": [],
                    "batches": {batch: {"tokens_per_s": [], "steps": []} for batch in args.batches}} for rate in args.rates}
    for batch in args.batches:
        engine.decode(prompts[batch], args.tokens)
    last, known = None, collections.Counter()
    for turn in range(args.rounds):
        for rate in random.sample(args.rates, len(args.rates)):
            found = engine.set_rate(rate)
            if last is not None:
                rates[last]["found"].update(found - known)
            last, known = rate, found
            for batch in args.batches:
                speed, steps = engine.decode(prompts[batch], args.tokens)
                rates[rate]["batches"][batch]["tokens_per_s"].append(speed)
                rates[rate]["batches"][batch]["steps"] += steps
            rates[rate]["memory"].append(used_memory()["used"])
    rates[last]["found"].update(engine.set_rate(NEVER if last == NEVER else "off") - known)
    out.update(rates=rates, at_end=used_memory())
    json.dump(out, open(args.child, "w"))


# ---- what is printed


def run(args, build, rates, environment, work):
    """What the engine's process tells, the counters, and what the shim said."""
    with tempfile.TemporaryDirectory(dir=work) as folder:
        told, log, stats = (os.path.join(folder, name) for name in ("told.json", "log", "stats"))
        folders = ":".join(str(build / "config" / name) for name in ("vllm", "cublas", "flash_attention"))
        words = [build / "bin/fibshim", "run", "-c", folders, "--", sys.executable, __file__, build, "--child", told, "--rates",
                 ",".join(rates), "--layers", str(args.layers), "--rounds", str(args.rounds), "--tokens", str(args.tokens),
                 "--batches", ",".join(map(str, args.batches))] + (["--eager"] if args.eager else [])
        subprocess.run(words, check=True, stdout=subprocess.DEVNULL,
                       env={**os.environ, **environment, "FIBSHIM_STATS_DIR": stats, "FIBSHIM_LOG_FILE": log,
                            "FIBSHIM_TEST_BUILD": str(build)})
        said = pathlib.Path(log).read_text().splitlines() if os.path.exists(log) else []
        return json.load(open(told)), read_stats(stats), said


def say(is_fine, name, found):
    print(f"{'PASS' if is_fine else 'FAIL'} {name}: {found}", flush=True)


def counted(found):
    found = {name: count for name, count in found.items() if count}
    checks, mismatches = found.pop("checks", 0), found.pop("mismatches", 0)
    missed = ", ".join(f"{reason} {count}" for reason, count in sorted(found.items()))
    return f"{checks} checks, {mismatches} mismatches, not checked: {missed or 'none'}"


def say_compared(mode, told, rate):
    one = told["compared"][rate]
    return (f"{'the same bits' if one['is_same'] else 'other bits'}, log probabilities of prompts differ by {one['mean']:.4f} in the mean, "
            f"{one['largest']:.3f} at most, of decoded tokens by {one['decoded']:.4f}, {one['largest_decoded']:.3f}; {one['parted']} sequences "
            f"part, where the engine's token led by {one['lead']:.4f} at most; decoded steps from which on they are unlike (-1: none): "
            f"{one['unlike_from'][0]} to {one['unlike_from'][-1]}")


def judge_results(mode, told):
    again, all_checked = told["compared"]["own again"], told["compared"]["1/1"]
    print(f"{mode}: the engine's own, again: {say_compared(mode, told, 'own again')}")
    is_fine = all_checked["is_same"] if again["is_same"] else all_checked["mean"] <= 1.5 * again["mean"] + 1e-6
    say(is_fine, f"vllm.{mode}.shadow: at 1/1 results are the engine's own" + ("" if again["is_same"] else ", which do not repeat themselves"),
        say_compared(mode, told, "1/1"))
    for rate in ("off", "1/100"):
        one = told["compared"][rate]
        is_fine = one["mean"] < 0.1 and one["decoded"] < 0.1 and one["lead"] <= 2 * one["largest_decoded"]
        say(is_fine, f"vllm.{mode}.shadow: at {rate} results are near the engine's own", say_compared(mode, told, rate))
    say(not told["replaced at 1/1"], f"vllm.{mode}.shadow: at 1/1 nothing is replaced", told["replaced at 1/1"] or "no hits")
    found = told["found while compared"]
    say(found.get("checks", 0) > 0 and found.get("mismatches", 0) == 0, f"vllm.{mode}.shadow: checks at 1/1, and no mismatch", counted(found))


def percentile(values, share):
    return sorted(values)[min(int(share * len(values)), len(values) - 1)] if values else float("nan")


def costs_of(base, one, batch):
    """Of each turn, how much longer its round took than the one without checks."""
    return [off / on - 1 for off, on in zip(base["batches"][batch]["tokens_per_s"], one["batches"][batch]["tokens_per_s"])]


def print_rates(mode, told, rates):
    base = told["rates"].get("off")
    for rate in rates:
        one = told["rates"][rate]
        for batch, measured in one["batches"].items():
            speeds, steps = measured["tokens_per_s"], [1e3 * step for step in measured["steps"]]
            cost = ""
            if base and rate != "off":
                costs = [100 * cost for cost in costs_of(base, one, batch)]
                cost = (f", {statistics.median(costs):.2f} % more time in the same turn (quartiles {percentile(costs, 0.25):.2f}, "
                        f"{percentile(costs, 0.75):.2f})")
            print(f"measured: {mode}, batch {batch}, {rate}: tokens/s {statistics.median(speeds):.1f} ({min(speeds):.1f} to {max(speeds):.1f}){cost}; a step "
                  f"p50 {percentile(steps, 0.5):.3f} ms, p99 {percentile(steps, 0.99):.3f}, mean {statistics.mean(steps or [0]):.3f}, largest "
                  f"{max(steps, default=0):.3f}, of {len(steps)}")
        print(f"measured: {mode}, {rate}: {counted(one['found'])}; GPU memory {max(one['memory']):.0f} MiB at most")


def judge_rates(mode, told, rates):
    base = told["rates"].get("off")
    for rate in rates:
        if rate == "off":
            continue
        one = told["rates"][rate]
        found = one["found"]
        say(found.get("mismatches", 0) == 0 and (found.get("checks", 0) > 0 or int(rate[2:]) > 100),
            f"vllm.{mode}.shadow: checks at {rate}, and no mismatch", counted(found))
        if base is None or int(rate[2:]) < 1000:
            continue
        costs = {batch: statistics.median(costs_of(base, one, batch)) for batch in one["batches"]}
        say(max(costs.values()) < 0.01, f"vllm.{mode}.shadow: {rate} costs less than 1 %",
            ", ".join(f"{100 * cost:.2f} % at batch {batch}" for batch, cost in costs.items()))


def print_definitions(stats):
    largest = collections.Counter()
    for one in stats["shadow"]:
        largest[one["definition"]] = max(largest[one["definition"]], one["largest_difference"])
    for definition, found in sorted(checks_of(stats).items()):
        print(f"measured: {definition}: {counted(found)}; largest difference {largest[definition]:.3g}")


def print_memory(mode, name, told):
    start, end = told["at start"], told["at_end"]
    print(f"measured: {mode}, {name}: started in {told['start_s']:.0f} s; GPU memory {start['used']:.0f} MiB then, of which beside PyTorch's "
          f"{start['beside_torch']:.0f}; at the end {end['used']:.0f}, {end['beside_torch']:.0f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--eager", action="store_true")
    parser.add_argument("--layers", type=int)
    parser.add_argument("--rates", type=lambda text: text.split(","), default=["off", "1/1000", "1/100"])
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--batches", type=lambda text: [int(n) for n in text.split(",")], default=[1, 32])
    parser.add_argument("--tokens", type=int, default=256, help="decoded in each round")
    parser.add_argument("--apart", action="store_true")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.layers = args.layers or (8 if args.eager else 32)
    if args.child:
        return child(args)
    begun = time.monotonic()
    build, mode = args.build.resolve(), "eager" if args.eager else "default"
    counters.FIBSHIM = str(build / "bin/fibshim")
    with tempfile.TemporaryDirectory() as work:
        told, stats, said = run(args, build, args.rates, {"FIBSHIM_SHADOW": "1/1000000000"}, work)
        print_rates(mode, told, args.rates)
        print_memory(mode, "with FIBSHIM_SHADOW", told)
        print_definitions(stats)
        for line in said[:20]:
            print(f"said: {line}")
        judge_results(mode, told)
        judge_rates(mode, told, args.rates)
        errors = sum(one["count"] for one in stats["counters"] if one["outcome"].startswith("error"))
        say(errors == 0, f"vllm.{mode}.shadow: no errors", errors)
        if args.apart:
            told, _, _ = run(args, build, [NEVER], {}, work)
            print_rates(mode, told, [NEVER])
            print_memory(mode, NEVER, told)
    print(f"measured: {time.monotonic() - begun:.0f} s in all")
    return 0


if __name__ == "__main__":
    sys.exit(main())
