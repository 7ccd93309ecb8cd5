#!/usr/bin/env python3
"""FlashInfer's and sgl-kernel's sampling from probabilities on the GPU: their kernels alone, and under the shim with the folders
`sglang` and `flashinfer`, with a limit for each row, and FlashInfer's with one for all.

  tests/gpu/sampling.py BUILD [KERNELS] [--version VERSION] [--out FILE] [--keep FILE] [--keep-sglang FILE] [--no-times]

KERNELS is a folder of cubins that `tests/engines/engines.py sampling` has made, BUILD/flashinfer_sampling by default. They are launched
by the driver, as FlashInfer's host code launches them. Each side is a process of its own and makes the same inputs. The tokens of its
deterministic kernels must be the same; those of the others, and since 0.7.4 of those whose clusters share a row, may differ where a sum, added in
another order, is rounded to the other side of a token: at most 1 in 10,000. Ours must be faster.
"""
import argparse
import collections
import ctypes
import itertools
import os
import pathlib
import re
import subprocess
import sys
import tempfile

import torch

from counters import read_counts
from graph_time import graph_us
from kept_times import KeptTimes, finish
from report import Report
from solutions import Kernel, cuda

POINTER, U32, U64, FLOAT, INT = ctypes.c_void_p, ctypes.c_uint32, ctypes.c_uint64, ctypes.c_float, ctypes.c_int32
RANDOM = [POINTER, U64, POINTER, U64]
# By operation: FlashInfer's kernel, and its parameters before the random numbers: P probabilities, T tokens, V valid (not of
# sgl-kernel's), 0 a null pointer, k and p arrays of limits, K and Q limits for all rows, D the width.
OPS = {
    "sampling_from_probs": ("SamplingFromProb", "PTV0D"),
    "top_k_sampling": ("TopKSamplingFromProb", "PTV0kKD"),
    "top_p_sampling": ("TopPSamplingFromProb", "PTV0pQD"),
    "min_p_sampling": ("MinPSamplingFromProb", "PpTV0QD"),
    "top_k_top_p_sampling": ("TopKTopPSamplingFromProb", "PkpTV0KQD"),
}
# By operation the mode of the kernel that shares a row among a cluster's blocks, and its parameters before the random numbers, C what a block has.
SPLIT_ROWS = {"top_p_sampling": ("0", "PTV00pKQDC"), "top_k_sampling": ("1", "PTV0k0KQDC"), "top_k_top_p_sampling": ("2", "PTV0kpKQDC")}
SPLIT_ROWS_THREADS, SPLIT_ROWS_BYTES = 256, 4096  # of a block, and at most of its shared memory beside its part of the row
WIDTHS = (32000, 128256, 129280, 151936, 262208)
BATCHES = (1, 3, 32, 160)
TIMED_WIDTHS, TIMED_BATCHES, TIMED_KINDS = (32000, 50272, 128256, 129280, 151936, 201088, 256000, 262144, 262208), (1, 2, 4, 8, 16, 32, 64, 128, 256, 512), ("model", "flat")
# As a model's; flat; all equal; rounded so that many are alike; most of them 0; nothing but zeros; below what float32 calls normal.
KINDS = ("model", "flat", "equal", "ties", "few", "zeros", "tiny")
ONE_LIMIT_KINDS = ("model", "ties")
DRAWS = 24
NOISE = 1.05  # what times of FlashInfer's own kernel differ by


def probabilities(kind, rows, width, generator):
    noise = torch.randn(rows, width, generator=generator, device="cuda")
    if kind == "model":  # a few likely tokens and a long tail
        rank = torch.rand(rows, width, generator=generator, device="cuda").argsort(-1).argsort(-1).float()
        return torch.softmax(-1.3 * torch.log1p(rank) + 0.5 * noise, -1)
    if kind == "equal":
        return torch.full_like(noise, 1 / width)
    if kind == "ties":
        return torch.softmax((3 * noise).round(), -1)
    if kind == "few":
        kept = torch.where(noise > 3, torch.softmax(3 * noise, -1), 0)
        return kept / kept.sum(-1, keepdim=True)
    if kind == "zeros":
        return torch.zeros_like(noise)
    if kind == "tiny":
        return torch.where(noise > 3.5, 1e-38 * noise.abs(), 1e-42)
    return torch.softmax(noise, -1)


def form_of(version, is_one):
    return "_tokens" if version.startswith("sgl-kernel") else "_one_limit" if is_one else ""


class Case:
    def __init__(self, op, kind, rows, width, is_one=False, is_older=False):
        self.op, self.rows, self.width, self.is_one = op, rows, width, is_one
        generator = torch.Generator(device="cuda").manual_seed(rows * 1000003 + width)
        self.probs = probabilities(kind, rows, width, generator)
        choose = lambda values, dtype: torch.tensor(values, device="cuda", dtype=dtype).repeat(-(-rows // len(values)))[:rows].contiguous()
        self.top_k = choose([50, 1, 20, 1000, width], torch.int32)
        self.p = choose([0.05, 0.0, 0.5, 0.1, 1.0] if op == "min_p_sampling" else [0.9, 0.95, 0.5, 1.0, 0.1 if is_older else 0.0], torch.float32)
        self.top_k_of_all, self.p_of_all = 40, 0.1 if op == "min_p_sampling" else 0.8
        self.tokens = torch.empty(rows, dtype=torch.int32, device="cuda")
        self.valid = torch.empty(rows, dtype=torch.uint8, device="cuda")
        self.seeds = torch.arange(rows, dtype=torch.int64, device="cuda") * 7919
        self.first_offsets = torch.arange(rows, dtype=torch.int64, device="cuda") * 3

    def with_usual_limits(self):
        """Limits of usual requests, for times."""
        self.top_k_of_all, self.p_of_all = 50, 0.05 if self.op == "min_p_sampling" else 0.9
        self.top_k.fill_(self.top_k_of_all)
        self.p.fill_(self.p_of_all)
        return self

    def launch(self, kernel, draw, has_arrays=False):
        letters = SPLIT_ROWS[self.op][1] if kernel.blocks_of_row else OPS[self.op][1]
        blocks = kernel.blocks_of_row and kernel.blocks_of_row(self)
        part = blocks and (-(-self.width // blocks) + 3) // 4 * 4
        if has_arrays:
            self.offsets = self.first_offsets + draw
        values = {"P": (POINTER, self.probs.data_ptr()), "T": (POINTER, self.tokens.data_ptr()), "V": (POINTER, self.valid.data_ptr()),
                  "0": (POINTER, None), "k": (POINTER, None if self.is_one else self.top_k.data_ptr()),
                  "p": (POINTER, None if self.is_one else self.p.data_ptr()), "K": (INT, self.top_k_of_all if self.is_one else 0),
                  "Q": (FLOAT, self.p_of_all if self.is_one else 0.0), "D": (U32, self.width), "C": (U32, part)}
        types, given = zip(*(values[letter] for letter in letters if letter != "V" or not kernel.is_older))
        if kernel.is_older:
            kernel.types = [*types, U64, U64]
            return kernel.launch((self.rows, 1, 1), (1024, 1, 1), [*given, 12345, draw], 8 << 10)
        random = [self.seeds.data_ptr() if has_arrays else None, 12345, self.offsets.data_ptr() if has_arrays else None, draw]
        stride = int(has_arrays)
        kernel.types = [*types, *RANDOM, *([U32, U32] if kernel.has_strides else [])]
        values = [*given, *random, *([stride, stride] if kernel.has_strides else [])]
        if blocks:
            return kernel.launch((self.rows * blocks, 1, 1), (SPLIT_ROWS_THREADS, 1, 1), values, SPLIT_ROWS_BYTES + 4 * part, cluster=(blocks, 1, 1))
        kernel.launch((self.rows, 1, 1), (1024, 1, 1), values, 8 << 10)


def blocks_of_row(case):
    """As FlashInfer 0.7.4 chooses them (GetSplitRowSamplingClusterSize of sampling.cuh): 0 where one block has a row."""
    processors = torch.cuda.get_device_properties(0).multi_processor_count
    of_block = lambda blocks: -(-case.width // blocks)
    is_too_large = lambda blocks: SPLIT_ROWS_BYTES + 4 * of_block(blocks) > 227 << 10
    if torch.cuda.get_device_capability()[0] != 9 or of_block(2) < 4096:
        return 0
    blocks = 2
    while blocks < 8 and (of_block(blocks) > 26624 or is_too_large(blocks)):
        blocks *= 2
    if is_too_large(blocks):
        return 0
    most = 1 if case.op == "top_p_sampling" else 2
    if blocks == 8 and of_block(8) > 26624 and case.rows * 8 >= (8 + 8 * most) * processors:
        return 0
    if blocks == 8 and of_block(8) > 16384 and case.rows * 8 >= 32 * most * processors:
        return 0
    while blocks < 8 and case.rows * blocks * 2 <= processors and of_block(blocks * 2) >= 4096:
        blocks *= 2
    return blocks


class Engine:
    """The kernels of one version."""

    def __init__(self, path):
        names = re.findall(rb"\0(_ZN10flashinfer8sampling\d+(\w+?)KernelILj1024E[^\0]*ELj4ELb([01])EfiEEv[^\0]*)(?=\0)", path.read_bytes())
        self.kernels = {}
        for name, function, is_deterministic in names:
            kernel = Kernel(str(path), name.decode(), [])
            kernel.has_strides, kernel.is_older, kernel.blocks_of_row = name.endswith(b"mjj"), name.endswith(b"jmm"), None
            self.kernels[function.decode(), is_deterministic == b"1"] = kernel
        self.split_rows = {}
        for name, mode in re.findall(rb"\0(_ZN10flashinfer8sampling39SplitRow[^\0]*SplitRowSamplingModeE(\d)EfiEEv[^\0]*)(?=\0)", path.read_bytes()):
            kernel = self.split_rows[mode.decode()] = Kernel(str(path), name.decode(), [])
            kernel.has_strides, kernel.is_older, kernel.blocks_of_row = True, False, blocks_of_row

    def kernel_for(self, case, is_deterministic):
        if self.split_rows and case.op in SPLIT_ROWS and blocks_of_row(case):
            return self.split_rows[SPLIT_ROWS[case.op][0]]
        return self.kernels[OPS[case.op][0], is_deterministic]


def cases(version):
    """Of sgl-kernel's it is not defined what becomes of nothing but zeros."""
    for op, width, rows in itertools.product(OPS, WIDTHS, BATCHES):
        for kind in KINDS if rows < 160 else KINDS[:1]:
            if kind not in ("zeros", "tiny") or form_of(version, False) != "_tokens":
                yield op, kind, rows, width, False
            if kind in ONE_LIMIT_KINDS and op != "sampling_from_probs" and form_of(version, True) == "_one_limit":
                yield op, kind, rows, width, True


def drawn_by(case, kernel, in_graph):
    drawn = []
    for draw in range(DRAWS):
        case.tokens.fill_(-7)
        case.valid.fill_(7)
        case.launch(kernel, draw * 5, draw % 4 == 3)
        drawn.append(torch.stack([case.tokens, case.valid.int()]).cpu())
    if in_graph:  # one behind the other
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            case.launch(kernel, DRAWS)
            case.launch(kernel, DRAWS + 1)
        case.tokens.fill_(-7)
        case.valid.fill_(7)
        graph.replay()
        drawn.append(torch.stack([case.tokens, case.valid.int()]).cpu())
        del graph
    return torch.stack(drawn)


def timed(engines):
    """The newest of FlashInfer's versions that have the same kernels, and sgl-kernel's."""
    chosen = {(form_of(version, False), bool(engine.split_rows)): (version, engine) for version, engine in engines.items()}
    return chosen.values()


def child(args):
    torch.zeros(1, device="cuda")  # the primary context, current to this thread
    engines = {path.name.rsplit(".", 2)[0]: Engine(path) for path in sorted(args.kernels.glob(f"{args.version}.*.cubin"))}
    found = {}
    for version, engine in engines.items():
        for key in cases(version):
            case = Case(*key, form_of(version, False) == "_tokens")
            for is_deterministic in (True, False):
                kernel = engine.kernel_for(case, is_deterministic)
                if not is_deterministic or not kernel.blocks_of_row:
                    found[version, is_deterministic, key] = drawn_by(case, kernel, key[1] == "model")
    times = {}
    if args.times:
        warm = torch.randn(8192, 8192, device="cuda")
        for _ in range(20):
            warm @ warm
        for (version, engine), is_one in itertools.product(timed(engines), (False, True)):
            for op, kind, width, rows in itertools.product(OPS, TIMED_KINDS, TIMED_WIDTHS, TIMED_BATCHES):
                if is_one and (op == "sampling_from_probs" or form_of(version, True) != "_one_limit"):
                    continue
                case = Case(op, kind, rows, width, is_one).with_usual_limits()
                draws = itertools.count()
                kernel = engine.kernel_for(case, True)
                if engine.split_rows and not kernel.blocks_of_row:
                    continue
                original = "sgl-kernel" if form_of(version, False) else "FlashInfer 0.7.4" if engine.split_rows else "FlashInfer"
                times[op + form_of(version, is_one), original, kind, rows, width] = graph_us(lambda: case.launch(kernel, next(draws)), 4 * rows * width)
    torch.save({"found": found, "times": times}, args.child)


def side(args, environment):
    with tempfile.TemporaryDirectory() as folder:
        file = os.path.join(folder, "out.pt")
        subprocess.run([sys.executable, __file__, str(args.build), str(args.kernels), "--version", args.version, "--child", file, *([] if args.times else ["--no-times"])],
                       check=True, env={**os.environ, **environment, "FIBSHIM_STATS_DIR": folder})
        return torch.load(file), read_counts(folder)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("kernels", type=pathlib.Path, nargs="?")
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--keep", type=pathlib.Path, metavar="FILE", help="write the times for `fibshim bench --keep-from FILE BUILD/config/flashinfer`")
    parser.add_argument("--keep-sglang", type=pathlib.Path, metavar="FILE", help="the same of sgl-kernel's, for BUILD/config/sglang")
    parser.add_argument("--version", default="*", help="only this one, as the name of its cubin begins")
    parser.add_argument("--no-times", dest="times", action="store_false")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.kernels = args.kernels or args.build / "flashinfer_sampling"
    if args.child:
        return child(args)
    report = Report("sampling")
    build = args.build.resolve()
    alone, _ = side(args, {})
    ours, counts = side(args, {"LD_PRELOAD": str(build / "lib/libfibshim.so"), "FIBSHIM_CONFIG": f"{build}/config/sglang:{build}/config/flashinfer"})
    table, slower = {}, []
    kept, kept_sglang = KeptTimes(build / "config/flashinfer"), KeptTimes(build / "config/sglang")
    kept_of = lambda op: kept_sglang if op.endswith("_tokens") else kept
    holds = lambda op, rows, width: kept_of(op).solution_for(f"{op}_v{width}", batch_size=rows) is not None
    wanted = collections.Counter()
    for version, _, (op, _, rows, width, is_one) in ours["found"]:
        op += form_of(version, is_one)
        wanted[f"{op}_v{width}"] += DRAWS * holds(op, rows, width)
    report.check("every launch is replaced for which the folder has a solution",
                 [f"{key}: {count}" for key, count in counts.items() if key[1] not in ("hit", "fallback_where")] +
                 [f"{counts.get((of, 'hit'), 0)} hits of {count} launches of {of}" for of, count in wanted.items()
                  if counts.get((of, "hit"), 0) < count])
    for version, is_deterministic in sorted({key[:2] for key in alone["found"]}):
        for op, is_one in itertools.product(OPS, (False, True)):
            problems, drawn, others = [], 0, 0
            for key, his in alone["found"].items():
                if key[:2] != (version, is_deterministic) or (key[2][0], key[2][-1]) != (op, is_one):
                    continue
                different = (his != ours["found"][key]).any(1)
                drawn += different.numel()
                others += different.sum().item()
                if different.any():
                    draw, row = different.nonzero()[0].tolist()
                    problems.append(f"{key[2]}: {different.sum().item()} of {different.numel()} differ, first draw {draw}, row {row}: "
                                    f"{ours['found'][key][draw, :, row].tolist()}, FlashInfer's {his[draw, :, row].tolist()}")
            if not drawn:
                continue
            what = f"{op}, {version}{', one limit' if is_one else ''}{'' if is_deterministic else ', not deterministic'}"
            if not is_deterministic:
                print(f"{what}: {others} of {drawn} tokens differ")
                problems = problems if others > drawn / 10000 else []
            report.check(f"{what}: the same {drawn} tokens", problems)
    for key, us in ours["times"].items():
        op, original, kind, rows, width = key
        his = alone["times"][key]
        table[" ".join(map(str, key))] = {"us": us, "alone_us": his}
        kept_of(op).add(f"{op}_v{width}", original, us, his, batch_size=rows)
        line = f"{op}, {width}, {kind}, {rows} rows: {us:.2f} us, {original}'s {his:.2f}"
        print(line, flush=True)
        if us > NOISE * his or holds(op, rows, width) and us > his:
            slower.append(line)
    if args.times:
        report.check("faster", slower)
    if args.keep_sglang:
        kept_sglang.write_here(args.keep_sglang)
    return finish(report, args, kept, table)


if __name__ == "__main__":
    sys.exit(main())
