#!/usr/bin/env python3
"""Matrix products that PyTorch leaves to cuBLAS, without and with the folder for them (config/cublas).

  tests/gpu/cublas.py BUILD [--rows M,M...]

Each side is a process of its own and makes the same inputs. Compared are the errors from float64, of one call and of one
in a captured graph, and the times of replayed graphs that read more weights than L2 holds.
"""
import argparse
import itertools
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

from counters import read_counts

ROWS = (1, 2, 4, 8, 16)
WEIGHTS = 1 << 30  # bytes that a graph reads at least


def child(args):
    import torch
    import torch.nn.functional as F
    from graph_time import graph_us
    out = {}
    for n, k in args.shapes:
        generator = torch.Generator(device="cuda").manual_seed(n * 31 + k)
        count = max(2, -(-WEIGHTS // (n * k * 2)))
        weights = [0.02 * torch.randn(n, k, generator=generator, device="cuda") for _ in range(count)]
        weights = [w.to(torch.bfloat16) for w in weights]
        turn = itertools.cycle(weights)
        graph_us(lambda: F.linear(weights[0][:1], next(turn)), n * k * 2)  # clocks fall while libraries make kernels
        for m in args.rows:
            x = torch.randn(m, k, generator=generator, device="cuda").to(torch.bfloat16)
            want = x.double() @ weights[1].double().T
            once = F.linear(x, weights[1])
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                captured = F.linear(x, weights[1])
            captured.zero_()
            graph.replay()
            error = (once.double() - want).abs()
            out[f"{n} {k} {m}"] = {"mean": error.mean().item(), "largest": error.max().item(),
                                   "same_in_graph": torch.equal(once, captured),
                                   "us": graph_us(lambda: F.linear(x, next(turn)), n * k * 2)}
    json.dump(out, open(args.child, "w"))


def side(args, environment, prefix):
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        shapes = " ".join(f"{n},{k}" for n, k in args.shapes)
        subprocess.run([*prefix, sys.executable, __file__, str(args.build), "--child", file.name, "--shapes", shapes,
                        "--rows", ",".join(map(str, args.rows))], check=True, env={**os.environ, **environment})
        return json.load(open(file.name))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--rows", type=lambda text: [int(m) for m in text.split(",")], default=list(ROWS))
    parser.add_argument("--shapes", help=argparse.SUPPRESS,
                        type=lambda text: [tuple(map(int, shape.split(","))) for shape in text.split()])
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        return child(args)
    args.build = args.build.resolve()
    config = args.build / "config/cublas"
    definitions = [json.loads(path.read_text()) for path in config.glob("definitions/**/*.json")]
    args.shapes = sorted({(d["axes"]["N"]["value"], d["axes"]["K"]["value"]) for d in definitions})
    with tempfile.TemporaryDirectory() as stats:
        own = side(args, {}, [])
        ours = side(args, {"FIBSHIM_STATS_DIR": stats}, [args.build / "bin/fibshim", "run", "-c", config, "--"])
        counts = read_counts(stats)
    for name, before in own.items():
        after = ours[name]
        n, k, m = map(int, name.split())
        is_right = after["mean"] <= 1.01 * before["mean"] and after["largest"] <= 2 * before["largest"]
        print(f"{'PASS' if is_right and after['same_in_graph'] else 'FAIL'} cublas.n{n}.k{k}.m{m}: error {after['mean']:.3e} "
              f"(cuBLAS {before['mean']:.3e}), {after['us']:.2f} us (cuBLAS {before['us']:.2f}, "
              f"{before['us'] / after['us']:.3f} times as long)")
    for n, k in args.shapes:
        ours = {name: count for (name, outcome), count in counts.items()
                if outcome == "hit" and re.fullmatch(f"gemm_n{n}_k{k}(_split[0-9]+)?", name)}
        others = {name for name, outcome in counts
                  if outcome == "fallback_no_solution" and name.startswith(f"gemm_n{n}_k{k}_split")}
        if ours:
            print(f"PASS cublas.n{n}.k{k}: hits {ours}")
        elif others:
            print(f"SKIP cublas.n{n}.k{k}: for this GPU cuBLAS cuts K into other parts: {', '.join(sorted(others))}")
        else:
            print(f"FAIL cublas.n{n}.k{k}: no hits")
    errors = sum(count for (_, outcome), count in counts.items() if outcome.startswith("error"))
    print(f"{'PASS' if errors == 0 else 'FAIL'} cublas: {errors} errors; {dict(counts)}")
    return 0


sys.exit(main())
