#!/usr/bin/env python3
"""What torch.compile makes in vLLM's default mode, beside what the folder `vllm` replaces it with, on the GPU.

  tests/gpu/inductor.py BUILD [--only DEFINITION,...] [--rows M,M...] [--keep FILE] [--out FILE] [KIND...]

The kernels are those of BUILD/inductor, which `tests/engines/engines.py inductor` compiles, launched by the driver as Inductor launches them. Both
sides must be as near to float64, and ours may not be slower where its "when" and its pattern's "where" hold. Of the configurations of a kernel the fastest counts, since
Inductor chooses so. Timed in replayed graphs, each kernel after the one before it has ended.
"""
import argparse
import ctypes
import json
import pathlib
import sys

import torch

from expressions import evaluate
from graph_time import graph_us
from kept_times import KeptTimes, finish
from report import Report
from solutions import Kernel, load_folder

ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
JUDGED = (1, 3, 77, 1024)
ALONE = ("rms_norm", "add_rms_norm", "add_rms_norm_copy", "add2_rms_norm", "add2_rms_norm_sum", "norm_add_rms_norm", "norm_add2_rms_norm",
         "norm_add2_rms_norm_sum", "silu_and_mul", "gelu_tanh_and_mul", "rope_query", "rope_key")  # what is replaced by itself; rotation only in bfloat16
NOISE = 1.03  # what times of the same kernel differ by


class Case:
    """`arguments`: of ours, by name. `originals`: arguments of Inductor's kernel, without its two null pointers; `elements`: what its grid covers,
    of each of its parts."""

    def __init__(self, kind, sizes, of_type, positions, rows):
        dtype, suffix = (torch.float16, "_fp16") if of_type == "fp16" else (torch.bfloat16, "")
        generator = torch.Generator(device="cuda").manual_seed(rows)
        normal = lambda *shape: torch.randn(*shape, generator=generator, device="cuda").to(dtype)
        if kind.startswith("norm_"):
            hidden, eps, is_of_three = sizes["hidden_size"], sizes["eps"], "add2" in kind
            self.definition = f"gemma_{kind.replace('rms_norm', 'rmsnorm')}_h{hidden}"
            x, residual, earlier = (normal(rows, hidden) for _ in range(3))
            inner, weight, earlier_weight = (0.2 * normal(hidden) for _ in range(3))
            output, kept, total = torch.empty_like(x), torch.empty_like(x), torch.empty(rows, hidden, device="cuda")
            squares = earlier.float().pow(2).sum(-1) if is_of_three else torch.empty(rows, device="cuda")
            self.outputs = [total, *([kept] if kind.endswith("sum") else []), output] if is_of_three else [squares, output]
            self.originals = [x, inner, *([earlier, squares, earlier_weight] if is_of_three else []), residual, weight, *self.outputs, rows, hidden]
            self.arguments = {"hidden_states": x, "inner_weight": inner, "earlier": earlier, "squares": squares, "earlier_weight": earlier_weight,
                              "residual": residual, "weight": weight, "output": output, "total": total, "sum": kept, "eps": eps, "batch_size": rows}
            self.axes, self.elements = {"batch_size": rows}, [rows]
            self.moved = rows * hidden * (10 + 2 * kind.endswith("sum") if is_of_three else 6)
            normed = lambda values, w: values * (values.pow(2).mean(-1, keepdim=True) + eps).rsqrt() * (1 + w.double())
            exact = normed(x.double(), inner) + residual.double() + (normed(earlier.double(), earlier_weight) if is_of_three else 0)
            self.exact = [*([exact] * (len(self.outputs) - 1) if is_of_three else [x.double().pow(2).sum(-1)]), normed(exact, weight)]
        elif "norm" in kind:
            hidden = sizes["hidden_size"]
            self.definition = f"{kind.replace('rms_norm', 'rmsnorm')}_h{hidden}{suffix}"
            inputs = [normal(rows, hidden) for _ in range({"rms": 1, "add": 2, "add2": 3}[kind.split("_")[0]])]
            weight = 1 + 0.2 * normal(hidden)
            self.outputs = [torch.empty_like(inputs[0]) for _ in range(2 if kind.endswith(("sum", "copy")) else 1)]
            if kind == "add2_rms_norm":  # in place, where the first was
                self.source, inputs[0] = inputs[0].clone(), inputs[0]
                self.outputs = [inputs[0]]
            self.originals = [*inputs, weight, *(self.outputs if kind != "add2_rms_norm" else []), rows, hidden]
            self.arguments = dict(zip(("hidden_states", "first", "second"), inputs)) | {
                "weight": weight, "output": self.outputs[-1], "sum": self.outputs[0], "copy": self.outputs[0], "eps": sizes["eps"], "batch_size": rows,
                "weight_bias": 0.0, "rounds_before_weight": 0, "num_heads": 1, "head_stride": 0, "output_head_stride": 0, "token_stride": hidden,
                "output_token_stride": hidden}
            self.axes, self.elements, self.moved = {"batch_size": rows}, [rows], 2 * rows * hidden * (len(inputs) + len(self.outputs))
            total = sum(one.double() for one in ([self.source, *inputs[1:]] if kind == "add2_rms_norm" else inputs))
            norm = total * (total.pow(2).mean(-1, keepdim=True) + sizes["eps"]).rsqrt() * weight.double()
            self.exact = [total, norm] if kind.endswith("sum") else [norm] * len(self.outputs)
        elif kind.endswith("_and_mul"):
            width = sizes["width"]
            self.definition = f"{kind}_once_h{2 * width}{suffix}"
            x = normal(rows, 2 * width)
            self.outputs = [torch.empty(rows, width, dtype=x.dtype, device="cuda")]
            self.originals = [x, self.outputs[0], rows * width]
            self.arguments = {"input": x, "output": self.outputs[0], "hidden_div_2": width, "num_tokens": rows}
            self.axes, self.elements, self.moved = {"num_tokens": rows}, [rows * width], 6 * rows * width
            gate, up = x.double().chunk(2, -1)
            self.exact = [(torch.nn.functional.silu(gate) if kind == "silu_and_mul" else torch.nn.functional.gelu(gate, approximate="tanh")) * up]
        else:
            head = sizes["head"]
            first, heads = (0, sizes["q_heads"]) if kind == "rope_query" else (head * sizes["q_heads"], sizes["kv_heads"])
            self.definition = f"rope_slice_r{sizes['row']}_o{first}_n{heads}_d{head}"
            qkv, cache = normal(rows, sizes["row"]), normal(positions, head)
            places = torch.randint(positions, (rows,), generator=generator, device="cuda")
            self.outputs = [torch.empty(rows, heads * head, dtype=qkv.dtype, device="cuda")]
            self.originals = [qkv, places, cache, self.outputs[0], rows * heads * head]
            self.arguments = {"qkv": qkv, "output": self.outputs[0], "cos_sin_cache": cache, "positions": places, "row_stride": sizes["row"],
                              "first": first, "head_count": heads, "nnz": rows}
            self.axes, self.elements, self.moved = {"nnz": rows, "max_seq_len": positions}, [rows * heads * head], 4 * rows * heads * head
            cos, sin = cache.double()[places].unsqueeze(1).chunk(2, -1)
            a, b = qkv[:, first:first + heads * head].double().view(rows, heads, head).chunk(2, -1)
            self.exact = [torch.cat([a * cos - b * sin, b * cos + a * sin], -1).view(rows, -1)]

    def prepare(self):
        for output in self.outputs:
            output.fill_(float("nan"))
        if hasattr(self, "source"):
            self.outputs[0].copy_(self.source)

    def error(self):
        """Of float32, what is below its noise is none."""
        noise = lambda output, exact: 2.0**-20 * exact.abs().mean().item() if output.dtype == torch.float32 else 0.0
        return [max((output.double() - exact).abs().mean().item(), noise(output, exact)) for output, exact in zip(self.outputs, self.exact, strict=True)]


class Original:
    def __init__(self, folder, one):
        self.elements, self.threads, self.shared_mem = one["elements"], one["threads"], one["shared_mem"]
        names = [name for name in (folder / one["file"]).read_bytes().split(b"\0") if name.startswith(b"triton_") and name.replace(b"_", b"").isalnum()]
        self.kernel = Kernel(str(folder / one["file"]), names[0].decode(), [])

    def launch(self, case):
        values = [value.data_ptr() if isinstance(value, torch.Tensor) else value for value in case.originals]
        self.kernel.types = [ctypes.c_void_p if isinstance(value, torch.Tensor) else ctypes.c_int32 for value in case.originals] + [ctypes.c_void_p] * 2
        self.kernel.launch((sum(-(-elements // self.elements) for elements in case.elements), 1, 1), (self.threads, 1, 1), [*values, None, None], self.shared_mem)


def described(kind, sizes, of_type):
    return f"{kind} {'-'.join(map(str, sizes.values()))}{' fp16' * (of_type == 'fp16')}"


def judge(report, name, of_kind, originals, solution, pattern):
    with report.phase(f"{name}: as near to float64") as problems:
        for rows in JUDGED:
            case = Case(*of_kind, rows)
            problems += [f"the pattern takes {argument} from elsewhere" for argument, value in pattern["arguments"].items()
                         if "arg" in value and argument in case.arguments and case.arguments[argument] is not case.originals[value["arg"]]]
            case.prepare()
            solution.launch(case.arguments)
            ours = case.error()
            for original in originals:
                case.prepare()
                original.launch(case)
                problems += [f"{rows} rows, output {i}: {mine:.3e}, Inductor's {his:.3e}" for i, (mine, his) in enumerate(zip(ours, case.error()))
                             if not (mine <= 1.01 * his and his == his)]


def pattern_of(folder, kind, sizes, of_type):
    """A norm's, which may leave row counts to torch.compile; others have all."""
    if "norm" not in kind:
        return {"arguments": {}, "where": []}
    paths = folder.glob(f"patterns/vllm-inductor-{kind.replace('_', '-')}-h{sizes['hidden_size']}*.json")
    return json.loads(next(path for path in paths if ("fp16" in path.stem) == (of_type == "fp16")).read_text())


def time_all(version, of_kind, originals, solution, where, all_rows, kept, table, slower):
    kind, sizes, of_type, _ = of_kind
    for rows in all_rows:
        case = Case(*of_kind, rows)
        values = sizes | case.axes | {"num_tokens": rows, "nnz": rows, "batch_size": rows}
        holds = all(evaluate(one, values) for one in (*solution.launch_block.get("when", ()), *where))
        his = min(graph_us(lambda: original.launch(case), case.moved) for original in originals)
        us = graph_us(lambda: solution.launch(case.arguments, solution.launch_block.get("pdl", False)), case.moved)
        line = f"{version}: {described(kind, sizes, of_type)}, {rows} rows: {us:.2f} us, Inductor's {his:.2f}{'' if holds else ' (not for so many)'}"
        print(line, flush=True)
        table.append({"torch": version, "kind": kind, "sizes": sizes, "type": of_type, "rows": rows, "us": us, "original_us": his, "holds": holds})
        if holds:
            kept.add(case.definition, "torch.compile", us, his, **case.axes)
            if us > NOISE * his:
                slower.append(line)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("kinds", nargs="*", metavar="KIND")
    parser.add_argument("--only", type=lambda text: text.split(","), default=[], metavar="DEFINITION,...")
    parser.add_argument("--rows", type=lambda text: [int(rows) for rows in text.split(",")], default=ROWS, metavar="M,...")
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--keep", type=pathlib.Path, metavar="FILE", help="write the times for `fibshim bench --keep-from FILE BUILD/config/vllm`")
    args = parser.parse_intermixed_args()
    torch.zeros(1, device="cuda")  # the primary context, current to this thread
    report, solutions = Report("inductor"), load_folder(str(args.build / "config/vllm"))
    kept, table, slower, timed = KeptTimes(args.build / "config/vllm"), [], [], set()
    warm = torch.randn(8192, 8192, device="cuda")
    for _ in range(20):
        warm @ warm
    for folder in sorted((args.build / "inductor").iterdir()):
        groups = {}
        for one in json.loads((folder / "index.json").read_text()):
            kind, of_type, sizes = one["kind"], one["type"], {name: size for name, size in one["sizes"].items() if name != "positions"}
            is_alone = kind in ALONE and not (kind.startswith("rope") and of_type == "fp16")
            if is_alone and (not args.kinds or kind in args.kinds):
                # One number of positions stands for all.
                positions, ones = groups.setdefault((kind, tuple(sizes.items()), of_type), (one["sizes"].get("positions"), []))
                if one["sizes"].get("positions") == positions:
                    ones.append(one)
        version = folder.name.split("-")[0]
        for (kind, sizes, of_type), (positions, ones) in groups.items():
            of_kind = kind, dict(sizes), of_type, positions
            definition, name = Case(*of_kind, 1).definition, f"{version}: {described(*of_kind[:3])}"
            if args.only and definition not in args.only:
                continue
            originals, solution = [Original(folder, one) for one in ones], solutions.get(definition)
            if solution is None:
                report.check(name, ["has no solution"])
                continue
            pattern = pattern_of(args.build / "config/vllm", *of_kind[:3])
            judge(report, name, of_kind, originals, solution, pattern)
            if (version, solution.definition) in timed:
                continue  # with another epsilon
            timed.add((version, solution.definition))
            time_all(version, of_kind, originals, solution, pattern["where"], args.rows, kept, table, slower)
    report.check("not slower", slower)
    return finish(report, args, kept, table)


if __name__ == "__main__":
    sys.exit(main())
