#!/usr/bin/env python3
"""Times of the operations of PyTorch and of vLLM's wheel, without and with the folder for them, in replayed graphs.

  tests/gpu/op_times.py BUILD pytorch [--keep FILE] [--out FILE]
  tests/gpu/op_times.py BUILD vllm --kernels _C_stable_libtorch.abi3.so [--keep FILE] [--out FILE]

Each side is a process. Every definition that an operation here is for must be replaced, and where a solution's "when" holds it may not be slower
than what it replaces. What they compute is for kernels.py to say.
"""
import argparse
import pathlib
import re
import sys

from kept_times import KeptTimes, finish
from report import Report
from sides import run_side

ROWS = (1, 8, 32, 64, 128, 256, 512, 1024, 2048, 4096, 16384)
MOST_BYTES = 2 << 30
EPS = 1e-6
NOISE = 1.03  # what times of the same kernel differ by
DTYPES = {None: "bfloat16", "fp16": "float16", "fp32": "float32"}


def pytorch_operations():
    """By family, of a definition named FAMILY_h SIZE (softmax: v): what makes the call of rows of that size, and how many bytes it moves."""
    import torch.nn.functional as F
    from torch import ones_like

    def norm(call):
        return lambda x: (lambda: call(x, ones_like(x[0])), 2 * x.nbytes)

    return {"rmsnorm": norm(lambda x, w: F.rms_norm(x, w.shape, w, EPS)),
            "layernorm": norm(lambda x, w: F.layer_norm(x, w.shape, w, w, 1e-5)),
            "softmax": lambda x: (lambda: F.softmax(x, -1), 2 * x.nbytes)}


def vllm_operations(kernels):
    import torch
    torch.ops.load_library(str(kernels))
    ops = torch.ops._C
    scale = torch.full((1,), 0.013, device="cuda")

    def norm(has_weight, has_residual, is_quantized):
        def make(x):
            weight = torch.ones_like(x[0]) if has_weight else None
            y = torch.empty_like(x, dtype=torch.float8_e4m3fn if is_quantized else x.dtype)
            residual, moved = torch.zeros_like(x), (4 if has_residual else 2) * x.nbytes
            if is_quantized and has_residual:
                return lambda: ops.fused_add_rms_norm_static_fp8_quant(y, x, residual, weight, scale, EPS), moved
            if is_quantized:
                return lambda: ops.rms_norm_static_fp8_quant(y, x, weight, scale, EPS), moved
            if has_residual:
                return lambda: ops.fused_add_rms_norm(x, residual, weight, EPS), moved
            return lambda: ops.rms_norm(y, x, weight, EPS), moved
        return make

    def activation(name, *more):
        def make(x):
            y = torch.empty_like(x[:, ::2]).contiguous()
            return lambda: getattr(ops, name)(y, x, *more), 3 * y.nbytes
        return make

    return {"rmsnorm": norm(True, False, False), "rmsnorm_no_weight": norm(False, False, False), "fused_add_rmsnorm": norm(True, True, False),
            "fused_add_rmsnorm_no_weight": norm(False, True, False), "rmsnorm_quant": norm(True, False, True),
            "fused_add_rmsnorm_quant": norm(True, True, True), "silu_and_mul_clamp": activation("silu_and_mul_with_clamp", 7.0),
            **{name: activation(name) for name in ("silu_and_mul", "mul_and_silu", "gelu_and_mul", "gelu_tanh_and_mul")}}


def cases(kept, families):
    """Definitions of these families: name, family, size, type, and the axis of the rows."""
    for name, axes in sorted(kept.axes.items()):
        fit = re.fullmatch(r"(\w+?)_[hv](\d+)(?:_(fp16|fp32))?", name)
        if fit and fit[1] in families:
            rows, = (axis for axis, kind in axes.items() if kind["type"] == "var")
            yield name, fit[1], int(fit[2]), DTYPES[fit[3]], rows


FAMILIES = {"pytorch": ("rmsnorm", "layernorm", "softmax"),
            "vllm": ("rmsnorm", "rmsnorm_no_weight", "fused_add_rmsnorm", "fused_add_rmsnorm_no_weight", "rmsnorm_quant", "fused_add_rmsnorm_quant",
                     "silu_and_mul", "mul_and_silu", "gelu_and_mul", "gelu_tanh_and_mul", "silu_and_mul_clamp")}


def child(args, kept):
    import torch
    from graph_time import graph_us
    operations = pytorch_operations() if args.folder == "pytorch" else vllm_operations(args.kernels)
    warm = torch.randn(8192, 8192, device="cuda")
    for _ in range(20):
        warm @ warm
    out = {}
    for name, family, size, dtype, _ in cases(kept, FAMILIES[args.folder]):
        for rows in ROWS:
            x = torch.empty(0, dtype=getattr(torch, dtype))
            if rows * size * x.element_size() <= MOST_BYTES:
                function, moved = operations[family](torch.randn(rows, size, device="cuda").to(x.dtype))
                out[name, rows] = graph_us(function, moved)
    torch.save(out, args.child)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("folder", choices=FAMILIES)
    parser.add_argument("--kernels", type=pathlib.Path)
    parser.add_argument("--keep", type=pathlib.Path, metavar="FILE", help="write the times for `fibshim bench --keep-from FILE BUILD/config/FOLDER`")
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.folder == "vllm" and not args.kernels:
        parser.error("vllm needs --kernels")
    folder = args.build.resolve() / "config" / args.folder
    kept, report = KeptTimes(folder), Report(f"op_times {args.folder}")
    if args.child:
        return child(args, kept)
    command = [sys.executable, __file__, *sys.argv[1:]]
    alone, _ = run_side(command, {})
    ours, counted = run_side(command, {"LD_PRELOAD": str(folder.parent.parent / "lib/libfibshim.so"), "FIBSHIM_CONFIG": str(folder)})
    engine = {"pytorch": "PyTorch", "vllm": "vLLM"}[args.folder]
    for name, *_, axis in cases(kept, FAMILIES[args.folder]):
        with report.phase(f"{name}: replaced, and not slower") as problems:
            if not counted[name, "hit"]:
                problems.append("is not replaced")
                continue
            for rows in ROWS:
                if (name, rows) in ours and kept.solution_for(name, **{axis: rows}):
                    us, his = ours[name, rows], alone[name, rows]
                    kept.add(name, engine, us, his, **{axis: rows})
                    if us > NOISE * his:
                        problems.append(f"{rows} rows: {us:.2f} us, {engine}'s {his:.2f}")
    return finish(report, args, kept, [[*key, us, alone[key]] for key, us in ours.items()])


if __name__ == "__main__":
    sys.exit(main())
