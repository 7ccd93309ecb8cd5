#!/usr/bin/env python3
"""Matrix products that PyTorch leaves to cuBLAS, without and with the folder for them (config/cublas).

  tests/gpu/cublas.py BUILD [--rows M,M...] [--shapes "N,K N,K..."]
  tests/gpu/cublas.py BUILD --parameters          what cuBLAS passes to the kernels of a product whose K is in parts

Each side is a process of its own and makes the same inputs. Compared are the errors from float64, of one call and of one
in a captured graph, and the times of replayed graphs that read more weights than L2 holds. A third side has the folder
without its rewrite, so that the kernels of a product whose K is in parts are replaced one for one. Then norms and products in
one graph, each of which begins before the one before it has ended, must give what they give one by one.
"""
import argparse
import itertools
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

from counters import read_counts

ROWS = (1, 2, 4, 8, 16, 32)
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
            errors = [(y.double() - want).abs() for y in (once, captured)]
            out[f"{n} {k} {m}"] = {"mean": max(error.mean().item() for error in errors),
                                   "largest": max(error.max().item() for error in errors),
                                   "same_in_graph": torch.equal(once, captured),
                                   "us": graph_us(lambda: F.linear(x, next(turn)), n * k * 2)}
    json.dump(out, open(args.child, "w"))


def parameters(args):
    """For the pattern of a rewrite: the words of cublasLt's sum, and which parameters of a captured step hold its workspace."""
    import ctypes
    import torch
    import torch.nn.functional as F
    cuda = ctypes.CDLL("libcuda.so.1")

    class NodeParams(ctypes.Structure):
        _fields_ = [("func", ctypes.c_void_p), ("geometry", ctypes.c_uint * 7), ("params", ctypes.POINTER(ctypes.c_void_p)),
                    ("extra", ctypes.POINTER(ctypes.c_void_p)), ("kern", ctypes.c_void_p), ("ctx", ctypes.c_void_p)]

    def call(name, *arguments):
        result = getattr(cuda, name)(*arguments)
        assert result == 0, f"{name}: {result}"

    def kernels(graph):
        count = ctypes.c_size_t()
        call("cuGraphGetNodes", graph, None, ctypes.byref(count))
        nodes = (ctypes.c_void_p * count.value)()
        call("cuGraphGetNodes", graph, nodes, ctypes.byref(count))
        for node in nodes:
            node, kind = ctypes.c_void_p(node), ctypes.c_int()
            call("cuGraphNodeGetType", node, ctypes.byref(kind))
            if kind.value != 0:
                continue
            own, name = NodeParams(), ctypes.c_char_p()
            call("cuGraphKernelNodeGetParams_v2", node, ctypes.byref(own))
            call("cuFuncGetName", ctypes.byref(name), ctypes.c_void_p(own.func))
            values = []
            offset, size = ctypes.c_size_t(), ctypes.c_size_t()
            while own.params and cuda.cuFuncGetParamInfo(ctypes.c_void_p(own.func), ctypes.c_size_t(len(values)),
                                                         ctypes.byref(offset), ctypes.byref(size)) == 0:
                values.append(ctypes.string_at(own.params[len(values)], size.value))
            yield name.value.decode(), values

    stream = torch.cuda.Stream()
    for n, k in args.shapes:
        w = torch.randn(n, k, device="cuda").to(torch.bfloat16)
        bias = torch.randn(n, device="cuda").to(torch.bfloat16)
        for m in args.rows:
            x = torch.randn(m, k, device="cuda").to(torch.bfloat16)
            for what, run in (("plain", lambda: F.linear(x, w)), ("bias", lambda: F.linear(x, w, bias))):
                graph = ctypes.c_void_p()
                with torch.cuda.stream(stream):
                    for _ in range(3):
                        y = run()
                    stream.synchronize()
                    call("cuStreamBeginCapture_v2", ctypes.c_void_p(stream.cuda_stream), 2)
                    z = run()
                    call("cuStreamEndCapture", ctypes.c_void_p(stream.cuda_stream), ctypes.byref(graph))
                found = list(kernels(graph))
                if not any("splitK" in name for name, _ in found):
                    continue
                print(f"n{n} k{k} m{m} {what}: y {z.data_ptr():#x}")
                workspace = None
                for name, values in found:
                    if "splitKreduce" in name:
                        words = [int.from_bytes(values[0][i:i + 4], "little") for i in range(0, len(values[0]), 4)]
                        pointers = [int.from_bytes(value, "little") for value in values[1:]]
                        workspace = pointers[0]
                        print(f"  {name}\n    words {words}\n    pointers {[hex(p) for p in pointers]}")
                for name, values in found:
                    held = [(i, at) for i, value in enumerate(values) for at in range(0, len(value) - 7, 4)
                            if workspace and workspace <= int.from_bytes(value[at:at + 8], "little") < workspace + (32 << 20)]
                    print(f"  {name[:60]} holds addresses of the workspace at (parameter, byte) {held}")
    return 0


def chain(args):
    """Replays of one graph against those of a graph for each step, bit for bit: norms whose output a product reads, products after
    products, sums of parts. Only in the first may a kernel begin before the one before it has ended."""
    import torch
    import torch.nn.functional as F
    generator = torch.Generator(device="cuda").manual_seed(5)
    normal = lambda *shape: torch.randn(*shape, generator=generator, device="cuda").to(torch.bfloat16)
    weights = [(0.02 * normal(6144, 4096), 0.02 * normal(14336, 4096), 0.02 * normal(4096, 4096), normal(4096)) for _ in range(16)]
    wrong = 0
    for m in (1, 4, 12, 24):
        x = normal(m, 4096)

        def run(step):
            out, y = [], x
            for w, wide, in_parts, norm in weights:
                y = step(lambda: F.rms_norm(y, (4096,), norm, 1e-6))
                out += [step(lambda: F.linear(y, wide)), step(lambda: F.linear(y, w))]
                y = step(lambda: out[-1][:, :4096].clone(memory_format=torch.contiguous_format))
                y = step(lambda: F.linear(y, in_parts))
                out.append(y)
            return out

        graphs = []

        def captured_apart(work):
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                made = work()
            graphs.append(graph)
            return made

        run(lambda work: work())
        torch.cuda.synchronize()
        whole = torch.cuda.CUDAGraph()
        with torch.cuda.graph(whole):
            captured = run(lambda work: work())
        apart = run(captured_apart)
        for _ in range(args.replays):
            x.copy_(normal(m, 4096))
            whole.replay()
            for graph in graphs:
                graph.replay()
            wrong += sum(not torch.equal(a, b) for a, b in zip(captured, apart))
    print(f"{'PASS' if wrong == 0 else 'FAIL'} cublas.chain: {wrong} outputs of {4 * 48 * args.replays} in one graph are others than in a "
          "graph for each", flush=True)
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
    parser.add_argument("--shapes", help="only these: N,K N,K...",
                        type=lambda text: [tuple(map(int, shape.split(","))) for shape in text.split()])
    parser.add_argument("--replays", type=int, default=300)
    parser.add_argument("--parameters", action="store_true", help="show them, and test nothing")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.parameters:
        args.shapes = [(4096, 4096), (4096, 14336)]
        return parameters(args)
    if args.child == "chain":
        return chain(args)
    if args.child:
        return child(args)
    args.build = args.build.resolve()
    config = args.build / "config/cublas"
    definitions = [json.loads(path.read_text()) for path in config.glob("definitions/**/*.json")]
    args.shapes = args.shapes or sorted({(d["axes"]["N"]["value"], d["axes"]["K"]["value"])
                                         for d in definitions if "K" in d["axes"]})
    with tempfile.TemporaryDirectory() as stats:
        own = side(args, {}, [])
        ours = side(args, {"FIBSHIM_STATS_DIR": stats}, [args.build / "bin/fibshim", "run", "-c", config, "--"])
        counts = read_counts(stats)
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as stats:
        shutil.copytree(config, folder, dirs_exist_ok=True)
        os.remove(f"{folder}/patterns/cublas-nvjet-split-reduce.json")
        one_for_one = side(args, {"FIBSHIM_STATS_DIR": stats}, [args.build / "bin/fibshim", "run", "-c", folder, "--"])
    folders = ":".join(str(args.build / "config" / name) for name in ("pytorch", "cublas"))
    with tempfile.TemporaryDirectory() as stats:
        subprocess.run([args.build / "bin/fibshim", "run", "-c", folders, "--", sys.executable, __file__, str(args.build),
                        "--child", "chain", "--replays", str(args.replays)], check=True,
                       env={**os.environ, "FIBSHIM_STATS_DIR": stats})
        of_chain = read_counts(stats)
    links = ("rmsnorm_h4096", "gemm_n6144_k4096", "gemm_n14336_k4096", "gemm_n4096_k4096_split2", "splitk_reduce_n4096_split2")
    is_replaced = all(of_chain[name, "hit"] > 0 for name in links)
    print(f"{'PASS' if is_replaced else 'FAIL'} cublas.chain: {dict(of_chain)}")
    for name, before in own.items():
        after = ours[name]
        n, k, m = map(int, name.split())
        is_right = after["mean"] <= 1.01 * before["mean"] and after["largest"] <= 2 * before["largest"]
        is_same = after["same_in_graph"] or counts[f"gemm_n{n}_k{k}", "absorbed"] > 0  # whole, it is summed in another order
        print(f"{'PASS' if is_right and is_same else 'FAIL'} cublas.n{n}.k{k}.m{m}: error {after['mean']:.3e} "
              f"(cuBLAS {before['mean']:.3e}), {after['us']:.2f} us (cuBLAS {before['us']:.2f}, "
              f"{before['us'] / after['us']:.3f} times as long; without the rewrite {one_for_one[name]['us']:.2f})")
    for n, k in args.shapes:
        ours = {name: count for (name, outcome), count in counts.items()
                if outcome == "hit" and re.fullmatch(f"gemm_n{n}_k{k}(_split[0-9]+)?", name)}
        others = {name for name, outcome in counts
                  if outcome == "fallback_no_solution" and name.startswith(f"gemm_n{n}_k{k}_split")}
        absorbed = counts[f"gemm_n{n}_k{k}", "absorbed"]
        is_whole = any(d["name"] == f"gemm_n{n}_k{k}" for d in definitions)
        if is_whole and any(name.startswith(f"gemm_n{n}_k{k}_split") for name, _ in counts):
            left = {outcome: count for (name, outcome), count in counts.items()
                    if name == f"gemm_n{n}_k{k}" and outcome not in ("hit", "absorbed")}
            print(f"{'PASS' if absorbed else 'FAIL'} cublas.n{n}.k{k}.rewrite: {absorbed} sums of parts absorbed in graphs; "
                  f"left as they are: {left}")
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
