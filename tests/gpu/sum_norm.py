#!/usr/bin/env python3
"""The sum of a product's parts and the norm behind it as one kernel (config/vllm), beside the two that they are one for one.

    sum_norm.py [--clusters N,N...] [--rows M,M...] [--keep FILE]

All bytes must be the same. Timed are replayed graphs, each kernel of which may begin before the one before it has ended: of the
sum and the norm alone, and of a layer's down, sum, norm, and qkv, whose weights L2 does not hold. A cluster of so many blocks
shares a row; the folder's own number is marked.
"""
import argparse
import copy
import itertools
import os
import sys

import torch

from counters import BUILD
from graph_time import graph_us
from kept_times import KeptTimes
from report import Report
from solutions import evaluate, load_all

EPS = 1e-5
HIDDEN, WIDE, QKV = 4096, 14336, 6144
# Of our one kernel, by its name: the norm, its further inputs, and what it keeps.
KINDS = {"add_rmsnorm": (("first",), ("C", "output")),
         "add2_rmsnorm": (("first", "second"), ("output",)),
         "add2_rmsnorm_sum": (("first", "second"), ("C", "output", "sum"))}
SPLITS = (2, 3, 4)
LAYERS = 8


class Case:
    def __init__(self, solutions, kind, splits, rows):
        self.solutions, self.kind, self.splits, self.rows = solutions, kind, splits, rows
        generator = torch.Generator(device="cuda").manual_seed(rows * 8 + splits)
        normal = lambda *shape: torch.randn(*shape, generator=generator, device="cuda")
        self.parts = normal(splits, rows, HIDDEN)
        self.parts[:, :, ::61] = -0.0
        self.parts[-1, :, ::67] = -self.parts[:-1, :, ::67].sum(0)  # nearly nothing is left
        self.inputs = {name: normal(rows, HIDDEN).bfloat16() for name in ("first", "second")}
        self.inputs["weight"] = (1 + 0.2 * normal(HIDDEN)).bfloat16()
        self.kept = KINDS[kind][1]
        self.poison()

    def poison(self):
        self.outputs = {name: torch.full((self.rows, HIDDEN), float("nan"), dtype=torch.bfloat16, device="cuda")
                        for name in ("C", "output", "sum")}
        if "C" not in self.kept:
            self.outputs["output"] = self.outputs["C"]  # in place
        self.arguments = {**self.inputs, **self.outputs, "partial_sums": self.parts, "hidden_states": self.outputs["C"],
                          "eps": EPS, "M": self.rows, "batch_size": self.rows, "elements": self.rows * HIDDEN}

    def one_for_one(self):
        choose(self.solutions, f"splitk_reduce_n{HIDDEN}_split{self.splits}", self.rows).launch(self.arguments, True)
        choose(self.solutions, f"{self.kind}_h{HIDDEN}", self.rows).launch(self.arguments, True)

    def as_one(self, blocks):
        of_blocks(self.solution(), blocks).launch(self.arguments, True)

    def solution(self):
        return choose(self.solutions, f"splitk_reduce_{self.kind}_h{HIDDEN}_split{self.splits}", 1)

    def bytes_of(self, run):
        self.poison()
        torch.cuda.synchronize()
        run()
        torch.cuda.synchronize()
        return {name: self.outputs[name].view(torch.int16) for name in self.kept}


def choose(solutions, definition, rows):
    """The solution that is for so many rows."""
    names = {"M": rows, "batch_size": rows}
    found = [one for one in solutions[definition] if all(evaluate(when, names) for when in one.launch_block.get("when", ()))]
    return found[0]


def of_blocks(solution, blocks, made={}):
    """The same with clusters of so many blocks."""
    key = solution.definition, blocks
    if key not in made:
        made[key] = copy.copy(solution)
        made[key].launch_block = {**solution.launch_block, "grid": [f"batch_size * {blocks}", 1, 1],
                                  "block": [HIDDEN // 8 // blocks, 1, 1], "cluster": [blocks, 1, 1]}
    return made[key]


def in_a_layer(case, weights):
    """down, what `between` does, and qkv: us."""
    down = choose(case.solutions, f"gemm_n{HIDDEN}_k{WIDE}_split4", case.rows)
    qkv = choose(case.solutions, f"gemm_n{QKV}_k{HIDDEN}", case.rows)
    a = torch.randn(case.rows, WIDE, device="cuda").bfloat16()
    c = torch.empty(case.rows, QKV, dtype=torch.bfloat16, device="cuda")
    sizes = {"M": case.rows}

    def us(between):
        turn = itertools.cycle(weights)

        def layer():
            of_down, of_qkv = next(turn)
            down.launch({**sizes, "A": a, "B": of_down, "partial_sums": case.parts, "N": HIDDEN, "K": WIDE}, True)
            between()
            qkv.launch({**sizes, "A": case.outputs["output"], "B": of_qkv, "C": c, "N": QKV, "K": HIDDEN}, True)

        return min(graph_us(layer, 1 << 28) for _ in range(3))

    return us


def main():
    numbers = lambda text: [int(number) for number in text.split(",")]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clusters", type=numbers, default=[1, 2, 4, 8])
    parser.add_argument("--rows", type=numbers, default=[1, 2, 4, 8, 16, 32, 64])
    parser.add_argument("--keep", metavar="FILE", help="write the times for `fibshim bench --keep-from FILE BUILD/config/vllm`")
    options = parser.parse_args()
    report = Report("sum_norm")
    if torch.cuda.get_device_capability() != (9, 0):
        report.skip("sum_norm", "the kernels are for sm_90")
        return report.finish()
    solutions = {}
    for folder in ("vllm", "cublas"):
        for solution in load_all(os.path.join(BUILD, "config", folder)):
            solutions.setdefault(solution.definition, []).append(solution)
    torch.zeros(1, device="cuda")  # the primary context, current to this thread
    with report.phase("the same bytes as one for one") as problems:
        for kind, splits, rows in itertools.product(KINDS, SPLITS, options.rows):
            case = Case(solutions, kind, splits, rows)
            expected = case.bytes_of(case.one_for_one)
            for blocks in options.clusters:
                found = case.bytes_of(lambda: case.as_one(blocks))
                problems += [f"{kind}, {splits} parts, {rows} rows, clusters of {blocks}: {name} has "
                             f"{(found[name] != expected[name]).sum().item()} other elements"
                             for name in case.kept if not torch.equal(found[name], expected[name])]
    own = Case(solutions, "add2_rmsnorm_sum", 4, 1).solution().launch_block["cluster"][0]
    shown = lambda times: ", ".join(f"{us:.2f} by {blocks}{'*' if blocks == own else ''}" for blocks, us in times.items())
    kept = KeptTimes(os.path.join(BUILD, "config/vllm"))
    with report.phase("times"):
        for kind, splits, rows in itertools.product(KINDS, SPLITS, options.rows):
            case = Case(solutions, kind, splits, rows)
            moved = 4 * case.parts.numel()
            times = {blocks: graph_us(lambda: case.as_one(blocks), moved) for blocks in options.clusters}
            as_two = graph_us(case.one_for_one, moved)
            print(f"{kind}, {splits} parts, {rows} rows: {as_two:.2f} us as two, {shown(times)}", flush=True)
            if own in times:
                kept.add(case.solution().definition, "as two", times[own], as_two, batch_size=rows)
        weights = [[(0.02 * torch.randn(n, k, device="cuda")).bfloat16() for n, k in ((HIDDEN, WIDE), (QKV, HIDDEN))]
                   for _ in range(LAYERS)]
        for rows in (rows for rows in options.rows if rows <= 32):
            case = Case(solutions, "add2_rmsnorm_sum", 4, rows)
            us = in_a_layer(case, weights)
            times = {blocks: us(lambda: case.as_one(blocks)) for blocks in options.clusters}
            print(f"down, sum, norm, qkv, {rows} rows: {us(case.one_for_one):.2f} us as two, {shown(times)}", flush=True)
    if options.keep:
        kept.write_here(options.keep)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
