#!/usr/bin/env python3
"""A PyTorch model while the process moves between two config folders, on a real GPU.

    swap.py [SECONDS]      20 by default; half of them without moves, but at most 30, then one every second

Started by itself, it makes the two folders, A (build/config/pytorch) and B (a copy that lacks the solution
for hidden size 2048, so that PyTorch's own kernel runs there), learns what the model computes in each
without the shim or in one folder alone, and runs itself again under the shim. There `fibshim swap` moves
the process, while two threads run the model: eagerly, and as CUDA graphs that were captured before the
first move and after it. Every output must be bitwise what A or B gives: captured graphs move, too. A third thread times a small eager operation in a tight loop: what moves
add to the launches' tail. The counts of both folders must add up to the launches.
"""
import array
import glob
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time

from counters import BUILD, FIBSHIM, SHIM, read_stats
from report import Report

HIDDEN = (2048, 4096)  # B has no solution for the first
ROWS = 64
LAYERS = 4
EPS = 1e-6
WORK = "FIBSHIM_SWAP_TEST_WORK"


def plain_environment():
    kept = {name: value for name, value in os.environ.items()
            if name != "LD_PRELOAD" and not name.startswith("FIBSHIM_") or name == "FIBSHIM_TEST_BUILD"}
    # One workspace for each stream: a product must have the same bits on all of them.
    return {**kept, "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}


class Model:
    """RMSNorm and a matrix product, over and over; the last output of each hidden size."""

    def __init__(self, seed):
        import torch
        import torch.nn.functional as functional
        self.torch, self.functional = torch, functional
        generator = torch.Generator(device="cuda").manual_seed(seed)

        def normal(*shape):
            return torch.randn(*shape, generator=generator, device="cuda").to(torch.bfloat16)

        self.x = {hidden: normal(ROWS, hidden) for hidden in HIDDEN}
        self.norm = {hidden: [normal(hidden) for _ in range(LAYERS)] for hidden in HIDDEN}
        self.matrix = {hidden: [normal(hidden, hidden) / hidden**0.5 for _ in range(LAYERS)]
                       for hidden in HIDDEN}

    def run(self):
        out = {}
        for hidden in HIDDEN:
            y = self.x[hidden]
            for norm, matrix in zip(self.norm[hidden], self.matrix[hidden]):
                y = self.functional.rms_norm(y, (hidden,), norm, EPS) @ matrix
            out[hidden] = y
        return out

    def capture(self):
        """A graph of one run, and where its outputs lie."""
        stream = self.torch.cuda.Stream()
        stream.wait_stream(self.torch.cuda.current_stream())
        with self.torch.cuda.stream(stream):
            self.run()  # what libraries set up for a stream is not to be captured
        stream.synchronize()
        graph = self.torch.cuda.CUDAGraph()
        with self.torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            out = self.run()
        return graph, out


# Launches of rms_norm in one run.
NORMS = LAYERS * len(HIDDEN)


def digests(model):
    """What one run gives, as hexadecimal bytes."""
    out = model.run()
    model.torch.cuda.synchronize()
    return {hidden: out[hidden].view(model.torch.int16).cpu().numpy().tobytes().hex() for hidden in HIDDEN}


def stats():
    """Of this process."""
    return read_stats(os.environ["FIBSHIM_STATS_DIR"], "--pid", str(os.getpid()))


def swap(*where):
    """Moves this process; returns what `fibshim swap` says of it."""
    done = subprocess.run([FIBSHIM, "swap", *where, "--pid", str(os.getpid()), "--wait", "--json", "--no-check"],
                          env={**plain_environment(), "FIBSHIM_STATS_DIR": os.environ["FIBSHIM_STATS_DIR"]},
                          text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    if done.returncode != 0:
        raise RuntimeError(f"fibshim swap {where}: {done.stdout}{done.stderr}")
    return json.loads(done.stdout)["processes"][0]


def percentiles(seconds):
    import numpy

    ordered = numpy.sort(numpy.frombuffer(seconds))
    at = lambda share: round(1e6 * float(ordered[min(len(ordered) - 1, int(share * len(ordered)))]), 2)
    return {"launches": len(ordered), "p50_us": at(0.5), "p99_us": at(0.99), "p999_us": at(0.999),
            "max_us": round(1e6 * float(ordered[-1]), 1)}


class Workers:
    """Threads that run the model and compare, until told to stop."""

    def __init__(self, expected, problems):
        self.expected, self.problems = expected, problems
        self.is_over = threading.Event()
        self.runs = self.replays = self.seen_a = self.seen_b = 0
        self.lock = threading.Lock()
        self.threads = []

    def start(self, target, *arguments):
        def guarded():
            try:
                target(*arguments)
            except Exception as error:  # in a thread of its own it would be lost
                self.problems.append(f"{target.__name__}: {type(error).__name__}: {error}")
        self.threads.append(threading.Thread(target=guarded))
        self.threads[-1].start()

    def stop(self):
        self.is_over.set()
        for thread in self.threads:
            thread.join()

    def judge(self, model, out, wanted, what):
        """Each output is one that a folder gives: within a run, layers may belong to either."""
        torch = model.torch
        for hidden, y in out.items():
            bits = y.view(torch.int16)
            fits = [name for name in wanted if torch.equal(bits, self.expected[name][hidden])]
            if fits:
                with self.lock:
                    self.seen_a += "a" in fits
                    self.seen_b += "b" in fits
                continue
            # A run that was under way: some layers of A, some of B. Each norm's result is within rounding
            # of the other's, and so is what the products make of it.
            reference = self.expected["a"][hidden].view(torch.bfloat16).float()
            error = (y.float() - reference).abs().max().item()
            bound = 2.0**-5 * reference.abs().max().item()
            if len(wanted) == 1 or not error <= bound:
                self.problems.append(f"{what}, hidden {hidden}: off by {error:.3g}, more than {bound:.3g}")

    def eager(self, seed):
        import torch
        with torch.cuda.stream(torch.cuda.Stream()):
            model = Model(seed)
            while not self.is_over.is_set() and len(self.problems) < 20:
                out = model.run()
                torch.cuda.current_stream().synchronize()
                self.judge(model, out, ("a", "b"), "eager")
                with self.lock:
                    self.runs += 1

    def replay(self, model, graph, out, folder):
        torch = model.torch
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            while not self.is_over.is_set() and len(self.problems) < 20:
                for y in out.values():
                    y.zero_()
                graph.replay()
                stream.synchronize()
                self.judge(model, out, ("a", "b"), f"graph captured in {folder}")
                with self.lock:
                    self.replays += 1


def time_launches(seconds, beside):
    """Host times of a small operation's launch, for so long; `beside` is called every second."""
    import torch
    x = torch.zeros(32, device="cuda")
    is_over = threading.Event()
    calls = []
    problems = []

    def keep_calling():
        while not is_over.wait(1):
            try:
                calls.append(beside())
            except Exception as error:  # in a thread of its own it would be lost
                problems.append(str(error))
                return

    caller = threading.Thread(target=keep_calling)
    caller.start()
    times = array.array("d")
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for _ in range(200):
            begin = time.perf_counter()
            x.add_(1)
            times.append(time.perf_counter() - begin)
        torch.cuda.current_stream().synchronize()  # so that no launch waits for room in the queue
    is_over.set()
    caller.join()
    return percentiles(times), len(calls), problems


def inside(work, seconds):
    """Under the shim, in folder A."""
    import torch

    report = Report("swap.py")
    folders = {name: os.path.join(work, name) for name in "ab"}
    model = Model(1)
    expected = {}
    process = {"folder": {"images": {}}}

    def keep(name):
        out = model.run()
        torch.cuda.synchronize()
        expected[name] = {hidden: out[hidden].view(torch.int16).clone() for hidden in HIDDEN}

    model.run()
    launches = NORMS
    keep("a")
    graph_a = model.capture()
    swap(folders["b"])
    keep("b")
    graph_b = model.capture()
    swap(folders["a"])
    launches += 6 * NORMS  # each folder: one kept, one before the capture, one captured

    with report.phase("each folder gives what it gives alone, and B without the shim's help") as problems:
        alone = json.load(open(os.path.join(work, "alone.json"), encoding="utf-8"))
        for name in "ab":
            for hidden in HIDDEN:
                got = expected[name][hidden].cpu().numpy().tobytes().hex()
                if got != alone[name][str(hidden)]:
                    problems.append(f"{name}, hidden {hidden}: other bits than in that folder alone")
        if expected["b"][HIDDEN[0]].cpu().numpy().tobytes().hex() != alone["none"][str(HIDDEN[0])]:
            problems.append("B has no solution for it, but it is not what PyTorch's own kernel gives")
        for name in "ab":
            for hidden in HIDDEN:
                own = torch.frombuffer(bytearray.fromhex(alone["none"][str(hidden)]), dtype=torch.bfloat16)
                got = expected[name][hidden].view(torch.bfloat16).cpu().flatten()
                error = (got.float() - own.float()).abs().max().item()
                bound = 2.0**-5 * own.float().abs().max().item()
                if not error <= bound:
                    problems.append(f"{name}, hidden {hidden}: off by {error:.3g} from PyTorch's own")

    problems = []
    workers = Workers(expected, problems)
    for _ in range(2):
        workers.start(workers.eager, 1)
    workers.start(workers.replay, model, *graph_a, "a")
    workers.start(workers.replay, model, *graph_b, "b")

    quiet_seconds = min(seconds / 2, 30)
    quiet, _, failed_looks = time_launches(quiet_seconds, stats)  # as much beside the loop as a move, but no move
    problems += failed_looks
    now = ["a"]

    def move():
        now[0] = "b" if now[0] == "a" else "a"
        swap(folders[now[0]])

    moving, moves, failed_moves = time_launches(seconds - quiet_seconds, move)
    workers.stop()
    problems += failed_moves
    launches += workers.runs * NORMS
    report.check(f"every output of {workers.runs} eager runs and {workers.replays} replays is right", problems)

    with report.phase(f"the process has moved {moves} times, and both folders have served it") as problems:
        if moves < (seconds - quiet_seconds) / 2:
            problems.append(f"only {moves} moves in {seconds - quiet_seconds:.0f} s")
        if workers.seen_a == 0 or workers.seen_b == 0:
            problems.append(f"outputs of A {workers.seen_a}, of B {workers.seen_b}")
        process = stats()["processes"][0]
        if process["folder"]["swaps"] != moves + 2:
            problems.append(f"{process['folder']['swaps']} moves are counted, {moves + 2} were made")

    with report.phase(f"{launches} launches of rms_norm are counted, each once") as problems:
        counted = {}
        for row in stats()["counters"]:
            if row["definition"].startswith("rmsnorm"):
                key = os.path.basename(row["config"]), row["definition"], row["outcome"]
                counted[key] = counted.get(key, 0) + row["count"]
        if sum(counted.values()) != launches:
            problems.append(f"counted {sum(counted.values())}: {counted}")
        wanted = {("a", "rmsnorm_h2048", "hit"), ("a", "rmsnorm_h4096", "hit"), ("b", "rmsnorm_h4096", "hit"),
                  ("b", "rmsnorm_h2048", "fallback_no_solution")}
        if set(counted) != wanted:
            problems.append(f"counted {sorted(counted)}")

    print(json.dumps({"seconds": seconds, "moves": moves, "launch_without_moves": quiet,
                      "launch_with_moves": moving, "eager_runs": workers.runs, "replays": workers.replays,
                      "images": process["folder"]["images"]}), flush=True)
    return report.finish()


def make_folders(work):
    """A and B; returns how many solutions for the first hidden size B has lost."""
    for name in "ab":
        shutil.copytree(os.path.join(BUILD, "config", "pytorch"), os.path.join(work, name))
    removed = 0
    for path in glob.glob(os.path.join(work, "b", "solutions", "**", "*.json"), recursive=True):
        with open(path, encoding="utf-8") as opened:
            if json.load(opened)["definition"] == f"rmsnorm_h{HIDDEN[0]}":
                os.remove(path)
                removed += 1
    return removed


def start_inside(program, work, stats_dir, marker, *arguments):
    """The program again, under the shim in folder A; returns its exit code."""
    environment = {**plain_environment(), "LD_PRELOAD": SHIM, "FIBSHIM_CONFIG": os.path.join(work, "a"),
                   "FIBSHIM_STATS_DIR": stats_dir, marker: work}
    return subprocess.run([sys.executable, os.path.abspath(program), *arguments], env=environment,
                          check=False).returncode


def start_in_folders(program, marker):
    """The program again, under the shim in folder A of two that are made for it; returns its exit code."""
    with tempfile.TemporaryDirectory() as work:
        make_folders(work)
        return start_inside(program, work, os.path.join(work, "stats"), marker)


def outside(seconds):
    with tempfile.TemporaryDirectory() as work:
        removed = make_folders(work)
        if removed != 1:
            print(f"FAIL swap: {removed} solutions for rmsnorm_h{HIDDEN[0]} in the folder, not 1")
            return 1
        alone = {}
        for name in ("none", "a", "b"):
            environment = plain_environment()
            if name != "none":
                environment.update(LD_PRELOAD=SHIM, FIBSHIM_CONFIG=os.path.join(work, name),
                                   FIBSHIM_STATS_DIR=os.path.join(work, "stats_alone"))
            done = subprocess.run([sys.executable, os.path.abspath(__file__), "alone"], env=environment,
                                  text=True, stdout=subprocess.PIPE, check=True)
            alone[name] = json.loads(done.stdout)
        with open(os.path.join(work, "alone.json"), "w", encoding="utf-8") as opened:
            json.dump(alone, opened)
        stats_dir = os.environ.get("FIBSHIM_STATS_DIR") or os.path.join(work, "stats")
        return start_inside(__file__, work, stats_dir, WORK, str(seconds))


def main():
    if sys.argv[1:] == ["alone"]:
        print(json.dumps(digests(Model(1))))
        return 0
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 20
    work = os.environ.get(WORK)
    return inside(work, seconds) if work else outside(seconds)


if __name__ == "__main__":
    sys.exit(main())
