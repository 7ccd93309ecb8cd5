#!/usr/bin/env python3
"""Rows brought to fp8, alone or behind a norm or silu·mul, by config/vllm and by torch.compile, of which vLLM's default mode has them.

    quant_per_token.py [--kinds KIND,...] [--sizes N,...] [--rows M,...] [--forms] [--keep FILE] [--out FILE]

The original is what torch.compile makes here of vLLM's expression for any number of rows. Of the quantisation alone and of silu·mul scales and
bytes must be the same; a norm adds up in another order, hence a few in 100,000 may differ. All must be near to the definition's reference, which
divides exactly. Timed in replayed graphs. N is a row's size, of silu·mul the output's. --forms: also times silu·mul with other clusters and vectors.
"""
import argparse
import copy
import json
import pathlib
import re
import sys

import torch

from counters import BUILD
from graph_time import graph_us
from kept_times import NOISE, KeptTimes, finish
from report import Report
from solutions import evaluate, load_all

FOLDER = pathlib.Path(BUILD) / "config/vllm"
KINDS = [f"{rows}quant_{scales}" for scales in ("per_token", "static") for rows in ("", "rmsnorm_", "add_rmsnorm_", "add2_rmsnorm_sum_", "silu_and_mul_")]
ROWS = (1, 2, 3, 8, 32, 64, 129, 1024, 8192)
EPS = 1e-5
SHARE = 5e-5  # of elements that the order of a sum tips
SHARE_OF_REFERENCE = 3e-4  # of a norm's, whose reference divides exactly, too
SHARE_OF_TIES = 0.06  # of rows in bfloat16 many elements lie between two numbers of fp8, and the approximate reciprocal tips them
LARGEST = 448.0  # of fp8
COMPILED_WITH = 8192  # rows, for which Inductor chooses a configuration


def hidden_sizes(kind, definitions):
    """That there are definitions of."""
    found = (re.fullmatch(f"{kind}_h([0-9]+)", definition) for definition in definitions)
    return sorted(int(match[1]) for match in found if match)


def axis_of(kind):
    return "num_tokens" if kind.startswith("silu") else "batch_size"


def expression(input=None, hidden_states=None, first=None, second=None, weight=None, scale=None):
    """vLLM's: the sum where it is kept, the rows in fp8, and their scales where they are not given."""
    kept = None
    if input is not None:
        width = input.shape[-1] // 2
        y = torch.nn.functional.silu(input[..., :width]) * input[..., width:]
    elif weight is None:
        y = hidden_states
    else:
        total = hidden_states.to(torch.float32)
        if first is not None:
            residual = first if second is None else (first.to(torch.float32) + second.to(torch.float32)).to(first.dtype)
            total = total + residual.to(torch.float32)
            kept = total.to(first.dtype)
        variance = total.pow(2).mean(dim=-1, keepdim=True)
        y = ((total * torch.rsqrt(variance + EPS)).to(weight.dtype) * weight).to(hidden_states.dtype)
    found = scale is None
    if found:
        largest = y.abs().amax(dim=-1).unsqueeze(-1).to(torch.float32)
        scale = (largest / LARGEST).clamp(min=1.0 / (LARGEST * 512.0))
    quantized = (y.to(torch.float32) * scale.to(torch.float32).reciprocal()).clamp(-LARGEST, LARGEST).to(torch.float8_e4m3fn)
    return *([kept] if second is not None else []), quantized, *([scale] if found else [])


class Case:
    def __init__(self, kind, size, rows):
        generator = torch.Generator(device="cuda").manual_seed(rows + size)
        normal = lambda *shape: torch.randn(*shape, generator=generator, device="cuda")
        scaled = lambda width: (normal(rows, width) * torch.exp2(4 * normal(rows, 1).clamp(-2, 1))).bfloat16()
        of_silu = kind.startswith("silu")
        self.rows, self.definition = rows, f"{kind}_h{2 * size if of_silu else size}"
        if of_silu:
            self.inputs = {"input": (3 * normal(rows, 2 * size)).bfloat16()}
        else:
            self.inputs = {name: scaled(size) for name in ("hidden_states", "first", "second")[:1 + ("add" in kind) + ("add2" in kind)]}
        x = next(iter(self.inputs.values()))
        if rows >= 8:
            for one in self.inputs.values():
                one[0] = 0
            x[2, 5], x[3, 7] = float("nan"), float("inf")
        if "norm" in kind:
            self.inputs["weight"] = (1 + 0.2 * normal(size)).bfloat16()
        if "static" in kind:
            self.inputs["scale"] = torch.tensor(0.0123, device="cuda")
        self.names = [*(["sum"] if "sum" in kind else []), "quantized", *(["scales"] if "per_token" in kind else [])]  # as expression() returns
        self.outputs = {name: torch.empty(rows, size, dtype=torch.bfloat16, device="cuda") for name in ("sum", "normed")}
        self.outputs |= {"quantized": torch.empty(rows, size, dtype=torch.float8_e4m3fn, device="cuda"), "scales": torch.empty(rows, device="cuda")}
        self.axes = {axis_of(kind): rows}
        self.arguments = {**self.inputs, **self.outputs, **self.axes, "eps": EPS, "hidden_size": size, "hidden_div_2": size}
        self.moved = sum(one.nbytes for one in self.inputs.values()) + rows * size * (1 + 4 * ("sum" in kind))

    def launch(self, solution):
        solution.launch(self.arguments, solution.launch_block.get("pdl", False))

    def result(self, solution):
        for output in self.outputs.values():
            output.view(torch.uint8).fill_(0xA5)
        solution.launch(self.arguments)
        return {name: output.clone() for name, output in self.outputs.items()}


class Compiled:
    """Called past the guards of Dynamo, which would compile again for one row: vLLM's calls go past them, too."""

    def __init__(self, kind, size):
        from torch._inductor.compile_fx import compile_fx

        case = Case(kind, size, COMPILED_WITH)

        def backend(graph, examples):
            self.names = [re.sub(r"^l_|_$", "", node.name.lower()) for node in graph.graph.nodes if node.op == "placeholder"]
            self.function = compile_fx(graph, examples)
            return self.function

        torch._dynamo.reset()
        for name, one in case.inputs.items():
            if name not in ("weight", "scale"):
                torch._dynamo.mark_dynamic(one, 0)
        torch.compile(expression, backend=backend, fullgraph=True)(**case.inputs)

    def run(self, case):
        """A name that no input has is the number of rows."""
        return self.function(*(case.inputs.get(name, case.rows) for name in self.names))

    def result(self, case):
        return {name: output.view(case.outputs[name].shape) for name, output in zip(case.names, self.run(case), strict=True)}


def reference_of(case, reference):
    space = {}
    exec(reference["reference"], space)
    found = space["run"](*(case.inputs[name] for name in reference["inputs"]))
    return dict(zip(reference["outputs"], found if isinstance(found, tuple) else (found,), strict=True))


def differences(ours, expected, share):
    """What of our outputs is not as expected. Of fp8 such a share of the elements may be others, and only their neighbours; with none all is exact."""
    problems = []
    for name, theirs in expected.items():
        mine, both_nan = ours[name], ours[name].float().isnan() & theirs.float().isnan()
        codes = {1: torch.int8, 2: torch.int16, 4: torch.int32}[mine.element_size()]
        apart = (mine.view(codes).long() - theirs.contiguous().view(codes).long()).abs().masked_fill(both_nan, 0)
        count, most = (apart != 0).sum().item(), apart.max().item()
        if share == 0 or name == "sum":
            wrong = count > 0
        else:
            wrong = most > 16 if name == "scales" else most > 1 or count > 3 + share * apart.numel()
        if wrong:
            problems.append(f"{name}: {count} of {apart.numel()} elements differ, by up to {most} units in the last place")
    return problems


def chosen(solutions, kind, rows):
    """None: torch.compile's stays."""
    axes = {axis_of(kind): rows}
    return next((one for one in solutions if all(evaluate(when, axes) for when in one.launch_block.get("when", ()))), None)


def forms(solutions, size, made={}):
    """Of silu·mul: by vectors of a thread and blocks of a token, what our kernels can be launched as."""
    for vectors in (1, 2, 4):
        for blocks in (1, 2, 4, 8):
            threads = 32 * -(-size // (8 * vectors * blocks * 32))
            if threads > 1024 or threads * blocks > 4096:
                continue
            key = solutions[0].definition, vectors, blocks
            if key not in made:
                made[key] = copy.copy(solutions[0])
                made[key].kernel, made[key].kernel_name = None, f"silu_and_mul_quant_per_token{vectors}_bf16"
                made[key].launch_block = {**solutions[0].launch_block, "grid": [f"num_tokens * {blocks}", 1, 1], "block": [threads, 1, 1],
                                          "cluster": [blocks, 1, 1]}
            yield vectors, blocks, made[key]


def judge(report, kind, size, solutions, compiled, reference, all_rows):
    name = f"{kind} of {size}: as torch.compile's"
    taken = [rows for rows in all_rows if chosen(solutions, kind, rows) is not None]
    if not taken:
        return report.skip(name, "no solution takes these numbers of rows")
    with report.phase(name) as problems:
        for rows in taken:
            case = Case(kind, size, rows)
            theirs, exact = compiled.result(case), reference_of(case, reference)
            sides = {"": chosen(solutions, kind, rows)}
            if kind == "silu_and_mul_quant_per_token":
                sides |= {f", {vectors} vectors, {blocks} blocks": one for vectors, blocks, one in forms(solutions, size)}
            for form, solution in sides.items():
                ours = case.result(solution)
                problems += [f"{rows} rows{form}: {problem}" for problem in differences(ours, theirs, SHARE if "norm" in kind else 0)]
                problems += [f"{rows} rows{form}, the reference: {problem}" for problem in differences(ours, exact, SHARE_OF_TIES if kind.startswith("quant") else SHARE_OF_REFERENCE)]


def time_all(kind, size, solutions, compiled, options, kept, table, slower):
    for rows in options.rows:
        case = Case(kind, size, rows)
        solution = chosen(solutions, kind, rows)
        if solution is None:
            print(f"{kind} of {size}, {rows} rows: {graph_us(lambda: compiled.run(case), case.moved):.2f} us, torch.compile's stays", flush=True)
            continue
        us, his = graph_us(lambda: case.launch(solution), case.moved), graph_us(lambda: compiled.run(case), case.moved)
        line = f"{kind} of {size}, {rows} rows: {us:.2f} us, torch.compile's {his:.2f}"
        print(line, flush=True)
        table.append({"kind": kind, "size": size, "rows": rows, "us": us, "original_us": his})
        kept.add(case.definition, "torch.compile", us, his, **case.axes)
        if us > NOISE * his:
            slower.append(line)
        if options.forms and kind == "silu_and_mul_quant_per_token":
            times = {f"{vectors}x{blocks}": graph_us(lambda: case.launch(one), case.moved) for vectors, blocks, one in forms(solutions, size)}
            print("  vectors x blocks: " + ", ".join(f"{form} {time:.2f}" for form, time in sorted(times.items(), key=lambda one: one[1])), flush=True)


def main():
    numbers = lambda text: [int(number) for number in text.split(",")]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", type=lambda text: text.split(","), default=KINDS, metavar="KIND,...")
    parser.add_argument("--sizes", type=numbers, metavar="N,...")
    parser.add_argument("--rows", type=numbers, default=ROWS, metavar="M,...")
    parser.add_argument("--forms", action="store_true")
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--keep", type=pathlib.Path, metavar="FILE", help="write the times for `fibshim bench --keep-from FILE BUILD/config/vllm`")
    options = parser.parse_args()
    report = Report("quant_per_token")
    if torch.cuda.get_device_capability() != (9, 0):
        report.skip("quant_per_token", "the kernels are for sm_90")
        return report.finish()
    torch.zeros(1, device="cuda")  # the primary context, current to this thread
    torch.set_grad_enabled(False)
    by_definition = {}
    for solution in load_all(str(FOLDER)):
        by_definition.setdefault(solution.definition, []).append(solution)
    kept, table, slower = KeptTimes(FOLDER), [], []
    for kind in options.kinds:
        for hidden in hidden_sizes(kind, by_definition):
            size = hidden // 2 if kind.startswith("silu") else hidden
            if options.sizes and size not in options.sizes:
                continue
            definition = f"{kind}_h{hidden}"
            compiled, solutions = Compiled(kind, size), by_definition[definition]
            reference = json.loads((FOLDER / "definitions" / kind / f"{definition}.json").read_text())
            judge(report, kind, size, solutions, compiled, reference, options.rows)
            time_all(kind, size, solutions, compiled, options, kept, table, slower)
    report.check("not slower", slower)
    return finish(report, options, kept, table)


if __name__ == "__main__":
    sys.exit(main())
