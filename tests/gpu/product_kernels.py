#!/usr/bin/env python3
"""Every kernel of kernels/gemm and kernels/gemm_wide that can serve a product, beside cuBLAS's: what the tables of rows of
config/shared/gemm_wide, and those of few rows of config/shared/gemm, are made from.

  tests/gpu/product_kernels.py BUILD [--bias] [--shapes "N,K N,K..."] [--rows M,M...]

In bfloat16, in replayed graphs that read more weights than L2 holds. Each kernel may begin before the one before it has ended, as in graphs
under the shim. A line has cuBLAS's microseconds (the better of two times), those of a kernel that only reads the weights, and each kernel's with its number
of blocks; behind '!' what is farther from float64 than cuBLAS's product.
"""
import argparse
import ctypes
import itertools
import pathlib
import re

import torch

from graph_time import graph_us
from own_kernels import Kernels

WEIGHTS = 1 << 30  # bytes that a graph reads at least
MOST_SHARED_MEM = 227 << 10
MOST_CLUSTERS = {1: 132, 2: 66, 4: 30}  # that an H200 runs at a time
ROWS = (1, 8, 16, 24, 32, 40, 48, 64)


class Kernel:
    def __init__(self, name, rows, units, cluster, threads, shared_mem, k=None):
        self.name, self.rows, self.cluster, self.threads, self.shared_mem = name, rows, cluster, threads, shared_mem
        self.units, self.k = units, k  # rows of B by 8 that a cluster may hold, and the only K; None: any

    def can_serve(self, k):
        return self.k == k if self.k else (k % (256 * self.cluster) > 0) == ("_tail_" in self.name)

    def clusters(self, n):
        """Whole numbers of the units that clusters divide, where there are some, and as many as run at a time."""
        units, most = n // (16 if self.k else 8), MOST_CLUSTERS[self.cluster]
        found = {most, min(most, 128 // self.cluster)}
        found.update(itertools.islice((count for count in range(most, most * 6 // 10, -1) if units % count == 0), 1))
        return sorted(min(count, units) for count in found if not self.units or -(-units // count) <= self.units)


def kernels_of(source, pattern):
    for line in source.read_text().splitlines():
        found = re.fullmatch(pattern, line)
        if found:
            yield found[1], *map(int, found[2].split(", "))


def wide_kernels(source, bytes_of_scales=0, macros="FIBSHIM_KERNELS?(?:_OF_ALL|_OF_TAIL)?"):
    """Those whose sizes are wide_product.cuh's, by name. `bytes_of_scales`: of a row of A in a stage."""
    known = {}
    for name, rows, tiles, ring, stages, cluster, groups in kernels_of(source, macros + r"\((gemm_\w+), ([\d, ]+)\)"):
        shared_mem = ring * 1024 + stages * rows * (512 + bytes_of_scales) + 2 * (32 + stages) * 8 + (16 if cluster > 1 else 0)
        inbox = (cluster - 1) * tiles * groups * (rows // 8 // cluster) * 2048
        shared_mem += inbox if shared_mem + inbox <= MOST_SHARED_MEM else 0
        known[name] = Kernel(name, rows, tiles * groups * 8 if cluster > 1 else None, cluster, (groups * 4 + 5) * 32, shared_mem)
    return known


def all_kernels(root, has_bias):
    known = {}
    with_bias = "_WITH_BIAS" if has_bias else ""
    for name, warps, columns, cluster, stages, *lacking in kernels_of(root / "kernels/gemm/gemm.cu",
                                                                      rf"FIBSHIM_KERNELS(?:_OF_BF16)?{with_bias}\((gemm_k\w+), ([\d, ]+)\)"):
        shared_mem = warps * stages * 2048 + 2 * warps * 512 + (2080 if cluster > 1 else 0)
        known[name] = Kernel(name, 8, None, cluster, warps * 32, shared_mem, warps * columns * cluster - sum(lacking))
    source = root / "kernels/gemm_wide/gemm_wide.cu"
    known.update(wide_kernels(source, macros="FIBSHIM_KERNELS_OF_(?:ALL|(?:BF16|TAIL)_WITH_BIAS)") if has_bias else wide_kernels(source))
    return list(known.values())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--bias", action="store_true", help="added to each row")
    parser.add_argument("--rows", type=lambda text: [int(m) for m in text.split(",")], default=list(ROWS))
    parser.add_argument("--shapes", type=lambda text: [tuple(map(int, shape.split(","))) for shape in text.split()])
    args = parser.parse_args()
    root = pathlib.Path(__file__).resolve().parent.parent.parent
    kernels = all_kernels(root, args.bias)
    modules = {family: Kernels(args.build / f"kernels/{family}/{family}.sm_90.cubin") for family in ("gemm", "gemm_wide")}
    reading = Kernels(args.build / "tests/data/reading_kernels.fatbin")
    if not args.shapes:
        tables = ("bias_sizes", "bias_bf16_sizes") if args.bias else ("sizes", "bf16_sizes")
        lines = [line for table in tables for line in (root / f"config/shared/gemm/{table}.table").read_text().splitlines()]
        args.shapes = [tuple(map(int, line.split()[:2])) for line in lines if line[:1].isdigit()]
    pool = torch.empty(max(WEIGHTS // 2, 2 * max(n * k for n, k in args.shapes)), device="cuda", dtype=torch.bfloat16).normal_(0, 0.02)
    nothing, sink = torch.zeros(1, device="cuda"), torch.zeros(512, device="cuda")
    for n, k in args.shapes:
        moved = n * k * 2
        weights = [pool[i * n * k:(i + 1) * n * k].view(n, k) for i in range(max(2, min(len(pool) // (n * k), WEIGHTS // moved)))]
        turn = itertools.cycle(weights)
        read_us = min(graph_us(lambda: reading.launch(f"read_early_{loads}", 132 * blocks, 512, [next(turn), ctypes.c_int64(moved // 16), nothing, sink],
                                                      may_begin_early=True), moved) for loads in (4, 8) for blocks in (1, 2))
        bias = [torch.randn(n, device="cuda").to(torch.bfloat16)] if args.bias else []
        for m in args.rows:
            x = torch.randn(m, k, device="cuda").to(torch.bfloat16)
            y = torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
            exact = torch.cat([x.double() @ part.double().T for part in weights[1].split(16384)], dim=1)
            error = lambda found: (found.double() - exact - sum(bias)).abs()
            theirs = error(torch.nn.functional.linear(x, weights[1], *bias))
            cublas_us = lambda: graph_us(lambda: torch.nn.functional.linear(x, next(turn), *bias), moved)
            before, texts = cublas_us(), []
            fitting = min((kernel.rows for kernel in kernels if kernel.rows >= max(m, 9)), default=0)
            for kernel in kernels:
                if kernel.rows != (8 if kernel.k else fitting) or kernel.rows < m or not kernel.can_serve(k):
                    continue
                for clusters in kernel.clusters(n):
                    sizes = [ctypes.c_int(m), ctypes.c_int(n)] + ([] if kernel.k else [ctypes.c_int(k)])

                    def run(weight):
                        modules["gemm" if kernel.k else "gemm_wide"].launch(kernel.name + "_bias" * args.bias + "_bf16", clusters * kernel.cluster,
                                                                           kernel.threads, [x, weight, *bias, y, *sizes], kernel.shared_mem,
                                                                           may_begin_early=True, cluster=kernel.cluster)
                    y.fill_(float("nan"))
                    run(weights[1])
                    ours = error(y)
                    is_right = bool(ours.mean() <= 1.01 * theirs.mean() and ours.max() <= 1.01 * theirs.max())
                    texts.append(f"{kernel.name[5:]} {clusters * kernel.cluster} {graph_us(lambda: run(next(turn)), moved):.2f}{'' if is_right else '!'}")
            print(f"{n} x {k}, {m} rows: cuBLAS {min(before, cublas_us()):.2f}, reading {read_us:.2f}; {', '.join(texts)}", flush=True)


if __name__ == "__main__":
    main()
