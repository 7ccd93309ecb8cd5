#!/usr/bin/env python3
"""Matrix products that PyTorch leaves to cuBLAS, without and with the folder for them (config/cublas).

  tests/gpu/cublas.py BUILD [--dtype float16|float8_e4m3fn] [--bias | --add] [--rows M,M...] [--shapes "N,K N,K..." | --model TEXT] [--brief] [--keep FILE]
  tests/gpu/cublas.py BUILD --parts "N,K,PARTS N,K,PARTS..." [--dtype float16] [--bias] [--rows M,M...] [--keep FILE]
  tests/gpu/cublas.py BUILD --strided             operands whose rows lie apart in memory: they are cuBLAS's
  tests/gpu/cublas.py BUILD --parameters          what cuBLAS passes to its kernels, and what it calls them

Each side is a process of its own and makes the same inputs. Compared are the errors from float64, of one call and of one
in a captured graph, and the times of replayed graphs that read more weights than L2 holds. A third side has the folder
without its rewrite, so that the kernels of a product whose K is in parts are replaced one for one. Beside them stand kernels that only
read the weights (reading_kernels.cu), in graphs as the products are: one after the other, and each begun before the one before has ended.
Then norms and products in one graph, each of which begins before the one before it has ended, must give what they give one by one,
also where other kernels keep SMs busy for so long that a part of a link begins or ends late. With --brief there are the first two sides alone.

--parts: our two kernels of a product whose K is in so many parts, launched by the driver, beside cuBLAS's two, however many parts these have: which
number cuBLAS takes depends on its version, the GPU and M.
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
from kept_times import KeptTimes

ROWS = (1, 2, 4, 8, 16, 32, 48, 64)
CHAIN_ROWS = (1, 4, 12, 24, 48)
WEIGHTS = 1 << 30  # bytes that a graph reads at least
# What our largest error may be of cuBLAS's. Rounding the result makes nearly all of either; the order of fp32 sums adds to it or takes
# from it: in bfloat16 up to 0.2 % of 82 kernels (cublas_versions.py), and in 16 bits of which more are the fraction's, that much more.
MOST_OF_LARGEST = {"bfloat16": 1.01, "float16": 1.05, "float8_e4m3fn": 1.05}


class Products:
    """Of one kind: what the folder calls them, and how PyTorch is asked for them."""

    def __init__(self, dtype, bias=False, add=False):
        self.dtype, self.bias, self.add, self.is_fp8 = dtype, bias, add, dtype == "float8_e4m3fn"
        self.size = 1 if self.is_fp8 else 2
        self.kind = "_fp8" if self.is_fp8 else "_bias" if bias else "_add" if add else ""
        self.suffix = "_fp16" if dtype == "float16" else ""

    def name(self, n, k):
        return f"gemm{self.kind}_n{n}_k{k}{self.suffix}"

    def sum_name(self, n, parts):  # of the parts of that name
        return f"splitk_reduce{self.kind}_n{n}_{parts[parts.index('split'):]}"

    def split_names(self, n, k):  # the bias comes with the sum
        return re.compile(f"gemm_n{n}_k{k}_split[0-9]+{self.suffix}")

    def names_in_parts(self, n, k, parts):
        part = f"gemm_n{n}_k{k}_split{parts}{self.suffix}"
        return part, self.sum_name(n, part)

    def shape_of(self, name):
        found = re.fullmatch(f"gemm{self.kind}_n([0-9]+)_k([0-9]+){self.suffix}", name)
        return found and tuple(map(int, found.groups()))

    def inputs(self, generator, count, n, k):
        """Weights, then a bias or scales."""
        import torch
        dtype = getattr(torch, self.dtype)
        random = lambda *shape: torch.randn(*shape, generator=generator, device="cuda")
        weights = [((40 if self.is_fp8 else 0.02) * random(n, k)).to(dtype) for _ in range(count)]
        if self.is_fp8:
            return weights, [torch.tensor(scale, device="cuda") for scale in (0.03, 0.0005)]
        if self.add:
            return weights, [random(256, n).to(dtype)]
        return weights, [random(n).to(dtype)] if self.bias else []

    def rows(self, generator, m, k):
        import torch
        x = torch.randn(m, k, generator=generator, device="cuda")
        return ((30 * x) if self.is_fp8 else x).to(getattr(torch, self.dtype))

    def run(self, x, weight, more):
        import torch
        if self.is_fp8:
            return torch._scaled_mm(x, weight.T, scale_a=more[0], scale_b=more[1], out_dtype=torch.bfloat16)
        if self.add:
            return torch.addmm(more[0][:len(x)], x, weight.T)
        return torch.nn.functional.linear(x, weight, *more)

    def exact(self, x, weight, more):
        product = x.float().double() @ weight.float().double().T
        if self.is_fp8:
            return product * more[0].double() * more[1].double()
        if self.add:
            return product + more[0][:len(x)].double()
        return product + more[0].double() if more else product


def captured(run):
    """A graph of it, what it returned, and how many kernels it launched."""
    import ctypes
    import torch
    graph, nodes = torch.cuda.CUDAGraph(keep_graph=True), ctypes.c_size_t()
    with torch.cuda.graph(graph):
        made = run()
    ctypes.CDLL("libcuda.so.1").cuGraphGetNodes(ctypes.c_void_p(graph.raw_cuda_graph()), None, ctypes.byref(nodes))
    return graph, made, nodes.value


def child(args):
    import torch
    from graph_time import graph_us
    out, products = {}, args.products
    for n, k in args.shapes:
        generator = torch.Generator(device="cuda").manual_seed(n * 31 + k)
        moved = n * k * products.size
        weights, more = products.inputs(generator, max(2, -(-WEIGHTS // moved)), n, k)
        turn = itertools.cycle(weights)
        first = products.rows(generator, 1, k)
        if args.reads:
            out[f"{n} {k} reading"] = read_us(args, turn, moved)
        graph_us(lambda: products.run(first, next(turn), more), moved)  # clocks fall while libraries make kernels
        for m in args.rows:
            x = products.rows(generator, m, k)
            want = products.exact(x, weights[1], more)
            once = products.run(x, weights[1], more)
            torch.cuda.synchronize()
            graph, in_graph, kernels = captured(lambda: products.run(x, weights[1], more))
            in_graph.zero_()
            graph.replay()
            errors = [(y.double() - want).abs() for y in (once, in_graph)]
            out[f"{n} {k} {m}"] = {"mean": max(error.mean().item() for error in errors),
                                   "largest": max(error.max().item() for error in errors),
                                   "same_in_graph": torch.equal(once, in_graph), "is_in_parts": kernels > 1,
                                   "us": graph_us(lambda: products.run(x, next(turn), more), moved)}
    json.dump(out, open(args.child, "w"))


def read_us(args, weights, moved):
    """Of a kernel that reads weights, in its best geometry: plain, and begun early."""
    import ctypes
    import torch
    from graph_time import graph_us
    from own_kernels import Kernels
    kernels = Kernels(args.build / "tests/data/reading_kernels.fatbin")
    x, y = torch.zeros(1, device="cuda"), torch.zeros(512, device="cuda")
    sms = torch.cuda.get_device_properties(0).multi_processor_count

    def us(is_early):
        return min(graph_us(lambda: kernels.launch(f"read_{'early_' * is_early}{loads}", sms * blocks, threads,
                                                   [next(weights), ctypes.c_int64(moved // 16), x, y], may_begin_early=is_early), moved)
                   for loads in (4, 8) for blocks, threads in ((1, 512), (2, 256), (2, 512), (3, 512), (4, 256), (4, 512)))

    return {"plain": us(False), "early": us(True)}


def in_parts(args, config):
    import torch
    from graph_time import graph_us
    from solutions import load_all
    from sum_norm import choose
    products, kept, solutions, failed = args.products, KeptTimes(config), {}, 0
    torch.zeros(1, device="cuda")  # the primary context, current to this thread
    for solution in load_all(str(config)):
        solutions.setdefault(solution.definition, []).append(solution)
    for n, k, parts in args.parts:
        generator = torch.Generator(device="cuda").manual_seed(n * 31 + k)
        moved = n * k * products.size
        weights, more = products.inputs(generator, max(2, -(-WEIGHTS // moved)), n, k)
        turn = itertools.cycle(weights)
        names = products.names_in_parts(n, k, parts)
        row = products.rows(generator, 1, k)
        graph_us(lambda: products.run(row, next(turn), more), moved)  # clocks fall while libraries make kernels
        for m in args.rows:
            label = f"cublas.n{n}.k{k}.m{m}.parts{parts}"
            x = products.rows(generator, m, k)
            _, _, kernels = captured(lambda: products.run(x, weights[1], more))
            if kernels == 1 or not all(kept.solution_for(name, M=m) for name in names):
                print(f"SKIP {label}: {'the folder is not for so many rows' if kernels > 1 else 'cuBLAS has one kernel for it'}")
                continue
            y = torch.full((m, n), float("nan"), dtype=x.dtype, device="cuda")
            arguments = {"A": x, "C": y, "partial_sums": torch.full((parts, m, n), float("nan"), device="cuda"), "M": m, "N": n, "K": k, "elements": m * n,
                         "bias": more[0] if more else None}

            def run(weight):
                for name in names:
                    choose(solutions, name, m).launch({**arguments, "B": weight}, True)

            run(weights[1])
            want = products.exact(x, weights[1], more)
            ours, before = ((found.double() - want).abs() for found in (y, products.run(x, weights[1], more)))
            is_right = ours.mean() <= 1.01 * before.mean() and ours.max() <= MOST_OF_LARGEST[args.dtype] * before.max()
            before_us = graph_us(lambda: products.run(x, next(turn), more), moved)
            us = graph_us(lambda: run(next(turn)), moved)
            for name in names[products.bias:]:  # the product's parts are without it
                kept.add(name, "cuBLAS, product and sum", us, before_us, M=m)
            failed += not is_right
            print(f"{'PASS' if is_right else 'FAIL'} {label}: error {ours.mean():.3e} in the mean, {ours.max():.3e} at most (cuBLAS {before.mean():.3e}, "
                  f"{before.max():.3e}), {us:.2f} us (cuBLAS {before_us:.2f})", flush=True)
    if args.keep:
        kept.write_here(args.keep)
    return int(failed > 0)


def parameters(args):
    """For patterns: the kernels of captured products, and where in their parameters their tensors stand."""
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
            packed = None
            for i in range(0, 4, 2):  # CU_LAUNCH_PARAM_BUFFER_POINTER is 1
                if not own.extra or not own.extra[i]:
                    break
                packed = own.extra[i + 1] if own.extra[i] == 1 else packed
            offset, size = ctypes.c_size_t(), ctypes.c_size_t()
            while (own.params or packed) and cuda.cuFuncGetParamInfo(ctypes.c_void_p(own.func), ctypes.c_size_t(len(values)),
                                                                     ctypes.byref(offset), ctypes.byref(size)) == 0:
                at = packed + offset.value if packed else own.params[len(values)]
                values.append(ctypes.string_at(at, size.value))
            yield name.value.decode(), values

    stream = torch.cuda.Stream()

    def show(what, run, **tensors):
        graph = ctypes.c_void_p()
        try:
            with torch.cuda.stream(stream):
                for _ in range(3):
                    run()
                stream.synchronize()
                call("cuStreamBeginCapture_v2", ctypes.c_void_p(stream.cuda_stream), 2)
                try:
                    tensors["y"] = run()
                finally:
                    call("cuStreamEndCapture", ctypes.c_void_p(stream.cuda_stream), ctypes.byref(graph))
        except (RuntimeError, NotImplementedError) as error:
            print(f"{what}: {str(error).splitlines()[0]}")
            return
        print(what)
        found = list(kernels(graph))
        pointers = {name: tensor.data_ptr() for name, tensor in tensors.items()}
        for name, values in found:
            if "splitKreduce" in name and values:
                pointers["workspace"] = int.from_bytes(values[1], "little")
        for name, values in found:
            short = re.sub("EEEvNS_18cublasSplitKParams.*", "EEE...", name)
            print(f"  {short[:150]} {[len(value) for value in values][:3]}")
            for tensor, address in pointers.items():
                at = [(i, at) for i, value in enumerate(values) for at in range(0, len(value) - 7, 4)
                      if int.from_bytes(value[at:at + 8], "little") == address]
                print(f"    {tensor}: {at}")
            if "splitKreduce" in name and values:
                print(f"    words {[int.from_bytes(values[0][i:i + 4], 'little') for i in range(0, len(values[0]), 4)]}")
            elif values and len(values[0]) == 1720:
                words = {at: int.from_bytes(values[0][at:at + 4], "little")
                         for at in (208, 212, 216, 272, 276, 280, 320, 336, 344, 348, 352, 400, 408, 416, 420, 424)}
                print(f"    words {words}")
                others = {at: hex(int.from_bytes(values[0][at:at + 4], "little"))
                          for at in (*range(120, 176, 4), *range(1320, 1704, 4)) if any(values[0][at:at + 4])}
                print(f"    others {others}")

    bf16 = torch.bfloat16
    normal = lambda *shape, dtype=bf16: torch.randn(*shape, device="cuda").to(dtype)
    for n, k in args.shapes:
        for dtype in (bf16, torch.float16):
            w, bias = normal(n, k, dtype=dtype), normal(n, dtype=dtype)
            for m in args.rows:
                x = normal(m, k, dtype=dtype)
                show(f"bias {dtype} n{n} k{k} m{m}", lambda: F.linear(x, w, bias), x=x, w=w, bias=bias)
    for m in (8, 32):  # what must not be taken for a product with a bias, or for one product
        w, bias, x, c = normal(6144, 4096), normal(6144), normal(m, 4096), normal(m, 6144)
        show(f"relu m{m}", lambda: torch._addmm_activation(bias, x, w.T), x=x, w=w, bias=bias)
        show(f"gelu m{m}", lambda: torch._addmm_activation(bias, x, w.T, use_gelu=True), x=x, w=w, bias=bias)
        show(f"c m{m}", lambda: torch.addmm(c, x, w.T), x=x, w=w, c=c)
        show(f"alpha m{m}", lambda: torch.addmm(bias, x, w.T, alpha=0.5), x=x, w=w, bias=bias)
        w, x = normal(3, 4096, 4096), normal(3, m, 4096)
        show(f"three m{m}", lambda: torch.bmm(x, w.mT), x=x, w=w)
    e4m3, e5m2 = torch.float8_e4m3fn, torch.float8_e5m2
    for n, k in ((6144, 4096), (4096, 14336), (8192, 8192)):
        for m in (1, 16, 64):
            for fast in (False, True):
                for of_x, of_w, out in ((e4m3, e4m3, bf16), (e5m2, e4m3, bf16), (e4m3, e4m3, torch.float16)):
                    x, w = normal(m, k, dtype=of_x), normal(n, k, dtype=of_w)
                    a, b = (torch.tensor(scale, device="cuda") for scale in (0.5, 0.25))
                    show(f"fp8 {of_x} {of_w} {out} n{n} k{k} m{m} fast {fast}",
                         lambda: torch._scaled_mm(x, w.T, scale_a=a, scale_b=b, out_dtype=out, use_fast_accum=fast),
                         x=x, w=w, scale_a=a, scale_b=b)
    return 0


def chain(args):
    """Replays of one graph against those of a graph for each step, bit for bit: norms whose output a product reads, products after
    products, sums of parts. Only in the first may a kernel begin before the one before it has ended. And in two others, which have
    the same kernels beside a branch that keeps SMs busy: of which link it delays what, and for how long, is another with each replay."""
    import ctypes
    import torch
    from own_kernels import Kernels
    import torch.nn.functional as F
    generator = torch.Generator(device="cuda").manual_seed(5)
    normal = lambda *shape: torch.randn(*shape, generator=generator, device="cuda").to(torch.bfloat16)
    weights = [(0.02 * normal(6144, 4096), 0.02 * normal(14336, 4096), 0.02 * normal(4096, 4096), normal(4096)) for _ in range(16)]
    kernels = Kernels(args.build / "tests/data/reading_kernels.fatbin")
    sms = torch.cuda.get_device_properties(0).multi_processor_count
    cycles = torch.zeros(256, device="cuda", dtype=torch.int64)
    beside = torch.cuda.Stream()
    wrong, delayed = 0, {"all the while": 0, "from a link on": 0}

    def delay(index):
        """On two thirds of the SMs, of which it leaves no shared memory to a product."""
        with torch.cuda.stream(beside):
            kernels.launch("spin", 2 * sms // 3, 32, [cycles, ctypes.c_int32(index % len(cycles))], shared_mem=200 << 10)

    def captured_with_delays(run, way):
        graph, links = torch.cuda.CUDAGraph(), itertools.count()

        def step(work):
            link = next(links)
            if way == "from a link on" and link % 3 == 1:  # where two nodes follow a link, it does not let the next begin before its own wait
                beside.wait_stream(torch.cuda.current_stream())
                delay(link)
            return work()

        with torch.cuda.graph(graph):
            beside.wait_stream(torch.cuda.current_stream())
            for index in range(60 if way == "all the while" else 1):
                delay(index)
            made = run(step)
            torch.cuda.current_stream().wait_stream(beside)
        return graph, made

    for m in CHAIN_ROWS:
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
        with_delays = {way: captured_with_delays(run, way) for way in delayed}
        for _ in range(args.replays):
            x.copy_(normal(m, 4096))
            whole.replay()
            for graph in graphs:
                graph.replay()
            wrong += sum(not torch.equal(a, b) for a, b in zip(captured, apart))
            for way, (graph, made) in with_delays.items():
                cycles.random_(0, 60_000, generator=generator)
                graph.replay()
                delayed[way] += sum(not torch.equal(a, b) for a, b in zip(made, apart))
    print(f"{'PASS' if wrong == 0 else 'FAIL'} cublas.chain: {wrong} outputs of {len(CHAIN_ROWS) * 48 * args.replays} in one graph are others than in a "
          "graph for each", flush=True)
    for way, count in delayed.items():
        print(f"{'PASS' if count == 0 else 'FAIL'} cublas.chain: with SMs kept busy {way}, {count} of {len(CHAIN_ROWS) * 48 * args.replays} are others", flush=True)
    return 0


# Views of operands with K columns, and whether a product of each is replaced.
STRIDED = {
    "nothing": (lambda x, w: (x, w), True),
    "columns of A": (lambda x, w: (x.repeat(1, 2)[:, : x.shape[1]], w), False),
    "each third row of A": (lambda x, w: (x.repeat_interleave(3, 0).view(len(x), 3, -1)[:, -1], w), False),
    "columns of B": (lambda x, w: (x, w.repeat(1, 2)[:, : w.shape[1]]), False),
    "a single row of A": (lambda x, w: (x.repeat(1, 2)[:1, : x.shape[1]], w), True),
}


def strided(args, config):
    with tempfile.TemporaryDirectory() as folder:
        for what, (_, wanted) in STRIDED.items():
            stats = pathlib.Path(folder, what.replace(" ", "_"))
            stats.mkdir()
            run = side(args, {"FIBSHIM_STATS_DIR": str(stats)}, [args.build / "bin/fibshim", "run", "-c", config, "--"], "--strided", what)
            counts = read_counts(stats)
            hits = sum(count for (name, outcome), count in counts.items() if outcome == "hit" and name == "gemm_n6144_k4096")
            is_right = run["error"] < 0.01 and (hits > 0) == wanted
            print(f"{'PASS' if is_right else 'FAIL'} cublas.strided, {what}: error {run['error']:.2e} of the largest element, {hits} hits")


def strided_child(args):
    import torch
    generator = torch.Generator(device="cuda").manual_seed(1)
    x, w = (torch.randn(rows, 4096, generator=generator, device="cuda", dtype=torch.bfloat16) for rows in (4, 6144))
    x, w = STRIDED[args.strided][0](x, w)
    want = x.double() @ w.double().T
    once = torch.nn.functional.linear(x, w)
    torch.cuda.synchronize()
    graph, in_graph, _ = captured(lambda: torch.nn.functional.linear(x, w))
    in_graph.zero_()
    graph.replay()
    error = max((y.double() - want).abs().max().item() for y in (once, in_graph))
    json.dump({"error": error / want.abs().max().item()}, open(args.child, "w"))


def side(args, environment, prefix, *more):
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        shapes = " ".join(f"{n},{k}" for n, k in args.shapes)
        subprocess.run([*prefix, sys.executable, __file__, str(args.build), "--child", file.name, "--shapes", shapes,
                        "--rows", ",".join(map(str, args.rows)), "--dtype", args.dtype, *["--bias"] * args.bias, *["--add"] * args.add, *more], check=True, env={**os.environ, **environment})
        return json.load(open(file.name))


def without_rewrite(args, config):
    """The side of which the kernels of a product whose K is in parts are replaced one for one; and the counts."""
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as stats:
        shutil.copytree(config, folder, dirs_exist_ok=True)
        for path in pathlib.Path(folder).glob("patterns/cublas-nvjet-split-reduce*.json"):
            path.unlink()
        return side(args, {"FIBSHIM_STATS_DIR": stats}, [args.build / "bin/fibshim", "run", "-c", folder, "--"]), read_counts(stats)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--rows", type=lambda text: [int(m) for m in text.split(",")], default=list(ROWS))
    parser.add_argument("--shapes", help="only these: N,K N,K...",
                        type=lambda text: [tuple(map(int, shape.split(","))) for shape in text.split()])
    parser.add_argument("--model", default="", help="only shapes whose definitions name it")
    parser.add_argument("--replays", type=int, default=300)
    parser.add_argument("--dtype", choices=("bfloat16", "float16", "float8_e4m3fn"), default="bfloat16")
    parser.add_argument("--bias", action="store_true", help="added to each row")
    parser.add_argument("--add", action="store_true", help="torch.addmm with an addend of the product's shape")
    parser.add_argument("--brief", action="store_true", help="only cuBLAS and the folder")
    parser.add_argument("--keep", type=pathlib.Path, metavar="FILE", help="write the times for `fibshim bench --keep-from FILE BUILD/config/cublas`")
    parser.add_argument("--parts", help="only these, with K in so many parts: N,K,PARTS...",
                        type=lambda text: [tuple(map(int, shape.split(","))) for shape in text.split()])
    parser.add_argument("--parameters", action="store_true", help="show them, and test nothing")
    parser.add_argument("--strided", nargs="?", const="all", help="operands whose rows lie apart")
    parser.add_argument("--reads", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.products = products = Products(args.dtype, args.bias, args.add)
    args.build = args.build.resolve()
    config = args.build / "config/cublas"
    if args.parameters:
        kind = Products("bfloat16", bias=True)
        args.shapes = args.shapes or sorted(filter(None, (kind.shape_of(path.stem) for path in config.glob("definitions/*/*.json"))))
        return parameters(args)
    if args.parts:
        return in_parts(args, config)
    if args.strided:
        args.shapes = args.shapes or []
        return strided_child(args) if args.child else strided(args, config)
    if args.child == "chain":
        return chain(args)
    if args.child:
        return child(args)
    definitions = [json.loads(path.read_text()) for path in config.glob("definitions/**/*.json")]
    names = {d["name"] for d in definitions}
    is_part = lambda name, n, k: products.split_names(n, k).fullmatch(name)
    args.shapes = args.shapes or sorted({(d["axes"]["N"]["value"], d["axes"]["K"]["value"]) for d in definitions
                                         if "K" in d["axes"] and args.model in d["description"] and (products.shape_of(d["name"]) or (not products.kind and
                                         is_part(d["name"], d["axes"]["N"]["value"], d["axes"]["K"]["value"])))})
    with tempfile.TemporaryDirectory() as stats:
        own = side(args, {}, [], *[] if args.brief else ["--reads"])
        ours = side(args, {"FIBSHIM_STATS_DIR": stats}, [args.build / "bin/fibshim", "run", "-c", config, "--"])
        counts = read_counts(stats)
    one_for_one, singly = (None, {}) if args.brief else without_rewrite(args, config)
    if args.dtype == "bfloat16" and not products.kind and not args.brief:
        folders = ":".join(str(args.build / "config" / name) for name in ("pytorch", "cublas"))
        with tempfile.TemporaryDirectory() as stats:
            subprocess.run([args.build / "bin/fibshim", "run", "-c", folders, "--", sys.executable, __file__, str(args.build),
                            "--child", "chain", "--replays", str(args.replays)], check=True,
                           env={**os.environ, "FIBSHIM_STATS_DIR": stats})
            of_chain = read_counts(stats)
        links = ("rmsnorm_h4096", "gemm_n6144_k4096", "gemm_n14336_k4096", "gemm_n4096_k4096_split2", "splitk_reduce_n4096_split2")
        is_replaced = all(of_chain[name, "hit"] > 0 for name in links)
        print(f"{'PASS' if is_replaced else 'FAIL'} cublas.chain: {dict(of_chain)}")
    reading = {name: own.pop(name) for name in list(own) if name.endswith("reading")}
    kept = KeptTimes(config)
    for name, before in own.items():
        after = ours[name]
        n, k, m = map(int, name.split())
        if counts[products.name(n, k), "hit"] > 0:
            kept.add(products.name(n, k), "cuBLAS", after["us"], before["us"], M=m)
        parts = [name for name, outcome in singly if outcome == "hit" and is_part(name, n, k)]
        if before["is_in_parts"] and len(parts) == 1:
            for part in (parts[0], products.sum_name(n, parts[0])):
                kept.add(part, "cuBLAS, product and sum", one_for_one[name]["us"], before["us"], M=m)
        is_right = after["mean"] <= 1.01 * before["mean"] and after["largest"] <= MOST_OF_LARGEST[args.dtype] * before["largest"]
        beside = ""
        if not args.brief:
            plain, early = (reading[f"{n} {k} reading"][way] for way in ("plain", "early"))
            beside = (f"; without the rewrite {one_for_one[name]['us']:.2f}; only reading {plain:.2f}, early {early:.2f}: "
                      f"{after['us'] / early:.3f} of that")
        is_same = after["same_in_graph"] or counts[products.name(n, k), "absorbed"] > 0  # whole, it is summed in another order
        print(f"{'PASS' if is_right and is_same else 'FAIL'} cublas.n{n}.k{k}.m{m}: error {after['mean']:.3e} "
              f"in the mean, {after['largest']:.3e} at most (cuBLAS {before['mean']:.3e}, {before['largest']:.3e}), {after['us']:.2f} us (cuBLAS {before['us']:.2f}, "
              f"{before['us'] / after['us']:.3f} times as long{beside})")
    for n, k in args.shapes:
        whole = products.name(n, k)
        ours = {name: count for (name, outcome), count in counts.items()
                if outcome == "hit" and (name == whole or is_part(name, n, k))}
        others = {name for name, outcome in counts if outcome == "fallback_no_solution" and is_part(name, n, k)}
        absorbed = counts[whole, "absorbed"]
        if whole in names and any(is_part(name, n, k) for name, _ in counts):
            left = {outcome: count for (name, outcome), count in counts.items()
                    if name == whole and outcome not in ("hit", "absorbed")}
            is_wanted = any(own[f"{n} {k} {m}"]["is_in_parts"] and kept.solution_for(whole, M=m) for m in args.rows)
            print(f"{'PASS' if (absorbed > 0) == is_wanted else 'FAIL'} cublas.n{n}.k{k}.rewrite: {absorbed} sums of parts absorbed in graphs; "
                  f"left as they are: {left}")
        if ours:
            print(f"PASS cublas.n{n}.k{k}: hits {ours}")
        elif others:
            print(f"SKIP cublas.n{n}.k{k}: for this GPU cuBLAS cuts K into other parts: {', '.join(sorted(others))}")
        else:
            print(f"FAIL cublas.n{n}.k{k}: no hits")
    if args.keep:
        kept.write_here(args.keep)
    errors = sum(count for (_, outcome), count in counts.items() if outcome.startswith("error"))
    print(f"{'PASS' if errors == 0 else 'FAIL'} cublas: {errors} errors; {dict(counts)}")
    return 0


sys.exit(main())
