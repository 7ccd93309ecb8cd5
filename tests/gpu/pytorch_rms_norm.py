#!/usr/bin/env python3
"""PyTorch's fused RMSNorm, on its own and under the shim, on a real GPU.

    pytorch_rms_norm.py own MEASUREMENTS          PyTorch's own kernels: errors, digests, times -> JSON
    pytorch_rms_norm.py redirected MEASUREMENTS   under the shim: everything again, compared with that
    pytorch_rms_norm.py broken strict|lenient     with a folder of broken solutions (broken_folders.py)
    pytorch_rms_norm.py plain                     with a folder that cannot be used: nothing changes

The two sides run in processes of their own and make the same inputs from the same seeds.
"""
import ctypes
import hashlib
import json
import math
import os
import sys
import tempfile
import threading

import torch
import torch.nn.functional as F

from counters import Watch, read_counts
from graph_time import graph_us, nodes_for
from report import Report

ROWS = (1, 3, 64, 1000, 16384)
HIDDEN = (128, 2048, 4096, 5120, 7168, 8192)
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
TIMED_ROWS = (1, 8, 64, 512, 1024, 4096, 16384)
MANY_SHORT_ROWS = 648720  # Q and K norm over all heads of a long prefill
EPS = 1e-6

fused = torch.ops.aten._fused_rms_norm


def definition(hidden, dtype):
    return f"rmsnorm_h{hidden}" + ("" if dtype == "bf16" else f"_{dtype}")


def inputs(rows, hidden, dtype, seed=0):
    """Rows of very different scale, so that eps matters for some."""
    generator = torch.Generator(device="cuda").manual_seed(1 + seed + rows * 100003 + hidden * 11)
    x = torch.randn(rows, hidden, generator=generator, device="cuda")
    x *= torch.exp2(torch.empty(rows, 1, device="cuda").uniform_(-8, 4, generator=generator))
    w = 1 + 0.5 * torch.randn(hidden, generator=generator, device="cuda")
    return x.to(DTYPES[dtype]), w.to(DTYPES[dtype])


# ---- accuracy


def errors(y, rstd, x, w, eps=EPS):
    """How far `y` and `rstd` are from the float64 result."""
    eps32 = torch.tensor(eps, dtype=torch.float32).double().item()
    x64 = x.double()
    rstd64 = (x64.pow(2).mean(-1, keepdim=True) + eps32).rsqrt()
    y64 = x64 * rstd64 * w.double()
    error = (y.double() - y64).abs()
    info = torch.finfo(y.dtype)
    # A unit in the last place of y's dtype at y64: the power of two at or below it (a double without
    # its mantissa) times eps, and constant below the normal range.
    power_of_two = ((y64.abs().clamp_min(info.tiny).view(torch.int64) >> 52) << 52).view(torch.float64)
    ulp = power_of_two * info.eps
    is_normal = y64.abs() >= info.tiny
    relative = torch.where(is_normal, error / y64.abs(), 0.0)
    rstd_relative = (rstd.reshape(-1, 1).double() - rstd64).abs() / rstd64
    return {
        "finite": bool(torch.isfinite(y).all() and torch.isfinite(rstd).all()),
        "max_relative": relative.max().item(),
        "mean_relative": relative.mean().item(),
        "max_ulp": (error / ulp).max().item(),
        # Elements that are not the nearest number of their dtype.
        "not_nearest": int((error > ulp * (0.5 + 1e-9)).sum().item()),
        "elements": y.numel(),
        "rstd_max_relative": rstd_relative.max().item(),
        "rstd_mean_relative": rstd_relative.mean().item(),
    }


# fp32's own grain in a chain of three roundings: what is left when both sides round to nearest.
FLOAT_NOISE = 2.0**-22
FLOAT_ULP = 2.0**-23


def is_right(measured):
    """Rounded to nearest, up to fp32's noise: what both sides' kernels do."""
    return measured["finite"] and measured["max_ulp"] < 0.51 and measured["rstd_max_relative"] < 2 * FLOAT_NOISE


def less_accurate(ours, own, rows):
    """In what `ours` is worse than `own`; empty where it is as good or better.

    A few rows prove nothing about which is better: there the bound is PyTorch's own error or one
    unit of fp32, whichever is larger. From 1000 rows on it is PyTorch's own.
    """
    problems = []
    if not ours["finite"]:
        problems.append("not finite")
    is_many = rows >= 1000
    for name, floor in (("rstd_max_relative", FLOAT_ULP), ("rstd_mean_relative", FLOAT_ULP)):
        allowed = own[name] if is_many else max(own[name], floor)
        if not ours[name] <= allowed:
            problems.append(f"{name} {ours[name]:.3e}, PyTorch's own {own[name]:.3e}")
    for name in ("max_relative", "mean_relative"):
        if not ours[name] <= own[name] + (FLOAT_NOISE if name == "max_relative" else 1e-9):
            problems.append(f"{name} {ours[name]:.9e}, PyTorch's own {own[name]:.9e}")
    if ours["not_nearest"] > own["not_nearest"] + 4 * math.sqrt(own["not_nearest"] + 1):
        problems.append(f"{ours['not_nearest']} elements not nearest, PyTorch's own {own['not_nearest']}")
    return [f"{problem} ({rows} rows)" for problem in problems]


def accuracy_case(rows, hidden, dtype):
    x, w = inputs(rows, hidden, dtype)
    y, rstd = fused(x, [hidden], w, EPS)
    measured = errors(y, rstd, x, w)
    measured["same_both_ways"] = torch.equal(F.rms_norm(x, (hidden,), w, EPS), y)
    return measured


# ---- neighbours: what must stay as it is


def digest(tensor):
    return hashlib.sha256(tensor.contiguous().view(torch.uint8).cpu().numpy().tobytes()).hexdigest()


def compiled_function(x):
    return F.gelu(x) * torch.sigmoid(x) + F.rms_norm(x, (x.shape[-1],), eps=EPS)


class Neighbours:
    """cuBLASLt, cuDNN and compiled code: run by both sides; results bit for bit the same."""

    def __init__(self):
        generator = torch.Generator(device="cuda").manual_seed(7)
        self.a = torch.randn(512, 4096, generator=generator, device="cuda").bfloat16()
        self.b = torch.randn(1024, 4096, generator=generator, device="cuda").bfloat16()
        self.bias = torch.randn(1024, generator=generator, device="cuda").bfloat16()
        self.image = torch.randn(4, 16, 32, 32, generator=generator, device="cuda").half()
        self.filters = torch.randn(32, 16, 3, 3, generator=generator, device="cuda").half()
        self.compiled = torch.compile(compiled_function, dynamic=False)

    def run(self):
        return {
            "cublaslt": F.linear(self.a, self.b, self.bias),
            "cudnn": F.conv2d(self.image, self.filters, padding=1),
            "compiled": self.compiled(self.a),
        }

    def wrong(self, results):
        a64 = self.a.double()
        exact = {
            "cublaslt": F.linear(a64, self.b.double(), self.bias.double()),
            "cudnn": F.conv2d(self.image.double().cpu(), self.filters.double().cpu(), padding=1).cuda(),
            "compiled": F.gelu(a64) * torch.sigmoid(a64) + a64 * (a64.pow(2).mean(-1, keepdim=True) + EPS).rsqrt(),
        }
        problems = []
        for name, value in exact.items():
            error = ((results[name].double() - value).norm() / value.norm()).item()
            if not error < 5e-3:
                problems.append(f"{name}: relative error {error:.2e}")
        return problems


# ---- time


def timed_shapes():
    return [(rows, hidden) for hidden in HIDDEN for rows in TIMED_ROWS] + [(MANY_SHORT_ROWS, 128)]


def times():
    """Microseconds by "rows x hidden", of the norm and of a copy of the same size."""
    result = {}
    for rows, hidden in timed_shapes():
        x, w = inputs(rows, hidden, "bf16")
        out = torch.empty_like(x)
        moved_bytes = 2 * x.numel() * x.element_size()
        result[f"{rows}x{hidden}"] = {
            "norm_us": graph_us(lambda: F.rms_norm(x, (hidden,), w, EPS), moved_bytes),
            "copy_us": graph_us(lambda: out.copy_(x), moved_bytes),
        }
    return result


def timing_table(ours, own):
    """The table's lines, and the figures for the summary."""
    lines = [f"{'rows x hidden':>16} {'torch us':>9} {'fibshim us':>10} {'speedup':>8} {'TB/s':>6} {'of copy':>8}"]
    speedups = {}
    for rows, hidden in timed_shapes():
        shape = f"{rows}x{hidden}"
        torch_us, norm_us = own[shape]["norm_us"], ours[shape]["norm_us"]
        copy_us = min(own[shape]["copy_us"], ours[shape]["copy_us"])
        speedups[shape] = torch_us / norm_us
        rate = 2 * rows * hidden * 2 / norm_us / 1e6
        lines.append(f"{rows:>8} x {hidden:>5} {torch_us:>9.2f} {norm_us:>10.2f} {speedups[shape]:>8.2f}"
                     f" {rate:>6.2f} {copy_us / norm_us:>8.0%}")
    large = [speedups[f"{rows}x{hidden}"] for hidden in HIDDEN if hidden >= 4096 for rows in TIMED_ROWS]
    figures = {
        "geometric_mean_4096_to_8192": round(math.exp(sum(map(math.log, large)) / len(large)), 3),
        "least": round(min(speedups.values()), 3),
        "least_at": min(speedups, key=speedups.get),
        "speedups": {shape: round(value, 3) for shape, value in speedups.items()},
    }
    lines.append(f"geometric mean for 4096..8192: {figures['geometric_mean_4096_to_8192']:.2f};"
                 f" least {figures['least']:.2f} at {figures['least_at']}")
    return lines, figures


# ---- the two sides


def run_own(path):
    report = Report("own")
    measured = {"accuracy": {}, "digests": {}}
    with report.phase("own: the shim is not loaded") as problems:
        with open("/proc/self/maps") as maps:
            if "libfibshim" in maps.read():
                problems.append("libfibshim.so is mapped")
    with report.phase("own: accuracy of PyTorch's kernels is measured") as problems:
        for dtype in DTYPES:
            for hidden in HIDDEN:
                for rows in ROWS:
                    case = accuracy_case(rows, hidden, dtype)
                    measured["accuracy"][f"{rows}x{hidden}_{dtype}"] = case
                    if not case["finite"]:
                        problems.append(f"{rows} x {hidden} {dtype}: not finite")
    with report.phase("own: cuBLASLt, cuDNN and compiled code are right") as problems:
        neighbours = Neighbours()
        results = neighbours.run()
        problems += neighbours.wrong(results)
        measured["digests"] = {name: digest(value) for name, value in results.items()}
    with report.phase("own: times are measured"):
        measured["times"] = times()
    with open(path, "w") as file:
        json.dump(measured, file)
    return report.finish()


def kernels_in_graph(graph):
    """The driver's own drawing of a captured graph (keep_graph=True).

    Not cuGraphKernelNodeGetParams: the shim answers that with what the caller launched.
    """
    cuda = ctypes.CDLL("libcuda.so.1")
    with tempfile.NamedTemporaryFile("r", suffix=".dot") as file:
        only_kernels = 1 << 2  # CU_GRAPH_DEBUG_DOT_FLAGS_KERNEL_NODE_PARAMS
        result = cuda.cuGraphDebugDotPrint(ctypes.c_void_p(graph.raw_cuda_graph()), file.name.encode(), only_kernels)
        if result != 0:
            raise RuntimeError(f"cuGraphDebugDotPrint returned {result}")
        return file.read()


def capture_without_warm_up(report, own):
    """First of all phases: no norm has run in this process, of any shape."""
    with report.phase("a graph captured without warm-up holds the replacement") as problems:
        cases = [(hidden, dtype) for dtype in DTYPES for hidden in HIDDEN]
        expected = {(definition(hidden, dtype), "hit"): 1 for hidden, dtype in cases}
        captured = {}
        with Watch(problems, expected):
            for hidden, dtype in cases:
                x, w = inputs(64, hidden, dtype)
                torch.cuda.synchronize()
                graph = torch.cuda.CUDAGraph(keep_graph=True)
                with torch.cuda.graph(graph):
                    y, rstd = fused(x, [hidden], w, EPS)
                graph.instantiate()
                drawing = kernels_in_graph(graph)
                if f"rmsnorm_h{hidden}_{dtype}" not in drawing or "layer_norm" in drawing:
                    problems.append(f"{hidden} {dtype}: the graph holds {drawing}")
                captured[hidden, dtype] = (graph, x, w, y, rstd)
            for graph, *_ in captured.values():
                for _ in range(3):  # counted once, when captured
                    graph.replay()
            torch.cuda.synchronize()
        for (hidden, dtype), (graph, x, w, y, rstd) in captured.items():
            bad = less_accurate(errors(y, rstd, x, w), own["accuracy"][f"64x{hidden}_{dtype}"], 64)
            problems += [f"replayed {hidden} {dtype}: {problem}" for problem in bad]
            # New values in the same buffers: the graph computes, it does not remember.
            x.copy_(inputs(64, hidden, dtype, seed=5)[0])
            graph.replay()
            if not is_right(errors(y, rstd, x, w)):
                problems.append(f"replayed with new input {hidden} {dtype}: wrong")


def accuracy(report, own):
    print(f"{'rows x hidden':>16} {'':4} {'max rel':>10} {'torch':>10} {'off nearest':>11} {'torch':>8}"
          f" {'rstd max':>9} {'torch':>9}")
    ours_off = own_off = 0
    for dtype in DTYPES:
        for hidden in HIDDEN:
            with report.phase(f"accuracy of {definition(hidden, dtype)} for rows {ROWS}") as problems:
                # Twice a case: by the operator and by F.rms_norm.
                with Watch(problems, {(definition(hidden, dtype), "hit"): 2 * len(ROWS)}):
                    cases = {rows: accuracy_case(rows, hidden, dtype) for rows in ROWS}
                for rows, case in cases.items():
                    torch_case = own["accuracy"][f"{rows}x{hidden}_{dtype}"]
                    problems += less_accurate(case, torch_case, rows)
                    if not case["same_both_ways"]:
                        problems.append(f"F.rms_norm and the operator differ ({rows} rows)")
                    ours_off += case["not_nearest"]
                    own_off += torch_case["not_nearest"]
                    print(f"{rows:>8} x {hidden:>5} {dtype:4} {case['max_relative']:>10.4e}"
                          f" {torch_case['max_relative']:>10.4e} {case['not_nearest']:>11}"
                          f" {torch_case['not_nearest']:>8} {case['rstd_max_relative']:>9.2e}"
                          f" {torch_case['rstd_max_relative']:>9.2e}")
    with report.phase("over all cases fewer elements are off the nearest number than PyTorch's") as problems:
        print(f"elements that are not the nearest number: {ours_off}, PyTorch's own {own_off}")
        if ours_off > own_off:
            problems.append(f"{ours_off} against {own_off}")


def fallbacks(report):
    with report.phase("an unmatched hidden size falls back, is right and is counted") as problems:
        x, w = inputs(64, 4100, "bf16")
        with Watch(problems, {("rmsnorm_h4100", "fallback_no_solution"): 5}):
            for _ in range(5):
                y, rstd = fused(x, [4100], w, EPS)
        if not is_right(errors(y, rstd, x, w)):
            problems.append("the result is wrong")
    with report.phase("a pointer off 16 bytes falls back, is right and is counted") as problems:
        x, w = inputs(64, 4096, "bf16")
        shifted = torch.empty(x.numel() + 4, dtype=x.dtype, device="cuda")[4:].view(x.shape).copy_(x)
        with Watch(problems, {("rmsnorm_h4096", "fallback_where"): 3}):
            for _ in range(3):
                y, rstd = fused(shifted, [4096], w, EPS)
        if not is_right(errors(y, rstd, x, w)):
            problems.append("the result is wrong")
    with report.phase("without a weight PyTorch's own kernel runs, and no hit is counted") as problems:
        x, _ = inputs(64, 4096, "bf16")
        with Watch(problems, {}) as watch:
            before = watch.before
            y, rstd = fused(x, [4096], None, EPS)
            fell_back = read_counts(os.environ["FIBSHIM_STATS_DIR"], os.getpid()) - before
            # Whatever name the launch is counted under: it is one where that did not hold.
            for key, count in fell_back.items():
                watch.expected[key] += count if key[1] == "fallback_where" else 0
        if sum(watch.expected.values()) != 1:
            problems.append(f"counted as {dict(fell_back)}, not as one fallback_where")
        if not is_right(errors(y, rstd, x, torch.ones_like(x[0]))):
            problems.append("the result is wrong")
    with report.phase("float32 stays untracked, and layer_norm without a weight PyTorch's own") as problems:
        x = torch.randn(64, 4096, device="cuda")
        with Watch(problems, {("layernorm_h4096", "fallback_where"): 1}) as watch:
            F.rms_norm(x, (4096,), x[0], EPS)
            F.layer_norm(x.bfloat16(), (4096,))
        if watch.untracked < 2:
            problems.append(f"{watch.untracked} untracked launches counted, at least 2 made")


def neighbours(report, own):
    with report.phase("cuBLASLt, cuDNN and compiled code run untouched beside redirected norms") as problems:
        others = Neighbours()
        x, w = inputs(512, 4096, "bf16")
        expected_y = F.rms_norm(x, (4096,), w, EPS)
        others.run()  # compiles
        with Watch(problems, {("rmsnorm_h4096", "hit"): 20}) as watch:
            for _ in range(20):
                y = F.rms_norm(x, (4096,), w, EPS)
                results = others.run()
                if not torch.equal(y, expected_y):
                    problems.append("a norm between them is wrong")
        if watch.untracked < 3 * 20:
            problems.append(f"{watch.untracked} untracked launches counted, at least 60 made")
        problems += others.wrong(results)
        for name, value in results.items():
            if digest(value) != own["digests"][name]:
                problems.append(f"{name}: other bits than without the shim")


def threads(report):
    shapes = [(64, 4096, "bf16"), (1000, 128, "fp16"), (3, 8192, "bf16"), (17, 5120, "fp16")]
    thread_count, rounds = 8, 100
    with report.phase(f"{thread_count} threads at once: results and counts are exact") as problems:
        cases = []
        for rows, hidden, dtype in shapes:
            x, w = inputs(rows, hidden, dtype)
            cases.append((x, w, hidden, *fused(x, [hidden], w, EPS)))
        torch.cuda.synchronize()
        start = threading.Barrier(thread_count)
        faults = []

        def work(thread):
            try:
                with torch.cuda.stream(torch.cuda.Stream()):
                    start.wait()
                    for turn in range(rounds):
                        for i in range(len(cases)):
                            x, w, hidden, y, rstd = cases[(i + thread) % len(cases)]
                            got_y, got_rstd = fused(x, [hidden], w, EPS)
                        if turn % 10 == 0 and not (torch.equal(got_y, y) and torch.equal(got_rstd, rstd)):
                            faults.append(f"thread {thread}, round {turn}: wrong numbers")
                    torch.cuda.current_stream().synchronize()
            except Exception as error:  # the main thread reports it
                start.abort()
                faults.append(f"thread {thread}: {type(error).__name__}: {error}")

        expected = {(definition(hidden, dtype), "hit"): thread_count * rounds for _, hidden, dtype in shapes}
        with Watch(problems, expected):
            workers = [threading.Thread(target=work, args=(i,)) for i in range(thread_count)]
            for worker in workers:
                worker.start()
            for worker in workers:
                worker.join()
        problems += faults


def timing(report, own):
    figures = {}
    with report.phase("times are measured, and every launch of them is a hit") as problems:
        launched = {}
        for rows, hidden in timed_shapes():
            # One before the capture, and the captured ones.
            key = definition(hidden, "bf16"), "hit"
            launched[key] = launched.get(key, 0) + 1 + nodes_for(4 * rows * hidden)
        with Watch(problems, launched):
            ours = times()
        lines, figures = timing_table(ours, own["times"])
        print("\n".join(lines))
    return figures


def run_redirected(path):
    report = Report("redirected")
    with open(path) as file:
        own = json.load(file)
    torch.zeros(1, device="cuda")  # from the first CUDA call on there is a counters file to look at
    capture_without_warm_up(report, own)
    accuracy(report, own)
    fallbacks(report)
    neighbours(report, own)
    threads(report)
    figures = timing(report, own)
    return report.finish(timing=figures)


# ---- folders that are broken or cannot be used


def run_broken(mode):
    """One broken solution a hidden size, as broken_folders.py writes them; 8192 is whole."""
    report = Report(f"broken {mode}")
    whole = 8192
    for hidden in HIDDEN:
        x, w = inputs(64, hidden, "bf16")
        name = f"{mode}: {definition(hidden, 'bf16')}"
        if hidden == whole or mode == "lenient":
            outcome = "hit" if hidden == whole else "error"
            with report.phase(f"{name} gives the right result, counted as {outcome}") as problems:
                with Watch(problems, {(definition(hidden, "bf16"), outcome): 3}):
                    for _ in range(3):
                        y, rstd = fused(x, [hidden], w, EPS)
                if not is_right(errors(y, rstd, x, w)):
                    problems.append("the result is wrong")
        else:
            with report.phase(f"{name} raises a CUDA error, counted as error") as problems:
                with Watch(problems, {(definition(hidden, "bf16"), "error"): 2}):
                    for _ in range(2):
                        try:
                            F.rms_norm(x, (hidden,), w, EPS)
                            problems.append("nothing was raised")
                        except RuntimeError as error:
                            if "CUDA error" not in str(error):
                                problems.append(f"raised something else: {error}")
                torch.cuda.synchronize()  # the context is whole
    return report.finish()


def run_plain():
    report = Report("plain")
    with report.phase("the program runs on its own kernels and is right") as problems:
        x, w = inputs(64, 4096, "bf16")
        for _ in range(10):
            y, rstd = fused(x, [4096], w, EPS)
        if not is_right(errors(y, rstd, x, w)):
            problems.append("the result is wrong")
    return report.finish()


def main(arguments):
    if len(arguments) == 2 and arguments[0] == "own":
        return run_own(arguments[1])
    if len(arguments) == 2 and arguments[0] == "redirected":
        return run_redirected(arguments[1])
    if len(arguments) == 2 and arguments[0] == "broken" and arguments[1] in ("strict", "lenient"):
        return run_broken(arguments[1])
    if arguments == ["plain"]:
        return run_plain()
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")  # no pool of workers to start
    sys.exit(main(sys.argv[1:]))
