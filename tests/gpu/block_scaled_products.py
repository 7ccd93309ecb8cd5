#!/usr/bin/env python3
"""Products in fp8 with scales of 128 columns, beside DeepGEMM's and FlashInfer's.

  tests/gpu/block_scaled_products.py BUILD [--kernels] [--shapes "N,K N,K..."] [--rows M,M...] [--keep FILE]

Needs `deep_gemm` (or vLLM, which has one), and below 32 rows flashinfer, if there. Both compile their kernels. In replayed graphs that read more weights than
L2 holds; ours may begin before the kernel before it has ended, as in graphs under the shim. FlashInfer's calls also make the scales: the time of
that alone is taken off. Compared are the errors from float64. --kernels: all kernels of kernels/gemm_block_scaled that can serve a product, with their
numbers of blocks; what the tables in config/shared/gemm_block_scaled are made from.
"""
import argparse
import itertools
import pathlib
import sys

import torch

from kept_times import KeptTimes
from own_kernels import Kernels
from product_kernels import WEIGHTS, wide_kernels
from report import Report
import scaled_products
from scaled_products import FP8, candidates, is_near, launch_of

try:
    import deep_gemm
except ImportError:
    from vllm.third_party import deep_gemm
try:
    from flashinfer.gemm import fp8_blockscale_gemm_sm90
    from flashinfer.gemm.gemm_base import get_fp8_blockscale_gemm_runner_sm90
except ImportError:
    fp8_blockscale_gemm_sm90 = None

ROWS = (1, 2, 4, 8, 16, 24, 32, 48, 64)
BYTES_OF_SCALES = 16  # of a row in a stage of 512 columns
SWAPPED_ROWS = 31  # vLLM's products with more are DeepGEMM's


class Product(scaled_products.Product):
    """M rows of A, and weights by turns."""

    def __init__(self, weights, m):
        self.n, self.k, self.m = *weights[1].shape, m
        self.weights, self.turn = weights, itertools.cycle(weights)
        self.x = torch.randn(m, self.k, device="cuda", dtype=torch.bfloat16)
        scales = self.x.float().view(m, -1, 128).abs().amax(dim=2) / 448
        self.a = (self.x.float().view(m, -1, 128) / scales.unsqueeze(2)).to(FP8).view(m, self.k)
        self.scale_a = torch.zeros(self.k // 128, (m + 3) // 4 * 4, device="cuda")
        self.scale_a[:, :m] = scales.T
        self.scale_b = torch.rand(-(-self.n // 128), self.k // 128, device="cuda").mul_(0.01).add_(0.001)
        self.c = torch.empty(m, self.n, device="cuda", dtype=torch.bfloat16)
        self.unused = torch.empty_like(self.a), torch.empty_like(self.scale_a)
        a = self.a.double() * scales.double().repeat_interleave(128, dim=1)
        scales = self.scale_b.double().repeat_interleave(128, dim=1)
        self.exact = torch.cat([a @ (part.double().view(-1, 128, self.k) * of_part[:, None]).view(-1, self.k).T
                                for part, of_part in zip(weights[1].split(128 * 128), scales.split(128))], dim=1)

    def deep_gemm(self, weight):
        deep_gemm.fp8_gemm_nt((self.a, self.scale_a[:, :self.m].T), (weight, self.scale_b), self.c, disable_ue8m0_cast=True)

    def flashinfer(self, weight):
        fp8_blockscale_gemm_sm90(self.x, weight, weight_scale=self.scale_b, out=self.c)

    def flashinfer_scales(self, _):
        get_fp8_blockscale_gemm_runner_sm90().fp8_quantize_1x128(self.x, *self.unused, False)

    def sizes(self):
        return *super().sizes(), self.scale_a.shape[1]

    def originals(self):
        """{whose: microseconds}"""
        found = {"DeepGEMM": self.us(self.deep_gemm)}
        if fp8_blockscale_gemm_sm90 and self.m <= SWAPPED_ROWS:
            found["FlashInfer"] = self.us(self.flashinfer) - self.us(self.flashinfer_scales)
        return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--kernels", action="store_true")
    parser.add_argument("--rows", type=lambda text: [int(m) for m in text.split(",")], default=ROWS)
    parser.add_argument("--shapes", type=lambda text: [tuple(map(int, shape.split(","))) for shape in text.split()])
    parser.add_argument("--keep", type=pathlib.Path, metavar="FILE", help="write the times for `fibshim bench --keep-from FILE BUILD/config/vllm`")
    args = parser.parse_args()
    root = pathlib.Path(__file__).resolve().parent.parent.parent
    known = wide_kernels(root / "kernels/gemm_block_scaled/gemm_block_scaled.cu", BYTES_OF_SCALES)
    kernels = Kernels(args.build / "kernels/gemm_block_scaled/gemm_block_scaled.sm_90.cubin")
    kept, report = KeptTimes(args.build / "config/vllm"), Report("block_scaled_products")
    if not args.shapes:
        lines = (root / "config/shared/gemm_block_scaled/sizes.table").read_text().splitlines()
        args.shapes = [tuple(map(int, line.split()[:2])) for line in lines if line[:1].isdigit()]
    pool = torch.randint(0, 256, (max(WEIGHTS, 2 * max(n * k for n, k in args.shapes)),), device="cuda", dtype=torch.uint8)
    pool.masked_fill_(pool & 127 == 127, 0)  # no number
    for n, k in args.shapes:
        weights = [pool[i * n * k:(i + 1) * n * k].view(FP8).view(n, k) for i in range(max(2, min(len(pool), WEIGHTS) // (n * k)))]
        for m in args.rows:
            product, name = Product(weights, m), f"gemm_fp8_block_n{n}_k{k}"
            theirs, originals = product.error(product.deep_gemm), product.originals()
            told = ", ".join(f"{whose} {us:.2f}" for whose, us in originals.items())
            if args.kernels:
                texts = []
                for text, launch in candidates(product, known, "gemm_block_scaled"):
                    run = product.ours(kernels, *launch)
                    texts.append((product.us(run), text + ("" if is_near(product.error(run), theirs) else "!")))
                print(f"{n} x {k}, {m} rows: {told}, {product.us(product.deep_gemm):.2f}; " + ", ".join(f"{text} {us:.2f}" for us, text in sorted(texts)), flush=True)
                continue
            size = {"M": m, "M_padded": product.scale_a.shape[1], "N_blocks": product.scale_b.shape[0], "K_blocks": k // 128}
            solution = kept.solution_for(name, **size)
            if solution is None:
                print(f"     {name}, {m} rows: {told} us stays")
                continue
            run = product.ours(kernels, *launch_of(solution))
            ours, us = product.error(run), product.us(run)
            errors = [f"{one[0]:.4g} in the mean, {one[1]:.4g} at most" for one in (ours, theirs)]
            report.check(f"{name}, {m} rows: {us:.2f} us, {told}", [] if is_near(ours, theirs) else [f"{errors[0]} from float64, DeepGEMM's {errors[1]}"])
            for whose, original_us in originals.items():
                kept.add(name, whose, us, original_us, **size)
    if args.keep:
        kept.write_here(args.keep)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
