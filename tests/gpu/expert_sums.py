#!/usr/bin/env python3
"""The sum of a token's rows of its experts, alone and with the norm behind it as one kernel (config/vllm, config/sglang).

  tests/gpu/expert_sums.py BUILD vllm|sglang [--clusters N,N...] [--rows M,M...] [--out FILE] [--keep FILE]

The engine (vLLM 0.33, SGLang 0.5.23) must be importable: its own functions launch its sums. Ours must have the same bytes, also beside the
order of additions in PyTorch, and as one the bytes of our two one for one; nothing may be written beside the outputs. Timed are replayed
graphs, each kernel of which may begin before the one before it has ended: the engine's sum and ours, and with our norm behind it, two and
one. A cluster of so many blocks shares a row; the folder's own number is marked. None may be slower.
"""
import argparse
import copy
import itertools
import pathlib
import re
import sys

import torch

from graph_time import graph_us
from kept_times import NOISE, KeptTimes, finish
from report import Report
from solutions import evaluate, load_all

EPS = 1e-6
SIZES = {"vllm": ((2048, 8), (4096, 8), (4096, 2)), "sglang": ((2048, 8), (4096, 8))}  # hidden size, a token's experts
# The norms by engine: their further inputs, and what they keep.
KINDS = {"vllm": {"add2_rmsnorm": (("first", "second"), ("output",)), "add2_rmsnorm_sum": (("first", "second"), ("C", "output", "sum"))},
         "sglang": {"fused_add_rmsnorm": (("residual",), ("output", "residual_output"))}}
SIZES_OF_NORMS = {"vllm": ((2048, 8), (4096, 2)), "sglang": ((2048, 8),)}
NAMES = {"vllm": "vLLM", "sglang": "SGLang"}
IN_PLACE = ("add2_rmsnorm", "fused_add_rmsnorm")  # on the sum
GUARD, POISON = 256, 0x5555  # elements before and behind each output


def definition_of(size, kind):
    """kind: None for the sum alone."""
    return f"moe_sum{'_' + kind if kind else ''}_h{size[0]}_top{size[1]}"


def sum_of(engine):
    """(experts' outputs, sum): as the engine launches it, not scaled."""
    if engine == "vllm":
        from vllm import _custom_ops
        return lambda outputs, c: _custom_ops.moe_sum(outputs, c)
    from sgl_kernel import moe_sum_reduce
    from sglang.kernels.ops.moe.fused_moe_triton_kernels import moe_sum_reduce_triton
    return lambda outputs, c: (moe_sum_reduce_triton if len(c) <= 32 else moe_sum_reduce)(outputs, c, 1.0)


def choose(solutions, definition, rows):
    """The solution that is for so many rows."""
    names = {"batch_size": rows, "hidden_size": int(re.search(r"_h(\d+)", definition)[1])}
    return next(one for one in solutions[definition] if all(evaluate(when, names) for when in one.launch_block.get("when", ())))


def of_blocks(solution, blocks, made={}):
    """The same with clusters of so many blocks."""
    key = solution.definition, blocks
    if key not in made:
        made[key] = copy.copy(solution)
        block, own = solution.launch_block["block"][0], solution.launch_block["cluster"][0]
        made[key].launch_block = {**solution.launch_block, "grid": [f"batch_size * {blocks}", 1, 1], "block": [block * own // blocks, 1, 1],
                                  "cluster": [blocks, 1, 1]}
    return made[key]


class Case:
    def __init__(self, solutions, size, kind, kinds, rows):
        (self.hidden, self.topk), self.kind, self.rows, self.solutions = size, kind, rows, solutions
        generator = torch.Generator(device="cuda").manual_seed(rows * 16 + self.topk)
        normal = lambda *shape: torch.randn(*shape, generator=generator, device="cuda").bfloat16()
        self.experts = normal(rows, self.topk, self.hidden)
        self.experts[:, :, ::61] = -0.0
        self.experts[:, -1, ::67] = -self.experts[:, :-1, ::67].float().sum(1).bfloat16()  # nearly nothing is left
        further, self.kept = kinds.get(kind, ((), ("C",)))
        self.inputs = {name: normal(rows, self.hidden) for name in further}
        self.weight = (1 + 0.2 * normal(self.hidden).float()).bfloat16()
        self.poison()

    def poison(self):
        self.memory = {name: torch.full((2 * GUARD + self.rows * self.hidden,), POISON, dtype=torch.int16, device="cuda")
                       for name in ("C", "output", "sum", "residual_output")}
        self.outputs = {name: memory[GUARD:-GUARD].view(torch.bfloat16).view(self.rows, self.hidden) for name, memory in self.memory.items()}
        if self.kind in IN_PLACE:
            self.outputs["output"] = self.outputs["C"]
        if "residual" in self.inputs:
            self.outputs["residual_output"].copy_(self.inputs["residual"])
        self.arguments = {**self.inputs, **self.outputs, "weight": self.weight, "expert_outputs": self.experts, "hidden_states": self.outputs["C"],
                          "eps": EPS, "weight_bias": 0.0, "batch_size": self.rows, "input_stride": self.hidden, "residual_stride": self.hidden}
        if "residual" in self.inputs:
            self.arguments["residual"] = self.outputs["residual_output"]

    def definition(self):
        return definition_of((self.hidden, self.topk), self.kind)

    def solution(self):
        return choose(self.solutions, self.definition(), self.rows)

    def alone(self):
        choose(self.solutions, definition_of((self.hidden, self.topk), None), self.rows).launch(self.arguments, True)

    def norm(self):
        choose(self.solutions, f"{self.kind}_h{self.hidden}", self.rows).launch(self.arguments, True)

    def bytes_of(self, run):
        """What it writes, and where beside its outputs."""
        self.poison()
        torch.cuda.synchronize()
        run()
        torch.cuda.synchronize()
        beside = [name for name, memory in self.memory.items() if any((edge != POISON).any() for edge in (memory[:GUARD], memory[-GUARD:]))]
        return {name: self.outputs[name].view(torch.int16).clone() for name in self.kept}, beside

    def in_order(self):
        """PyTorch's, with additions in the same order."""
        total = torch.zeros(self.rows, self.hidden, device="cuda")
        for k in range(self.topk):
            total += self.experts[:, k].float()
        self.outputs["C"].copy_(total.bfloat16())


def compare(case, problems, what, expected, run):
    found, beside = case.bytes_of(run)
    problems += [f"{case.definition()}, {case.rows} rows, {what}: {name} has {(found[name] != expected[name]).sum().item()} other elements"
                 for name in case.kept if not torch.equal(found[name], expected[name])]
    problems += [f"{case.definition()}, {case.rows} rows, {what}: written beside {name}" for name in beside]


def main():
    numbers = lambda text: [int(number) for number in text.split(",")]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("engine", choices=KINDS)
    parser.add_argument("--clusters", type=numbers, default=[1, 2, 4])
    parser.add_argument("--rows", type=numbers, default=[1, 2, 4, 8, 16, 24, 32, 33, 48, 64])
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--keep", type=pathlib.Path, metavar="FILE", help="write the times for `fibshim bench --keep-from FILE BUILD/config/ENGINE`")
    args = parser.parse_args()
    report, name, kinds, table = Report("expert_sums"), NAMES[args.engine], KINDS[args.engine], {}
    folder = args.build.resolve() / "config" / args.engine
    kept = KeptTimes(folder)
    if torch.cuda.get_device_capability() != (9, 0):
        report.skip("expert_sums", "the kernels are for sm_90")
        return report.finish()
    solutions = {}
    for solution in load_all(str(folder)):
        solutions.setdefault(solution.definition, []).append(solution)
    torch.zeros(1, device="cuda")  # the primary context, current to this thread
    engine_sum = sum_of(args.engine)
    with report.phase(f"the bytes of {name}'s sum") as problems:
        for size, rows in itertools.product(SIZES[args.engine], args.rows):
            case = Case(solutions, size, None, kinds, rows)
            expected, _ = case.bytes_of(case.in_order)
            compare(case, problems, name, expected, lambda: engine_sum(case.experts, case.outputs["C"]))
            compare(case, problems, "ours", expected, case.alone)
    with report.phase("the same bytes as one for one") as problems:
        for size, kind, rows in itertools.product(SIZES_OF_NORMS[args.engine], kinds, args.rows):
            case = Case(solutions, size, kind, kinds, rows)
            expected, _ = case.bytes_of(lambda: (case.alone(), case.norm()))
            for blocks in args.clusters:
                compare(case, problems, f"clusters of {blocks}", expected, lambda: of_blocks(case.solution(), blocks).launch(case.arguments, True))
    for size, rows in itertools.product(SIZES[args.engine], args.rows):
        case = Case(solutions, size, None, kinds, rows)
        moved = 2 * case.experts.numel()
        us, his_us = graph_us(case.alone, moved), graph_us(lambda: engine_sum(case.experts, case.outputs["C"]), moved)
        kept.add(case.definition(), name, us, his_us, batch_size=rows)
        table[f"{case.definition()}, {rows} rows"] = us, his_us
        report.check(f"{case.definition()}, {rows} rows: {us:.2f} us, {name}'s {his_us:.2f}", ["slower"] if us > NOISE * his_us else [])
        for kind in kinds if size in SIZES_OF_NORMS[args.engine] else ():
            case = Case(solutions, size, kind, kinds, rows)
            own = case.solution().launch_block["cluster"][0]
            times = {blocks: graph_us(lambda: of_blocks(case.solution(), blocks).launch(case.arguments, True), moved)
                     for blocks in sorted({own, *args.clusters})}
            as_two = graph_us(lambda: (case.alone(), case.norm()), moved)
            with_his = graph_us(lambda: (engine_sum(case.experts, case.outputs["C"]), case.norm()), moved)
            kept.add(case.definition(), "as two", times[own], as_two, batch_size=rows)
            table[f"{case.definition()}, {rows} rows"] = times, as_two, with_his
            shown = ", ".join(f"{us:.2f} by {blocks}{'*' if blocks == own else ''}" for blocks, us in times.items())
            report.check(f"{case.definition()}, {rows} rows: {shown}; {as_two:.2f} as two, {with_his:.2f} with {name}'s sum",
                         ["slower"] if times[own] > NOISE * as_two else [])
    return finish(report, args, kept, table)


if __name__ == "__main__":
    sys.exit(main())
