#!/usr/bin/env python3
"""Products with weights in 4 bits and a scale for each 128 columns, beside vLLM's Machete.

  tests/gpu/machete_products.py BUILD LIBRARY [--kernels] [--forms FORM,...] [--shapes "N,K N,K..."] [--rows M,M...] [--keep FILE]

LIBRARY: the file with vLLM's kernels, of a wheel's vllm/. FORM: bf16 and fp16 for weights (q - 8) * scale, offsets_bf16 and offsets_fp16 for q * scale +
offset. In replayed graphs that read more weights than L2 holds; ours may begin before the kernel before it has ended, as in graphs under the shim.
Compared are the errors from float64, in the mean and at most. --kernels: all kernels of kernels/gemm_w4a16 and gemm_w4a16_wide that can serve a product, with their numbers of
blocks; what the tables of rows in config/shared/gemm_w4a16 are made from.
"""
import argparse
import ctypes
import itertools
import math
import pathlib
import sys

import torch

from graph_time import graph_us
from kept_times import KeptTimes
from own_kernels import Kernels
from product_kernels import MOST_CLUSTERS, MOST_SHARED_MEM, kernels_of
from report import Report
from scaled_products import launch_of

ROWS = (1, 3, 8, 9, 13, 16, 17, 24, 32, 33, 45, 64)
FORMS = ("bf16", "fp16", "offsets_bf16", "offsets_fp16")  # as our kernels' names end
WEIGHTS = 256 << 20  # bytes that lie there by turns; of more, making them ready takes long
GROUP = 128  # columns of a scale
# How vLLM's operations name the types of weights: the ids of its scalar_types.uint4 and uint4b8 (vllm/scalar_type.py).
UINT4, UINT4B8 = 1125899906843648, 1125899907892224


class Weights:
    """A form's B of one size, as Machete reads it, several times with other rows' columns; and the first of these as numbers."""

    def __init__(self, form, n, k):
        self.form, self.n, self.k = form, n, k
        self.dtype = torch.float16 if form.endswith("fp16") else torch.bfloat16
        self.has_offsets = form.startswith("offsets")
        self.type = UINT4 if self.has_offsets else UINT4B8
        q = torch.randint(0, 16, (k, n), device="cuda", dtype=torch.int32)
        packed = torch.zeros(k // 8, n, device="cuda", dtype=torch.int32)
        for i in range(8):
            packed |= q[i::8] << 4 * i
        self.scales = torch.rand(k // GROUP, n, device="cuda").mul_(0.004).add_(0.001).to(self.dtype)
        zeros = torch.randint(0, 16, (k // GROUP, n), device="cuda")
        self.offsets = (-self.scales.float() * zeros).to(self.dtype) if self.has_offsets else None
        self.turns = [self.prepack(packed.roll(i, 0)) for i in range(max(2, WEIGHTS // (n * k // 2)))]
        self.q = q.to(torch.uint8)

    def prepack(self, packed):
        return torch.ops._C.machete_prepack_B(packed.t().contiguous().t(), self.dtype, self.type, self.dtype)

    def product(self, a):
        """a * B^T in float64, some columns of it at a time."""
        parts = []
        for begin in range(0, self.n, 16384):
            rows = slice(begin, begin + 16384)
            scales = self.scales[:, rows].double().repeat_interleave(GROUP, 0)
            if self.has_offsets:
                weight = self.q[:, rows].double() * scales + self.offsets[:, rows].double().repeat_interleave(GROUP, 0)
            else:
                weight = (self.q[:, rows].double() - 8) * scales
            parts.append(a.double() @ weight)
        return torch.cat(parts, dim=1)


class Product:
    """M rows of A, half of them not about 0, and weights by turns. A row that is not C's lies behind it."""

    def __init__(self, weights, m):
        self.weights, self.m, self.turn = weights, m, itertools.cycle(weights.turns)
        self.a = torch.randn(m, weights.k, device="cuda").to(weights.dtype)
        self.a[: m // 2] += 1
        self.whole = torch.empty(m + 1, weights.n, device="cuda", dtype=weights.dtype)
        self.c = self.whole[:m]
        self.exact = weights.product(self.a)

    def machete(self, weight):
        of = self.weights
        return torch.ops._C.machete_mm(self.a, weight, of.type, None, of.scales, of.offsets, GROUP, None, None, None)

    def ours(self, kernels, name, grid, block, cluster, shared_mem):
        of = self.weights
        operands = [of.scales] + [of.offsets] * of.has_offsets
        sizes = [ctypes.c_int(size) for size in (self.m, of.n, of.k)]

        def run(weight):
            kernels.launch(name, grid, block, [self.a, weight, *operands, self.c, *sizes], shared_mem, may_begin_early=True, cluster=cluster)
            return self.c
        return run

    def error(self, run):
        """Of the first weights: in the mean, and at most."""
        self.whole.fill_(float("nan"))
        found = (run(self.weights.turns[0]).double() - self.exact).abs()
        if not self.whole[self.m].isnan().all():
            return math.inf, math.inf
        return found.mean().item(), found.max().item()

    def us(self, run):
        return graph_us(lambda: run(next(self.turn)), self.weights.n * self.weights.k // 2)


class Kernel:
    """One of kernels/gemm_w4a16, without its form."""

    def __init__(self, name, rows, warps, splits, cluster, stages):
        self.name, self.rows, self.warps, self.cluster, self.stages = name, rows, warps, cluster, stages

    def threads(self):
        return self.warps * 32

    def can_serve(self, k):
        return k % (GROUP * self.cluster) == 0

    def clusters(self, n):
        """As many as run at a time, the fewest that have as much to do, and those of 128 blocks."""
        strips, most = n // 16, MOST_CLUSTERS[self.cluster]
        return sorted({min(count, strips) for count in (most, -(-strips // -(-strips // most)), min(most, 128 // self.cluster))})

    def shared_mem(self, n, k, clusters):
        part, sums = k // self.cluster, self.rows * 20 * 4
        a = self.rows * (part * 2 + 16) + part // GROUP * self.rows * 4
        inbox = -(-(n // 16) // clusters) * sums if self.cluster > 1 else 0
        return self.warps * self.stages * 1088 + 2 * self.warps * sums + a + inbox


class WideKernel(Kernel):
    """One of kernels/gemm_w4a16_wide, whose warps that multiply have a strip each."""

    def __init__(self, name, rows, warpgroups, cluster, stages):
        super().__init__(name, rows, warpgroups * 4, 1, cluster, stages)

    def threads(self):
        return (self.warps + 4) * 32

    def clusters(self, n):
        return [count for count in super().clusters(n) if self.cluster == 1 or -(-(n // 16) // count) <= self.warps]

    def shared_mem(self, n, k, clusters):
        stage = 2 * self.rows * 128 + 2 * self.warps * 512 + 2 * self.warps * 32 + self.rows * 4 + 24
        return self.stages * -(-stage // 1024) * 1024


def family_of(kernel):
    return "gemm_w4a16_wide" if kernel.startswith("gemm_w4a16_wide_") else "gemm_w4a16"


def candidates(product, known):
    """(text, launch) of each kernel with each number of blocks."""
    of = product.weights
    fitting = min((kernel.rows for kernel in known if kernel.rows >= product.m), default=0)
    for kernel in known:
        if kernel.rows != fitting or not kernel.can_serve(of.k):
            continue
        for clusters in kernel.clusters(of.n):
            shared_mem, blocks = kernel.shared_mem(of.n, of.k, clusters), clusters * kernel.cluster
            if shared_mem <= MOST_SHARED_MEM:
                yield f"{kernel.name.removeprefix('gemm_w4a16_')} {blocks} {shared_mem}", (f"{kernel.name}_{of.form}", blocks, kernel.threads(),
                                                                                           kernel.cluster, shared_mem)


def is_near(ours, theirs):
    """In the mean, and at most, where one element decides; not so where it is no number."""
    return ours[0] <= 1.01 * theirs[0] and ours[1] <= 1.5 * theirs[1]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("library", type=pathlib.Path)
    parser.add_argument("--kernels", action="store_true")
    parser.add_argument("--rows", type=lambda text: [int(m) for m in text.split(",")], default=ROWS)
    parser.add_argument("--shapes", type=lambda text: [tuple(map(int, shape.split(","))) for shape in text.split()])
    parser.add_argument("--forms", type=lambda text: text.split(","), default=FORMS)
    parser.add_argument("--keep", type=pathlib.Path, metavar="FILE", help="write the times for `fibshim bench --keep-from FILE BUILD/config/machete`")
    args = parser.parse_args()
    if unknown := set(args.forms) - set(FORMS):
        parser.error(f"no such form: {', '.join(sorted(unknown))}")
    torch.ops.load_library(str(args.library))
    root = pathlib.Path(__file__).resolve().parent.parent.parent
    families = {"gemm_w4a16": Kernel, "gemm_w4a16_wide": WideKernel}
    known = [kind(*line) for family, kind in families.items()
             for line in kernels_of(root / f"kernels/{family}/{family}.cu", r"FIBSHIM_KERNELS\((gemm_w4a16_\w+), ([\d, ]+)\)")]
    modules = {family: Kernels(args.build / f"kernels/{family}/{family}.sm_90.cubin") for family in families}
    kept, report = KeptTimes(args.build / "config/machete"), Report("machete_products")
    if not args.shapes:
        lines = (root / "config/shared/gemm_w4a16/sizes.table").read_text().splitlines()
        args.shapes = [tuple(map(int, line.split()[:2])) for line in lines if line[:1].isdigit()]
    for (n, k), form in itertools.product(args.shapes, args.forms):
        weights = Weights(form, n, k)
        name = f"gemm_w4a16{''.join(f'_{part}' for part in form.split('_') if part != 'bf16')}_n{n}_k{k}"
        for m in args.rows:
            product = Product(weights, m)
            theirs, before = product.error(product.machete), product.us(product.machete)
            if args.kernels:
                texts = []
                for text, launch in candidates(product, known):
                    run = product.ours(modules[family_of(launch[0])], *launch)
                    texts.append((product.us(run), text + ("" if is_near(product.error(run), theirs) else "!")))
                print(f"{n} x {k} {form}, {m} rows: Machete {min(before, product.us(product.machete)):.2f}; " +
                      ", ".join(f"{text} {us:.2f}" for us, text in sorted(texts)), flush=True)
                continue
            size = {"M": m, "N_blocks": n // 128, "K_blocks": k // 64, "K_groups": k // GROUP}
            solution = kept.solution_for(name, **size)
            if solution is None:
                print(f"     {name}, {m} rows: {before:.2f} us, Machete's stays")
                continue
            launch = launch_of(solution)
            run = product.ours(modules[family_of(launch[0])], *launch)
            us, ours = product.us(run), product.error(run)  # the error after the replays, to show that they broke nothing
            told = [f"{one[0]:.4g} in the mean, {one[1]:.4g} at most" for one in (ours, theirs)]
            report.check(f"{name}, {m} rows: {us:.2f} us, Machete's {before:.2f}",
                         [] if is_near(ours, theirs) else [f"{told[0]} from float64, Machete's {told[1]}"])
            kept.add(name, "Machete, vLLM", us, before, **size)
    if args.keep:
        kept.write_here(args.keep)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
