#!/usr/bin/env python3
"""The matrix products of other versions of cuBLAS, without and with the folder for them (config/cublas).

  tests/gpu/cublas_versions.py BUILD [LIBCUBLASLT...] [--rows M,M...] [--shapes "N,K N,K..."] [--forms FORM,FORM...]
                                                   [--dump FOLDER]

Each side of each library is a process of its own, without PyTorch, and calls cublasLt by its C interface; this one makes the
inputs, and compares the results with float64: of one call, and of one in a captured graph. A version whose kernels the folder does not
know is told, with where their parameters hold what is known of a product. --dump keeps their parameters, as JSON. Without a
library: those that came with PyTorch. Forms are plain, bias (added to each row) and add (to what stands there), and fp16, fp16-bias
and fp16-add.
"""
import argparse
import collections
import importlib.util
import itertools
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

import numpy

from counters import read_counts

ROWS = (1, 2, 4, 8, 16, 32, 64)
SHAPES = ((4096, 4096), (6144, 4096), (28672, 4096), (4096, 14336))
NO_NUMBERS = b"\xff"


def type_of(form):
    return "fp16" if form.startswith("fp16") else "bf16"


def child(args):
    from cublas_lt import Driver, Lt
    folder = pathlib.Path(args.child)
    stats = os.environ["FIBSHIM_STATS_DIR"]
    driver = Driver()
    lt = Lt(str(args.libraries[0]), driver)
    out = {"version": lt.version, "products": {}}

    def counted(work):
        before = read_counts(stats)
        work()
        after = read_counts(stats)
        counts = {f"{definition} {outcome}": count for (definition, outcome), count in (after - before).items()}
        return counts | ({"- untracked": after.untracked - before.untracked} if after.untracked > before.untracked else {})

    for form, (n, k) in itertools.product(args.forms, args.shapes):
        read = lambda name: (folder / f"{name}_{type_of(form)}_{n}_{k}").read_bytes()
        w, bias = driver.allocate(n * k * 2, read("w")), driver.allocate(n * 2, read("bias")) if form.endswith("bias") else None
        for m in args.rows:
            name = f"{form}_{n}_{k}_{m}"
            x, y = driver.allocate(m * k * 2, read("x")), driver.allocate(m * n * 2)
            before = read("addend")[:m * n * 2] if form.endswith("add") else NO_NUMBERS * (m * n * 2)
            product = out["products"][name] = {}
            try:
                run = lt.product(m, n, k, w, x, y, type_of(form), bias, form.endswith("add"))
                graph = driver.capture(run)
                product["kernels"] = [(kernel, [(offset, value.hex()) for offset, value in values])
                                      for kernel, values in driver.kernels(graph)]
                product["pointers"] = {"w": w.value, "x": x.value, "y": y.value, "workspace": lt.workspace.value}
                if bias is not None:
                    product["pointers"]["bias"] = bias.value
                for how, work in (("once", run), ("graph", lambda: driver.replay(driver.capture(run)))):
                    driver.write(y, before)
                    product[how] = counted(work)
                    (folder / f"y_{name}_{how}_{args.side}").write_bytes(driver.read(y, m * n * 2))
            except RuntimeError as error:
                product["problem"] = str(error)
            driver.free(x, y)
        driver.free(w, *([] if bias is None else [bias]))
    json.dump(out, open(folder / f"{args.side}.json", "w"))


def side(args, library, folder, name, prefix):
    with tempfile.TemporaryDirectory() as stats:
        shapes = " ".join(f"{n},{k}" for n, k in args.shapes)
        done = subprocess.run([*prefix, sys.executable, __file__, args.build, library, "--child", folder, "--side", name, "--shapes", shapes,
                               "--rows", ",".join(map(str, args.rows)), "--forms", ",".join(args.forms)], env={
                                   **os.environ, "FIBSHIM_STATS_DIR": stats, "FIBSHIM_TEST_BUILD": str(args.build),
                                   "CUBLASLT_LOG_LEVEL": "1"})
        if done.returncode != 0:
            raise RuntimeError(f"exit code {done.returncode}")
    return json.load(open(f"{folder}/{name}.json"))


def make_inputs(args, folder):
    """Writes them, and returns what float64 makes of them, by form, N and K, for the most rows."""
    random, wants, m = numpy.random.default_rng(17), {}, max(args.rows)
    for dtype, (n, k) in itertools.product(sorted(set(map(type_of, args.forms))), args.shapes):
        values = {}
        for name, rows, columns, scale in (("w", n, k, 0.02), ("x", m, k, 1), ("bias", 1, n, 1), ("addend", m, n, 1)):
            bits = to_bits(scale * random.standard_normal((rows, columns), numpy.float32), dtype)
            bits.tofile(folder / f"{name}_{dtype}_{n}_{k}")
            values[name] = from_bits(bits, dtype)
        product = values["x"] @ values["w"].T
        for form in args.forms:
            if type_of(form) == dtype:
                more = values["bias"] if form.endswith("bias") else values["addend"] if form.endswith("add") else 0
                wants[form, n, k] = product + more
    return wants


def to_bits(values, dtype):
    if dtype == "fp16":
        return values.astype(numpy.float16).view(numpy.uint16)
    bits = values.view(numpy.uint32)
    return ((bits + 0x7fff + (bits >> 16 & 1)) >> 16).astype(numpy.uint16)  # to the nearest bfloat16, ties to even


def from_bits(bits, dtype):
    if dtype == "fp16":
        return bits.view(numpy.float16).astype(numpy.float64)
    return (bits.astype(numpy.uint32) << 16).view(numpy.float32).astype(numpy.float64)


def errors_of(path, want, dtype):
    error = numpy.abs(from_bits(numpy.fromfile(path, numpy.uint16), dtype).reshape(want.shape) - want)
    error[numpy.isnan(error)] = numpy.inf
    return error.mean(), error.max()


def places(products):
    """By kind of kernel and its parameters' sizes: at which byte of which parameter all of its products hold what is known of them."""
    found = collections.defaultdict(lambda: (set(), []))
    for name, product in products.items():
        n, k, m = map(int, name.split("_")[1:])
        kernels = product.get("kernels", [])
        splits = next((int.from_bytes(bytes.fromhex(values[0][1])[40:44], "little") for kernel, values in kernels if "splitKreduce" in kernel), 1)
        ints = {"M": m, "N": n, "K": k, "M-1": m - 1, "N-1": n - 1, "K-1": k - 1, "M*N": m * n, "K/splits": k // max(splits, 1), "1.0": 0x3f800000}
        for kernel, values in kernels:
            values = [bytes.fromhex(value) for _, value in values]
            kind = re.sub(r"\d+x\d+_\d+x\d+_\d+x\d+_[hv]", "*", kernel)[:60], tuple(map(len, values))
            holds = set()
            for arg, value in enumerate(values):
                for at in range(0, len(value) - 3, 4):
                    word, address = int.from_bytes(value[at:at + 4], "little"), int.from_bytes(value[at:at + 8], "little")
                    holds |= {(what, arg, at) for what, own in ints.items() if word == own}
                    holds |= {(what, arg, at) for what, own in product["pointers"].items() if address == own}
                    if 0 < address - product["pointers"]["workspace"] < 32 << 20:
                        holds.add(("in the workspace", arg, at))
            found[kind][0].add(kernel)
            found[kind][1].append(holds)
    for (kind, sizes), (kernels, holds) in sorted(found.items()):
        by_what = collections.defaultdict(list)
        for what, arg, at in sorted(set.intersection(*holds), key=lambda place: place[1:]):
            by_what[what].append(str(at) if len(sizes) == 1 else f"{arg}:{at}")
        yield f"{kind} {list(sizes)}, {len(kernels)} kernels, {len(holds)} products: " + "; ".join(
            f"{what} at {' '.join(at)}" for what, at in by_what.items())


def compare(args, library, folder, wants):
    config = args.build / "config/cublas"
    own = side(args, library, folder, "own", [])
    ours = side(args, library, folder, "ours", [args.build / "bin/fibshim", "run", "-c", config, "--"])
    version = own["version"]
    print(f"# {library}: version {version}", flush=True)
    if args.dump:
        args.dump.mkdir(parents=True, exist_ok=True)
        json.dump(own, open(args.dump / f"cublas-{version}.json", "w"))
    for line in places(own["products"]):
        print(f"#   {line}")
    replaced, fallbacks = 0, collections.Counter()
    for name, before in own["products"].items():
        after = ours["products"][name]
        form, (n, k, m) = name.split("_")[0], map(int, name.split("_")[1:])
        want = wants[form, n, k][:m]
        title = f"cublas_versions.{version}.{form}.n{n}.k{k}.m{m}"
        problem = before.get("problem") or after.get("problem")
        if problem:
            print(f"FAIL {title}: {problem}; kernels {[kernel for kernel, _ in before.get('kernels', [])]}")
            continue
        limits = [max(pair) for pair in zip(*(errors_of(folder / f"y_{name}_{how}_own", want, type_of(form)) for how in ("once", "graph")))]
        errors = [errors_of(folder / f"y_{name}_{how}_ours", want, type_of(form)) for how in ("once", "graph")]
        is_own_right = limits[0] <= numpy.abs(want).mean() / 256
        is_right = all(mean <= 1.01 * limits[0] and largest <= 2 * limits[1] for mean, largest in errors)
        for how in ("once", "graph"):
            for what, count in after[how].items():
                definition, outcome = what.split(" ")
                replaced += count if outcome in ("hit", "absorbed") else 0
                if outcome not in ("hit", "absorbed"):
                    fallbacks[f"{definition} {outcome}"] += count
        kernels = " + ".join(re.sub(r"_ZN8cublasLt19(splitKreduce)_kernel.*", r"\1", kernel)[:70] for kernel, _ in before["kernels"])
        print(f"{'PASS' if is_own_right and is_right else 'FAIL'} {title}: {kernels}; largest error {limits[1]:.3e}, with the folder "
              f"{errors[0][1]:.3e}, in a graph {errors[1][1]:.3e} (mean {limits[0]:.3e}, {errors[0][0]:.3e}, {errors[1][0]:.3e}); "
              f"once {after['once']}, graph {after['graph']}", flush=True)
    if replaced:
        print(f"PASS cublas_versions.{version}: {replaced} replaced; left: {dict(fallbacks)}")
    else:
        print(f"SKIP cublas_versions.{version}: the folder replaces none of its kernels; left: {dict(fallbacks)}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("libraries", type=pathlib.Path, nargs="*")
    parser.add_argument("--rows", type=lambda text: [int(m) for m in text.split(",")], default=list(ROWS))
    parser.add_argument("--shapes", default=list(SHAPES), help="only these: N,K N,K...",
                        type=lambda text: [tuple(map(int, shape.split(","))) for shape in text.split()])
    parser.add_argument("--forms", type=lambda text: text.split(","), default=["plain"])
    parser.add_argument("--dump", type=pathlib.Path)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--side", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        return child(args)
    args.build = args.build.resolve()
    if not args.libraries:
        packages = importlib.util.find_spec("nvidia").submodule_search_locations
        args.libraries = [path for package in packages for path in pathlib.Path(package).glob("*/lib/libcublasLt.so.*")]
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        wants = make_inputs(args, folder)
        for library in args.libraries:
            try:
                compare(args, library.resolve(), folder, wants)
            except (OSError, RuntimeError) as error:
                print(f"FAIL cublas_versions {library}: {error}", flush=True)
    return 0


sys.exit(main())
