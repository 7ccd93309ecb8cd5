#!/usr/bin/env python3
"""Shadow checks under PyTorch, on a real GPU: what the host gets, what they find, what they cost.

    shadow.py                                  everything; this very program runs the parts below under the shim
    shadow.py work [--graph] [--seconds N]     norms and softmax of many shapes; prints a digest of all results as JSON
    shadow.py replay [--seconds N] [--graphs N]  a graph of them, or several, launched again and again on a few inputs
    shadow.py time                             what one launch costs the thread that makes it, in microseconds
    shadow.py costs                            the same at each rate
    SHADOW_SECONDS=600 shadow.py soak          eager launches and a graph side by side, all checked, for that long

What checks cost vLLM: vllm_shadow.py.
"""
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time

from counters import BUILD, SHIM, read_stats
from planted import folder_without_last_row
from report import Report

CONFIG = os.path.join(BUILD, "config", "pytorch")
ROUNDS = 40
REPLAYED = 8  # inputs of the graph
SECONDS = float(os.environ.get("SHADOW_SECONDS", "20"))  # of checks at 1/1 without a fault


# ---- the work, under the shim


def operations(torch, F, round_number):
    """Those of one round: other shapes and values each time."""
    generator = torch.Generator(device="cuda").manual_seed(round_number)

    def values(*shape):
        return torch.randn(*shape, generator=generator, device="cuda").to(torch.bfloat16)

    rows = (1, 3, 7, 64, 129, 1000, 2048)[round_number % 7]
    hidden = (4096, 2048, 128)[round_number % 3]
    x, w = values(rows, hidden), values(hidden)
    y, scale, bias = values(rows, 768), values(768), values(768)
    logits = values(min(rows, 64), 32000)
    return (lambda: F.rms_norm(x, (hidden,), w, 1e-6),
            lambda: F.layer_norm(y, (768,), scale, bias, 1e-5),
            lambda: torch.softmax(logits, -1))


def work(uses_graph, seconds):
    import torch
    import torch.nn.functional as F

    digest = hashlib.sha256()
    launches = 0
    begun = time.monotonic()
    round_number = 0
    while round_number < ROUNDS or time.monotonic() - begun < seconds:
        for operation in operations(torch, F, round_number % ROUNDS):
            result = operation()
            launches += 1
            if round_number < ROUNDS:
                digest.update(result.view(torch.int16).cpu().numpy().tobytes())
        round_number += 1
    replays = 0
    if uses_graph:
        x = torch.randn(64, 4096, device="cuda", dtype=torch.bfloat16)
        w = torch.randn(4096, device="cuda", dtype=torch.bfloat16)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = F.rms_norm(x, (4096,), w, 1e-6)
        for _ in range(20):
            graph.replay()
            F.rms_norm(x, (4096,), w, 1e-6)
            launches += 1
        torch.cuda.synchronize()
        replays = 20
        assert bool(torch.isfinite(y.float()).all())
    torch.cuda.synchronize()
    print(json.dumps({"digest": digest.hexdigest(), "launches": launches, "replays": replays}))


def replay(seconds, graphs=1):
    import torch
    import torch.nn.functional as F

    def values(*shape):
        return torch.zeros(*shape, device="cuda", dtype=torch.bfloat16)

    inputs = [values(rows, hidden) for rows, hidden in ((1, 4096), (64, 4096), (7, 2048), (512, 4096))]
    weights = [values(x.shape[1]) for x in inputs]
    layer, logits = values(32, 768), values(16, 32000)
    scale, bias = values(768), values(768)

    def work():
        # What is between is freed, and its memory is taken again within the graph.
        results = []
        for x, w in zip(inputs, weights):
            y = x
            for _ in range(4):
                y = F.rms_norm(y, (x.shape[1],), w, 1e-6)
            results.append(y)
        return results + [F.layer_norm(layer, (768,), scale, bias, 1e-5), torch.softmax(logits, -1)]

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        work()
    torch.cuda.synchronize()
    def captured():
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            return graph, work()

    captures = [captured() for _ in range(graphs)]
    known, unlike, replays = {}, 0, 0
    begun = time.monotonic()
    while replays < 3 * REPLAYED or time.monotonic() - begun < seconds:
        turn = replays % REPLAYED
        graph, results = captures[replays % graphs]
        generator = torch.Generator(device="cuda").manual_seed(turn)
        for one in (*inputs, *weights, layer, logits, scale, bias):
            one.copy_(torch.randn(one.shape, generator=generator, device="cuda"))
        torch.cuda.synchronize()
        with torch.cuda.stream(stream if replays % 5 < 2 else torch.cuda.default_stream()):
            graph.replay()
        torch.cuda.synchronize()
        digest = hashlib.sha256(b"".join(one.view(torch.int16).cpu().numpy().tobytes() for one in results)).hexdigest()
        unlike += known.setdefault(turn, digest) != digest
        replays += 1
    print(json.dumps({"digest": "".join(known[turn] for turn in sorted(known)), "unlike": unlike, "replays": replays}))


def measure():
    import torch

    x = torch.randn(1, 4096, device="cuda", dtype=torch.bfloat16)
    w = torch.randn(4096, device="cuda", dtype=torch.bfloat16)
    norm = torch.ops.aten._fused_rms_norm
    times, late = [], []
    for _ in range(60):
        torch.cuda.synchronize()
        begun = time.perf_counter_ns()
        for _ in range(500):
            norm(x, (4096,), w, 1e-6)
        times.append((time.perf_counter_ns() - begun) / 500e3)
    for _ in range(20000):
        begun = time.perf_counter_ns()
        norm(x, (4096,), w, 1e-6)
        late.append((time.perf_counter_ns() - begun) / 1e3)
        if len(late) % 500 == 0:
            torch.cuda.synchronize()
    times.sort()
    late.sort()
    print(json.dumps({"median_us": times[len(times) // 2], "p99_us": late[len(late) * 99 // 100]}))


# ---- runs of it


def run(part, config=CONFIG, **settings):
    """The part's JSON, the counters, and what the shim said."""
    with tempfile.TemporaryDirectory() as stats:
        environment = dict(os.environ, FIBSHIM_STATS_DIR=stats, **settings)
        environment.pop("LD_PRELOAD", None)
        if config is not None:
            environment.update(LD_PRELOAD=SHIM, FIBSHIM_CONFIG=config)
        done = subprocess.run([sys.executable, os.path.abspath(__file__), *part], env=environment, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        if done.returncode != 0:
            print(done.stdout, done.stderr, sep="\n", file=sys.stderr)
            done.check_returncode()
        said = [line for line in done.stderr.splitlines() if line.startswith("fibshim[")]
        counts = read_stats(stats) if config is not None else None
        return json.loads(done.stdout.splitlines()[-1]), counts, said


def sums(counts):
    """(checks, mismatches, not checked by reason, outcomes)"""
    missed, outcomes = {}, {}
    for one in counts["shadow"]:
        for reason, count in one["not_checked"].items():
            if count:
                missed[reason] = missed.get(reason, 0) + count
    for one in counts["counters"]:
        if one["outcome"] != "untracked":
            outcomes[one["outcome"]] = outcomes.get(one["outcome"], 0) + one["count"]
    return (sum(one["checks"] for one in counts["shadow"]), sum(one["mismatches"] for one in counts["shadow"]),
            missed, outcomes)


def print_costs():
    for rate in ("off", "1/1000000000", "1/1000", "1/100", "1/1"):
        took, _, _ = run(["time"], FIBSHIM_SHADOW=rate)
        print(f"measured: one launch at {rate}: median {took['median_us']:.3f} us, 99 of 100 within {took['p99_us']:.2f} us")


def soak():
    """No mismatch where there is none."""
    report = Report("shadow.py soak")
    with tempfile.TemporaryDirectory() as folder:
        begun = time.monotonic()
        children = {}
        for part in ("work", "replay"):
            stats, log = os.path.join(folder, part), os.path.join(folder, part + ".log")
            environment = dict(os.environ, LD_PRELOAD=SHIM, FIBSHIM_CONFIG=CONFIG, FIBSHIM_SHADOW="1/1", FIBSHIM_STATS_DIR=stats,
                               FIBSHIM_LOG_FILE=log)
            children[part] = stats, log, subprocess.Popen(
                [sys.executable, os.path.abspath(__file__), part, "--seconds", str(SECONDS)], env=environment, text=True,
                stdout=subprocess.PIPE)

        def look(part):
            checks, mismatches, missed, _ = sums(read_stats(children[part][0]))
            print(f"{part} after {time.monotonic() - begun:.0f} s: {checks} checks, {mismatches} mismatches, not checked: {missed}", flush=True)
            return checks, mismatches

        due = 60
        while any(child.poll() is None for _, _, child in children.values()):
            time.sleep(0.2)
            if time.monotonic() - begun > due:
                due += 60
                for part in children:
                    look(part)
        for part, (_, log, child) in children.items():
            text = child.communicate()[0]
            done = json.loads(text.splitlines()[-1]) if child.returncode == 0 else {}
            checks, mismatches = look(part)
            said = open(log).read() if os.path.exists(log) else ""
            report.check(f"soak of {part}, {SECONDS:g} s at 1/1: {checks} checks, and no mismatch",
                         [f"exit code {child.returncode}, {mismatches} mismatches, {done}: {said[:500]}"]
                         if not done or not checks or mismatches or said or done.get("unlike") else [])
    return report.finish()


def wrong_config(folder):
    return folder_without_last_row(os.path.join(folder, "wrong"), "fibshim_rmsnorm_h4096")


def main():
    report = Report("shadow.py")

    def holds(name, condition, found=""):
        report.check(name, [] if condition else [f"found {found}"])

    plain, _, _ = run(["work"], config=None)

    checked, counts, said = run(["work"], FIBSHIM_SHADOW="1/1")
    checks, mismatches, missed, outcomes = sums(counts)
    print(f"at 1/1: {checks} checks, {mismatches} mismatches, not checked: {missed}, outcomes: {outcomes}")
    for one in counts["shadow"]:
        if one["mismatches"] or one["largest_difference"] > 0.1:
            print("  ", one["definition"], one["shape"], one["mismatches"], one["largest_difference"])
    holds("at 1/1 all results are the original's, bit for bit", checked["digest"] == plain["digest"])
    holds("at 1/1 every launch that a pattern knows runs the original",
                 outcomes.get("shadowed") == checked["launches"] and "hit" not in outcomes)
    holds("at 1/1 most are compared", checks > 0.9 * checked["launches"])
    holds("at 1/1 no mismatch is found in what is shipped", mismatches == 0 and not said)

    for rate, seconds in (("1/100", SECONDS / 2), ("1/1", SECONDS)):
        done, counts, said = run(["work", "--graph", "--seconds", str(seconds)], FIBSHIM_SHADOW=rate)
        checks, mismatches, missed, outcomes = sums(counts)
        print(f"at {rate}, {seconds:g} s: {done['launches']} launches, {checks} checks, not checked: {missed}, "
              f"outcomes: {outcomes}")
        holds(f"at {rate} with a graph, {seconds:g} s: checks, and no mismatch",
                     checks > 0 and mismatches == 0 and not said)
        holds(f"at {rate} the graph's node is a hit", outcomes.get("hit", 0) >= 1)

    with tempfile.TemporaryDirectory() as folder:
        wrong = wrong_config(folder)
        done, counts, said = run(["work"], config=wrong, FIBSHIM_SHADOW="1/1")
        checks, mismatches, missed, outcomes = sums(counts)
        holds("a wrong solution is found", mismatches > 0 and len(said) == 1 and "rmsnorm_h4096" in said[0])
        print("  ", *said)
        holds("and at 1/1 the host sees nothing of it", done["digest"] == plain["digest"])
        done, counts, said = run(["work"], config=wrong, FIBSHIM_SHADOW="1/1", FIBSHIM_ON_MISMATCH="quarantine")
        outcomes = sums(counts)[3]
        holds("with quarantine it is left alone", outcomes.get("fallback_quarantined", 0) > 0)

    plain, _, _ = run(["replay"], config=None)
    for rate in ("1/1", "1/10"):
        done, counts, said = run(["replay", "--seconds", str(SECONDS)], FIBSHIM_SHADOW=rate)
        checks, mismatches, missed, _ = sums(counts)
        executions = {outcome: count for outcome, count in counts["executions"].items() if count}
        print(f"a graph at {rate}, {SECONDS:g} s: {done['replays']} replays, {checks} checks, not checked: {missed}, "
              f"executions: {executions}")
        holds(f"in graphs at {rate}: checks, and no mismatch", checks > 0 and mismatches == 0 and not said, said)
        if rate == "1/1":
            holds("in graphs at 1/1 all results are the original's, bit for bit",
                  done["digest"] == plain["digest"] and done["unlike"] == 0, done["unlike"])
            holds("in graphs at 1/1 every replay runs the originals", executions.get("hit", 0) == 0, executions)
    with tempfile.TemporaryDirectory() as folder:
        done, counts, said = run(["replay", "--seconds", str(SECONDS / 2)], config=wrong_config(folder), FIBSHIM_SHADOW="1/1")
        holds("in graphs a wrong solution is found", sums(counts)[1] > 0 and len(said) == 1 and "rmsnorm_h4096" in said[0], said)
        holds("and at 1/1 the host sees nothing of it", done["digest"] == plain["digest"] and done["unlike"] == 0)

    # Sixteen execs of 18 kernels: for checks of all of them 512 KB has no room.
    done, counts, said = run(["replay", "--graphs", "16", "--seconds", str(SECONDS / 2)], FIBSHIM_SHADOW="1/1", FIBSHIM_SHADOW_MEMORY="512k")
    checks, mismatches, _, _ = sums(counts)
    without_room = sum(one["not_checked"].get("memory", 0) for one in counts["shadow"] if one["shape"] == "(graph)")
    print(f"16 graphs with room for few: {done['replays']} replays, {checks} checks, {without_room} launches without room")
    holds("graphs beyond FIBSHIM_SHADOW_MEMORY: some are checked, others counted, and no mismatch",
          checks > 0 and 0 < without_room < done["replays"] and mismatches == 0 and not said, said)
    holds("and all results are the original's, bit for bit", done["digest"] == plain["digest"] and done["unlike"] == 0, done["unlike"])

    print_costs()
    return report.finish()


def option(name, otherwise):
    return sys.argv[sys.argv.index(name) + 1] if name in sys.argv else otherwise


if __name__ == "__main__":
    if sys.argv[1:2] == ["work"]:
        work("--graph" in sys.argv, float(option("--seconds", 0)))
    elif sys.argv[1:2] == ["replay"]:
        replay(float(option("--seconds", 0)), int(option("--graphs", 1)))
    elif sys.argv[1:2] == ["time"]:
        measure()
    elif sys.argv[1:2] == ["costs"]:
        print_costs()
    elif sys.argv[1:2] == ["soak"]:
        sys.exit(soak())
    else:
        sys.exit(main())
