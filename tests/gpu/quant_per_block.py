#!/usr/bin/env python3
"""Rows brought to fp8 with a scale for each block of 128 elements, alone or behind a norm or silu·mul, by the folders, vLLM, FlashInfer and SGLang.

    quant_per_block.py LIBRARY [--flashinfer FOLDER] [--kinds KIND,...] [--sizes N,...] [--rows M,...] [--forms] [--keep FILE] [--out FILE]
    quant_per_block.py --sglang KERNELS [--kinds ...]

LIBRARY: vLLM's _C_stable_libtorch.abi3.so, of 0.33: before, vLLM divides where 0.33 multiplies with the reciprocal, but for silu·mul. FOLDER: has
call.py, whose runner() is FlashInfer's fp8_blockscale_gemm_sm90; without it what FlashInfer rounds is compared with the definition's reference
alone. KERNELS: what `tests/engines/engines.py sglang` compiles into a file that ends with .quant.cubin, of 0.5.23 or before; of config/sglang.
Scales and bytes must be the same; a norm adds up in another order, hence a few in 100,000 may differ. Timed in replayed graphs. N is a row's size,
of silu·mul the output's. --forms: also times other threads of a block, and of silu·mul other vectors of a thread.
"""
import argparse
import copy
import ctypes
import json
import pathlib
import re
import sys

import torch

from counters import BUILD
from graph_time import graph_us
from kept_times import NOISE, KeptTimes, finish
from report import Report
from solutions import Kernel, evaluate, load_all

KINDS = ("quant_per_block", "quant_per_block_ue8m0", "quant_per_block_unbounded", "silu_and_mul_quant_per_block", "rmsnorm_quant_per_block",
         "fused_add_rmsnorm_quant_per_block")
KINDS_OF_SGLANG = ("quant_per_block_floored", "quant_per_block_bounded")
SIZES = (1024, 2048, 4096, 5120, 7168, 14336)  # of the quantisation alone, which takes any
ROWS = (1, 2, 3, 4, 8, 16, 32, 64, 129, 1024, 8192)
GROUP = 128
EPS = 1e-6
LEAST = 1e-10  # what vLLM gives the quantisation as its epsilon
LARGEST = 448.0  # of fp8
SHARE = 5e-5  # of a norm's bytes that the order of a sum tips,
SHARE_OF_SCALES = 2e-4  # and of its scales,
MOST_OF_SCALE = 149797  # by two units of bfloat16, which are up to 8/7 of 2^17 units of a scale, since 448 is 7 * 64
SHARE_OF_REFERENCE = 3e-4  # of bytes, whose reference computes silu and roots otherwise
SHARE_OF_TIES = 0.06  # approximate reciprocals: many elements lie between two numbers of fp8
APPROXIMATE = ("unbounded", "floored", "bounded")


def is_alone(kind):
    return kind.startswith("quant")


def definition_of(kind, size):
    return f"{kind}_b{GROUP}" if is_alone(kind) else f"{kind}_h{2 * size if kind.startswith('silu') else size}"


def sizes_of(kind, definitions):
    if is_alone(kind):
        return SIZES
    found = (re.fullmatch(f"{kind}_h([0-9]+)", definition) for definition in definitions)
    return sorted(int(match[1]) // (2 if kind.startswith("silu") else 1) for match in found if match)


def axes_of(kind, size, rows):
    """The variable axes."""
    if is_alone(kind):
        return {"batch_size": rows, "hidden_size": size, "num_blocks": size // GROUP}
    return {"num_tokens" if kind.startswith("silu") else "batch_size": rows}


class Case:
    """columns: the scales lie column by column, with a pitch as the engines have it."""

    def __init__(self, kind, size, rows, columns, is_special=True):
        generator = torch.Generator(device="cuda").manual_seed(rows + size)
        normal = lambda *shape: torch.randn(*shape, generator=generator, device="cuda")
        of_silu, blocks = kind.startswith("silu"), size // GROUP
        self.kind, self.rows, self.columns = kind, rows, columns
        x = 3 * normal(rows, 2 * size) if of_silu else normal(rows, size) * torch.exp2(4 * normal(rows, 1).clamp(-2, 1))
        x = x.bfloat16()
        if rows >= 8 and is_special:
            x[0] = 0
            x[1, :GROUP] = -0.0
            x[3, 7] = float("inf")
            x[4] *= 2.0**-100
            x[6] *= 40
            if not kind.endswith("_unbounded"):
                x[2, 5] = float("nan")
                x[5, 9] = -float("inf")
            if kind in KINDS_OF_SGLANG:
                x[2, GROUP:2 * GROUP] = float("nan")
                x[7] *= 2.0**121  # up to where reciprocals become 0
        self.inputs = {"input" if of_silu else "hidden_states": x}
        if "add" in kind:
            self.inputs["residual"] = (2 * normal(rows, size)).bfloat16()
        if "norm" in kind:
            self.inputs["weight"] = (1 + 0.2 * normal(size)).bfloat16()
        # vLLM's silu·mul has no pitch.
        self.pitch = rows if of_silu else -(-rows // 4) * 4
        scales = torch.empty(blocks, self.pitch, device="cuda").t()[:rows] if columns else torch.empty(rows, blocks, device="cuda")
        self.outputs = {"quantized": torch.empty(rows, size, dtype=torch.float8_e4m3fn, device="cuda"), "scales": scales}
        if "add" in kind:
            self.outputs["residual_output"] = torch.empty_like(self.inputs["residual"])
        self.axes = axes_of(kind, size, rows)
        self.arguments = {**self.inputs, **self.outputs, "batch_size": rows, "num_tokens": rows, "hidden_size": size, "hidden_div_2": size,
                          "num_blocks": blocks, "input_stride": size, "eps": LEAST if is_alone(kind) else EPS,
                          "scale_row_stride": 1 if columns else blocks, "scale_block_stride": self.pitch if columns else 1}
        self.moved = sum(one.nbytes for one in self.inputs.values()) + sum(one.nbytes for one in self.outputs.values())

    def poison(self):
        for output in self.outputs.values():
            output.fill_(-7)

    def launch(self, solution):
        solution.launch(self.arguments, solution.launch_block.get("pdl", False))

    def result(self, solution):
        self.poison()
        solution.launch(self.arguments)
        return {name: output.clone() for name, output in self.outputs.items()}

    def run_original(self, original):
        """In place on the residual, as vLLM calls it. `original`: FlashInfer or SGLang."""
        quantized, scales = self.outputs["quantized"], self.outputs["scales"]
        if self.kind in KINDS_OF_SGLANG:
            original.quantize(self)
        elif self.kind.endswith("unbounded"):
            original.fp8_quantize_1x128(self.inputs["hidden_states"], quantized, scales.t(), False)
        elif is_alone(self.kind):
            torch.ops._C.per_token_group_fp8_quant(self.inputs["hidden_states"], quantized, scales, GROUP, LEAST, -LARGEST, LARGEST,
                                                   self.kind.endswith("ue8m0"), self.columns, False)
        elif "input" in self.inputs:
            torch.ops._C.silu_and_mul_per_block_quant(quantized, self.inputs["input"], scales, GROUP, None, self.columns)
        else:
            torch.ops._C.rms_norm_per_block_quant(quantized, self.inputs["hidden_states"], self.inputs["weight"], scales, EPS, None,
                                                  self.outputs.get("residual_output"), GROUP, self.columns)

    def result_of_original(self, original):
        self.poison()
        if "residual" in self.inputs:
            self.outputs["residual_output"].copy_(self.inputs["residual"])
        self.run_original(original)
        return {name: output.clone() for name, output in self.outputs.items()}


class FlashInfer:
    """Its scales have a pitch: they are given as they lie."""

    def __init__(self, folder):
        sys.path.insert(0, str(folder))
        from call import runner
        self.runner = runner()

    def fp8_quantize_1x128(self, x, quantized, by_columns, is_ue8m0):
        pitch = by_columns.stride(0)
        self.runner.fp8_quantize_1x128(x, quantized, by_columns.as_strided((by_columns.shape[0], pitch), (pitch, 1)), is_ue8m0)


class SGLang:
    """Its kernels, launched as it launches them. Their parameter is a struct: tensors are an address and strides."""

    class Params(ctypes.Structure):
        _fields_ = [("x", ctypes.c_uint64), ("x_expert_stride", ctypes.c_int64), ("x_stride", ctypes.c_int64),
                    ("quantized", ctypes.c_uint64), ("quantized_expert_stride", ctypes.c_int64), ("quantized_stride", ctypes.c_int64),
                    ("scales", ctypes.c_uint64), ("scales_expert_stride", ctypes.c_uint32), ("scales_token_stride", ctypes.c_uint32),
                    ("scales_group_stride", ctypes.c_uint32), ("num_groups", ctypes.c_uint32), ("num_tokens", ctypes.c_uint32),
                    ("hidden_size", ctypes.c_uint32)]

    def __init__(self, cubin):
        symbols = re.findall(rb"_ZN6sglang33per_token_group_quant_flat_kernel\w+", cubin.read_bytes())
        self.kernels = {by_columns: Kernel(str(cubin), next(one for one in symbols if part in one).decode(), [lambda params: params])
                        for by_columns, part in ((True, b"Lj128ELb0ELb0E"), (False, b"Lj128ELb0ELb1E"))}
        self.kind = KINDS_OF_SGLANG[b"Lj128ELb0ELb0ELb1ELb0ELb0E" not in cubin.read_bytes()]

    def quantize(self, case):
        size, outputs = case.axes["hidden_size"], case.outputs
        params = self.Params(case.inputs["hidden_states"].data_ptr(), 0, size, outputs["quantized"].data_ptr(), 0, size,
                             outputs["scales"].data_ptr(), 0, *outputs["scales"].stride(), size // GROUP, case.rows, size)
        threads = case.rows * size // 16
        self.kernels[case.columns].launch((-(-threads // 256), 1, 1), (256, 1, 1), [params], is_dependent=True)


def reference_of(case, reference):
    space = {}
    exec(reference["reference"], space)
    found = space["run"](*(case.inputs[name] for name in reference["inputs"]))
    return dict(zip(reference["outputs"], found, strict=True))


def differences(ours, expected, share, share_of_scales=0.0, ulps=0):
    """What of our outputs is not as expected. Such a share of bytes may be their neighbours, and such a share of scales otherwise, by up to MOST_OF_SCALE;
    all scales may differ by so many units in the last place."""
    problems = []
    for name, theirs in expected.items():
        mine = ours[name].contiguous()
        codes = {1: torch.int8, 2: torch.int16, 4: torch.int32}[mine.element_size()]
        apart = (mine.view(codes).long() - theirs.contiguous().view(codes).long()).abs()
        if name == "scales":
            apart = (apart - ulps).clamp_min(0)
        count, most = (apart != 0).sum().item(), apart.max().item()
        allowed, by = {"quantized": (share, 1), "scales": (share_of_scales, MOST_OF_SCALE)}.get(name, (0, 0))
        if count > (3 + allowed * apart.numel() if allowed else 0) or most > by:
            problems.append(f"{name}: {count} of {apart.numel()} elements differ, by up to {most} units in the last place")
    return problems


def chosen(solutions, case):
    return next((one for one in solutions if all(evaluate(when, case.axes) for when in one.launch_block.get("when", ()))), None)


def forms(solutions, made={}):
    """By vectors of a thread and threads of a block, what our kernels of any size can be launched as."""
    definition = solutions[0].definition
    if "norm" in definition:
        return
    is_silu = definition.startswith("silu")
    stem, rows = re.sub(r"\d_bf16$" if is_silu else "_bf16$", "", solutions[0].kernel_name), "num_tokens" if is_silu else "batch_size"
    for vectors in (1, 2) if is_silu else (2,):
        for threads in (64, 128, 256):
            key = definition, vectors, threads
            if key not in made:
                made[key] = copy.copy(solutions[0])
                made[key].kernel, made[key].kernel_name = None, f"{stem}{vectors if is_silu else ''}_bf16"
                made[key].launch_block = {**solutions[0].launch_block, "block": [threads, 1, 1],
                                          "grid": [f"ceil_div({rows} * num_blocks, {vectors * threads // 16})", 1, 1]}
            yield vectors, threads, made[key]


def judge(report, kind, size, solutions, reference, options):
    is_norm, has_original = "norm" in kind, options.original is not None or not kind.endswith("_unbounded")
    with report.phase(f"{kind} of {size}: as the engine's") as problems:
        for rows in options.rows:
            for columns in (True,) if kind.endswith("_unbounded") else (True, False):
                case, plain = Case(kind, size, rows, columns), Case(kind, size, rows, columns, is_special=False)
                # Where the folder leaves sizes to the engine, its kernel must be right all the same.
                solution, where = chosen(solutions, case) or solutions[0], f"{rows} rows, scales by {'columns' if columns else 'rows'}"
                sides = {"": solution, **{f", {vectors} vectors, {threads} threads": one for vectors, threads, one in forms(solutions)}}
                theirs = case.result_of_original(options.original) if has_original else {}
                for form, one in sides.items():
                    found = differences(case.result(one), theirs, SHARE if is_norm else 0, SHARE_OF_SCALES if is_norm else 0)
                    problems += [f"{where}{form}: {problem}" for problem in found]
                exact = reference_of(plain, reference)
                share = SHARE_OF_TIES if kind.endswith(APPROXIMATE) else SHARE_OF_REFERENCE
                found = differences(plain.result(solution), exact, share, SHARE_OF_SCALES, ulps=16)
                problems += [f"{where}, the reference: {problem}" for problem in found]


def time_all(kind, size, solutions, options, kept, table, slower):
    if kind.endswith("_unbounded") and options.original is None:
        return
    original = "SGLang" if kind in KINDS_OF_SGLANG else "FlashInfer" if kind.endswith("_unbounded") else "vLLM"
    for rows in options.rows:
        case = Case(kind, size, rows, columns=True, is_special=False)
        taken = chosen(solutions, case)
        solution = taken or solutions[0]
        us, theirs = graph_us(lambda: case.launch(solution), case.moved), graph_us(lambda: case.run_original(options.original), case.moved)
        line = f"{kind} of {size}, {rows} rows: {us:.2f} us, {original}'s {theirs:.2f}"
        print(line, flush=True)
        table.append({"kind": kind, "size": size, "rows": rows, "us": us, "original_us": theirs})
        if taken:
            kept.add(definition_of(kind, size), original, us, theirs, **case.axes)
            if us > NOISE * theirs:
                slower.append(line)
        if options.forms:
            times = {f"{vectors}x{threads}": graph_us(lambda: case.launch(one), case.moved) for vectors, threads, one in forms(solutions)}
            print("  vectors x threads: " + ", ".join(f"{form} {time:.2f}" for form, time in sorted(times.items(), key=lambda one: one[1])), flush=True)


def main():
    numbers = lambda text: [int(number) for number in text.split(",")]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library", type=pathlib.Path, nargs="?")
    parser.add_argument("--sglang", type=pathlib.Path, metavar="KERNELS")
    parser.add_argument("--flashinfer", type=pathlib.Path, metavar="FOLDER")
    parser.add_argument("--kinds", type=lambda text: text.split(","), metavar="KIND,...")
    parser.add_argument("--sizes", type=numbers, metavar="N,...")
    parser.add_argument("--rows", type=numbers, default=ROWS, metavar="M,...")
    parser.add_argument("--forms", action="store_true")
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--keep", type=pathlib.Path, metavar="FILE", help="write the times for `fibshim bench --keep-from FILE` and the folder")
    options = parser.parse_args()
    if (options.library is None) == (options.sglang is None):
        parser.error("give vLLM's library, or --sglang and its kernels")
    report = Report("quant_per_block")
    if torch.cuda.get_device_capability() != (9, 0):
        report.skip("quant_per_block", "the kernels are for sm_90")
        return report.finish()
    torch.zeros(1, device="cuda")  # the primary context, current to this thread
    torch.set_grad_enabled(False)
    if options.sglang:
        options.original, home = SGLang(options.sglang), pathlib.Path(BUILD) / "config/sglang"
        options.kinds = options.kinds or (options.original.kind,)
    else:
        torch.ops.load_library(str(options.library))
        options.original, home = FlashInfer(options.flashinfer) if options.flashinfer else None, pathlib.Path(BUILD) / "config/vllm"
    by_definition = {}
    for solution in load_all(str(home)):
        by_definition.setdefault(solution.definition, []).append(solution)
    kept, table, slower = KeptTimes(home), [], []
    for kind in options.kinds or KINDS:
        for size in sizes_of(kind, by_definition):
            if options.sizes and size not in options.sizes:
                continue
            definition = definition_of(kind, size)
            folder = "quant_per_block" if is_alone(kind) else kind
            reference = json.loads((home / "definitions" / folder / f"{definition}.json").read_text())
            judge(report, kind, size, by_definition[definition], reference, options)
            time_all(kind, size, by_definition[definition], options, kept, table, slower)
    report.check("not slower", slower)
    return finish(report, options, kept, table)


if __name__ == "__main__":
    sys.exit(main())
