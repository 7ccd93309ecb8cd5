#!/usr/bin/env python3
"""FlashInfer's CuTe-DSL norms, without and with the folder for them (config/flashinfer).

  tests/gpu/flashinfer_cute.py BUILD CUBINS

CUBINS is a folder of build/cute_norms, which `tests/engines/engines.py cute` has filled for a version of FlashInfer. The kernels are
launched by the driver as FlashInfer launches them. Each side is a process of its own and makes the same inputs. With the shim
every launch must be known, and a hit where the folder has a solution for its size and is not slower; no result may be further from float64
than without it.
"""
import ctypes
import json
import os
import pathlib
import subprocess
import sys

from counters import FIBSHIM, run_side

ROWS = (1, 77)
EPS = 1e-6
MOST_SHARED_BYTES, SHARED_BYTES = 8, 100_000  # more than any of them takes


def image_of(path):
    out = subprocess.run([FIBSHIM, "inspect", "--json", path], check=True, stdout=subprocess.PIPE,
                         env={k: v for k, v in os.environ.items() if k != "LD_PRELOAD"}).stdout
    kernel, = json.loads(out)["files"][0]["kernels"]
    return kernel["name"], kernel["required_block"]


def child(cubins, out):
    import torch
    from solutions import Kernel, call
    words = lambda *values: (ctypes.c_int64 * len(values))(*values)
    errors = {}
    torch.zeros(1, device="cuda")  # makes the context
    for path in sorted(pathlib.Path(cubins).glob("*.cubin")):
        kind, dtype_name, size, bias, how, _ = path.stem.split(".")
        size, bias, dtype = int(size), int(bias), getattr(torch, dtype_name)
        apart = 8 if how == "strided" else 0
        name, block = image_of(path)
        kernel = Kernel(str(path), name, [])
        call("cuFuncSetAttribute", kernel.function, MOST_SHARED_BYTES, SHARED_BYTES)
        for rows in ROWS:
            generator = torch.Generator(device="cuda").manual_seed(size + rows)
            normal = lambda *shape: torch.randn(*shape, generator=generator, device="cuda").to(dtype)
            spread = lambda kind: torch.empty(rows, size + apart, dtype=kind, device="cuda")[:, :size]
            x, residual = spread(dtype).copy_(normal(rows, size)), spread(dtype).copy_(normal(rows, size))
            w, scale = normal(size), torch.full((1,), 0.02, device="cuda")
            y = spread(torch.float8_e4m3fn if "quant" in kind else dtype)
            tensor = lambda t: words(t.data_ptr(), rows, *([t.stride(0)] if apart else []))
            total = x.double() + (residual.double() if "add" in kind else 0)
            exact = total * (total.pow(2).mean(-1, keepdim=True) + EPS).rsqrt() * (w.double() + bias)
            weight, m, s, eps = words(w.data_ptr()), words(rows), words(scale.data_ptr()), ctypes.c_float(EPS)
            if kind == "rmsnorm":
                given = [tensor(x), weight, tensor(y), m, eps]
            elif kind == "qk_rmsnorm":  # tokens lie apart in the input
                heads = 7 if rows % 7 == 0 else 1
                wide = torch.empty(rows // heads, heads + 2, size, dtype=dtype, device="cuda")
                wide[:, :heads] = x.reshape(rows // heads, heads, size)
                y = torch.empty(rows, size, dtype=dtype, device="cuda")
                given = [words(wide.data_ptr(), rows // heads, heads, (heads + 2) * size, size), weight,
                         words(y.data_ptr(), rows // heads, heads, heads * size, size), words(heads), words(rows), eps]
            elif kind == "rmsnorm_quant":
                given = [tensor(x), weight, tensor(y), m, s, eps]
            elif kind == "fused_add_rmsnorm":
                given = [tensor(x), tensor(residual), weight, m, eps]
                y = x
            else:
                given = [tensor(y), tensor(x), tensor(residual), weight, m, s, eps]
            pointers = (ctypes.c_void_p * len(given))(*map(ctypes.addressof, given))
            call("cuLaunchKernel", kernel.function, rows, 1, 1, *block, SHARED_BYTES,
                 ctypes.c_void_p(torch.cuda.current_stream().cuda_stream), pointers, None)
            if "quant" in kind:
                exact = (exact / scale.double()).clamp(-448, 448)
            wrong_sum = (residual.double() - total).abs().mean().item() if "add" in kind else 0
            errors[f"{path.stem} rows {rows}"] = [(y.double() - exact).abs().mean().item(), wrong_sum, exact.abs().mean().item()]
    torch.cuda.synchronize()
    json.dump(errors, open(out, "w"))


def main():
    build, cubins = os.path.abspath(sys.argv[1]), sys.argv[2]
    if len(sys.argv) > 3:
        return child(cubins, sys.argv[3])
    stock, _ = run_side([build, cubins], {})
    ours, counts = run_side([build, cubins], {"LD_PRELOAD": f"{build}/lib/libfibshim.so", "FIBSHIM_CONFIG": f"{build}/config/flashinfer"})
    hits = sum(count for (_, outcome), count in counts.items() if outcome == "hit")
    worse = [case for case, (error, of_sum, _) in ours.items()
             if not (error <= 1.02 * stock[case][0] + 1e-9 and of_sum <= 1.001 * stock[case][1] + 1e-9)]
    misused = [case for case, (error, _, size) in stock.items() if not error <= 0.05 * size]
    for case in worse:
        print(f"  {case}: error {ours[case]}, FlashInfer's own {stock[case]}")
    for case in misused:
        print(f"  {case}: FlashInfer's own kernel, as it is launched here, computes something else: error {stock[case]}")
    unsolved, left = (sum(count for (_, outcome), count in counts.items() if outcome == f"fallback_{reason}") for reason in ("no_solution", "where"))
    passed = hits > 0 and hits + unsolved + left == len(ours) and not worse and not misused
    print(f"{'PASS' if passed else 'FAIL'} flashinfer_cute: {hits} hits of {len(ours)} launches, {unsolved} of sizes without a solution, {left} left to CuTe-DSL, {len(worse)} results further from "
          f"float64 than FlashInfer's; {dict(counts) if not passed else ''}")
    return not passed


if __name__ == "__main__":
    sys.exit(main())
