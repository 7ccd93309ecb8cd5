#!/usr/bin/env python3
"""Products in fp8 with a scale for each row of A, beside vLLM's CUTLASS kernels for them.

  tests/gpu/scaled_products.py BUILD LIBRARY [--kernels] [--shapes "N,K N,K..."] [--rows M,M...] [--keep FILE]

LIBRARY: the file with vLLM's kernels, of a wheel's vllm/. In replayed graphs that read more weights than L2 holds; ours may begin before the kernel
before it has ended, as in graphs under the shim. Compared are the errors from float64. --kernels: all kernels of kernels/gemm_scaled that can serve a
product, with their numbers of blocks; what the tables in config/shared/gemm_scaled are made from.
"""
import argparse
import ctypes
import itertools
import json
import pathlib
import sys

import torch

from graph_time import graph_us
from kept_times import KeptTimes
from own_kernels import Kernels
from product_kernels import WEIGHTS, wide_kernels
from report import Report

ROWS = (1, 2, 4, 8, 16, 24, 32, 48, 64)
KINDS = ("tensor", "token", "channel")  # one scale for A and one for B; for each row of A; and for each of B
FP8 = torch.float8_e4m3fn


class Product:
    """M rows of A, and weights by turns."""

    def __init__(self, kind, weights, m):
        self.n, self.k, self.m = *weights[1].shape, m
        self.weights, self.turn = weights, itertools.cycle(weights)
        self.a = torch.randn(m, self.k, device="cuda").mul_(20).to(FP8)
        self.scale_a = torch.rand(1 if kind == "tensor" else m, 1, device="cuda").mul_(0.1).add_(0.01)
        self.scale_b = torch.rand(self.n if kind == "channel" else 1, 1, device="cuda").mul_(0.1).add_(0.01)
        self.c = torch.empty(m, self.n, device="cuda", dtype=torch.bfloat16)
        product = torch.cat([self.a.double() @ part.double().T for part in weights[1].split(16384)], dim=1)
        self.exact = product * self.scale_a.double() * self.scale_b.double().T

    def vllm(self, weight):
        torch.ops._C.cutlass_scaled_mm(self.c, self.a, weight.T, self.scale_a, self.scale_b, None)

    def sizes(self):
        return self.m, self.n, self.k

    def ours(self, kernels, name, grid, block, cluster, shared_mem):
        sizes = [ctypes.c_int(size) for size in self.sizes()]
        return lambda weight: kernels.launch(name, grid, block, [self.a, weight, self.scale_a, self.scale_b, self.c, *sizes], shared_mem,
                                             may_begin_early=True, cluster=cluster)

    def error(self, run):
        self.c.fill_(float("nan"))
        run(self.weights[1])
        found = (self.c.double() - self.exact).abs()
        return found.mean().item(), found.max().item()

    def us(self, run):
        return graph_us(lambda: run(next(self.turn)), self.n * self.k)


def is_near(ours, theirs):
    return all(one <= 1.01 * other for one, other in zip(ours, theirs))


def candidates(product, known, family, suffix=""):
    """(text, launch) of each kernel of the family with each number of blocks."""
    fitting = min((kernel.rows for kernel in known.values() if kernel.rows >= product.m), default=0)
    for kernel in known.values():
        if kernel.rows == fitting and product.k % (512 * kernel.cluster) == 0:
            for clusters in kernel.clusters(product.n):
                blocks = clusters * kernel.cluster
                yield f"{kernel.name.removeprefix(family + '_')} {blocks}", (kernel.name + suffix, blocks, kernel.threads, kernel.cluster, kernel.shared_mem)


def launch_of(solution):
    launch = solution["launch"]
    return launch["kernel"], launch["grid"][0], launch["block"][0], launch["cluster"][0], launch["shared_mem"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("library", type=pathlib.Path)
    parser.add_argument("--kernels", action="store_true")
    parser.add_argument("--rows", type=lambda text: [int(m) for m in text.split(",")], default=ROWS)
    parser.add_argument("--shapes", type=lambda text: [tuple(map(int, shape.split(","))) for shape in text.split()])
    parser.add_argument("--kinds", type=lambda text: text.split(","), default=KINDS)
    parser.add_argument("--keep", type=pathlib.Path, metavar="FILE", help="write the times for `fibshim bench --keep-from FILE BUILD/config/vllm`")
    args = parser.parse_args()
    torch.ops.load_library(str(args.library))
    root = pathlib.Path(__file__).resolve().parent.parent.parent
    known, kernels = wide_kernels(root / "kernels/gemm_scaled/gemm_scaled.cu"), Kernels(args.build / "kernels/gemm_scaled/gemm_scaled.sm_90.cubin")
    kept, report = KeptTimes(args.build / "config/vllm"), Report("scaled_products")
    if not args.shapes:
        lines = (root / "config/shared/gemm_scaled/sizes.table").read_text().splitlines()
        args.shapes = [tuple(map(int, line.split()[:2])) for line in lines if line[:1].isdigit()]
    pool = torch.randint(0, 256, (max(WEIGHTS, 2 * max(n * k for n, k in args.shapes)),), device="cuda", dtype=torch.uint8)
    pool.masked_fill_(pool & 127 == 127, 0)  # no number
    for n, k in args.shapes:
        weights = [pool[i * n * k:(i + 1) * n * k].view(FP8).view(n, k) for i in range(max(2, min(len(pool), WEIGHTS) // (n * k)))]
        for kind, m in itertools.product(args.kinds, args.rows):
            product, name = Product(kind, weights, m), f"gemm_fp8{'' if kind == 'tensor' else '_' + kind}_n{n}_k{k}"
            theirs, before = product.error(product.vllm), product.us(product.vllm)
            if args.kernels:
                texts = []
                for text, launch in candidates(product, known, "gemm_scaled", f"_{kind}"):
                    run = product.ours(kernels, *launch)
                    texts.append((product.us(run), text + ("" if is_near(product.error(run), theirs) else "!")))
                print(f"{n} x {k} {kind}, {m} rows: vLLM {min(before, product.us(product.vllm)):.2f}; " +
                      ", ".join(f"{text} {us:.2f}" for us, text in sorted(texts)), flush=True)
                continue
            solution = kept.solution_for(name, M=m)
            if solution is None:
                print(f"     {name}, {m} rows: {before:.2f} us, vLLM's stays")
                continue
            run = product.ours(kernels, *launch_of(solution))
            ours, us = product.error(run), product.us(run)
            told = [f"{one[0]:.4g} in the mean, {one[1]:.4g} at most" for one in (ours, theirs)]
            report.check(f"{name}, {m} rows: {us:.2f} us, vLLM's {before:.2f}",
                         [] if is_near(ours, theirs) else [f"{told[0]} from float64, vLLM's {told[1]}"])
            kept.add(name, "CUTLASS, vLLM", us, before, M=m)
    if args.keep:
        kept.write_here(args.keep)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
