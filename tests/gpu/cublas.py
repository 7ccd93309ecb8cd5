#!/usr/bin/env python3
"""Matrix products that PyTorch leaves to cuBLAS, without and with the folder for them (config/cublas).

  tests/gpu/cublas.py BUILD [--rows M,M...]

Each side is a process of its own and makes the same inputs. Compared are the errors from float64, of one call and of one
in a captured graph, and the times of replayed graphs that read more weights than L2 holds. Then norms and products in
one graph, each of which begins before the one before it has ended, must give what they give one by one.
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


def chain(args):
    """Replays against eager runs, bit for bit: norms whose output a product reads, products after products, sums of parts."""
    import torch
    import torch.nn.functional as F
    generator = torch.Generator(device="cuda").manual_seed(5)
    normal = lambda *shape: torch.randn(*shape, generator=generator, device="cuda").to(torch.bfloat16)
    weights = [(0.02 * normal(6144, 4096), 0.02 * normal(4096, 4096), normal(4096)) for _ in range(16)]
    wrong = 0
    for m in (1, 4):
        x = normal(m, 4096)

        def run():
            out, y = [], x
            for w, in_parts, norm in weights:
                y = F.rms_norm(y, (4096,), norm, 1e-6)
                out += [F.linear(y, w), F.linear(y, w)]
                y = F.linear(out[-1][:, :4096].contiguous(), in_parts)
                out.append(y)
            return out

        run()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = run()
        for _ in range(args.replays):
            x.copy_(normal(m, 4096))
            graph.replay()
            wrong += sum(not torch.equal(a, b) for a, b in zip(captured, run()))
    print(f"{'PASS' if wrong == 0 else 'FAIL'} cublas.chain: {wrong} outputs of {2 * 48 * args.replays} in graphs are others than one "
          "by one", flush=True)
    return 0


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
    parser.add_argument("--replays", type=int, default=300)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child == "chain":
        return chain(args)
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
    folders = ":".join(str(args.build / "config" / name) for name in ("pytorch", "cublas"))
    with tempfile.TemporaryDirectory() as stats:
        subprocess.run([args.build / "bin/fibshim", "run", "-c", folders, "--", sys.executable, __file__, str(args.build),
                        "--child", "chain", "--replays", str(args.replays)], check=True,
                       env={**os.environ, "FIBSHIM_STATS_DIR": stats})
        of_chain = read_counts(stats)
    links = ("rmsnorm_h4096", "gemm_n6144_k4096", "gemm_n4096_k4096_split2", "splitk_reduce_n4096_split2")
    is_replaced = all(of_chain[name, "hit"] > 0 for name in links)
    print(f"{'PASS' if is_replaced else 'FAIL'} cublas.chain: {dict(of_chain)}")
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
