#!/usr/bin/env python3
"""FlashInfer's CuTe-DSL norms, without and with the folder for them (config/flashinfer).

  tests/gpu/flashinfer_cute.py BUILD CUBINS [--keep FILE] [--out FILE]

CUBINS is a folder of build/cute_norms, which `tests/engines/engines.py cute` has filled for a version of FlashInfer. The kernels are
launched by the driver as FlashInfer launches them. Each side is a process of its own and makes the same inputs. With the shim
every launch must be known, and a hit where the folder has a solution for its size and rows; no result may be further from float64 than
without it. Timed are replayed graphs of those whose rows lie densely and which may begin early: no solution may be slower.
"""
import argparse
import ctypes
import json
import os
import pathlib
import subprocess
import sys

from counters import FIBSHIM
from kept_times import KeptTimes, finish
from op_times import MOST_BYTES, NOISE, PLACES, ROWS as TIMED_ROWS
from report import Report
from sides import run_side

ROWS = (1, 77)
EPS = 1e-6
MOST_SHARED_BYTES, SHARED_BYTES = 8, 100_000  # more than any of them takes


def image_of(path):
    out = subprocess.run([FIBSHIM, "inspect", "--json", path], check=True, stdout=subprocess.PIPE,
                         env={k: v for k, v in os.environ.items() if k != "LD_PRELOAD"}).stdout
    kernel, = json.loads(out)["files"][0]["kernels"]
    return kernel["name"], kernel["required_block"]


class Norm:
    """What a cubin's name says, and its kernel."""

    def __init__(self, path):
        import torch
        from solutions import Kernel, call
        self.kind, dtype, size, bias, how, early = path.stem.split(".")
        self.size, self.bias, self.apart, self.is_early = int(size), int(bias), 8 if how == "strided" else 0, early == "1"
        self.dtype = getattr(torch, dtype)
        self.definition = f"{'gemma_' * self.bias}{self.kind}_h{size}{'_fp16' * (dtype == 'float16')}"
        name, self.block = image_of(path)
        self.kernel = Kernel(str(path), name, [])
        call("cuFuncSetAttribute", self.kernel.function, MOST_SHARED_BYTES, SHARED_BYTES)


class Launch:
    def __init__(self, norm, rows):
        import torch
        self.norm, self.rows, size = norm, rows, norm.size
        words = lambda *values: (ctypes.c_int64 * len(values))(*values)
        generator = torch.Generator(device="cuda").manual_seed(size + rows)
        normal = lambda *shape: torch.randn(*shape, generator=generator, device="cuda").to(norm.dtype)
        spread = lambda kind: torch.empty(rows, size + norm.apart, dtype=kind, device="cuda")[:, :size]
        self.x, self.residual = (spread(norm.dtype).copy_(normal(rows, size)) for _ in range(2))
        self.w, self.scale = normal(size), torch.full((1,), 0.02, device="cuda")
        self.y = spread(torch.float8_e4m3fn if "quant" in norm.kind else norm.dtype)
        tensor = lambda t: words(t.data_ptr(), rows, *([t.stride(0)] if norm.apart else []))
        weight, m, s, eps = words(self.w.data_ptr()), words(rows), words(self.scale.data_ptr()), ctypes.c_float(EPS)
        if norm.kind == "rmsnorm":
            self.given = [tensor(self.x), weight, tensor(self.y), m, eps]
        elif norm.kind == "qk_rmsnorm":  # tokens lie apart in the input
            heads = 7 if rows % 7 == 0 else 1
            self.wide = torch.empty(rows // heads, heads + 2, size, dtype=norm.dtype, device="cuda")
            self.wide[:, :heads] = self.x.reshape(rows // heads, heads, size)
            self.y = torch.empty(rows, size, dtype=norm.dtype, device="cuda")
            self.given = [words(self.wide.data_ptr(), rows // heads, heads, (heads + 2) * size, size), weight,
                          words(self.y.data_ptr(), rows // heads, heads, heads * size, size), words(rows // heads), words(heads), eps]
        elif norm.kind == "rmsnorm_quant":
            self.given = [tensor(self.x), weight, tensor(self.y), m, s, eps]
        elif norm.kind == "fused_add_rmsnorm":
            self.given = [tensor(self.x), tensor(self.residual), weight, m, eps]
            self.y = self.x
        else:
            self.given = [tensor(self.y), tensor(self.x), tensor(self.residual), weight, m, s, eps]

    def run(self):
        import torch
        from solutions import call
        pointers = (ctypes.c_void_p * len(self.given))(*map(ctypes.addressof, self.given))
        call("cuLaunchKernel", self.norm.kernel.function, self.rows, 1, 1, *self.norm.block, SHARED_BYTES,
             ctypes.c_void_p(torch.cuda.current_stream().cuda_stream), pointers, None)

    def errors(self):
        """Runs once: mean distance from float64 of the output, and of the sum."""
        has_sum = "add" in self.norm.kind
        total = self.x.double() + (self.residual.double() if has_sum else 0)
        exact = total * (total.pow(2).mean(-1, keepdim=True) + EPS).rsqrt() * (self.w.double() + self.norm.bias)
        if "quant" in self.norm.kind:
            exact = (exact / self.scale.double()).clamp(-448, 448)
        self.run()
        return [(self.y.double() - exact).abs().mean().item(), (self.residual.double() - total).abs().mean().item() if has_sum else 0]

    def moved_bytes(self):
        return (4 if "add" in self.norm.kind else 2) * self.x.nbytes


def child(args):
    import torch
    from graph_time import graph_us
    torch.zeros(1, device="cuda")  # makes the context
    errors, times = {}, {}
    for path in sorted(args.cubins.glob("*.cubin")):
        norm = Norm(path)
        for rows in ROWS:
            errors[f"{path.stem} rows {rows}"] = Launch(norm, rows).errors()
        for rows in TIMED_ROWS if norm.is_early and not norm.apart and norm.kind != "qk_rmsnorm" else ():
            if rows * norm.size * norm.dtype.itemsize <= MOST_BYTES:
                launches = [Launch(norm, rows) for _ in range(PLACES)]
                times[norm.definition, rows] = min(graph_us(launch.run, launch.moved_bytes()) for launch in launches)
    torch.cuda.synchronize()
    torch.save((errors, times), args.child)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("cubins", type=pathlib.Path)
    parser.add_argument("--keep", type=pathlib.Path, metavar="FILE", help="write the times for `fibshim bench --keep-from FILE BUILD/config/flashinfer`")
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        return child(args)
    build, command = args.build.resolve(), [sys.executable, __file__, *sys.argv[1:]]
    (stock, stock_times), _ = run_side(command, {})
    (ours, our_times), counts = run_side(command, {"LD_PRELOAD": str(build / "lib/libfibshim.so"),
                                                   "FIBSHIM_CONFIG": str(build / "config/flashinfer")})
    kept, report = KeptTimes(build / "config/flashinfer"), Report("flashinfer_cute")
    report.check("no result is further from float64", [
        f"{case}: error {ours[case]}, FlashInfer's own {stock[case]}" for case, (error, of_sum) in ours.items()
        if not (error <= 1.02 * stock[case][0] + 1e-9 and of_sum <= 1.001 * stock[case][1] + 1e-9)])
    outcomes = {outcome: sum(count for (_, o), count in counts.items() if o == outcome) for _, outcome in counts}
    report.check("every launch is known, and replaced where a solution is for it",
                 [f"{outcomes}"] * (not outcomes.get("hit") or not set(outcomes) <= {"hit", "fallback_no_solution", "fallback_where"}))
    slower = []
    for (definition, rows), us in our_times.items():
        if definition in kept.axes and kept.solution_for(definition, batch_size=rows):
            his = stock_times[definition, rows]
            kept.add(definition, "FlashInfer CuTe-DSL", us, his, batch_size=rows)
            if us > NOISE * his:
                slower.append(f"{definition}, {rows} rows: {us:.2f} us, FlashInfer's {his:.2f}")
    report.check("no solution is slower", slower)
    return finish(report, args, kept, [[*key, us, stock_times[key]] for key, us in our_times.items()])


if __name__ == "__main__":
    sys.exit(main())
