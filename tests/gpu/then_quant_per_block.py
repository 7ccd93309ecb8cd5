#!/usr/bin/env python3
"""A norm of a sum or silu·mul and the quantisation to fp8 by blocks of 128 behind it, as SGLang's two kernels and as one of config/sglang.

    then_quant_per_block.py KERNELS CUBINS [--sizes N,...] [--rows M,...] [--keep FILE] [--out FILE]

KERNELS: what `tests/engines/engines.py sglang KERNELS` compiles, of 0.5.22 or 0.5.23, and beside it what it writes for the quantisation. CUBINS:
a folder of build/cute_norms, with FlashInfer's norms as CuTe-DSL compiles them. The kernels are launched as SGLang launches them. Of what both
sides make, the sum must be the same, and a norm or silu·mul may differ in its last bit in a few places. Bytes and scales must be what SGLang's
quantisation makes of that. Timed in replayed graphs: as one, as SGLang's two, and as ours by themselves with SGLang's quantisation.
"""
import argparse
import ctypes
import pathlib
import re
import sys

import torch

from counters import BUILD
from flashinfer_cute import image_of
from graph_time import graph_us
from kept_times import NOISE, KeptTimes, finish
from quant_per_block import EPS, GROUP, LEAST, SGLang, differences
from report import Report
from solutions import Kernel, load_folder

KINDS = {"fused_add_rmsnorm": "batch_size", "silu_and_mul": "num_tokens"}  # and the axis of rows
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
SHARE_OF_OUTPUT = 2e-2  # of a norm's or silu·mul's elements, by one unit
LEAST_OUTPUT = 2.0**-100  # below that, where exp nearly overflows, silu of either side may be 0


def definition_of(kind, size):
    """size: a row's, of silu·mul the output's."""
    return f"{kind}_then_quant_per_block_h{2 * size if kind.startswith('silu') else size}"


def sizes_of(kind, definitions):
    found = (re.fullmatch(f"{kind}_then_quant_per_block_h([0-9]+)", name) for name in definitions)
    return sorted(int(match[1]) // (2 if kind.startswith("silu") else 1) for match in found if match)


class Tensor(ctypes.Structure):
    """A dense one, as CuTe-DSL takes it."""
    _fields_ = [("data", ctypes.c_uint64), ("rows", ctypes.c_int64)]


class Originals:
    def __init__(self, kernels, cubins):
        self.quantisation = SGLang(kernels.with_suffix(".quant.cubin"))
        self.hides_nan = int(self.quantisation.kind.endswith("_bounded"))
        symbol, = set(re.findall(rb"_ZN6sglang18act_and_mul_kernelI13__nv_bfloat16LNS_14ActivationKindE0ELb1ELb0E(?:Lb0E)+EEvNS_16ActivationParamsE",
                                 kernels.read_bytes()))
        self.silu = Kernel(str(kernels), symbol.decode(), [lambda params: params])
        self.cubins, self.norms = cubins, {}

    def norm(self, size):
        if size not in self.norms:
            path = str(self.cubins / f"fused_add_rmsnorm.bfloat16.{size}.0.dense.1.cubin")
            name, (threads, *_) = image_of(path)
            threads_of_row = 32 if size <= 3072 else 64 if size <= 6144 else 128
            rows = threads // threads_of_row
            kernel = Kernel(path, name, [lambda tensor: tensor] * 2 + [ctypes.c_void_p, ctypes.c_int64, ctypes.c_float])
            columns = -(-size // (8 * threads_of_row)) * 8 * threads_of_row
            self.norms[size] = kernel, threads, rows, 4 * rows * columns + threads // 8
        return self.norms[size]

    def run(self, case):
        """The first kernel: in place on the first rows of case.given."""
        if case.kind == "silu_and_mul":
            params = (ctypes.c_uint64 * 8)(case.given["input"].data_ptr(), case.outputs["output"].data_ptr(), case.size | case.rows << 32, 0, 1)
            self.silu.launch((-(-case.rows * case.size // 2048), 1, 1), (256, 1, 1), [params], is_dependent=True)
        else:
            kernel, threads, rows, shared_mem = self.norm(case.size)
            x, residual = (Tensor(case.outputs[name].data_ptr(), case.rows) for name in ("output", "residual_output"))
            kernel.launch((-(-case.rows // rows), 1, 1), (threads, 1, 1), [x, residual, case.given["weight"].data_ptr(), case.rows, EPS], shared_mem,
                          is_dependent=True)

    def quantize(self, case):
        self.quantisation.quantize(case)


class Case:
    """The norm is in place, as SGLang calls it: what is given lies in the outputs."""

    def __init__(self, kind, size, rows, columns, is_special=False):
        generator = torch.Generator(device="cuda").manual_seed(rows + size)
        normal = lambda *shape: torch.randn(*shape, generator=generator, device="cuda")
        self.kind, self.size, self.rows, self.columns, blocks = kind, size, rows, columns, size // GROUP
        empty = lambda dtype: torch.empty(rows, size, dtype=dtype, device="cuda")
        self.first = (3 * normal(rows, 2 * size) if kind == "silu_and_mul" else normal(rows, size) * torch.exp2(4 * normal(rows, 1).clamp(-2, 1))).bfloat16()
        if is_special and rows >= 8:
            self.first[0] = 0
            self.first[1, :GROUP] = -0.0
            self.first[2, 5] = float("nan")
            self.first[3, 7] = float("inf")
            self.first[4] *= 2.0**-60
            self.first[6] *= 40
        self.residual = (2 * normal(rows, size)).bfloat16()
        if is_special:
            self.residual[0] = 0
        self.given = {"weight": (1 + 0.2 * normal(size)).bfloat16(), "input": self.first}
        pitch = -(-rows // 4) * 4
        scales = torch.empty(blocks, pitch, device="cuda").t()[:rows] if columns else torch.empty(rows, blocks, device="cuda")
        self.outputs = {"output": empty(torch.bfloat16), "quantized": empty(torch.float8_e4m3fn), "scales": scales}
        if kind != "silu_and_mul":
            self.outputs["residual_output"] = empty(torch.bfloat16)
        # What SGLang's quantisation reads of a case.
        self.inputs, self.axes = {"hidden_states": self.outputs["output"]}, {"hidden_size": size}
        self.arguments = {**self.given, **self.outputs, "hidden_states": self.outputs["output"], "residual": self.outputs.get("residual_output"),
                          "eps": EPS, "least": LEAST, "weight_bias": 0.0, "batch_size": rows, "num_tokens": rows, "hidden_size": size,
                          "hidden_div_2": size, "input_stride": size, "residual_stride": size, "scale_row_stride": 1 if columns else blocks,
                          "scale_block_stride": pitch if columns else 1}
        self.moved = sum(one.nbytes for one in (self.first, *self.outputs.values()))

    def begin(self):
        for output in self.outputs.values():
            output.fill_(-7)
        if self.kind != "silu_and_mul":
            self.outputs["output"].copy_(self.first)
            self.outputs["residual_output"].copy_(self.residual)

    def kept(self, *names):
        return {name: self.outputs[name].clone() for name in names or self.outputs}


def judge(report, kind, size, solution, originals, all_rows):
    with report.phase(f"{kind} of {size} and its quantisation: as SGLang's") as problems:
        for rows in all_rows:
            for columns in (True, False):
                where = f"{rows} rows, scales by {'columns' if columns else 'rows'}"
                case = Case(kind, size, rows, columns, is_special=True)
                case.begin()
                originals.run(case)
                made = {name: value for name, value in case.kept().items() if name in ("output", "residual_output")}
                case.begin()
                solution.launch({**case.arguments, "hides_nan": originals.hides_nan})
                ours = case.kept()
                originals.quantize(case)  # of our output
                problems += [f"{where}: {problem}" for problem in differences(ours, case.kept("quantized", "scales"), 0)]
                apart = (ours["output"].view(torch.int16).int() - made["output"].view(torch.int16).int()).abs()
                apart[(ours["output"].isnan() & made["output"].isnan()) | ((ours["output"] - made["output"]).abs() < LEAST_OUTPUT)] = 0
                if (apart != 0).float().mean().item() > SHARE_OF_OUTPUT or apart.max().item() > 1:
                    problems.append(f"{where}: the output differs in {(apart != 0).sum().item()} of {apart.numel()} elements, by {apart.max().item()}")
                if "residual_output" in made:
                    problems += [f"{where}: {problem}" for problem in differences(ours, {"residual_output": made["residual_output"]}, 0)]


def time_all(kind, size, solution, alone, originals, all_rows, kept, table, slower):
    for rows in all_rows:
        case = Case(kind, size, rows, columns=True)
        case.begin()
        ours = {**case.arguments, "hides_nan": originals.hides_nan}

        def run(first):
            first()
            originals.quantize(case)
        us = graph_us(lambda: solution.launch(ours, True), case.moved)
        theirs = graph_us(lambda: run(lambda: originals.run(case)), case.moved)
        apart = graph_us(lambda: run(lambda: alone.launch(ours, alone.launch_block.get("pdl", False))), case.moved)
        line = f"{kind} of {size} and its quantisation, {rows} rows: {us:.2f} us, SGLang's {theirs:.2f}, ours and its quantisation {apart:.2f}"
        print(line, flush=True)
        table.append({"kind": kind, "size": size, "rows": rows, "us": us, "original_us": theirs, "apart_us": apart})
        axes = {KINDS[kind]: rows}
        if kept.solution_for(definition_of(kind, size), **axes) is None:
            continue
        kept.add(definition_of(kind, size), "SGLang", us, theirs, **axes)
        if us > NOISE * theirs:
            slower.append(line)


def main():
    numbers = lambda text: [int(number) for number in text.split(",")]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kernels", type=pathlib.Path)
    parser.add_argument("cubins", type=pathlib.Path)
    parser.add_argument("--sizes", type=numbers, metavar="N,...")
    parser.add_argument("--rows", type=numbers, default=ROWS, metavar="M,...")
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--keep", type=pathlib.Path, metavar="FILE", help="write the times for `fibshim bench --keep-from FILE` and the folder")
    options = parser.parse_args()
    report = Report("then_quant_per_block")
    if torch.cuda.get_device_capability() != (9, 0):
        report.skip("then_quant_per_block", "the kernels are for sm_90")
        return report.finish()
    torch.zeros(1, device="cuda")  # the primary context, current to this thread
    torch.set_grad_enabled(False)
    home = pathlib.Path(BUILD) / "config/sglang"
    originals, solutions, kept, table, slower = Originals(options.kernels, options.cubins), load_folder(str(home)), KeptTimes(home), [], []
    for kind in KINDS:
        for size in sizes_of(kind, solutions):
            if options.sizes and size not in options.sizes:
                continue
            solution, alone = solutions[definition_of(kind, size)], solutions.get(f"{kind}_h{2 * size if kind.startswith('silu') else size}")
            judge(report, kind, size, solution, originals, options.rows)
            time_all(kind, size, solution, alone or solution, originals, options.rows, kept, table, slower)
    report.check("not slower", slower)
    return finish(report, options, kept, table)


if __name__ == "__main__":
    sys.exit(main())
