#!/usr/bin/env python3
"""A norm of a sum, silu·mul or what merges attention's parts, and the quantisation to fp8 by blocks of 128 behind it, as two kernels and as one of a folder.

    then_quant_per_block.py --sglang KERNELS CUBINS [--sizes N,...] [--rows M,...] [--keep FILE] [--out FILE]
    then_quant_per_block.py --vllm LIBRARY [--flashinfer FOLDER] [...]

KERNELS: what `tests/engines/engines.py sglang KERNELS` compiles, of 0.5.22 or 0.5.23, and beside it what it writes for the quantisation. CUBINS:
a folder of build/cute_norms, with FlashInfer's norms as CuTe-DSL compiles them. They are launched as SGLang launches them. LIBRARY, FOLDER: as
for quant_per_block.py; what torch.compile makes for vLLM are ours by themselves there, which inductor.py compares with it.
Of what both sides make, the sum must be the same, and a norm or silu·mul may differ in its last bit in a few places. Bytes and scales must be
what the engine's quantisation makes of that. Timed in replayed graphs: as one, as the engine's two, and as ours by themselves with the engine's
quantisation, under SGLang; as one and as two of ours, for vLLM. What merges parts is always ours.
"""
import argparse
import ctypes
import itertools
import pathlib
import re
import sys

import torch

from counters import BUILD
from flashinfer_cute import image_of
from graph_time import graph_us
from kept_times import NOISE, KeptTimes, finish
from quant_per_block import EPS, GROUP, LARGEST, LEAST, FlashInfer, SGLang, differences
from report import Report
from solutions import Kernel, load_folder

NORMS = {"fused_add_rmsnorm": ("hidden_states", "residual"), "add_rmsnorm": ("hidden_states", "first"),
         "add2_rmsnorm_sum": ("hidden_states", "first", "second")}  # and what they add up
COMBINE = "decode_combine_sorted"  # of attention's parts
KINDS = {"sglang": ("fused_add_rmsnorm", "silu_and_mul", COMBINE), "vllm": ("add_rmsnorm", "add2_rmsnorm_sum", "silu_and_mul_once")}
RULES = {"sglang": ("",), "vllm": ("_unbounded", "_ue8m0")}
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
SHARE_OF_OUTPUT = 2e-2  # of a norm's or silu·mul's elements, by one unit
LEAST_OUTPUT = 2.0**-100  # below that, where exp nearly overflows, silu of either side may be 0


SPLITS = 12
SIZES_OF_COMBINE = (2048, 4096, 5120)  # heads of 128


def axes_of(kind, size, rows):
    """The variable ones."""
    if kind == COMBINE:
        return {"batch_size": rows, "len_indptr": rows + 1, "rows": rows, "splits": SPLITS, "num_qo_heads": size // 128, "row_size": size}
    return {"batch_size" if kind in NORMS else "num_tokens": rows}


def alone_of(kind, size):
    """size: a row's, of silu·mul the output's."""
    return f"{kind}_d128" if kind == COMBINE else f"{kind}_h{size if kind in NORMS else 2 * size}"


def definition_of(kind, rule, size):
    return re.sub("_([dh][0-9]+)$", rf"_then_quant_per_block{rule}_\1", alone_of(kind, size))


def sizes_of(kind, rule, definitions):
    if kind == COMBINE:
        return SIZES_OF_COMBINE
    found = (re.fullmatch(f"{kind}_then_quant_per_block{rule}_h([0-9]+)", name) for name in definitions)
    return sorted(int(match[1]) // (1 if kind in NORMS else 2) for match in found if match)


class Tensor(ctypes.Structure):
    """A dense one, as CuTe-DSL takes it."""
    _fields_ = [("data", ctypes.c_uint64), ("rows", ctypes.c_int64)]


class OfSglang:
    layouts = (True, False)  # of scales: by columns or not

    def __init__(self, kernels, cubins, solutions):
        self.solutions = solutions
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
        """The first kernel. What merges parts is ours, whose bits are FlashAttention's (sglang_attention.py)."""
        if case.kind == COMBINE:
            self.solutions[alone_of(case.kind, case.size)].launch(case.arguments, True)
        elif case.kind == "silu_and_mul":
            params = (ctypes.c_uint64 * 8)(case.given["input"].data_ptr(), case.outputs["output"].data_ptr(), case.size | case.rows << 32, 0, 1)
            self.silu.launch((-(-case.rows * case.size // 2048), 1, 1), (256, 1, 1), [params], is_dependent=True)
        else:
            kernel, threads, rows, shared_mem = self.norm(case.size)
            x, residual = (Tensor(case.outputs[name].data_ptr(), case.rows) for name in ("output", "residual_output"))
            kernel.launch((-(-case.rows // rows), 1, 1), (threads, 1, 1), [x, residual, case.arguments["weight"].data_ptr(), case.rows, EPS], shared_mem,
                          is_dependent=True)

    def quantize(self, case):
        self.quantisation.quantize(case)


class OfVllm:
    layouts = (True,)
    hides_nan = 0

    def __init__(self, library, folder, solutions):
        torch.ops.load_library(str(library))
        self.flashinfer, self.solutions = FlashInfer(folder) if folder else None, solutions

    def run(self, case):
        self.solutions[alone_of(case.kind, case.size)].launch(case.arguments, True)

    def quantize(self, case):
        x, quantized, scales = (case.outputs[name] for name in ("output", "quantized", "scales"))
        if case.rule == "_unbounded":
            self.flashinfer.fp8_quantize_1x128(x, quantized, scales.t(), False)
        else:
            torch.ops._C.per_token_group_fp8_quant(x, quantized, scales, GROUP, LEAST, -LARGEST, LARGEST, True, True, False)


class Case:
    """SGLang's norm is in place: what is given lies in the outputs."""

    def __init__(self, kind, rule, size, rows, columns, is_special=False):
        generator = torch.Generator(device="cuda").manual_seed(rows + size)
        normal = lambda *shape: torch.randn(*shape, generator=generator, device="cuda")
        self.kind, self.rule, self.size, self.rows, self.columns, blocks = kind, rule, size, rows, columns, size // GROUP
        empty = lambda dtype: torch.empty(rows, size, dtype=dtype, device="cuda")
        spread = torch.exp2(4 * normal(rows, 1).clamp(-2, 1)) if kind in NORMS else 3
        x = (normal(rows, size if kind in NORMS else 2 * size) * spread).bfloat16()
        if is_special and rows >= 8:
            x[0] = 0
            x[1, :GROUP] = -0.0
            if rule != "_unbounded":  # FlashInfer's leaves open what it makes of that
                x[2, 5] = float("nan")
                x[3, 7] = float("inf")
            x[4] *= 2.0**-50  # FlashInfer flushes denormals
            x[6] *= 40
        self.given = dict(zip(NORMS.get(kind, ("input",)), (x, *((2 * normal(rows, size)).bfloat16() for _ in range(2)))))
        if is_special:
            for name in ("residual", "first", "second"):
                if name in self.given:
                    self.given[name][0] = 0
        weight = (1 + 0.2 * normal(size)).bfloat16()
        pitch = -(-rows // 4) * 4
        scales = torch.empty(blocks, pitch, device="cuda").t()[:rows] if columns else torch.empty(rows, blocks, device="cuda")
        self.outputs = {"output": empty(torch.bfloat16), "quantized": empty(torch.float8_e4m3fn), "scales": scales}
        self.is_in_place = kind == "fused_add_rmsnorm"
        if self.is_in_place or kind.endswith("_sum"):
            self.outputs["residual_output" if self.is_in_place else "sum"] = empty(torch.bfloat16)
        # What SGLang's quantisation reads of a case.
        self.inputs, self.axes = {"hidden_states": self.outputs["output"]}, {"hidden_size": size}
        in_place = {"hidden_states": self.outputs["output"], "residual": self.outputs["residual_output"]} if self.is_in_place else {}
        self.arguments = {**self.given, **self.outputs, **in_place, "weight": weight, "eps": EPS, "least": 0.0 if rule == "_unbounded" else LEAST,
                          "weight_bias": 0.0, "batch_size": rows, "num_tokens": rows, "hidden_size": size, "hidden_div_2": size, "num_blocks": blocks,
                          "input_stride": size, "residual_stride": size, "scale_row_stride": 1 if columns else blocks,
                          "scale_block_stride": pitch if columns else 1}
        self.moved = sum(one.nbytes for one in (*self.given.values(), *self.outputs.values()))

    def begin(self):
        for output in self.outputs.values():
            output.fill_(-7)
        if self.is_in_place:
            self.outputs["output"].copy_(self.given["hidden_states"])
            self.outputs["residual_output"].copy_(self.given["residual"])

    def kept(self, *names):
        return {name: self.outputs[name].clone() for name in names or self.outputs}


class Parts(Case):
    """The parts of attention of one query token a sequence. Sequences in one part have their output already."""

    def __init__(self, kind, rule, size, rows, columns, is_special=False):
        super().__init__("add_rmsnorm", rule, size, rows, columns)
        generator = torch.Generator(device="cuda").manual_seed(rows + size)
        heads, self.kind, self.before = size // 128, kind, self.given["first"]
        counts = torch.randint(0, SPLITS + 1, (rows,), generator=generator, device="cuda") if is_special else torch.full((rows,), SPLITS, device="cuda")
        numbers = lambda values: values.int().contiguous()
        self.outputs |= {"lse": torch.empty(heads, rows, device="cuda"), "semaphore": torch.empty(1, dtype=torch.int32, device="cuda")}
        self.arguments |= {**self.outputs, "partial_output": torch.randn(SPLITS, heads, rows, 128, generator=generator, device="cuda"),
                           "partial_lse": torch.randn(SPLITS, heads, rows, generator=generator, device="cuda"),
                           "first_rows": numbers(torch.arange(rows + 1, device="cuda")), "split_counts": numbers(counts),
                           "order": numbers(torch.randperm(rows, generator=generator, device="cuda")), "rows": rows, "splits": SPLITS,
                           "num_qo_heads": heads, "head_dim": 128, "output_stride": ctypes.c_int64(size)}

    def begin(self):
        super().begin()
        self.outputs["output"].copy_(self.before)


def case_of(kind, *arguments, **options):
    return (Parts if kind == COMBINE else Case)(kind, *arguments, **options)


def judge(report, kind, rule, size, solution, originals, all_rows):
    with report.phase(f"{kind} of {size} and its quantisation{rule}: as the engine's") as problems:
        for rows in all_rows:
            for columns in originals.layouts:
                where = f"{rows} rows, scales by {'columns' if columns else 'rows'}"
                case = case_of(kind, rule, size, rows, columns, is_special=True)
                case.begin()
                originals.run(case)
                made = {name: value for name, value in case.kept().items() if name not in ("quantized", "scales")}
                case.begin()
                solution.launch({**case.arguments, "hides_nan": originals.hides_nan})
                ours = case.kept()
                for name in ("quantized", "scales"):
                    case.outputs[name].fill_(-7)
                originals.quantize(case)  # of our output
                problems += [f"{where}: {problem}" for problem in differences(ours, case.kept("quantized", "scales"), 0)]
                theirs = made.pop("output")
                apart = (ours["output"].view(torch.int16).int() - theirs.view(torch.int16).int()).abs()
                apart[(ours["output"].isnan() & theirs.isnan()) | ((ours["output"] - theirs).abs() < LEAST_OUTPUT)] = 0
                if (apart != 0).float().mean().item() > SHARE_OF_OUTPUT or apart.max().item() > 1:
                    problems.append(f"{where}: the output differs in {(apart != 0).sum().item()} of {apart.numel()} elements, by {apart.max().item()}")
                problems += [f"{where}: {problem}" for problem in differences(ours, made, 0)]


def time_all(kind, rule, size, solutions, originals, all_rows, kept, table, slower):
    definition, alone = definition_of(kind, rule, size), solutions.get(alone_of(kind, size))
    quantisation = solutions.get(f"quant_per_block{rule}_b{GROUP}") if rule else None
    for rows in all_rows:
        case = case_of(kind, rule, size, rows, columns=True)
        case.begin()
        ours = {**case.arguments, "hides_nan": originals.hides_nan}

        def two_of_ours():
            if alone:
                alone.launch(ours, alone.launch_block.get("pdl", False))
            if quantisation:
                quantisation.launch({**ours, "hidden_states": case.outputs["output"], "eps": ours["least"]}, True)
            else:
                originals.quantize(case)

        def two_of_theirs():
            originals.run(case)
            originals.quantize(case)
        us, theirs, apart = (graph_us(run, case.moved) for run in (lambda: solutions[definition].launch(ours, True), two_of_theirs, two_of_ours))
        line = f"{kind} of {size} and its quantisation{rule}, {rows} rows: {us:.2f} us, the engine's {theirs:.2f}, two of ours {apart:.2f}"
        print(line, flush=True)
        table.append({"kind": kind, "rule": rule, "size": size, "rows": rows, "us": us, "original_us": theirs, "apart_us": apart})
        axes, (original, before) = axes_of(kind, size, rows), ("as two", apart) if rule or kind == COMBINE else ("SGLang", theirs)
        if kept.solution_for(definition, **axes) is None:
            continue
        kept.add(definition, original, us, before, **axes)
        if us > NOISE * before:
            slower.append(line)


def main():
    numbers = lambda text: [int(number) for number in text.split(",")]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sglang", type=pathlib.Path, nargs=2, metavar=("KERNELS", "CUBINS"))
    parser.add_argument("--vllm", type=pathlib.Path, metavar="LIBRARY")
    parser.add_argument("--flashinfer", type=pathlib.Path, metavar="FOLDER", help="without it what FlashInfer quantises is left out")
    parser.add_argument("--sizes", type=numbers, metavar="N,...")
    parser.add_argument("--rows", type=numbers, default=ROWS, metavar="M,...")
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--keep", type=pathlib.Path, metavar="FILE", help="write the times for `fibshim bench --keep-from FILE` and the folder")
    options = parser.parse_args()
    if bool(options.sglang) == bool(options.vllm):
        parser.error("give --sglang and its kernels, or --vllm and its library")
    report = Report("then_quant_per_block")
    if torch.cuda.get_device_capability() != (9, 0):
        report.skip("then_quant_per_block", "the kernels are for sm_90")
        return report.finish()
    torch.zeros(1, device="cuda")  # the primary context, current to this thread
    torch.set_grad_enabled(False)
    engine = "sglang" if options.sglang else "vllm"
    home = pathlib.Path(BUILD) / "config" / engine
    solutions = load_folder(str(home)) | load_folder(str(home.parent / "flash_attention"))
    kept, table, slower = KeptTimes(home), [], []
    originals = OfSglang(*options.sglang, solutions) if options.sglang else OfVllm(options.vllm, options.flashinfer, solutions)
    for kind, rule in itertools.product(KINDS[engine], RULES[engine]):
        if rule == "_unbounded" and not options.flashinfer:
            continue
        for size in sizes_of(kind, rule, solutions):
            if options.sizes and size not in options.sizes:
                continue
            judge(report, kind, rule, size, solutions[definition_of(kind, rule, size)], originals, options.rows)
            time_all(kind, rule, size, solutions, originals, options.rows, kept, table, slower)
    report.check("not slower", slower)
    return finish(report, options, kept, table)


if __name__ == "__main__":
    sys.exit(main())
